//! Containers are listed, and one whose `vellum run` was killed is ended.

use super::support::Runs;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

/// Name, state and first process of a container.
type ContainerLine = (String, String, u64);

/// `vellum ps` and `vellum rm` of the containers of a case.
struct ListRuns<'a>(&'a Runs<'a>);

impl ListRuns<'_> {
    fn command(&self, word: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.0.program);
        command.arg(word).arg("--state").arg(&self.0.state).args(arguments);
        command
    }

    fn ps(&self) -> Outcome<Vec<ContainerLine>> {
        let said = shell::run(&mut self.command("ps", &["--json"]))?;
        let value: serde_json::Value =
            serde_json::from_str(&said).or_else(|e| fail(format!("{e}: {said}")))?;
        let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
        let all = value.as_array().cloned().unwrap_or_default();
        Ok(all
            .iter()
            .map(|one| (text(one, "name"), text(one, "state"), one["pid"].as_u64().unwrap_or(0)))
            .collect())
    }
}

/// With either runtime: who was killed leaves a container that goes on. It is listed, and ended with its mount.
pub(super) fn listed(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    shell::refused(&mut ListRuns(&runs).command("ps", &[]), "--state")?;
    ensure!(!runs.state.exists(), "a question has made {}", runs.state.display());
    by(&runs, "runc")?;
    let unified = Path::new("/sys/fs/cgroup/unified");
    if unified.is_dir() {
        // As in run/crun.
        shell::run(&mut shell::words("mount -t tmpfs tmpfs /sys/fs/cgroup/unified"))?;
    }
    by(&runs, "crun")
}

fn by(runs: &Runs<'_>, runtime: &str) -> Outcome {
    let others = ListRuns(runs);
    let line = "echo ready; while :; do sleep 0.1; done";
    let start = |name| runs.start(&["--runtime", runtime, "--name", name, "sh", "-c", line]);
    let victim = start("victim")?;
    let mut alive = start("alive")?;
    let seen = others.ps()?;
    let shown: Vec<_> = seen.iter().map(|(name, state, _)| (name.as_str(), state.as_str())).collect();
    ensure_eq!(shown, [("alive", "running"), ("victim", "running")], "what {runtime} runs");
    let processes: Vec<_> =
        seen.iter().map(|(.., process)| Path::new("/proc").join(process.to_string())).collect();
    ensure!(processes.iter().all(|process| process.is_dir()), "{runtime}: {seen:?}");
    for name in ["victim", "alive", "nobody", "a/b"] {
        shell::refused(&mut others.command("rm", &[name]), name)?;
    }
    victim.signal(Signal::KILL)?;
    drop(victim);
    let left = others.ps()?;
    ensure_eq!(left.get(1).map(|one| one.1.as_str()), Some("no manager"), "{runtime}: {left:?}");
    ensure_eq!(left.get(1).map(|one| one.2), seen.get(1).map(|one| one.2), "{runtime}: its first process");
    shell::run(&mut others.command("rm", &["victim"]))?;
    ensure_eq!(others.ps()?, seen.iter().take(1).cloned().collect::<Vec<_>>(), "{runtime}: what is left");
    ensure_eq!(
        processes.iter().map(|process| process.is_dir()).collect::<Vec<_>>(),
        [true, false],
        "processes"
    );
    shell::run(&mut others.command("rm", &["--force", "alive"]))?;
    ensure_eq!(alive.0.wait()?.code(), Some(137), "{runtime}: exit status");
    ensure_eq!(others.ps()?, [], "{runtime}: what is left");
    runs.check_no_leftovers()
}
