//! Files that programs run from.

use crate::harness::outcome::{Outcome, ensure_eq, skip};
use crate::harness::{Cx, PATIENCE};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Large enough for a file that is copied up block by block.
const LARGE: u64 = 4 << 20;

/// A program that runs is not cut, also not by an open that only reads otherwise, of which the kernel finds out too late: neither a whole file
/// nor a partial one.
pub(super) fn refuses_truncation(cx: &Cx) -> Outcome {
    let sleep = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find(|path| Path::new(path).exists());
    let Some(sleep) = sleep else { return skip("sleep is missing") };
    let layers = cx.layers("l", 1)?;
    fs::write(layers.lower().join("plain"), "text")?;
    let large = layers.lower().join("large");
    fs::copy(sleep, &large)?;
    fs::OpenOptions::new().write(true).open(&large)?.set_len(LARGE)?;
    let mount = cx.mount(&layers)?;
    let path = mount.path("sleep");
    fs::copy(sleep, &path)?;
    runs_on(&path)?;
    let path = mount.path("large");
    fs::OpenOptions::new().write(true).open(&path)?.write_all_at(b"changed", LARGE - 100)?;
    runs_on(&path)?;
    cut(&mount.path("plain"))?;
    ensure_eq!(fs::read(mount.path("plain"))?, b"", "a lower file that cannot be run");
    Ok(())
}

fn cut(path: &Path) -> rustix::io::Result<()> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::TRUNC | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

/// A program that waits is not cut while it runs, and can be cut afterwards.
fn runs_on(path: &Path) -> Outcome {
    let len = fs::metadata(path)?.len();
    let mut running = Command::new(path).arg("60").stdin(Stdio::null()).spawn()?;
    let (said, now) = (cut(path), fs::metadata(path)?.len());
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
    while cut(path) == Err(Errno::TXTBSY) && begin.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
    ensure_eq!(fs::metadata(path)?.len(), 0, "cut when it does not run any more");
    Ok(())
}
