//! Layers on CephFS, in the cluster that the environment names (`CEPH_CONF`, as in `scripts/ceph-local`).
//!
//! Vellum reaches them by itself. For all others they are shown by ceph-fuse, mounted anew before each measurement, so that all begin
//! with a client that knows nothing; one for all mounts of a task, or one for each of its tenants. Uppers are on this host, or there too.

use crate::descendants;
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::service::Service;
use crate::testbed::Layers;
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
/// How long it may take to mount, its mount may stay busy, and it may take to end afterwards.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// How long it may take to remove what was made there.
const CLEARING: Duration = Duration::from_secs(600);

/// Which layers lie on CephFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
pub enum CephLayers {
    /// Lower ones.
    Lower,
    /// Lower ones, uppers and their work directories.
    Both,
}

/// The part of a place that lies on CephFS.
#[derive(Debug)]
pub(crate) struct Ceph {
    pub(crate) far: CephLayers,
    /// What shows it here.
    shown: CephMount,
    /// The place's directory there.
    pub(crate) dir: PathBuf,
    ours: bool,
}

/// A ceph-fuse in the foreground. It never outlives this process, however that ends, and is gone when this is dropped: one that has not
/// said goodbye when its cluster ends waits for that for ever.
#[derive(Debug)]
struct Client(Child);

impl Client {
    /// Starts one. The kernel kills it with the thread that does so, which is there until the end.
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
    pub(crate) fn make(top: &Path, name: &Path, far: CephLayers) -> Result<Self> {
        let mount = top.join(MOUNT);
        let ceph = Self { far, dir: mount.join(name), shown: CephMount::at(mount), ours: true };
        let text = serde_json::to_vec(&(far, &ceph.dir)).doing(|| "a note")?;
        fs::write(top.join(NOTE), text).doing(|| "writing a note")?;
        fs::create_dir(&ceph.shown.mount).doing(|| "making a mount point")?;
        ceph.shown.begin()?;
        fs::create_dir(&ceph.dir).doing(|| "making a directory on CephFS")?;
        Ok(ceph)
    }

    /// That of another process's place, if it has one.
    pub(crate) fn of_other_process(top: &Path) -> Option<Self> {
        let text = fs::read(top.join(NOTE)).ok()?;
        let (far, dir) = serde_json::from_slice(&text).ok()?;
        Some(Self { far, dir, shown: CephMount::at(top.join(MOUNT)), ours: false })
    }

    /// What Vellum calls a path in it; None: it is not in it.
    pub(crate) fn vellum_path(mount: &Path, path: &Path) -> Option<String> {
        Some(format!("ceph:/{}", path.strip_prefix(mount).ok()?.display()))
    }

    pub(crate) fn mount_point(&self) -> &Path {
        &self.shown.mount
    }

    /// The client that shows it.
    pub(crate) fn service(&self) -> Option<Service> {
        self.shown.service()
    }

    /// Mounts it anew: nothing of what was read or written is known any more.
    pub(crate) fn begin_anew(&self) -> Result<()> {
        self.shown.end()?;
        self.shown.begin()
    }

    /// Mounts it anew if it is ours and was taken away. Its client may be ending still; what is made in the bare mount point has the next client refuse
    /// that.
    pub(crate) fn remount_if_gone(&self) -> Result<()> {
        if !self.ours || self.shown.is_alive()? {
            return Ok(());
        }
        // Killed, in case it lives without its mount, and waited for.
        drop(self.shown.client().take());
        let _ = unmount(&self.shown.mount, UnmountFlags::DETACH);
        forget_dead_clients();
        self.shown.begin()
    }

    /// Shows it to so many tenants, each by a client of his own.
    pub(crate) fn tenants(&self, count: usize) -> Result<Tenants> {
        let mut tenants = Tenants { of: self.shown.mount.clone(), shown: Vec::new() };
        for number in 0..count {
            let mount = self.shown.mount.with_file_name(format!("{MOUNT}-{number}"));
            fs::create_dir_all(&mount).doing(|| "making a mount point")?;
            let shown = CephMount::at(mount);
            shown.begin()?;
            tenants.shown.push(shown);
        }
        Ok(tenants)
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        let ended = interrupt::with_timeout(CLEARING, || {
            self.remount_if_gone()?;
            interrupt::remove(&self.dir).doing(|| format!("removing {}", self.dir.display()))?;
            self.shown.end()
        });
        if let Err(failure) = ended.or_else(|failure| self.shown.end().and(Err(failure))) {
            eprintln!("vellum-bench: {failure}");
        }
    }
}

/// A ceph-fuse for each tenant. They end with this.
#[derive(Debug)]
pub(crate) struct Tenants {
    /// Where all others see what they show.
    of: PathBuf,
    shown: Vec<CephMount>,
}

impl Tenants {
    /// A tenant's layers, as his client shows them.
    pub(crate) fn layers(&self, number: usize, layers: &Layers) -> Layers {
        let Some(shown) = self.shown.get(number) else { return layers.clone() };
        let own =
            |path: &PathBuf| path.strip_prefix(&self.of).map_or(path.clone(), |rest| shown.mount.join(rest));
        Layers {
            lower: own(&layers.lower),
            upper: own(&layers.upper),
            work: own(&layers.work),
            merged: layers.merged.clone(),
            far: layers.far.as_ref().map(|(_, alone)| (shown.mount.clone(), own(alone))),
        }
    }

    /// The clients.
    pub(crate) fn services(&self) -> impl Iterator<Item = Service> {
        self.shown.iter().filter_map(CephMount::service)
    }

    /// Ends them; the first failure counts.
    pub(crate) fn end(&self) -> Result<()> {
        self.shown.iter().map(CephMount::end).fold(Ok(()), Result::and)
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        if let Err(failure) = self.end() {
            eprintln!("vellum-bench: {failure}");
        }
    }
}

/// A mount point, and the ceph-fuse that is mounted there, where that is ours.
#[derive(Debug)]
struct CephMount {
    mount: PathBuf,
    client: Mutex<Option<Client>>,
}

impl CephMount {
    fn at(mount: PathBuf) -> Self {
        Self { mount, client: Mutex::default() }
    }

    fn service(&self) -> Option<Service> {
        self.client().as_ref().map(|client| Service { pid: client.0.id() })
    }

    /// Whether its client lives and is mounted, whatever it answers.
    fn is_alive(&self) -> Result<bool> {
        let lives =
            self.client().as_mut().map(Client::ended).transpose()?.is_some_and(|ended| ended.is_none());
        Ok(lives && interrupt::is_mounted(&self.mount))
    }

    fn begin(&self) -> Result<()> {
        interrupt::register(&self.mount);
        let said = self.mount.with_extension("said");
        let mut client = Client::start(&self.mount, &said)?;
        if let Err(failure) = self.mounted(&mut client, &said) {
            self.abandon(client);
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
            interrupt::check()?;
            let ended = client.ended()?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                let why = ended.map_or_else(|| "has mounted nothing".to_owned(), |status| status.to_string());
                let said = fs::read_to_string(said).unwrap_or_default();
                let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
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
    fn abandon(&self, client: Client) {
        drop(client);
        let _ = unmount(&self.mount, UnmountFlags::DETACH);
        interrupt::unregister(&self.mount);
    }

    /// Unmounts it, and returns when its client is gone, in whatever way.
    fn end(&self) -> Result<()> {
        let Some(mut client) = self.client().take() else { return Ok(()) };
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
        interrupt::unregister(&self.mount);
        if client.ends_within(PATIENCE) {
            Ok(())
        } else {
            Err(Failure::new("ceph-fuse has not ended after it was unmounted, and was killed"))
        }
    }
}

/// A client's session, as the metadata server shows it.
#[derive(Debug, serde::Deserialize)]
struct Session {
    id: u64,
    client_metadata: ClientMetadata,
}

/// What a client has said of itself.
#[derive(Debug, serde::Deserialize)]
struct ClientMetadata {
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    pid: String,
}

/// The sessions of a host's clients whose processes do not live.
fn dead_sessions(sessions: &[Session], host: &str, lives: impl Fn(&str) -> bool) -> Vec<u64> {
    let dead =
        |client: &ClientMetadata| client.hostname == host && !client.pid.is_empty() && !lives(&client.pid);
    sessions.iter().filter(|session| dead(&session.client_metadata)).map(|session| session.id).collect()
}

/// Has the cluster expel clients that were taken away: it would have all others wait for them, a minute or more. Where that may not be done, or
/// there is no answer, they wait.
fn forget_dead_clients() {
    let tell = |more: &[&str]| {
        let mut command = Command::new("timeout");
        command.arg("20").args(["ceph", "tell", "mds.0", "session"]).args(more);
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map(|output| output.stdout)
            .unwrap_or_default()
    };
    let sessions: Vec<Session> = serde_json::from_slice(&tell(&["ls"])).unwrap_or_default();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for id in dead_sessions(&sessions, &host, descendants::is_alive) {
        tell(&["evict", &format!("id={id}")]);
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
        assert_eq!(Ceph::vellum_path(mount, Path::new("/a/cephfs/b/lower")), Some("ceph:/b/lower".into()));
        assert_eq!(Ceph::vellum_path(mount, Path::new("/a/upper")), None);
    }

    #[test]
    fn tenants_see_their_layers_by_their_own_clients() {
        let (all, local) = (Path::new("/a/cephfs"), PathBuf::from("/a/run/0/merged"));
        let tenants = Tenants {
            of: all.to_owned(),
            shown: (0..2).map(|number| CephMount::at(format!("/a/cephfs-{number}").into())).collect(),
        };
        let layers = Layers {
            lower: all.join("b/lower"),
            upper: PathBuf::from("/a/run/0/upper"),
            work: all.join("b/work"),
            merged: local.clone(),
            far: Some((all.to_owned(), all.join("b/alone"))),
        };
        let own = tenants.layers(1, &layers);
        assert_eq!((own.lower.as_path(), own.merged), (Path::new("/a/cephfs-1/b/lower"), local));
        // What lies on this host is where it was.
        assert_eq!((own.upper, own.work), (layers.upper.clone(), PathBuf::from("/a/cephfs-1/b/work")));
        assert_eq!(own.far, Some(("/a/cephfs-1".into(), "/a/cephfs-1/b/alone".into())));
        assert_eq!(tenants.layers(2, &layers).lower, layers.lower);
    }

    #[test]
    fn only_dead_clients_of_this_host_are_expelled() {
        let session = |id: u64, host: &str, pid: &str| {
            format!(
                r#"{{"id": {id}, "state": "open", "client_metadata": {{"hostname": "{host}", "pid": "{pid}"}}}}"#
            )
        };
        let all = [session(1, "a", "7"), session(2, "a", "8"), session(3, "b", "7")].join(",");
        let text = format!(r#"[{all}, {{"id": 4, "client_metadata": {{}}}}]"#);
        let sessions: Vec<Session> = serde_json::from_str(&text).unwrap();
        assert_eq!(dead_sessions(&sessions, "a", |pid| pid == "8"), [1]);
    }

    #[test]
    fn a_directory_without_a_note_has_no_cluster() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Ceph::of_other_process(dir.path()).is_none());
    }
}
