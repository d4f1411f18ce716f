//! Layers in stores on zoned devices: what names them, and the stores that this process has open.
//!
//! The device is opened, and locked, by whoever mounts; the store is opened where it is served. One process at a time has a store to write to
//! it. What was not synced is in that process's memory, so a mount with such an upper layer ends with its service, as if the host had lost
//! power.

use crate::failure::Failure;
use crate::layers::lock::PREDECESSOR_WAIT;
use crate::layers::remove::remove_tree;
use crate::layers::zoned_work::former_work_of;
pub use crate::layers::zoned_work::{WORK, work_of};
use crate::path_text;
use crate::store_server::{self, DeviceId};
use parking_lot::Mutex;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use vellum_branch::{ZonedBranch, ZonedTree};
use vellum_vfs::{Branch, Errno as VfsErrno, Name};
use vellum_zoned::device::{Conventional, Kernel, KernelLimits, ZonedDevice};
use vellum_zoned::store::{Error, Store};

/// What names of such layers begin with.
const SCHEME: &[u8] = b"zoned:";
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// Mode of directories that are made for a layer.
const DIR_MODE: u32 = 0o755;

type Open = Arc<dyn Branch>;

/// A directory in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZonedLayer {
    /// The device; with the path in the store behind it, as long as it was not looked for.
    #[serde(with = "path_text")]
    device: PathBuf,
    /// The directory, without a slash at either end.
    #[serde(with = "path_text")]
    path: PathBuf,
    /// Of a zoned block device: bytes of a block, and how many zones may be open and active. They cannot be read where it is served.
    #[serde(deserialize_with = "path_text::required")]
    limits: Option<[u32; 3]>,
    /// The service that is to serve it has the store open, by the right of another mount.
    shared: bool,
}

impl fmt::Display for ZonedLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zoned:{}", self.full_path().display())
    }
}

impl ZonedLayer {
    /// The directory that an option with one layer names; None: it names none in a store.
    pub(crate) fn named(text: &OsStr) -> Option<Self> {
        text.as_bytes().strip_prefix(SCHEME).map(Self::at)
    }

    /// What lies at a path that leads to a device and goes on in the store there.
    #[must_use]
    pub fn at(path: &[u8]) -> Self {
        Self {
            device: OsString::from_vec(path.to_vec()).into(),
            path: PathBuf::new(),
            limits: None,
            shared: false,
        }
    }

    /// The device, once it was found.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// The directory in its store, once that was told apart, without a slash at either end.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device, and the path in its store behind it.
    fn full_path(&self) -> Cow<'_, Path> {
        if self.path.as_os_str().is_empty() {
            Cow::Borrowed(&self.device)
        } else {
            Cow::Owned(self.device.join(&self.path))
        }
    }

    /// As an option that names an upper layer says it, with a directory for unfinished work in the same store. Both stay there.
    ///
    /// # Errors
    /// There is no device on the way, or nothing behind it.
    pub fn upper(&self, option: &str) -> Result<(Self, Self), Failure> {
        let upper = self.resolve(option)?;
        if upper.path.as_os_str().is_empty() {
            return Err(Failure::input(format!(
                "{option} {self}: the store itself; give a directory in it, zoned:DEVICE/DIR"
            )));
        }
        if upper.path.starts_with(WORK) {
            return Err(Failure::input(format!(
                "{option} {self}: {WORK} is for mounts themselves; choose another name"
            )));
        }
        let work = Self { path: work_of(&upper.path), ..upper.clone() };
        Ok((upper, work))
    }

    /// With the device and the path in its store told apart: the first thing on the way that is no directory is the device.
    fn resolve(&self, option: &str) -> Result<Self, Failure> {
        let refused = |why: &str| Failure::input(format!("{option} {self}: {why}"));
        if self.device.as_os_str().is_empty() {
            return Err(refused("no path; write zoned:DEVICE/DIR"));
        }
        if self.device.components().any(|part| part == Component::ParentDir) {
            return Err(refused("write the path without .."));
        }
        let full = std::path::absolute(self.full_path()).map_err(|e| refused("not a path").because(e))?;
        for device in full.ancestors() {
            match std::fs::metadata(device) {
                Ok(found) if found.is_dir() => break,
                Ok(_) => {
                    let path = full.strip_prefix(device).unwrap_or(Path::new("")).to_owned();
                    let device = device.canonicalize().map_err(|e| refused("the device").because(e))?;
                    return Ok(Self { device, path, limits: None, shared: false });
                }
                Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NOENT | Errno::NOTDIR)) => {}
                Err(e) => return Err(refused("cannot be reached").because(e)),
            }
        }
        Err(refused(
            "no device or file there; give a block device or a file with a store, and a directory in it",
        ))
    }

    /// Whether the right to the device is another mount's.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shared
    }

    fn with_limits(self, device: &OwnedFd) -> Result<Self, Failure> {
        let is_zoned = vellum_sys::zoned::zone_count(device).is_ok_and(|zones| zones > 0);
        if !is_zoned {
            return Ok(self);
        }
        let limits = KernelLimits::read(device)
            .map_err(|e| Failure::input(format!("layer {self}: not a device that can be used")).because(e))?;
        Ok(Self { limits: Some([limits.block_size, limits.open_max, limits.active_max]), ..self })
    }
}

/// Whether the service that is to serve a mount has the store on a device open to be written.
pub(crate) type HasOpen<'a> = &'a mut dyn FnMut(DeviceId) -> bool;

/// Opens a device as whoever mounts, to be written to or only read, and takes the right to it. False: `has_open` says that this is not needed.
fn open_device(
    option: &str,
    layer: &ZonedLayer,
    writes: bool,
    has_open: HasOpen<'_>,
) -> Result<(OwnedFd, bool), Failure> {
    let path = &layer.device;
    let refused = |why: &str| Failure::input(format!("{option} {layer}: {why}"));
    let failed = |e: Errno| match e {
        Errno::BUSY => refused("the device is in use; unmount it, or end what has it open"),
        e => refused("the device cannot be opened")
            .because(e)
            .remedy("give one that this user may read and write"),
    };
    // Without NONBLOCK, a pipe would be waited for.
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | if writes { OFlags::RDWR } else { OFlags::RDONLY };
    let mut device = open(path, flags, Mode::empty()).map_err(failed)?;
    let kind = |device: &OwnedFd| fstat(device).map(|found| FileType::from_raw_mode(found.st_mode));
    match kind(&device).map_err(failed)? {
        FileType::RegularFile => {}
        FileType::BlockDevice => {
            let is_zoned = vellum_sys::zoned::zone_count(&device).is_ok_and(|zones| zones > 0);
            // Only direct I/O keeps the order of writes to zones. A zoned device is only opened to be written.
            let how = if is_zoned { OFlags::DIRECT | OFlags::RDWR } else { OFlags::empty() };
            device = match open(path, flags | OFlags::EXCL | how, Mode::empty()) {
                Err(Errno::BUSY) if is_open(&device, has_open) => return Ok((device, false)),
                opened => opened.map_err(failed)?,
            };
            if kind(&device).map_err(failed)? != FileType::BlockDevice {
                return Err(refused("it has just been replaced"));
            }
        }
        _ => return Err(refused("neither a block device nor a file; give one with a store")),
    }
    let lock =
        if writes { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    let end = Instant::now() + PREDECESSOR_WAIT;
    loop {
        match flock(&device, lock) {
            Ok(()) => return Ok((device, true)),
            Err(Errno::WOULDBLOCK) if is_open(&device, has_open) => return Ok((device, false)),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let who = "another mount or command has the store open; unmount that, or wait until it ends";
                return Err(Failure::system(format!("{option} {layer}: {who}")));
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(refused("the device cannot be locked").because(e)),
        }
    }
}

fn is_open(device: &OwnedFd, has_open: HasOpen<'_>) -> bool {
    DeviceId::fstat(device).is_ok_and(has_open)
}

/// Opens the device of an upper layer and its work directory.
pub(crate) fn open_pair(
    upper: &ZonedLayer,
    work: &ZonedLayer,
    has_open: HasOpen<'_>,
) -> Result<(ZonedLayer, ZonedLayer, OwnedFd), Failure> {
    let (upper, work) = (upper.resolve("upperdir")?, work.resolve("workdir")?);
    if upper.device != work.device {
        return Err(Failure::input(format!(
            "workdir {work}: in another store than upperdir {upper}; give a directory beside it"
        )));
    }
    if upper.path.starts_with(&work.path) || work.path.starts_with(&upper.path) {
        return Err(Failure::input(format!(
            "workdir {work}: it and upperdir {upper} lie in each other; give a directory beside it"
        )));
    }
    let (device, owned) = open_device("upperdir", &upper, true, has_open)?;
    let shared = |layer: ZonedLayer| ZonedLayer { shared: !owned, ..layer };
    let (upper, work) = (shared(upper.with_limits(&device)?), shared(work.with_limits(&device)?));
    Ok((upper, work, device))
}

/// Opens the device of a layer that is only read, unless one of `others` is on it.
pub(crate) fn open_lower<'a>(
    lower: &ZonedLayer,
    mut others: impl Iterator<Item = (&'a ZonedLayer, &'a OwnedFd)>,
) -> Result<(ZonedLayer, OwnedFd), Failure> {
    let lower = lower.resolve("lowerdir")?;
    let device = match others.find(|(other, _)| other.device == lower.device) {
        Some((other, _)) if other.path == lower.path => {
            return Err(Failure::input(format!("lowerdir {lower}: it is another layer too; name it once")));
        }
        Some((_, device)) => {
            device.try_clone().map_err(|e| Failure::system("a second descriptor of a device").because(e))?
        }
        None => open_device("lowerdir", &lower, false, &mut |_| false)?.0,
    };
    Ok((lower.with_limits(&device)?, device))
}

pub(crate) fn missing(layer: &ZonedLayer) -> Failure {
    Failure::system(format!("layer {layer}: its descriptor is missing"))
}

/// The trees that are open to be written, or only read.
static OPEN: Mutex<Vec<(DeviceId, Weak<ZonedTree>)>> = Mutex::new(Vec::new());

/// A directory that a mount writes to, as long as that has it open.
type UsedDir = (DeviceId, PathBuf, Weak<dyn Branch>);

/// Upper layers and work directories that mounts use.
static USED: Mutex<Vec<UsedDir>> = Mutex::new(Vec::new());

fn is_written(tree: &Weak<ZonedTree>) -> bool {
    tree.upgrade().is_some_and(|tree| tree.store().check_writable().is_ok())
}

/// Whether this process has the store on a device open to be written.
pub(crate) fn has_open(device: DeviceId) -> bool {
    OPEN.lock().iter().any(|(known, tree)| *known == device && is_written(tree))
}

/// Refuses to have a successor go on while a store is open to be written: its mounts would end.
pub(crate) fn check_replaceable() -> Result<(), Failure> {
    if OPEN.lock().iter().any(|(_, tree)| is_written(tree)) {
        let line = "a mount has its upper layer in a store on a zoned device, and would end";
        return Err(Failure::input(line).remedy("unmount it first"));
    }
    Ok(())
}

/// Makes everything durable that waits in memory, since a mount has ended and its layers may be used by others.
pub(crate) fn write_out() {
    let open: Vec<Arc<ZonedTree>> = OPEN.lock().iter().filter_map(|(_, tree)| tree.upgrade()).collect();
    for tree in open {
        match tree.sync() {
            Err(error) if error.errno() != VfsErrno::ROFS => tracing::error!("what was not synced: {error}"),
            _ => {}
        }
    }
}

/// The tree in a store: one for all layers there, as long as one of them is used. `writes`: it is opened to be written if it is not open yet.
fn tree(layer: &ZonedLayer, device: OwnedFd, writes: bool) -> Result<Arc<ZonedTree>, Failure> {
    let refused = |error: &Error| match error {
        Error::ReadOnly(_) => Failure::input(format!("layer {layer}: the store has no files yet"))
            .remedy("write to it first: vellum zoned mount DEVICE MOUNTPOINT"),
        error => Failure::input(format!("layer {layer}: cannot open the store"))
            .because(error.clone())
            .remedy("see vellum zoned check"),
    };
    let identity = identity(layer, &device)?;
    let mut open = OPEN.lock();
    open.retain(|(_, tree)| tree.strong_count() > 0);
    let known = open.iter().find(|(known, _)| *known == identity).and_then(|(_, tree)| tree.upgrade());
    if let Some(tree) = known {
        return Ok(tree);
    }
    if layer.shared {
        let line = format!("layer {layer}: the mount that had the store open has just ended");
        return Err(Failure::system(line).remedy("mount again"));
    }
    let device: Result<Arc<dyn ZonedDevice>, _> = match layer.limits {
        Some([block_size, open_max, active_max]) => {
            let limits = KernelLimits { block_size, open_max, active_max };
            Kernel::open_file(device, limits).map(|device| Arc::new(device) as _)
        }
        None => Conventional::open(File::from(device)).map(|device| Arc::new(device) as _),
    };
    let device = device.map_err(|error| {
        Failure::input(format!("layer {layer}: there is no store"))
            .because(error)
            .remedy("make one with vellum zoned format")
    })?;
    let store = if writes { Store::open(device) } else { Store::open_read_only(device) };
    let store = store.map_err(|error| refused(&error))?;
    let failed = |error: vellum_vfs::Error| match error.errno() {
        VfsErrno::ROFS => refused(&Error::ReadOnly(String::new())),
        _ => Failure::input(format!("layer {layer}: cannot use the store")).because(error),
    };
    let tree = ZonedTree::open(store).map_err(failed)?;
    if writes {
        tree.start_flush_thread().map_err(failed)?;
    }
    open.push((identity, Arc::downgrade(&tree)));
    Ok(tree)
}

fn identity(layer: &ZonedLayer, device: &OwnedFd) -> Result<DeviceId, Failure> {
    DeviceId::fstat(device).map_err(|e| Failure::system(format!("layer {layer}")).because(e))
}

/// Whether two directories are the same one, or one lies in the other.
fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn branch(layer: &ZonedLayer, tree: &Arc<ZonedTree>) -> Result<Open, Failure> {
    let refused = |e: VfsErrno| {
        Failure::input(format!("layer {layer}")).because(e).remedy("give a directory in the store")
    };
    let path = CString::new(layer.path.as_os_str().as_bytes()).map_err(|_| refused(VfsErrno::INVAL))?;
    ZonedBranch::open(tree, &path, layer.to_string())
        .map(|branch| branch as Open)
        .map_err(|error| refused(error.errno()))
}

/// Opens a layer to read it.
pub(crate) fn layer(layer: &ZonedLayer, device: OwnedFd) -> Result<Open, Failure> {
    branch(layer, &tree(layer, device, false)?)
}

/// Opens an upper layer and its work directory. Directories that are not there are made.
/// `store_socket`: where commands come in that use its store beside the mount.
pub(crate) fn upper(
    upper: &ZonedLayer,
    work: &ZonedLayer,
    device: OwnedFd,
    store_socket: Option<OwnedFd>,
) -> Result<(Open, Open), Failure> {
    let owner = fstat(&device).map(|found| found.st_uid);
    let owner = owner.map_err(|e| Failure::system(format!("layer {upper}")).because(e))?;
    let identity = identity(upper, &device)?;
    let tree = tree(upper, device, true)?;
    if let Some(store_socket) = store_socket
        && let Err(error) = store_server::open(store_socket, &tree, owner)
    {
        tracing::warn!(%error, "no command can use the store of {upper}");
    }
    for layer in [upper, work] {
        make(layer, &tree).map_err(|error| {
            Failure::input(format!("layer {layer}: cannot make the directory")).because(error.errno())
        })?;
    }
    let end = Instant::now() + PREDECESSOR_WAIT;
    loop {
        let mut used = USED.lock();
        used.retain(|(.., branch)| branch.strong_count() > 0);
        let is_used = |(known, path, _): &UsedDir| {
            *known == identity && (overlap(path, &upper.path) || overlap(path, &work.path))
        };
        if !used.iter().any(is_used) {
            let pair = (branch(upper, &tree)?, branch(work, &tree)?);
            let former = former_work_of(&upper.path);
            let is_left = |(known, path, _): &UsedDir| *known != identity || !overlap(path, &former);
            if work.path == work_of(&upper.path) && work.path != former && used.iter().all(is_left) {
                empty(&former, &tree);
            }
            used.push((identity, upper.path.clone(), Arc::downgrade(&pair.0)));
            used.push((identity, work.path.clone(), Arc::downgrade(&pair.1)));
            return Ok(pair);
        }
        drop(used);
        if Instant::now() > end {
            let line = format!("upperdir {upper}: another mount of the pool uses it, or its workdir");
            return Err(Failure::system(line).remedy("unmount that first, or give other directories"));
        }
        // One that has just been unmounted.
        std::thread::sleep(PAUSE);
    }
}

/// Takes away what is left in a directory for unfinished work that no mount uses.
fn empty(path: &Path, tree: &Arc<ZonedTree>) {
    let emptied = || {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| VfsErrno::INVAL)?;
        let dir = ZonedBranch::open(tree, &path, String::new())?.root();
        let mut names = Vec::new();
        dir.list(&mut |item| {
            names.push(item.name.as_c_str().to_owned());
            Ok(())
        })?;
        names.iter().try_for_each(|name| remove_tree(&dir, name))
    };
    match emptied() {
        Err(error) if error.errno() != VfsErrno::NOENT => {
            tracing::warn!(%error, "{} cannot be emptied", path.display());
        }
        _ => {}
    }
}

fn make(layer: &ZonedLayer, tree: &Arc<ZonedTree>) -> vellum_vfs::Result<()> {
    let mut dir = ZonedBranch::open(tree, c"", String::new())?.root();
    for part in layer.path.components() {
        let name = CString::new(part.as_os_str().as_bytes()).map_err(|_| VfsErrno::INVAL)?;
        let name = Name::new(&name)?;
        match dir.make_dir(name, DIR_MODE) {
            Err(error) if error.errno() != VfsErrno::EXIST => return Err(error),
            _ => dir = dir.open_dir(name)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_path_continues_after_the_first_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store");
        std::fs::write(&file, "").unwrap();
        let found = |text: &str| {
            let text = format!("zoned:{}", dir.path().join(text).display());
            ZonedLayer::named(text.as_ref()).unwrap().resolve("upperdir")
        };
        for (text, path) in [("store/a/b", "a/b"), ("store//a/./b/", "a/b"), ("store", "")] {
            let layer = found(text).unwrap();
            assert_eq!((&layer.device, layer.path.as_os_str()), (&file, path.as_ref()), "{text}");
            assert_eq!(layer.resolve("upperdir").unwrap(), layer, "{text}");
        }
        for text in ["", "none", "none/a", "store/../a"] {
            let failure = found(text).unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains("zoned:"), "{failure}");
        }
        assert_eq!(ZonedLayer::named("./zoned:a".as_ref()), None);
        assert_eq!(
            ZonedLayer::named("zoned:".as_ref()).unwrap().resolve("lowerdir").unwrap_err().exit_status(),
            2
        );
    }

    #[test]
    fn an_upper_layer_has_its_work_directory_beside_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let named = |dir: &str| ZonedLayer::at(file.path().join(dir).as_os_str().as_bytes());
        let (upper, work) = named("a/b").upper("option --upper").unwrap();
        assert_eq!((upper.path, work.path), ("a/b".into(), ".work/a-b".into()));
        assert_eq!((&upper.device, &work.device), (&work.device, &file.path().canonicalize().unwrap()));
        for dir in ["", ".work/a"] {
            let refused = named(dir).upper("option --upper").unwrap_err();
            assert!(refused.exit_status() == 2 && refused.to_string().starts_with("option --upper zoned:"));
        }
    }

    #[test]
    fn upper_layers_have_work_directories_of_their_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device = Conventional::create(file.reopen().unwrap(), 4096, 256, 64).unwrap();
        let tree =
            ZonedTree::open(Store::format(Arc::new(device), vellum_zoned::store::Placement::NONE).unwrap())
                .unwrap();
        // As a mount has left it that was killed.
        let left = ZonedLayer { path: ".work/a-b/work/left".into(), ..ZonedLayer::at(b"") };
        make(&left, &tree).unwrap();
        tree.sync().unwrap();
        drop(tree);
        let opened = |dir: &str| {
            let layer = ZonedLayer::at(file.path().join(dir).as_os_str().as_bytes());
            let (above, work) = layer.upper("option --upper").unwrap();
            let device = OwnedFd::from(file.reopen().unwrap());
            (upper(&above, &work, device, None).unwrap(), work)
        };
        let has_left = |work: &ZonedLayer| {
            let tree = OPEN.lock().iter().find_map(|(_, tree)| tree.upgrade()).unwrap();
            ZonedBranch::open(&tree, &CString::new(work.path.as_os_str().as_bytes()).unwrap(), String::new())
                .unwrap()
                .open_dir_path(c"work/left")
                .is_ok()
        };
        // The one that goes on under that name looks after it itself.
        let (first, former) = opened("a/b");
        let (second, work) = opened("a-b");
        assert!(has_left(&former) && !has_left(&work));
        drop((first, second));
        let (_pair, _) = opened("a-b");
        assert!(!has_left(&former));
    }

    #[test]
    fn a_store_has_one_writer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let layer = ZonedLayer::at(file.path().as_os_str().as_bytes()).resolve("upperdir").unwrap();
        let first = open_device("upperdir", &layer, true, &mut |_| false).unwrap();
        let refused = open_device("upperdir", &layer, true, &mut |_| false).unwrap_err();
        assert!(refused.to_string().contains("another mount"), "{refused}");
        drop(first);
        let readers = [(); 2].map(|()| open_device("lowerdir", &layer, false, &mut |_| false).unwrap());
        drop(readers);
        open_device("upperdir", &layer, true, &mut |_| false).unwrap();
    }
}
