//! Files that programs run from.

use crate::harness::Cx;
use crate::harness::outcome::{Outcome, ensure_eq, skip};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A program that runs is not cut, also not by an open that only reads otherwise, of which the kernel finds out too late.
pub(super) fn is_not_cut(cx: &Cx) -> Outcome {
    let layers = cx.layers("l", 1)?;
    fs::write(layers.lower().join("plain"), "text")?;
    let mount = cx.mount(&layers)?;
    let sleep = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find(|path| Path::new(path).exists());
    let Some(sleep) = sleep else { return skip("sleep is missing") };
    let path = mount.path("sleep");
    fs::copy(sleep, &path)?;
    let len = fs::metadata(&path)?.len();
    let cut = |path: &Path| {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::TRUNC | OFlags::CLOEXEC, Mode::empty()).map(drop)
    };
    let mut running = Command::new(&path).arg("60").stdin(Stdio::null()).spawn()?;
    let (said, now) = (cut(&path), fs::metadata(&path)?.len());
    let runs = running.try_wait()?.is_none();
    running.kill()?;
    running.wait()?;
    ensure_eq!(
        (said, now, runs),
        (Err(Errno::TXTBSY), len, true),
        "an open that cuts, the length, still running"
    );
    // The kernel says some time after its end that nobody has it open.
    let begin = Instant::now();
    while cut(&path) == Err(Errno::TXTBSY) && begin.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(5));
    }
    ensure_eq!(fs::metadata(&path)?.len(), 0, "cut when it does not run any more");
    cut(&mount.path("plain"))?;
    ensure_eq!(fs::read(mount.path("plain"))?, b"", "a lower file that cannot be run");
    Ok(())
}
