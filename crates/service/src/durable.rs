//! Making durable what was written in a mount: what syncfs(2) does on other filesystems.
//!
//! The kernel (6.18) passes syncfs(2), and sync(2), on to no FUSE server but virtiofs and those of a block device. It begins to
//! write its own pages back, and does not even wait for that. So who wants to be sure waits here until all of them have come, and
//! then asks the service.

use crate::Failure;
use crate::instance::{SYNC, WRITES};
use rustix::fs::{Mode, OFlags, fgetxattr, open, syncfs};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two looks at what has come.
const PAUSE: Duration = Duration::from_millis(2);

/// So many looks in a row that find nothing new and nothing under way. One would do, but for a write that a worker has taken and not
/// counted yet: the kernel keeps requests of one queue in their order, and has some of its pages with the service as long as it has
/// any to write.
const QUIET: u32 = 5;

/// Where others write on and on, it is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes durable what has been written so far in the mount in which `path` lies. On a mount with `volatile` nothing happens.
pub fn sync(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let failed = |e: Errno| Failure::system(format!("{shown}")).because(e);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match open(path, flags, Mode::empty()) {
        // What a file is need not be opened: there are devices.
        Err(Errno::NOTDIR) => {
            let whole = path.canonicalize().map_err(|e| Failure::input(format!("{shown}")).because(e))?;
            open(whole.parent().unwrap_or(Path::new("/")), flags, Mode::empty())
        }
        other => other,
    };
    let dir = dir.map_err(|e| Failure::input(format!("{shown}")).because(e))?;
    writes(&dir).map_err(|e| match e {
        Errno::NODATA | Errno::OPNOTSUPP => {
            Failure::input(format!("{shown}: not in a vellum mount; for other filesystems there is sync -f"))
        }
        Errno::NOTCONN => {
            Failure::system(format!("{shown}: the mount's service has died; run vellum umount on it"))
        }
        e => failed(e),
    })?;
    syncfs(&dir).map_err(failed)?;
    if !settle(&dir).map_err(failed)? {
        return Err(Failure::system(format!(
            "{shown}: others have written all the time, for {} s; not all of it is on disk",
            PATIENCE.as_secs()
        )));
    }
    fgetxattr(&dir, SYNC, &mut [0_u8; 8]).map_err(failed)?;
    Ok(())
}

/// Waits until the kernel has passed on all that it had to write. False: it does not end.
fn settle(dir: &OwnedFd) -> Result<bool, Errno> {
    let begin = Instant::now();
    let (mut before, mut quiet) = (writes(dir)?, 0);
    while quiet < QUIET {
        std::thread::sleep(PAUSE);
        let now = writes(dir)?;
        let [begun, done] = now;
        quiet = if now == before && begun == done { quiet + 1 } else { 0 };
        before = now;
        if begin.elapsed() > PATIENCE {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How many writes have come to the service, and how many it is done with.
fn writes(dir: &OwnedFd) -> Result<[u64; 2], Errno> {
    let mut answer = [0_u8; 16];
    let len = fgetxattr(dir, WRITES, &mut answer)?;
    let (numbers, _) = answer.get(..len).unwrap_or_default().as_chunks::<8>();
    match numbers {
        [begun, done] => Ok([u64::from_ne_bytes(*begun), u64::from_ne_bytes(*done)]),
        _ => Err(Errno::NODATA),
    }
}
