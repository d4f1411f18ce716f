//! Layers on CephFS, in the cluster that the environment names (`CEPH_CONF`, as in `scripts/ceph-local`).
//!
//! Vellum reaches them by itself. For all others they are shown by ceph-fuse, mounted anew before each measurement, so that all begin
//! with a client that knows nothing; one for all mounts of a task. Uppers are on this host, or there too.

use crate::failure::{Failure, Result, While};
use crate::stop;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The file that says so to processes that work in a place.
const NOTE: &str = "cephfs.json";
/// Where ceph-fuse is mounted.
const MOUNT: &str = "cephfs";
/// What it says.
const SAID: &str = "cephfs.said";
/// How long it may take to mount, its mount may stay busy, and it may take to end afterwards.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Which layers lie on CephFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
pub enum Far {
    /// Lower ones.
    Lower,
    /// Lower ones, uppers and their work directories.
    Both,
}

/// The part of a place that lies on CephFS.
#[derive(Debug)]
pub(crate) struct Ceph {
    pub(crate) far: Far,
    /// Where ceph-fuse is mounted.
    mount: PathBuf,
    /// The place's directory in it.
    pub(crate) dir: PathBuf,
    /// The ceph-fuse that shows it, where that is ours.
    client: Mutex<Option<Client>>,
    ours: bool,
}

/// A ceph-fuse in the foreground. It never outlives this process, however that ends, and is gone when this is dropped: one that has not
/// said goodbye when its cluster ends waits for that for ever.
#[derive(Debug)]
struct Client(Child);

impl Client {
    /// Starts one. The kernel kills it with the thread that does so, which is the process's first.
    fn start(mount: &Path, said: &Path) -> Result<Self> {
        let said = fs::File::create(said).doing(|| "making a file for messages")?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "ceph-fuse", "-f"]).arg(mount);
        // A Ctrl-C is for this process, which unmounts it when nobody works in it any more.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        command.spawn().map(Self).doing(|| "setpriv ceph-fuse")
    }

    /// How it has ended, where it has.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.0.try_wait().doing(|| "looking for ceph-fuse")
    }

    /// Waits until it has ended by itself, for so long at most; whether it has.
    fn ends_within(&mut self, patience: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < patience {
            if self.ended().is_ok_and(|ended| ended.is_some()) {
                return true;
            }
            std::thread::sleep(PAUSE);
        }
        false
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ceph {
    /// Makes it, for a place at `top`.
    pub(crate) fn make(top: &Path, name: &Path, far: Far) -> Result<Self> {
        let mount = top.join(MOUNT);
        let ceph = Self { far, dir: mount.join(name), mount, client: Mutex::default(), ours: true };
        let text = serde_json::to_vec(&(far, &ceph.dir)).doing(|| "a note")?;
        fs::write(top.join(NOTE), text).doing(|| "writing a note")?;
        fs::create_dir(&ceph.mount).doing(|| "making a mount point")?;
        ceph.begin()?;
        fs::create_dir(&ceph.dir).doing(|| "making a directory on CephFS")?;
        Ok(ceph)
    }

    /// That of another process's place, if it has one.
    pub(crate) fn of_another(top: &Path) -> Option<Self> {
        let text = fs::read(top.join(NOTE)).ok()?;
        let (far, dir) = serde_json::from_slice(&text).ok()?;
        Some(Self { far, dir, mount: top.join(MOUNT), client: Mutex::default(), ours: false })
    }

    /// What Vellum calls a path in it; None: it is not in it.
    pub(crate) fn called(mount: &Path, path: &Path) -> Option<String> {
        Some(format!("ceph:/{}", path.strip_prefix(mount).ok()?.display()))
    }

    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount
    }

    fn begin(&self) -> Result<()> {
        stop::register(&self.mount);
        let said = self.mount.with_file_name(SAID);
        let mut client = Client::start(&self.mount, &said)?;
        if let Err(failure) = self.mounted(&mut client, &said) {
            self.abandon(Some(client));
            return Err(failure);
        }
        *self.client() = Some(client);
        Ok(())
    }

    /// Returns when the client has mounted it and answers.
    fn mounted(&self, client: &mut Client, said: &Path) -> Result<()> {
        let start = Instant::now();
        // To ask for a mount's attributes is to wait for its first answer. One whose client has died has none.
        while !is_mount_point(&self.mount) {
            stop::check()?;
            let ended = client.ended()?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                let why = ended.map_or_else(|| "has mounted nothing".to_owned(), |status| status.to_string());
                let said = fs::read_to_string(said).unwrap_or_default();
                let last = said.lines().next_back().unwrap_or("no message");
                return Err(Failure::new(format!("ceph-fuse: {why}: {last}")));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn client(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the client and detaches its mount: whoever works there has an error from now on.
    fn abandon(&self, client: Option<Client>) {
        drop(client);
        let _ = unmount(&self.mount, UnmountFlags::DETACH);
        stop::unregister(&self.mount);
    }

    /// Unmounts it, and returns when its client is gone, in whatever way.
    fn end(&self) -> Result<()> {
        let mut client = self.client().take();
        let start = Instant::now();
        while let Err(error) = unmount(&self.mount, UnmountFlags::empty()) {
            if error == rustix::io::Errno::INVAL {
                break;
            }
            if start.elapsed() > PATIENCE {
                self.abandon(client);
                return Err(Failure::new(format!("{}: {error}", self.mount.display())));
            }
            std::thread::sleep(PAUSE);
        }
        stop::unregister(&self.mount);
        if client.as_mut().is_none_or(|client| client.ends_within(PATIENCE)) {
            Ok(())
        } else {
            Err(Failure::new("ceph-fuse has not ended after it was unmounted, and was killed"))
        }
    }

    /// Mounts it anew: nothing of what was read or written is known any more.
    pub(crate) fn begin_anew(&self) -> Result<()> {
        self.end()?;
        self.begin()
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        if let Err(error) = stop::remove(&self.dir) {
            eprintln!("vellum-bench: removing {}: {error}", self.dir.display());
        }
        if let Err(failure) = self.end() {
            eprintln!("vellum-bench: {failure}");
        }
    }
}

/// Whether something that answers is mounted there.
fn is_mount_point(at: &Path) -> bool {
    let device = |at: &Path| fs::metadata(at).map(|found| found.dev()).ok();
    device(at).is_some_and(|own| at.parent().and_then(device) != Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_names_for_vellum() {
        let mount = Path::new("/a/cephfs");
        assert_eq!(Ceph::called(mount, Path::new("/a/cephfs/b/lower")), Some("ceph:/b/lower".into()));
        assert_eq!(Ceph::called(mount, Path::new("/a/upper")), None);
    }

    #[test]
    fn places_without_a_note_have_no_part_there() {
        assert!(Ceph::of_another(Path::new("/nonexistent")).is_none());
    }
}
