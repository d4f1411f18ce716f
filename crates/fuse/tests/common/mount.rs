//! Mounting the tests' filesystem.

use super::{Manner, MemFs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vellum_fuse::{MountOptions, Session, SessionHandle, SessionOptions, mount};
use vellum_vfs::{Errno, Profile, Result};

/// A filesystem that is mounted; dropping it unmounts and checks that everything was given back.
pub(crate) struct Mount {
    pub(crate) fs: Arc<MemFs>,
    pub(crate) handle: SessionHandle,
    thread: Option<JoinHandle<Result<()>>>,
    dir: tempfile::TempDir,
}

impl Mount {
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Waits until the session has ended by itself.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.fs.set_gate(true);
        let Some(thread) = self.thread.take() else { return };
        if !std::thread::panicking() {
            // Before the end: what is closed is released behind the closer's back, and not at all after an unmount.
            wait_for("backing ids to be closed", || self.handle.backed_nodes() == 0);
        }
        // The kernel sends RELEASE before it lets go of the mount, which is busy for that moment.
        let begin = Instant::now();
        while let Err(error) = self.handle.unmount(false) {
            if begin.elapsed() > PATIENCE || std::thread::panicking() {
                self.handle.unmount(true).unwrap();
                assert!(std::thread::panicking(), "unmount: {error}");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        thread.join().unwrap().unwrap();
        if !std::thread::panicking() {
            assert!(self.fs.seen.stopped.load(Ordering::Relaxed));
        }
    }
}

/// Why tests that mount cannot run here; None: they can.
pub(crate) fn obstacle() -> Option<String> {
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    None
}

/// Mounts with these options, or says loudly that the test is left out.
pub(crate) fn mount_with(manner: Manner, options: SessionOptions) -> Option<Mount> {
    if let Some(why) = obstacle() {
        println!("SKIPPED: {why}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = MemFs::new(manner);
    let mount_options = MountOptions {
        allow_other: true,
        dev: true,
        suid: true,
        default_permissions: options.default_permissions,
        source: "memory, for tests".into(),
        ..MountOptions::default()
    };
    let mounted = mount(dir.path(), &mount_options).unwrap();
    let session = Session::new(Arc::clone(&fs), mounted, options).unwrap();
    let (handle, thread) = session.spawn().unwrap();
    Some(Mount { fs, handle, thread: Some(thread), dir })
}

/// The cached profile, without opens.
pub(crate) fn cached() -> Option<Mount> {
    let manner = Manner {
        no_open: true,
        ttl: Duration::from_secs(3600),
        negative_ttl: Duration::from_secs(3600),
        ..Manner::default()
    };
    mount_with(manner, SessionOptions::default())
}

/// The passthrough profile, with files backed by real ones below `backing`.
pub(crate) fn passthrough(backing: &Path) -> Option<Mount> {
    let manner =
        Manner { backing: Some(backing.into()), ttl: Duration::from_secs(3600), ..Manner::default() };
    mount_with(manner, SessionOptions { profile: Profile::Passthrough, ..SessionOptions::default() })
}

/// The errno of a call that must have failed.
pub(crate) fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_raw_os_error(result.unwrap_err().raw_os_error().unwrap())
}

/// Longest time for anything that is waited for. Only a failure waits so long, so a busy machine is given what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something has come true.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
