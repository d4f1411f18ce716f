//! Opening the layers, and refusing what cannot work before anything has been changed.

pub(crate) mod access_times;
pub(crate) mod cache;
pub mod ceph;
pub(crate) mod flatten_remains;
pub mod lock;
#[cfg(feature = "memory-layers")]
pub(crate) mod memory;
pub(crate) mod remove;
pub mod source;
pub mod store;
pub(crate) mod writeback;
pub mod zoned;
mod zoned_work;

use crate::config::{Config, LayerWriters};
use crate::failure::Failure;
use crate::layers::lock::{DirLock, PREDECESSOR_WAIT};
use crate::layers::source::LayerSource;
use crate::mounts::mountpoint::{Mount, mounts};
use crate::store_server;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_branch::LocalBranch;
use vellum_sys::mount::{Restrictions, restrict};
pub use vellum_union::IMPLIED;
use vellum_vfs::Branch;

/// A layer as whoever mounts has opened it.
#[derive(Debug)]
pub struct OpenLayer {
    /// Where it comes from; of a directory, the absolute path.
    pub source: LayerSource,
    /// Its root, where that is a directory; of one in a store, the device.
    pub root: Option<OwnedFd>,
}

/// The layers of an instance, opened as far as that is done by whoever mounts, and checked. They are served in whatever process and
/// mount namespace.
#[derive(Debug, Default)]
pub struct OpenLayers {
    /// Layers that are only read, in the order of [`Config::read_only_layers`].
    pub lowers: Vec<OpenLayer>,
    /// The upper and its work directory.
    pub upper: Option<(OpenLayer, OpenLayer)>,
    /// Held as long as the upper may be written to.
    pub locks: Vec<DirLock>,
    /// The mount by which the upper is reached, where that is one of its own. While this is open, others can be made of it.
    pub mount: Option<OwnedFd>,
    /// A process that has died has served them to those who use the mount.
    pub go_on: bool,
    /// Files of the upper are written behind.
    pub is_logged: bool,
    /// Nobody changes the lowers.
    pub is_immutable: bool,
    /// The socket of the store that the upper is in.
    pub store_socket: Option<OwnedFd>,
}

/// The layers of an instance, open.
pub struct Layers {
    /// Lower layers, the top one first; with a read-only mount, its upper is the first of them.
    pub lowers: Vec<Arc<dyn Branch>>,
    /// The upper and its work directory.
    pub upper: Option<(Arc<dyn Branch>, Arc<dyn Branch>)>,
    /// Held as long as the upper may be written to.
    pub locks: Vec<DirLock>,
}

impl OpenLayer {
    fn directory(path: PathBuf, root: OwnedFd) -> Self {
        Self { source: LayerSource::Directory(path), root: Some(root) }
    }

    /// One that is opened where it is served.
    fn opened_later(source: &LayerSource) -> Result<Self, Failure> {
        let source = match source {
            LayerSource::Ceph(layer) => LayerSource::Ceph(layer.resolve()?),
            other => other.clone(),
        };
        Ok(Self { source, root: None })
    }

    /// One that nobody changes.
    fn immutable(self) -> Result<Arc<dyn Branch>, Failure> {
        match &self.source {
            LayerSource::Ceph(layer) => ceph::immutable(layer),
            _ => self.branch(),
        }
    }

    fn branch(self) -> Result<Arc<dyn Branch>, Failure> {
        match self.source {
            LayerSource::Directory(path) => {
                let root = self.root.ok_or_else(|| missing(&path))?;
                let shown = path.display().to_string();
                LocalBranch::from_fd(root, path)
                    .map(|branch| branch as Arc<dyn Branch>)
                    .map_err(|e| Failure::input(format!("layer {shown}: cannot open it: {}", e.errno())))
            }
            LayerSource::Ceph(layer) => ceph::layer(&layer),
            LayerSource::Zoned(layer) => {
                let device = self.root.ok_or_else(|| zoned::missing(&layer))?;
                zoned::layer(&layer, device)
            }
            #[cfg(feature = "memory-layers")]
            LayerSource::Memory(tree) => tree.branch(),
        }
    }
}

fn missing(path: &Path) -> Failure {
    Failure::system(format!("layer {}: its descriptor is missing", path.display()))
}

impl OpenLayers {
    /// As another process has opened them. `roots`: the descriptors that belong to them, in the order of [`Self::all`].
    pub fn from_roots(
        config: &Config,
        roots: &mut dyn Iterator<Item = OwnedFd>,
        locks: Vec<DirLock>,
    ) -> Result<Self, Failure> {
        let mut open = |source: &LayerSource| {
            let root = if source.has_root() { Some(roots.next()) } else { None };
            match root {
                Some(None) => Err(Failure::system(format!("layer {source}: its descriptor is missing"))),
                root => Ok(OpenLayer { source: source.clone(), root: root.flatten() }),
            }
        };
        let upper = match config.writable_layers() {
            Some((upper, work)) => Some((open(upper)?, open(work)?)),
            None => None,
        };
        let lowers = config.read_only_layers().map(open).collect::<Result<_, _>>()?;
        let is_logged = config.write_behind.is_some();
        let is_immutable = config.cache.is_some_and(|cache| cache.sharing == LayerWriters::Immutable);
        Ok(Self {
            lowers,
            upper,
            locks,
            mount: None,
            go_on: false,
            is_logged,
            is_immutable,
            store_socket: None,
        })
    }

    /// The upper, its work directory, and the lowers.
    pub fn all(&self) -> impl Iterator<Item = &OpenLayer> {
        self.upper.iter().flat_map(|(upper, work)| [upper, work]).chain(&self.lowers)
    }

    /// The roots that go to whoever serves them, in the order of [`Self::all`].
    pub fn roots(&self) -> impl Iterator<Item = &OwnedFd> {
        self.all().filter_map(|layer| layer.root.as_ref())
    }

    /// What they were opened by, with the layers as they were found.
    #[must_use]
    pub fn resolve(&self, config: &Config, mountpoint: &Path) -> Config {
        let mut config = Config { mountpoint: mountpoint.to_owned(), ..config.clone() };
        let mut lowers = self.lowers.iter().map(|layer| layer.source.clone());
        match (&self.upper, &mut config) {
            (Some((upper, work)), config) => {
                config.upper = Some(upper.source.clone());
                config.work = Some(work.source.clone());
            }
            (None, Config { upper: Some(upper), .. }) => *upper = lowers.next().unwrap_or(upper.clone()),
            (None, _) => {}
        }
        config.lowers = lowers.collect();
        config
    }

    /// Refuses layers that a process which has died has taken with it.
    pub fn check_persistent(&self) -> Result<(), Failure> {
        match &self.upper {
            Some((upper, _)) if !upper.source.is_persistent() => {
                let upper = &upper.source;
                let what = if upper.zoned().is_some() { "not synced" } else { "written to it" };
                Err(Failure::system(format!(
                    "upper layer {upper}: what was {what} has gone with the service"
                )))
            }
            _ => Ok(()),
        }
    }

    /// As the union takes them.
    pub fn into_branches(mut self) -> Result<Layers, Failure> {
        let upper = match self.upper {
            #[cfg(feature = "memory-layers")]
            Some((OpenLayer { source: LayerSource::Memory(tree), .. }, _)) => Some(tree.pair()?),
            Some((
                OpenLayer { source: LayerSource::Ceph(upper), .. },
                OpenLayer { source: LayerSource::Ceph(work), .. },
            )) => Some(ceph::upper(&upper, &work, self.go_on, self.is_logged)?),
            Some((
                OpenLayer { source: LayerSource::Zoned(upper), root: Some(device) },
                OpenLayer { source: LayerSource::Zoned(work), root: Some(second) },
            )) => {
                // What a record names stays open as long as the mount is served.
                self.locks.push(DirLock::from(second));
                Some(zoned::upper(&upper, &work, device, self.store_socket)?)
            }
            Some((upper, work)) => Some((upper.branch()?, work.branch()?)),
            None => None,
        };
        let open = if self.is_immutable { OpenLayer::immutable } else { OpenLayer::branch };
        let lowers = self.lowers.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Layers { lowers, upper, locks: self.locks })
    }
}

/// A directory that an option named, seen before it is used.
struct ResolvedDir {
    path: PathBuf,
    dev: u64,
    ino: u64,
    mount: u64,
}

/// Opens what `config` names. `mountpoint` is where the tree will be, absolute.
pub fn open(config: &Config, mountpoint: &Path) -> Result<OpenLayers, Failure> {
    open_beside(config, mountpoint, &mut |_| false)
}

/// As [`open`], for a service that may have the upper's store open already, which `has_open` says.
pub(crate) fn open_beside(
    config: &Config,
    mountpoint: &Path,
    has_open: zoned::HasOpen<'_>,
) -> Result<OpenLayers, Failure> {
    let mut layers = OpenLayers::default();
    let mut upper_seen = None;
    if let Some(upper) = &config.upper {
        if config.writable() {
            let work = config.work.as_ref().ok_or_else(|| {
                Failure::input(
                    "upperdir without workdir; add workdir=DIR, a directory on the same filesystem",
                )
            })?;
            match (upper.directory(), work.directory()) {
                (Some(upper), Some(work)) => {
                    upper_seen = Some(open_upper(config, (upper, work), mountpoint, &mut layers)?);
                }
                (None, None) if upper.zoned().is_some() && work.zoned().is_some() => {
                    let (pair, store_socket) = open_stored_upper(upper, work, has_open)?;
                    (layers.upper, layers.store_socket) = (Some(pair), store_socket);
                }
                (None, None) => {
                    check_far_pair(config, upper, work)?;
                    layers.upper = Some((OpenLayer::opened_later(upper)?, OpenLayer::opened_later(work)?));
                }
                _ => {
                    return Err(Failure::input(format!(
                        "workdir {work}: not of the same kind as upperdir {upper}; give one that is"
                    )));
                }
            }
        } else if let Some(path) = upper.directory() {
            let path = see("upperdir", path)?.path;
            let root = open_lower("upperdir", &path, mountpoint)?;
            layers.lowers.push(OpenLayer::directory(path, root));
        } else {
            let lower = open_far_lower(upper, &layers)?;
            layers.lowers.push(lower);
        }
    }
    let mapped = !config.uid_map.is_identity() || !config.gid_map.is_identity();
    let table = if mapped { mounts("self") } else { Vec::new() };
    for lower in &config.lowers {
        let Some(path) = lower.directory() else {
            let lower = open_far_lower(lower, &layers)?;
            layers.lowers.push(lower);
            continue;
        };
        let mut seen = see("lowerdir", path)?;
        if let Some(plain) = unmapped(&seen, &table) {
            tracing::debug!(lower = %seen.path.display(), plain = %plain.path.display(), "mapping ids once, not twice");
            seen = plain;
        }
        if upper_seen.as_ref().is_some_and(|upper| is_same(upper, &seen)) {
            let shown = path.display();
            return Err(Failure::input(format!("lowerdir {shown}: it is the upperdir too; name it once")));
        }
        let root = open_lower("lowerdir", &seen.path, mountpoint)?;
        layers.lowers.push(OpenLayer::directory(seen.path, root));
    }
    Ok(layers)
}

/// Opens an upper layer and its work directory in a store, for which nobody else may have it, and the store's socket.
fn open_stored_upper(
    upper: &LayerSource,
    work: &LayerSource,
    has_open: zoned::HasOpen<'_>,
) -> Result<((OpenLayer, OpenLayer), Option<OwnedFd>), Failure> {
    let (Some(upper), Some(work)) = (upper.zoned(), work.zoned()) else {
        return Err(Failure::input(format!("workdir {work}: not in a store, as upperdir {upper} is")));
    };
    let (upper, work, device) = zoned::open_pair(upper, work, has_open)?;
    let second =
        device.try_clone().map_err(|e| Failure::system("a second descriptor of a device").because(e))?;
    let of = |layer, device| OpenLayer { source: LayerSource::Zoned(layer), root: Some(device) };
    // Who has the store open has its socket, too.
    let store_socket = if upper.is_shared() { None } else { store_server::listen(&device) };
    Ok(((of(upper, device), of(work, second)), store_socket))
}

/// Opens a layer that is only read and no directory of this host.
fn open_far_lower(source: &LayerSource, layers: &OpenLayers) -> Result<OpenLayer, Failure> {
    let LayerSource::Zoned(layer) = source else { return OpenLayer::opened_later(source) };
    // A device is opened once.
    let others = layers.all().filter_map(|other| other.source.zoned().zip(other.root.as_ref()));
    let (layer, device) = zoned::open_lower(layer, others)?;
    Ok(OpenLayer { source: LayerSource::Zoned(layer), root: Some(device) })
}

/// Opens an upper directory and its work directory, and takes the right to both.
fn open_upper(
    config: &Config,
    (upper, work): (&Path, &Path),
    mountpoint: &Path,
    layers: &mut OpenLayers,
) -> Result<ResolvedDir, Failure> {
    let (upper, work) = (see("upperdir", upper)?, see("workdir", work)?);
    check_pair(&upper, &work, mountpoint)?;
    for (option, path, taken) in [
        ("upperdir", &upper.path, "another mount writes to it; unmount that first, or mount with ro"),
        ("workdir", &work.path, "another mount uses it; give each mount a workdir of its own"),
    ] {
        layers.locks.push(DirLock::take(option, path, PREDECESSOR_WAIT, taken)?);
    }
    flatten_remains::remove(&upper.path, &work.path);
    let plain = (open_plain("upperdir", &upper.path)?, open_plain("workdir", &work.path)?);
    let pair = match access_times::pair(config, (&upper.path, &work.path), &plain) {
        Some((mount, pair)) => {
            layers.mount = Some(mount);
            pair
        }
        None => plain,
    };
    let work = OpenLayer::directory(work.path, pair.1);
    layers.upper = Some((OpenLayer::directory(upper.path.clone(), pair.0), work));
    Ok(upper)
}

fn see(option: &str, path: &Path) -> Result<ResolvedDir, Failure> {
    let refused = |e: std::io::Error| {
        let shown = path.display();
        match e.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::input(format!("{option} {shown}: no such directory; create it or correct the path"))
            }
            std::io::ErrorKind::NotADirectory => {
                Failure::input(format!("{option} {shown}: not a directory; give one"))
            }
            _ => Failure::input(format!("{option} {shown}"))
                .because(e)
                .remedy("give a directory that can be entered"),
        }
    };
    let absolute = path.canonicalize().map_err(refused)?;
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(CWD, &absolute, AtFlags::empty(), wanted).map_err(|e| refused(e.into()))?;
    if !rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()).is_dir() {
        return Err(refused(Errno::NOTDIR.into()));
    }
    let dev = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok(ResolvedDir { path: absolute, dev, ino: stat.stx_ino, mount: stat.stx_mnt_id })
}

/// The directory `seen` by way of another mount, when its own maps ids. podman 4 maps the ids of lower layers by their
/// mount *and* asks us to; done twice, no id would be left.
fn unmapped(seen: &ResolvedDir, table: &[Mount]) -> Option<ResolvedDir> {
    let own = table.iter().find(|mount| mount.id == seen.mount && mount.is_idmapped())?;
    let inner = own.root.join(seen.path.strip_prefix(&own.point).ok()?);
    table.iter().filter(|mount| mount.device == own.device && !mount.is_idmapped()).find_map(|mount| {
        let path = mount.point.join(inner.strip_prefix(&mount.root).ok()?);
        see("lowerdir", &path).ok().filter(|plain| is_same(plain, seen) && plain.mount == mount.id)
    })
}

fn is_same(one: &ResolvedDir, other: &ResolvedDir) -> bool {
    (one.dev, one.ino) == (other.dev, other.ino)
}

/// Whether an upper and its work directory can work together, and neither holds the mount point.
fn check_pair(upper: &ResolvedDir, work: &ResolvedDir, mountpoint: &Path) -> Result<(), Failure> {
    let shown = work.path.display();
    if is_same(upper, work) {
        return Err(Failure::input(format!(
            "workdir {shown}: it is the upperdir; give a directory beside it"
        )));
    }
    if upper.path.starts_with(&work.path) || work.path.starts_with(&upper.path) {
        return Err(Failure::input(format!(
            "workdir {shown}: it and upperdir {} lie in each other; give a directory beside it",
            upper.path.display()
        )));
    }
    if upper.dev != work.dev || upper.mount != work.mount {
        return Err(Failure::input(format!(
            "workdir {shown}: on another filesystem or mount than upperdir {}; give a directory beside it",
            upper.path.display()
        )));
    }
    for (option, seen) in [("upperdir", upper), ("workdir", work)] {
        let shown = seen.path.display();
        if mountpoint != seen.path && mountpoint.starts_with(&seen.path) {
            let point = mountpoint.display();
            return Err(Failure::input(format!(
                "{option} {shown}: the mount point {point} lies in it; mount somewhere else"
            )));
        }
        let read_only =
            rustix::fs::statvfs(&seen.path).is_ok_and(|vfs| vfs.f_flag.contains(StatVfsMountFlags::RDONLY));
        let access = rustix::fs::accessat(CWD, &seen.path, Access::WRITE_OK, AtFlags::EACCESS);
        if read_only || access == Err(Errno::ROFS) {
            return Err(Failure::input(format!(
                "{option} {shown}: its filesystem is read-only; remount that, or mount with ro"
            )));
        }
        if let Err(e) = access {
            let failure = Failure::input(format!("{option} {shown}: cannot be written to"));
            return Err(failure.because(e).remedy("or mount with ro"));
        }
    }
    Ok(())
}

/// Whether an upper layer and a work directory on CephFS can work together, as far as their names say it: no symbolic link on the way to
/// them is followed.
fn check_far_pair(config: &Config, upper: &LayerSource, work: &LayerSource) -> Result<(), Failure> {
    let (Some(upper), Some(work)) = (upper.ceph(), work.ceph()) else { return Ok(()) };
    if upper.cluster != work.cluster {
        return Err(Failure::input(format!(
            "workdir {work}: on another cluster than upperdir {upper}; give a directory beside it"
        )));
    }
    if upper.path().starts_with(work.path()) || work.path().starts_with(upper.path()) {
        return Err(Failure::input(format!(
            "workdir {work}: it and upperdir {upper} lie in each other; give a directory beside it"
        )));
    }
    match config.lowers.iter().filter_map(LayerSource::ceph).find(|lower| *lower == upper) {
        Some(lower) => Err(Failure::input(format!("lowerdir {lower}: it is the upperdir too; name it once"))),
        None => Ok(()),
    }
}

fn open_plain(option: &str, path: &Path) -> Result<OwnedFd, Failure> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Failure::input(format!("{option} {}: cannot open it", path.display())).because(e))
}

/// Opens a layer that is only read: as a private copy of its mount, so that no mount in it can be entered, now or
/// later; above all not our own, which would have us wait for ourselves.
fn open_lower(option: &str, path: &Path, mountpoint: &Path) -> Result<OwnedFd, Failure> {
    match private_copy(path) {
        Ok(fd) => Ok(fd),
        Err(_) if mountpoint != path && mountpoint.starts_with(path) => Err(Failure::input(format!(
            "{option} {}: the mount point {} lies in it, which needs privilege; mount somewhere else",
            path.display(),
            mountpoint.display()
        ))),
        Err(_) => open_plain(option, path),
    }
}

fn private_copy(path: &Path) -> Result<OwnedFd, Errno> {
    // The flag of the tree call is O_CLOEXEC; without AT_RECURSIVE, mounts inside are left out.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let fd = rustix::mount::open_tree(CWD, path, flags)?;
    // Nothing in it is ever changed, not even when it was read; in a user namespace the latter may not be for us to say.
    let read_only = Restrictions { read_only: true, ..Restrictions::default() };
    let restricted =
        restrict(&fd, Restrictions { no_atime: true, ..read_only }).or_else(|_| restrict(&fd, read_only));
    if let Err(error) = restricted {
        tracing::debug!(path = %path.display(), %error, "a lower layer is not made read-only");
    }
    // What we read through it is what a reader of the path would read.
    rustix::fs::openat(&fd, c".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(fd)
}
