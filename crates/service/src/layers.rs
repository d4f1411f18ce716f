//! Opening the layers, and refusing what cannot work before anything has been changed.

use crate::access_times;
use crate::config::Config;
use crate::failure::Failure;
use crate::lock::{DirLock, PREDECESSOR_WAIT};
use crate::mountpoint::mounts;
use crate::sandbox::Roots;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_branch::LocalBranch;
use vellum_sys::mount::{Restrictions, restrict};
use vellum_vfs::Branch;

/// The layers of an instance, as descriptors: opened and checked, in whatever process and mount namespace.
#[derive(Debug)]
pub struct OpenLayers {
    /// Lower layers, the top one first; with a read-only mount, its upper is the first of them.
    pub lowers: Vec<OwnedFd>,
    /// The upper and its work directory.
    pub upper: Option<(OwnedFd, OwnedFd)>,
    /// Paths of the layers from the top down, absolute, the upper included.
    pub paths: Vec<PathBuf>,
    /// Path of the work directory.
    pub work_path: Option<PathBuf>,
    /// Held as long as the upper may be written to.
    pub locks: Vec<DirLock>,
    /// The mount by which the upper is reached, where that is one of its own. While this is open, others can be made of it.
    pub mount: Option<OwnedFd>,
}

/// The layers of an instance, open.
pub struct Layers {
    /// Lower layers, the top one first; with a read-only mount, its upper is the first of them.
    pub lowers: Vec<Arc<dyn Branch>>,
    /// The upper and its work directory.
    pub upper: Option<(Arc<dyn Branch>, Arc<dyn Branch>)>,
    /// Paths of the layers from the top down, absolute, the upper included.
    pub paths: Vec<PathBuf>,
    /// Path of the work directory.
    pub work_path: Option<PathBuf>,
    /// Held as long as the upper may be written to.
    pub locks: Vec<DirLock>,
}

impl OpenLayers {
    /// The roots of all of them, for the sandbox's rules.
    pub fn roots(&self) -> Result<Roots, Failure> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone().map_err(|e| Failure::system(format!("a second descriptor of a layer: {e}")))
        };
        let uppers = self.upper.iter().flat_map(|(upper, work)| [upper, work]);
        Ok(Roots {
            read_only: self.lowers.iter().map(copy).collect::<Result<_, _>>()?,
            writable: uppers.map(copy).collect::<Result<_, _>>()?,
        })
    }

    /// As the union takes them.
    pub fn into_branches(self) -> Result<Layers, Failure> {
        let mut paths = self.paths.iter();
        let upper = match self.upper {
            None => None,
            Some((upper, work)) => {
                let work_path = self.work_path.clone().unwrap_or_default();
                Some((branch(upper, paths.next())?, branch(work, Some(&work_path))?))
            }
        };
        let lowers = self.lowers.into_iter().map(|lower| branch(lower, paths.next()));
        let lowers = lowers.collect::<Result<Vec<_>, _>>()?;
        Ok(Layers { lowers, upper, paths: self.paths, work_path: self.work_path, locks: self.locks })
    }
}

fn branch(directory: OwnedFd, path: Option<&PathBuf>) -> Result<Arc<dyn Branch>, Failure> {
    let shown = path.map(|path| path.to_string_lossy()).unwrap_or_default();
    LocalBranch::from_fd(directory, &*shown)
        .map(|branch| branch as Arc<dyn Branch>)
        .map_err(|e| Failure::input(format!("layer {shown}: cannot open it: {}", e.errno())))
}

/// A directory that an option named, seen before it is used.
struct Seen {
    path: PathBuf,
    dev: u64,
    ino: u64,
    mount: u64,
}

/// Opens what `config` names. `mountpoint` is where the tree will be, absolute.
pub fn open(config: &Config, mountpoint: &Path) -> Result<OpenLayers, Failure> {
    let mut layers = OpenLayers {
        lowers: Vec::new(),
        upper: None,
        paths: Vec::new(),
        work_path: None,
        locks: Vec::new(),
        mount: None,
    };
    let mut upper_seen = None;
    if let Some(upper) = &config.upper {
        let seen = see("upperdir", upper)?;
        if config.writable() {
            let work = config.work.as_deref().ok_or_else(|| {
                Failure::input(
                    "upperdir without workdir; add workdir=DIR, a directory on the same filesystem",
                )
            })?;
            let work = see("workdir", work)?;
            check_pair(&seen, &work, mountpoint)?;
            for (option, path, taken) in [
                ("upperdir", &seen.path, "another mount writes to it; unmount that first, or mount with ro"),
                ("workdir", &work.path, "another mount uses it; give each mount a workdir of its own"),
            ] {
                layers.locks.push(DirLock::take(option, path, PREDECESSOR_WAIT, taken)?);
            }
            let plain = (open_plain("upperdir", &seen.path)?, open_plain("workdir", &work.path)?);
            layers.upper = Some(match access_times::pair(config, (&seen.path, &work.path), &plain) {
                Some((mount, pair)) => {
                    layers.mount = Some(mount);
                    pair
                }
                None => plain,
            });
            layers.work_path = Some(work.path);
        } else {
            layers.lowers.push(open_lower("upperdir", &seen.path, mountpoint)?);
        }
        layers.paths.push(seen.path.clone());
        upper_seen = Some(seen);
    }
    let mapped = !config.uid_map.is_identity() || !config.gid_map.is_identity();
    let table = if mapped { std::fs::read("/proc/self/mountinfo").unwrap_or_default() } else { Vec::new() };
    for lower in &config.lowers {
        let mut seen = see("lowerdir", lower)?;
        if let Some(plain) = unmapped(&seen, &table) {
            tracing::debug!(lower = %seen.path.display(), plain = %plain.path.display(), "mapping ids once, not twice");
            seen = plain;
        }
        if layers.upper.is_some() && upper_seen.as_ref().is_some_and(|upper| is_same(upper, &seen)) {
            let shown = lower.display();
            return Err(Failure::input(format!("lowerdir {shown}: it is the upperdir too; name it once")));
        }
        layers.lowers.push(open_lower("lowerdir", &seen.path, mountpoint)?);
        layers.paths.push(seen.path);
    }
    Ok(layers)
}

fn see(option: &str, path: &Path) -> Result<Seen, Failure> {
    let refused = |e: std::io::Error| {
        let shown = path.display();
        match e.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::input(format!("{option} {shown}: no such directory; create it or correct the path"))
            }
            std::io::ErrorKind::NotADirectory => {
                Failure::input(format!("{option} {shown}: not a directory; give one"))
            }
            _ => Failure::input(format!("{option} {shown}: {e}; give a directory that can be entered")),
        }
    };
    let absolute = path.canonicalize().map_err(refused)?;
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(CWD, &absolute, AtFlags::empty(), wanted).map_err(|e| refused(e.into()))?;
    if !rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()).is_dir() {
        return Err(refused(Errno::NOTDIR.into()));
    }
    let dev = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok(Seen { path: absolute, dev, ino: stat.stx_ino, mount: stat.stx_mnt_id })
}

/// The directory `seen` by way of another mount, when its own maps ids. podman 4 maps the ids of lower layers by their
/// mount *and* asks us to; done twice, no id would be left.
fn unmapped(seen: &Seen, table: &[u8]) -> Option<Seen> {
    let own = mounts(table).find(|mount| mount.id == seen.mount && mount.is_idmapped())?;
    let inner = own.root.join(seen.path.strip_prefix(&own.point).ok()?);
    mounts(table).filter(|mount| mount.device == own.device && !mount.is_idmapped()).find_map(|mount| {
        let path = mount.point.join(inner.strip_prefix(&mount.root).ok()?);
        see("lowerdir", &path).ok().filter(|plain| is_same(plain, seen) && plain.mount == mount.id)
    })
}

fn is_same(one: &Seen, other: &Seen) -> bool {
    (one.dev, one.ino) == (other.dev, other.ino)
}

/// Whether an upper and its work directory can work together, and neither holds the mount point.
fn check_pair(upper: &Seen, work: &Seen, mountpoint: &Path) -> Result<(), Failure> {
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
            return Err(Failure::input(format!(
                "{option} {shown}: cannot be written to: {e}; or mount with ro"
            )));
        }
    }
    Ok(())
}

fn open_plain(option: &str, path: &Path) -> Result<OwnedFd, Failure> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Failure::input(format!("{option} {}: cannot open it: {e}", path.display())))
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
