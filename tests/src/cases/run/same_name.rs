//! Containers of one name, kept in different directories.

use super::support::Runs;
use crate::harness::Cx;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, skip};
use rustix::process::Signal;
use std::fs;

/// The control groups of the only container of this name.
fn groups(runs: &Runs<'_>) -> Outcome<Vec<String>> {
    let dir = runs.state.join("containers/same");
    let mut all = Vec::new();
    for run in fs::read_dir(dir)? {
        let said = fs::read_to_string(run?.path().join("merged/srv/group"))?;
        all.extend(said.lines().filter(|line| line.contains("same")).map(str::to_owned));
    }
    Ok(all)
}

/// Each has a control group of its own: what ends one of them, or takes away what is left of it, leaves the other one alone.
pub(super) fn same_name(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let other = runs.elsewhere(cx.dir.join("other"));
    let line =
        "trap 'exit 5' TERM; cat /proc/self/cgroup >/srv/group; echo ready; while :; do sleep 0.1; done";
    let start = |runs: &Runs<'_>| runs.start(&["--runtime", "runc", "--name", "same", "sh", "-c", line]);
    let (mut one, two) = (start(&runs)?, start(&other)?);
    let (of_one, of_two) = (groups(&runs)?, groups(&other)?);
    if of_one.is_empty() {
        return skip("no control groups are made here");
    }
    ensure!(of_one.iter().all(|group| !of_two.contains(group)), "both are in {of_one:?}");
    two.signal(Signal::KILL)?;
    drop(two);
    // The next one there takes away what is left.
    other.run(&["true"])?;
    ensure!(one.0.try_wait()?.is_none(), "the other one has ended, too");
    one.signal(Signal::TERM)?;
    ensure_eq!(one.0.wait()?.code(), Some(5), "exit status");
    runs.check_no_leftovers()
}
