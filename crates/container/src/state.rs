//! What belongs to a container while it is there: one directory, locked by who runs it. Whoever comes next takes away what a killed
//! one has left.

use super::remote_upper::{CephUpper, FAR_NOTE, STORED_NOTE, ZonedUpper, read_remote_upper, stored_note};
use super::runtime::Runtime;
use super::union::{self, SERVICE_WAIT};
use crate::image::LayerStore;
use rustix::mount::UnmountFlags;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vellum_pool::UidRange;
use vellum_pool::cgroup::Hierarchies;
use vellum_pool::locked_dir::LockedDir;
use vellum_service::layers::ceph::CephLayer;
use vellum_service::layers::zoned::ZonedLayer;
use vellum_service::{Failure, LayerSource};
use vellum_sys::remove_tree;

/// Where root's state is.
pub(super) const SYSTEM: &str = "/var/lib/vellum";
/// The directories in it.
const CONTAINERS: &str = "containers";
const LAYERS: &str = "layers";
/// What is in a container's.
/// What only root enters: programs in the upper layer may be root's with set-user-ID bits, which are somebody else's in the mount.
const PRIVATE: &str = "private";
const UPPER: &str = "private/upper";
const WORK: &str = "private/work";
const RUNTIME_STATE: &str = "runtime";
/// Most characters of a name; it is also a host's name, and part of a control group's.
const NAME_MAX: usize = 64;

/// How long it is waited for a service that somebody else's container has left behind.
const SWEEP_WAIT: Duration = Duration::from_millis(100);
/// How long processes may take to end that were killed.
const END_WAIT: Duration = Duration::from_secs(5);
/// How often a mount is taken away that comes back.
const ATTEMPTS: u32 = 5;
/// How often it is looked whether a control group is empty.
const PAUSE: Duration = Duration::from_millis(10);

/// Notes in a container's directory, for who has to take it away.
const RUNTIME_NOTE: &str = "runtime.path";
const UPPER_NOTE: &str = "upper.path";
const WORK_NOTE: &str = "work.path";
const GROUP_NOTE: &str = "group.path";

/// Where layers and containers are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    dir: PathBuf,
}

/// A container's directory. What is in it goes when it ends.
///
/// Everything lies in a directory in it that has a name of its own for each run: what a killed run had just begun to do must not
/// reach the next one of this name.
#[derive(Debug)]
pub(super) struct StateDir {
    owned: LockedDir,
    id: String,
    dir: PathBuf,
}

impl State {
    /// The directory that is asked for, or that of this user: `/var/lib/vellum` for the host's root, `vellum` in the directory for data for
    /// others.
    pub fn open(asked: Option<&Path>) -> Result<Self, Failure> {
        let dir = Self::directory_of(asked)?;
        let failed = |e: io::Error| {
            let line = format!("option --state {}", dir.display());
            let failure = if asked.is_some() { Failure::input(line) } else { Failure::system(line) };
            failure.because(e).remedy("give a directory that can be written")
        };
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&dir).map_err(failed)?;
        let dir = dir.canonicalize().map_err(failed)?;
        check_owner("--state", &dir)?;
        for name in [CONTAINERS, LAYERS] {
            // Nobody else's: layers have programs of other owners with all their privileges.
            let path = dir.join(name);
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
            check_owner("--state", &path)?;
        }
        if dir.to_str().is_none() {
            return Err(Failure::input(format!(
                "option --state {}: the path has to be UTF-8",
                dir.display()
            )));
        }
        Ok(Self { dir })
    }

    /// As [`Self::open`], where there is one; a question makes nothing. None: the user has never had any.
    pub(super) fn open_existing(asked: Option<&Path>) -> Result<Option<Self>, Failure> {
        let dir = Self::directory_of(asked)?;
        match (dir.join(CONTAINERS).symlink_metadata(), asked) {
            (Ok(_), _) => Self::open(asked).map(Some),
            (Err(e), None) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            (Err(e), None) => Err(Failure::at(&dir, e)),
            (Err(e), Some(asked)) => {
                let failure = Failure::input(format!("option --state {}", asked.display())).because(e);
                Err(failure.remedy("give the directory that vellum run was given"))
            }
        }
    }

    fn directory_of(asked: Option<&Path>) -> Result<PathBuf, Failure> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = asked.map(Path::to_owned).or_else(|| {
            if vellum_pool::privilege::is_host_root() {
                return Some(SYSTEM.into());
            }
            let home = || Some(variable("HOME")?.join(".local/share"));
            Some(variable("XDG_DATA_HOME").or_else(home)?.join("vellum"))
        });
        dir.ok_or_else(|| Failure::input("no directory for containers: set HOME, or give --state DIR"))
    }

    /// Where everything is.
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    pub(super) fn containers(&self) -> PathBuf {
        self.dir.join(CONTAINERS)
    }

    pub fn layers(&self) -> LayerStore {
        LayerStore::at(self.dir.join(LAYERS))
    }

    /// Takes away what killed commands have left.
    pub(super) fn sweep(&self) {
        self.layers().sweep();
        for entry in fs::read_dir(self.dir.join(CONTAINERS)).into_iter().flatten().flatten() {
            let Ok(Some(owned)) = LockedDir::adopt(&entry.path()) else { continue };
            let id = entry.file_name().to_string_lossy().into_owned();
            tracing::info!("taking away what is left of container {id}");
            if let Err(why) = discard_all(owned, &id, SWEEP_WAIT) {
                tracing::warn!("{why}");
            }
        }
    }

    /// A new container's directory.
    pub(super) fn place(&self, id: &str) -> Result<StateDir, Failure> {
        let path = self.dir.join(CONTAINERS).join(id);
        let failed = |e: io::Error| Failure::at(&path, e);
        loop {
            let owned = LockedDir::make(&path).map_err(failed)?.ok_or_else(|| {
                Failure::input(format!(
                    "option --name {id}: a container of this name is running; take another name"
                ))
            })?;
            if fs::read_dir(&path).map_err(failed)?.next().is_none() {
                let dir = path.join(random_name()?);
                fs::create_dir(&dir).map_err(failed)?;
                return Ok(StateDir { owned, id: id.to_owned(), dir });
            }
            discard_all(owned, id, SERVICE_WAIT)?;
        }
    }
}

/// Sees to it that nobody else puts anything into a directory that is believed: what is in it says which programs run, and what is
/// removed. A sticky directory is refused, too: others make names in it, and lock it.
/// `option`: what has named it; empty: nothing.
pub fn check_owner(option: &str, dir: &Path) -> Result<(), Failure> {
    let shown = dir.display();
    let what = if option.is_empty() { format!("{shown}") } else { format!("option {option} {shown}") };
    let meta = fs::symlink_metadata(dir).map_err(|e| Failure::input(what.as_str()).because(e))?;
    let user = rustix::process::geteuid().as_raw();
    // By convention a user's own group has the user's number.
    let is_own_group = user != 0 && meta.gid() == user;
    let why = if !meta.is_dir() {
        "not a directory; give one".to_owned()
    } else if meta.mode() & 0o1002 == 0o1002 {
        format!(
            "everybody can make names in it; make a directory of your own in it: mkdir -m 700 {shown}/vellum"
        )
    } else if meta.uid() != user {
        format!("it belongs to user {}; give one of your own", meta.uid())
    } else if meta.mode() & 0o002 != 0 {
        format!("everybody can write to it; chmod o-w {shown}, or give another")
    } else if meta.mode() & 0o020 != 0 && !is_own_group {
        format!("group {} can write to it; chmod g-w {shown}, or give another", meta.gid())
    } else {
        return Ok(());
    };
    Err(Failure::input(format!("{what}: {why}")))
}

/// Takes a container's directory away with all that is in it.
pub(super) fn discard_all(owned: LockedDir, id: &str, patience: Duration) -> Result<(), Failure> {
    for entry in fs::read_dir(owned.path()).into_iter().flatten().flatten() {
        remove_run(&entry.path(), id, patience)?;
    }
    remove_tree(owned.path()).map_err(|e| Failure::at(owned.path(), e))
}

/// Where runc mounts a container's tree for CRIU, in what it keeps of the container.
const RUNC_MOUNT: &str = "criu-root";

/// Takes away what one run of a container has made: what still runs, the mount, the directory. Nothing is removed that is still served.
fn remove_run(dir: &Path, id: &str, patience: Duration) -> Result<(), Failure> {
    let known = dir.join(RUNTIME_STATE);
    // A runtime that was killed before it had written down that there is a container does not end it.
    let is_known = super::container_process::has_runtime_state(&known.join(id));
    if let Some(program) = note(dir, RUNTIME_NOTE).filter(|_| known.join(id).exists()) {
        // A runc that was killed while it restored has the tree mounted there a second time.
        let left = known.join(id).join(RUNC_MOUNT);
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        for _ in 0..ATTEMPTS {
            if !left.is_dir() || rustix::mount::unmount(&left, flags).is_err() {
                break;
            }
        }
        Runtime::at(program).delete(id, &known);
    }
    if !is_known {
        end_group(dir, patience);
    }
    let merged = dir.join(super::spec::ROOT);
    let far = read_remote_upper(dir);
    // One client for all that is to be done there.
    let beside = far.as_ref().and_then(|far| far.work.parent()).map(|beside| beside.visit()).transpose()?;
    let (kept, stored) = (note(dir, UPPER_NOTE), stored_note(dir));
    let is_kept = kept.is_some() || far.is_some() || stored.is_some();
    let upper = match (&far, stored) {
        (Some(far), _) => LayerSource::Ceph(far.upper.clone()),
        (None, Some(stored)) => LayerSource::Zoned(stored.upper),
        (None, None) => kept.unwrap_or_else(|| dir.join(UPPER)).into(),
    };
    let ended = || union::unmount_and_wait(&merged, &upper, is_kept, patience);
    let mut right = ended()?;
    // Before anything in here is removed, and not by that: what is mounted there is not ours to remove.
    for _ in 0..ATTEMPTS {
        match fs::remove_dir(&merged) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                drop(right);
                right = ended()?;
            }
            _ => break,
        }
    }
    if merged.symlink_metadata().is_ok() {
        return Err(Failure::system(format!("{}: cannot be removed", merged.display())));
    }
    let failed = |path: &Path, e: io::Error| Failure::at(path, e);
    if let Some(work) = note(dir, WORK_NOTE) {
        remove_tree(&work).map_err(|e| failed(&work, e))?;
    }
    if let (Some(beside), Some(name)) = (&beside, far.as_ref().and_then(|far| far.work.file_name())) {
        beside.remove_all(name)?;
    }
    // A CRIU that has lost its runtime ends in a moment.
    if !vellum_sys::wait_until(patience, PAUSE, || group_is_gone(dir)) {
        return Err(Failure::system(format!(
            "container {id}: a process is in its control group; a later vellum run takes away what is left"
        )));
    }
    remove_tree(dir).map_err(|e| failed(dir, e))?;
    drop(right);
    Ok(())
}

/// Ends what is in the control group that is noted, if it does not end by itself, as a CRIU does that has lost its runtime.
fn end_group(dir: &Path, patience: Duration) {
    let (begin, mut hierarchies) = (Instant::now(), None);
    let Some(group) = note(dir, GROUP_NOTE) else { return };
    while !group_is_gone(dir) && begin.elapsed() < patience + END_WAIT {
        if begin.elapsed() > patience
            && let Some(hierarchies) = hierarchies.get_or_insert_with(|| Hierarchies::detect().ok())
        {
            hierarchies.end(&group);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Removes the control group that a runtime has made and, killed before it knew of the container, does not remove.
fn group_is_gone(dir: &Path) -> bool {
    note(dir, GROUP_NOTE)
        .zip(Hierarchies::detect().ok())
        .is_none_or(|(group, hierarchies)| hierarchies.remove(&group))
}

fn note(dir: &Path, name: &str) -> Option<PathBuf> {
    let bytes = fs::read(dir.join(name)).ok().filter(|bytes| !bytes.is_empty())?;
    Some(OsStr::from_bytes(&bytes).into())
}

/// An upper layer that somebody wants to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SavedUpper {
    /// On this host.
    Here(PathBuf),
    /// On CephFS.
    Far(CephLayer),
    /// In a store on a zoned device.
    Stored(Box<ZonedUpper>),
}

impl StateDir {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The directory for layers and containers that it is in.
    pub(super) fn state(&self) -> &Path {
        self.owned.path().ancestors().nth(2).unwrap_or(Path::new("/"))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Where the tree is mounted.
    pub(super) fn merged(&self) -> PathBuf {
        self.path(super::spec::ROOT)
    }

    /// Where everything is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the runtime keeps what it knows.
    pub(super) fn runtime_state(&self) -> PathBuf {
        Self::runtime_state_of(&self.dir)
    }

    /// As [`Self::runtime_state`], of a container in this directory.
    pub(super) fn runtime_state_of(dir: &Path) -> PathBuf {
        dir.join(RUNTIME_STATE)
    }

    /// What runs a container in this directory.
    pub(super) fn runtime_of(dir: &Path) -> Option<Runtime> {
        note(dir, RUNTIME_NOTE).map(Runtime::at)
    }

    /// The upper layer: in here, or where somebody wants to keep it.
    pub(super) fn upper(&self) -> PathBuf {
        Self::upper_of(&self.dir)
    }

    /// As [`Self::upper`], of a container in this directory.
    pub(super) fn upper_of(dir: &Path) -> PathBuf {
        note(dir, UPPER_NOTE).unwrap_or_else(|| dir.join(UPPER))
    }

    /// As [`Self::upper_of`], where it is in a store on a zoned device.
    pub(super) fn stored_of(dir: &Path) -> Option<ZonedLayer> {
        stored_note(dir).map(|stored| stored.upper)
    }

    /// As [`Self::upper_of`], where it is on CephFS.
    pub(super) fn remote_upper_of(dir: &Path) -> Option<CephLayer> {
        read_remote_upper(dir).map(|far| far.upper)
    }

    /// The directory for unfinished work.
    pub(super) fn work(&self) -> PathBuf {
        note(&self.dir, WORK_NOTE).unwrap_or_else(|| self.path(WORK))
    }

    /// The upper layer and its work directory as layers, wherever they lie.
    pub(super) fn layers(&self) -> (LayerSource, LayerSource) {
        match (read_remote_upper(&self.dir), stored_note(&self.dir)) {
            (Some(CephUpper { upper, work }), _) => (LayerSource::Ceph(upper), LayerSource::Ceph(work)),
            (None, Some(ZonedUpper { upper, work })) => (LayerSource::Zoned(upper), LayerSource::Zoned(work)),
            (None, None) => (self.upper().into(), self.work().into()),
        }
    }

    /// Makes the directories of the tree. Those that lie elsewhere are noted before they are made.
    pub(super) fn make(&self, runtime: &Runtime, keep: Option<&SavedUpper>) -> Result<(), Failure> {
        let failed = |e: io::Error| Failure::at(self.owned.path(), e);
        let take_note =
            |name: &str, path: &Path| fs::write(self.path(name), path.as_os_str().as_bytes()).map_err(failed);
        take_note(RUNTIME_NOTE, runtime.program())?;
        fs::DirBuilder::new().mode(0o700).create(self.path(PRIVATE)).map_err(failed)?;
        let beside = |upper: &OsStr| {
            let mut name = OsStr::new(".").to_owned();
            name.push(upper);
            name.push(format!(".work-{}", self.id));
            name
        };
        match keep {
            Some(SavedUpper::Here(upper)) => {
                let name = beside(upper.file_name().unwrap_or(OsStr::new("upper")));
                take_note(UPPER_NOTE, upper)?;
                take_note(WORK_NOTE, &upper.with_file_name(name))?;
            }
            Some(SavedUpper::Far(upper)) => return self.make_remote(upper, &beside),
            Some(SavedUpper::Stored(stored)) => {
                // Its directories are made in the store by whoever mounts.
                let text = serde_json::to_vec(stored).map_err(|e| Failure::system("a note").because(e))?;
                fs::write(self.path(STORED_NOTE), text).map_err(failed)?;
                return fs::create_dir(self.merged()).map_err(failed);
            }
            None => fs::create_dir(self.upper()).map_err(failed)?,
        }
        let work = self.work();
        fs::create_dir(&work).map_err(|e| Failure::at(&work, e))?;
        fs::create_dir(self.merged()).map_err(failed)
    }

    /// Notes the control group that its runtime is to make.
    pub(super) fn note_group(&self, group: &Path) -> Result<(), Failure> {
        let path = self.path(GROUP_NOTE);
        fs::write(&path, group.as_os_str().as_bytes()).map_err(|e| Failure::at(&path, e))
    }

    /// As [`Self::make`], where the upper layer is on CephFS.
    fn make_remote(&self, upper: &CephLayer, beside: &dyn Fn(&OsStr) -> OsString) -> Result<(), Failure> {
        let failed = |e: io::Error| Failure::at(self.owned.path(), e);
        let (Some(parent), Some(name)) = (upper.parent(), upper.file_name()) else {
            return Err(Failure::input(format!("option --upper {upper}: give a directory below the root")));
        };
        let there = parent.visit()?;
        // It has to be there, as one of this host has to.
        drop(upper.visit()?);
        let far = CephUpper { upper: upper.clone(), work: upper.sibling(&beside(name)) };
        let text = serde_json::to_vec(&far).map_err(|e| Failure::system("a note").because(e))?;
        fs::write(self.path(FAR_NOTE), text).map_err(failed)?;
        there.make_dir(far.work.file_name().unwrap_or_default())?;
        fs::create_dir(self.merged()).map_err(failed)
    }

    /// Lets a container with these ids reach its tree: its runtime enters the tree when it is root of the container already, and so
    /// nobody to the host. Others still cannot, nobody can look around, and the upper layer itself stays out of reach.
    pub(super) fn open_to(&self, ids: UidRange) -> Result<(), Failure> {
        let failed = |path: &Path, e: io::Error| Failure::at(path, e);
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|e| failed(path, e))
        };
        let own = self.owned.path();
        chown(own, None, Some(ids.start())).map_err(|e| failed(own, e))?;
        mode(own, 0o710)?;
        mode(&self.dir, 0o711)?;
        let Some(containers) = own.parent() else { return Ok(()) };
        mode(containers, 0o711)?;
        // The others are not ours to change.
        for above in containers.ancestors().skip(1) {
            let meta = above.metadata().map_err(|e| failed(above, e))?;
            if meta.mode() & 0o001 == 0 {
                let above = above.display();
                return Err(Failure::input(format!(
                    "option --state: {above} can be entered by nobody of uid-range {ids}; chmod o+x {above}, or give another directory"
                )));
            }
        }
        Ok(())
    }

    /// Takes everything away. An upper layer that somebody wants to keep stays.
    pub(super) fn discard(self) -> Result<(), Failure> {
        discard_all(self.owned, &self.id, SERVICE_WAIT)
    }
}

/// The id of a container: what was asked for, or one of its own.
pub(super) fn id(asked: Option<&str>) -> Result<String, Failure> {
    match asked {
        Some(name) => plain_name("--name", name).map(str::to_owned),
        None => random_name(),
    }
}

/// A name, if it can be one of a file, a host and a control group. `what`: an option, or what the name is of.
pub fn plain_name<'a>(what: &str, name: &'a str) -> Result<&'a str, Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= NAME_MAX
        && name.chars().all(plain)
    {
        return Ok(name);
    }
    let what = if what.starts_with('-') { format!("option {what}") } else { what.to_owned() };
    Err(Failure::input(format!(
        "{what} {name}: use up to {NAME_MAX} of a-z, A-Z, 0-9, _, - and ., a letter or digit first"
    )))
}

/// A name that nothing else has.
pub fn random_name() -> Result<String, Failure> {
    let mut bytes = [0; 6];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Failure::system("no random number").because(e))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_service::layers::lock::DirLock;

    #[test]
    fn container_ids_cannot_contain_paths() {
        assert_eq!(id(Some("web-1.x_y")).unwrap(), "web-1.x_y");
        assert_eq!(id(None).unwrap().len(), 12);
        assert_ne!(id(None).unwrap(), id(None).unwrap());
        let long = "x".repeat(NAME_MAX + 1);
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ä", &long] {
            assert_eq!(id(Some(bad)).unwrap_err().exit_status(), 2, "{bad}");
        }
    }

    #[test]
    fn a_tree_is_reached_by_its_own_container_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(Some(dir.path())).unwrap();
        let place = state.place("a").unwrap();
        let own = rustix::process::getegid().as_raw();
        // Only root can give a directory to other groups.
        let Some(ids) = (if own == 0 { UidRange::new(70_000, 10) } else { UidRange::new(own, 1) }) else {
            return println!("SKIPPED: needs root, to give a directory to another group");
        };
        if dir.path().ancestors().skip(1).any(|above| above.metadata().unwrap().mode() & 1 == 0) {
            return println!(
                "SKIPPED: not everybody may enter the directories above {}",
                dir.path().display()
            );
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let failure = place.open_to(ids).unwrap_err();
        assert!(failure.exit_status() == 2 && failure.to_string().contains("--state"), "{failure}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        place.make(&Runtime::at(dir.path().join("crun")), None).unwrap();
        place.open_to(ids).unwrap();
        let seen = |path: PathBuf| {
            let meta = path.metadata().unwrap();
            (meta.mode() & 0o7777, meta.gid() == ids.start())
        };
        assert_eq!(seen(dir.path().join("containers/a")), (0o710, true));
        assert_eq!(seen(dir.path().join("layers")), (0o700, own == ids.start()));
        assert_eq!(seen(dir.path().join("containers")).0, 0o711);
        assert_eq!(seen(place.upper().parent().unwrap().to_owned()).0, 0o700);
        assert_eq!(place.upper().parent(), place.work().parent());
    }

    #[test]
    fn a_state_directory_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = |word: &str| {
            let failure = State::open(Some(dir.path())).unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains(word), "{failure}");
        };
        mode(dir.path(), 0o777);
        refused("chmod o-w");
        mode(dir.path(), 0o1777);
        refused("mkdir -m 700");
        // Only root can be sure to have a group that is not the user's own.
        if rustix::process::geteuid().is_root() {
            for shared in [0o770, 0o2775] {
                mode(dir.path(), shared);
                refused("chmod g-w");
            }
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "it has made something");
        mode(dir.path(), 0o755);
        State::open(Some(dir.path())).unwrap();
        let containers = dir.path().join(CONTAINERS);
        mode(&containers, 0o707);
        refused("chmod o-w");
        mode(&containers, 0o700);
        if rustix::process::geteuid().is_root() {
            chown(&containers, Some(65_534), None).unwrap();
            refused("belongs to user 65534");
        }
        fs::remove_dir(&containers).unwrap();
        std::os::unix::fs::symlink(LAYERS, &containers).unwrap();
        refused("not a directory");
    }

    #[test]
    fn a_mounted_container_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(Some(dir.path())).unwrap();
        let keep = dir.path().canonicalize().unwrap().join("keep");
        fs::create_dir(&keep).unwrap();
        for upper in [None, Some(keep.as_path())] {
            let dead = state.place("dead").unwrap();
            let kept = upper.map(|upper| SavedUpper::Here(upper.to_owned()));
            dead.make(&Runtime::at(dir.path().join("crun")), kept.as_ref()).unwrap();
            fs::write(dead.upper().join("file"), "words").unwrap();
            let (upper, work) = (dead.upper(), dead.work());
            let served = DirLock::take("upper", &upper, Duration::ZERO, "in use").unwrap();
            let failure = discard_all(dead.owned, "dead", SWEEP_WAIT).unwrap_err();
            assert!(failure.to_string().contains("a program has it open"), "{failure}");
            assert!(upper.join("file").is_file() && work.is_dir());
            state.sweep();
            assert!(upper.join("file").is_file() && work.is_dir());
            drop(served);
            state.sweep();
            assert!(!work.exists() && !state.dir.join(CONTAINERS).join("dead").exists());
        }
        assert!(keep.join("file").is_file());
    }

    #[test]
    fn leftover_state_is_removed_and_live_state_stays() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(Some(dir.path())).unwrap();
        let runtime = Runtime::at(dir.path().join("crun"));
        let keep = dir.path().join("keep");
        fs::create_dir(&keep).unwrap();
        let keep = keep.canonicalize().unwrap();
        let alive = state.place("alive").unwrap();
        alive.make(&runtime, None).unwrap();
        assert_eq!(state.place("alive").unwrap_err().exit_status(), 2);
        for (id, upper) in [("dead", None), ("dead-too", Some(keep.clone()))] {
            let dead = state.place(id).unwrap();
            dead.make(&runtime, upper.map(SavedUpper::Here).as_ref()).unwrap();
            fs::create_dir_all(dead.runtime_state().join(id)).unwrap();
            fs::write(dead.upper().join("file"), "words").unwrap();
            assert!(dead.work().is_dir());
        }
        state.sweep();
        assert!(alive.upper().is_dir());
        assert_eq!(fs::read_dir(dir.path().join("containers")).unwrap().count(), 1);
        assert_eq!(fs::read(keep.join("file")).unwrap(), b"words");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        alive.discard().unwrap();
        // A name is free again at once, also when its directory was left.
        let again = state.place("alive").unwrap();
        again.make(&runtime, None).unwrap();
        drop(again);
        state.place("alive").unwrap().make(&runtime, None).unwrap();
    }

    /// As a runtime leaves it that is killed when the processes are there, and before it has written down that they are.
    #[test]
    fn processes_without_a_runtime_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(Some(dir.path())).unwrap();
        let hierarchies = Hierarchies::detect().unwrap();
        let group = PathBuf::from(format!("/vellum-test-state-{}", std::process::id()));
        let made: Vec<PathBuf> =
            hierarchies.tops().map(|top| top.join(&group.to_str().unwrap()[1..])).collect();
        if made.is_empty() || made.iter().any(|group| fs::create_dir(group).is_err()) {
            hierarchies.remove(&group);
            return println!("SKIPPED: no control group can be made here");
        }
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let entered = made.iter().filter(|group| {
            let number = child.id().to_string();
            fs::write(group.join("cgroup.procs"), number).is_ok()
        });
        if entered.count() == 0 {
            hierarchies.remove(&group);
            child.kill().unwrap();
            child.wait().unwrap();
            return println!("SKIPPED: no process can be put into a control group here");
        }
        let dead = state.place("dead").unwrap();
        dead.make(&Runtime::at(dir.path().join("missing/runc")), None).unwrap();
        dead.note_group(&group).unwrap();
        fs::create_dir_all(dead.runtime_state().join("dead")).unwrap();
        drop(dead);
        state.sweep();
        let ended = child.try_wait().unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        hierarchies.remove(&group);
        assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
        assert!(!dir.path().join("containers/dead").exists() && made.iter().all(|group| !group.exists()));
    }
}
