//! Making durable what was written in a mount: what syncfs(2) does on other filesystems.
//!
//! The kernel (6.18) passes syncfs(2), and sync(2), on to no FUSE server but virtiofs and those of a block device. It begins to
//! write its own pages back, and does not even wait for that. So who wants to be sure waits here until all of them have come, and
//! then asks the service.

use crate::Failure;
use crate::instance::{SYNC, WRITES};
use rustix::fs::{Mode, OFlags, fgetxattr, fstat, open, openat, syncfs};
use rustix::io::{Errno, read};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two looks at what has come.
const PAUSE: Duration = Duration::from_millis(2);

/// So many looks in a row that find nothing new and nothing under way. A write that a worker has taken and not counted yet is not seen by
/// that, and on a busy machine a worker may wait for a processor between the two. The kernel, where it tells, counts it until it is answered: when that has
/// nothing under way at all, two looks are enough, the second one for a write that waited for a file to be cut.
const QUIET: u32 = 2;
/// Where the kernel does not tell, or has others' requests all the time: for longer than a worker waits for a processor.
const QUIET_UNSURE: u32 = 50;

/// Where others write on and on, it is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nor longer than this, where that is no failure.
const SHORT: Duration = Duration::from_secs(2);

/// Makes durable what has been written so far in the mount in which `path` lies. On a mount with `volatile` nothing happens.
pub fn sync(path: &Path) -> Result<(), Failure> {
    let dir = flush_within_patience(path)?;
    let asked = fgetxattr(&dir, SYNC, &mut [0_u8; 8]);
    asked.map(|_| ()).map_err(|e| Failure::at(path, e))
}

/// Has the kernel hand over to the service what has been written so far in the mount in which `path` lies. Then it is in the upper layer,
/// and may not be on disk yet.
pub fn flush(path: &Path) -> Result<(), Failure> {
    flush_within_patience(path).map(|_| ())
}

/// As [`flush`], while others go on writing: the kernel begins to hand over all of it, and 2 seconds later at the latest it is not waited for any more.
pub fn flush_ahead(path: &Path) -> Result<(), Failure> {
    begun(path, SHORT).map(|_| ())
}

fn flush_within_patience(path: &Path) -> Result<OwnedFd, Failure> {
    let (dir, all) = begun(path, PATIENCE)?;
    if !all {
        return Err(Failure::system(format!(
            "{}: others have written all the time, for {} s; not all of it is on disk",
            path.display(),
            PATIENCE.as_secs()
        )));
    }
    Ok(dir)
}

/// Has it handed over, and waits so long for it: whether all of it is.
fn begun(path: &Path, patience: Duration) -> Result<(OwnedFd, bool), Failure> {
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
    let all = wait_for_writeback(&dir, patience).map_err(failed)?;
    Ok((dir, all))
}

/// Waits until the kernel has passed on all that it had to write. False: it does not end.
fn wait_for_writeback(dir: &OwnedFd, patience: Duration) -> Result<bool, Errno> {
    let unanswered = RequestCount::of_mount(dir).ok();
    let begin = Instant::now();
    let (mut before, mut quiet, mut sure) = (writes(dir)?, 0, 0);
    while sure < QUIET && quiet < QUIET_UNSURE {
        std::thread::sleep(PAUSE);
        let now = writes(dir)?;
        let [begun, done] = now;
        quiet = if now == before && begun == done { quiet + 1 } else { 0 };
        let is_sure = quiet > 0 && unanswered.as_ref().is_some_and(RequestCount::is_none);
        sure = if is_sure { sure + 1 } else { 0 };
        before = now;
        if begin.elapsed() > patience {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where the kernel counts the requests of a mount that are not answered. It need not be mounted anywhere.
struct RequestCount {
    all: OwnedFd,
    file: String,
}

impl RequestCount {
    /// EPERM: not for this user. ENODEV: it does not tell.
    fn of_mount(mount: &OwnedFd) -> Result<Self, Errno> {
        let number = rustix::fs::minor(fstat(mount)?.st_dev);
        let all = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(all.as_fd())?;
        let all = fsmount(all.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        Ok(Self { all, file: format!("{number}/waiting") })
    }

    fn is_none(&self) -> bool {
        let mut count = [0; 8];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        // Each open reads it once.
        let len = openat(&self.all, &self.file, flags, Mode::empty()).and_then(|file| read(file, &mut count));
        len.is_ok_and(|len| count.get(..len).is_some_and(|count| count.trim_ascii() == b"0"))
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{FaultBranch, FaultPlan};
    use crate::instance::Instance;
    use crate::instance::inspect::InstanceReport;
    use std::fs::File;
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::thread;
    use vellum_branch::MemoryBranch;
    use vellum_fuse::{MountOptions, Session, SessionHandle, SessionOptions, mount};
    use vellum_union::{Union, UnionConfig, UpperConfig};

    /// Longer than a sync takes here that waits for nothing.
    const LONG: Duration = Duration::from_millis(700);

    /// A tree in memory, mounted; dropping it unmounts.
    struct Mounted {
        plan: Arc<FaultPlan>,
        handle: SessionHandle,
        dir: tempfile::TempDir,
        /// Answers the questions.
        _instance: Arc<Instance>,
    }

    impl Mounted {
        /// None: one cannot mount here, which is said.
        fn new() -> Option<Self> {
            let may = File::options().read(true).write(true).open("/dev/fuse").is_ok();
            if !may || !rustix::process::geteuid().is_root() {
                println!("SKIPPED: mounting needs root and /dev/fuse");
                return None;
            }
            let (disk, plan) = (MemoryBranch::new(), FaultPlan::new());
            let branch = |at: &str| FaultBranch::new(disk.subtree(at).unwrap(), Arc::clone(&plan));
            let mut config = UnionConfig::new();
            config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
            config.lowers = vec![branch("lower")];
            let tree = Arc::new(Union::new(config).unwrap());
            let dir = tempfile::tempdir().unwrap();
            let mounted = mount(dir.path(), &MountOptions::default()).unwrap();
            // With write-back the kernel would wait by itself: for the times of the file, which are set after its data.
            let options =
                SessionOptions { slow_xattr: Some(SYNC), writeback: false, ..SessionOptions::default() };
            let session = Session::new(Arc::clone(&tree), mounted, options).unwrap();
            let instance = Instance::new(tree, session.handle(), InstanceReport::default()).into_questions();
            let (handle, _) = session.spawn().unwrap();
            Some(Self { plan, handle, dir, _instance: instance })
        }

        /// A write that has come to the service, and that ends when something is sent.
        fn write_under_way(&self, gate: Receiver<()>) -> thread::JoinHandle<()> {
            let mut file = File::create(self.dir.path().join("file")).unwrap();
            let (say, entered) = channel();
            self.plan.before_change(0, move || {
                say.send(()).unwrap();
                let _ = gate.recv();
            });
            let write = thread::spawn(move || file.write_all(&[1; 8192]).unwrap());
            entered.recv().unwrap();
            write
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = self.handle.unmount(true);
        }
    }

    #[test]
    fn a_sync_waits_for_a_write_under_way() {
        let Some(mounted) = Mounted::new() else { return };
        let (open, gate) = channel();
        let write = mounted.write_under_way(gate);
        assert_eq!(mounted.handle.writes(), [1, 0]);
        let unanswered = RequestCount::of_mount(&File::open(mounted.dir.path()).unwrap().into()).unwrap();
        assert!(!unanswered.is_none(), "a write is under way");
        let (say, synced) = channel();
        let path = mounted.dir.path().to_path_buf();
        thread::spawn(move || say.send(sync(&path).map_err(|e| e.to_string())));
        let early = synced.recv_timeout(LONG);
        open.send(()).unwrap();
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "synced, and a write was under way");
        assert_eq!(synced.recv().unwrap(), Ok(()));
        write.join().unwrap();
        assert_eq!(mounted.handle.writes(), [1, 1]);
        // The file is being closed.
        while !unanswered.is_none() {
            thread::yield_now();
        }
    }
}
