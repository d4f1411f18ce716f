//! The processes that this one has started, and all that those have: daemons, too, which have left their parents.

use crate::failure::{Result, While};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// How often is looked for those that were just about to be started, and for those whose end takes a moment.
const ROUNDS: u32 = 50;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// From here on a process below this one that loses its parent is a child of this one.
pub fn adopt() -> Result<()> {
    set_child_subreaper(Some(getpid())).doing(|| "asking for orphans")
}

/// Takes note of the ends of adopted ones. Whoever was started here is waited for by others, and has this one's session; daemons have not.
pub fn reap() {
    let (own, all) = (getpid(), all());
    // None: it is another PID namespace's.
    let session = all.iter().find(|one| one.pid == own).and_then(|one| one.session);
    for one in all.iter().filter(|one| one.parent == Some(own) && one.has_ended && one.session != session) {
        // None: one of its threads lives.
        let _ = waitpid(Some(one.pid), WaitOptions::NOHANG);
    }
}

/// Kills all of them, and waits for their ends, but not for long: some wait for a mount that is still there.
pub(crate) fn kill() {
    for _ in 0..ROUNDS {
        let living = below(getpid(), &all());
        if living.is_empty() {
            break;
        }
        for pid in living {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(PAUSE);
    }
    reap();
}

/// Whether a process has not ended. One that nobody has taken note of has.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| ProcessEntry::read(&stat).is_some_and(|one| !one.has_ended))
}

/// A process, as /proc shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessEntry {
    pid: Pid,
    parent: Option<Pid>,
    session: Option<Pid>,
    has_ended: bool,
}

impl ProcessEntry {
    /// From proc_pid_stat(5).
    fn read(stat: &str) -> Option<Self> {
        // The name, in parentheses, may hold anything.
        let (pid, rest) = (stat.split(' ').next()?, stat.rsplit_once(')')?.1);
        let mut fields = rest.split_whitespace();
        let state = fields.next()?;
        let mut pids = fields.map(|field| field.parse().ok().and_then(Pid::from_raw));
        let (parent, _group, session) = (pids.next()?, pids.next()?, pids.next()?);
        Some(Self { pid: Pid::from_raw(pid.parse().ok()?)?, parent, session, has_ended: state == "Z" })
    }
}

fn all() -> Vec<ProcessEntry> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| ProcessEntry::read(&fs::read_to_string(entry.path().join("stat")).ok()?))
        .collect()
}

/// Those of `all` that live below `top`; parents come before their children.
fn below(top: Pid, all: &[ProcessEntry]) -> Vec<Pid> {
    let (mut found, mut next) = (Vec::new(), vec![top]);
    while let Some(parent) = next.pop() {
        for one in all.iter().filter(|one| one.parent == Some(parent)) {
            next.push(one.pid);
            found.extend((!one.has_ended).then_some(one.pid));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_entries_parse_with_any_name() {
        let one = ProcessEntry::read("7 (a) Z 9 (b) S 3 7 5 0 -1 4194560 120").unwrap();
        let pid = |pid| Pid::from_raw(pid);
        assert_eq!((Some(one.pid), one.parent, one.session), (pid(7), pid(3), pid(5)));
        assert!(
            !one.has_ended
                && ProcessEntry::read("8 (x) Z 7 8 5 0").unwrap().has_ended
                && ProcessEntry::read("").is_none()
        );
    }

    #[test]
    fn exactly_the_descendants_are_found() {
        let lines = [
            "2 (a) S 1 2 2",
            "3 (b) S 2 2 2",
            "4 (c) Z 2 2 2",
            "5 (d) S 4 2 2",
            "6 (e) S 1 6 6",
            "7 (f) S 0 0 0",
        ];
        let all: Vec<ProcessEntry> = lines.iter().map(|line| ProcessEntry::read(line).unwrap()).collect();
        let mut found: Vec<i32> = below(Pid::from_raw(2).unwrap(), &all)
            .into_iter()
            .map(|pid| pid.as_raw_nonzero().get())
            .collect();
        found.sort_unstable();
        assert_eq!(found, [3, 5]);
    }
}
