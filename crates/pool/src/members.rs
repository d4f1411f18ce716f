//! The processes of a control group. A number that was read there may be another process's a moment later, so who is to get a signal is held first.

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Deepest control group below one.
const DEEPEST: usize = 16;
/// Processes of which handles are open at the same time.
const AT_ONCE: usize = 256;

/// Their numbers.
pub fn processes(group: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    let mut groups = vec![(group.to_owned(), 0)];
    while let Some((dir, depth)) = groups.pop() {
        let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = fs::read_dir(&dir).into_iter().flatten().flatten();
        let below =
            below.filter(|entry| depth < DEEPEST && entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.extend(below.map(|entry| (entry.path(), depth + 1)));
    }
    found
}

/// Calls `act` with each one and its handle.
pub fn each(group: &Path, act: &mut dyn FnMut(u32, &OwnedFd)) {
    for listed in processes(group).chunks(AT_ONCE) {
        let held: Vec<_> = listed.iter().filter_map(|process| Some((*process, handle(*process)?))).collect();
        // One that is listed still is what its handle is of, or its handle is of a dead one.
        let listed: BTreeSet<u32> = processes(group).into_iter().collect();
        held.iter()
            .filter(|(process, _)| listed.contains(process))
            .for_each(|(process, handle)| act(*process, handle));
    }
}

fn handle(process: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(process.cast_signed())?, PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_members_get_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let (mut one, own) = (Command::new("sleep").arg("60").spawn().unwrap(), std::process::id());
        // A number that nobody has, and one that is listed below.
        fs::write(dir.path().join("cgroup.procs"), format!("{}\n{}\n", one.id(), i32::MAX)).unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/cgroup.procs"), own.to_string()).unwrap();
        let mut seen = BTreeSet::new();
        each(dir.path(), &mut |process, _| {
            seen.insert(process);
        });
        assert_eq!(seen, BTreeSet::from([one.id(), own]));
        one.kill().unwrap();
        one.wait().unwrap();
    }
}
