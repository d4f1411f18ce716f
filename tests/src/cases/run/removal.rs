//! A container's tree is removed while somebody else has it open and changes it.

use super::support::{PATIENCE, Runs, names};
use crate::harness::Cx;
use crate::harness::outcome::{Outcome, ensure_eq, fail};
use rustix::fs::{AtFlags, Mode, RenameFlags, mkdirat, renameat_with, statat, symlinkat};
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Pairs of a directory and a link.
const PAIRS: u32 = 300;

/// Somebody has the container's own root open, and puts links out of the tree where directories are, all the time. Nothing outside is
/// touched, and the tree ends for all before anything of it is removed.
pub(super) fn changed(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let victim = cx.dir.join("victim");
    for number in 0..20 {
        fs::create_dir_all(victim.join(format!("important{number}/inner")))?;
    }
    let before = names(&victim)?;
    let word = "changed-while-removed";
    let line = format!("trap 'exit 5' TERM; echo ready; while test -n {word}; do sleep 0.1; done");
    let mut started = runs.start(&["sh", "-c", &line])?;
    let root = root_of(&runs, word)?;
    for number in 0..PAIRS {
        mkdirat(&root, format!("s{number}"), Mode::RWXU)?;
        mkdirat(&root, format!("s{number}/inner"), Mode::RWXU)?;
        symlinkat(&victim, &root, format!("l{number}"))?;
    }
    let done = AtomicBool::new(false);
    let status = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                for number in 0..PAIRS {
                    let (one, other) = (format!("s{number}"), format!("l{number}"));
                    let _ = renameat_with(&root, &one, &root, &other, RenameFlags::EXCHANGE);
                }
            }
        });
        let status = started.signal(Signal::TERM).and_then(|()| Ok(started.0.wait()?.code()));
        done.store(true, Relaxed);
        status
    })?;
    ensure_eq!(status, Some(5), "exit status");
    ensure_eq!(names(&victim)?, before, "directories outside of the tree");
    runs.check_no_leftovers()?;
    let after = statat(&root, "s0", AtFlags::SYMLINK_NOFOLLOW).map(|_| ());
    ensure_eq!(after, Err(Errno::NOTCONN), "the tree, for who still has it open");
    Ok(())
}

/// The root of the container that runs a shell whose script has `word` in it, as the container itself sees it.
fn root_of(runs: &Runs<'_>, word: &str) -> Outcome<File> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        for name in names(Path::new("/proc"))? {
            let proc = Path::new("/proc").join(name);
            let line = fs::read(proc.join("cmdline")).unwrap_or_default();
            let table = fs::read_to_string(proc.join("mountinfo")).unwrap_or_default();
            // The runtime and `vellum run` have the same word on their command lines, and another root.
            let own = table.lines().any(|line| line.contains(" / / ") && line.contains("fuse.vellum"));
            if own && String::from_utf8_lossy(&line).contains(word) {
                return Ok(File::open(proc.join("root"))?);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    fail(format!("no container of {} runs", runs.image.display()))
}
