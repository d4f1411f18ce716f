//! A mount of its own: a pool of one, whose service is reached by nothing but the mount and may open nothing but its layers.

use super::new_mount::NewMount;
use super::pool_service::ServiceStart;
use super::supervisor::{self, Charge, Supervisor};
use super::wire::{FirstMount, MountRequest};
use crate::config::{Config, Profile};
use crate::failure::Failure;
use crate::layers::ceph;
use crate::layers::{self, OpenLayers};
use crate::mounts::mountpoint::{self, mounts, top_mount};
use crate::mounts::session_setup::{mount_at, prepare_process};
use crate::process::cpu_idle::online_processors;
use crate::process::daemon::StartupReport;
use crate::sandbox::{Plan, Roots};
use crate::store_server;
use rustix::fs::{FileType, Mode, OFlags, fstat};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use vellum_sys::open_descriptors;

/// Mounts, and serves until the mount is gone. `pending`: the parent that waits for the mount to be ready; without one, the process
/// stays what it is. Call before any thread has been started.
pub fn run(config: &Config, pending: Option<&StartupReport>) -> Result<(), Failure> {
    prepare_process();
    let signals = supervisor::hold()?;
    // What is opened from here on is the service's.
    let own = open_descriptors();
    let mountpoint = mountpoint::resolve(&config.mountpoint)?;
    let layers = layers::open(config, &mountpoint)?;
    if pending.is_some() && config.ceph_layers().next().is_some() {
        be_quiet();
    }
    let mounted = mount_at(config, &mountpoint)?;
    let take_away = || {
        if let Err(stays) = vellum_fuse::unmount(&mountpoint, true) {
            tracing::error!("{stays}");
        }
    };
    let mount = Mount::new(config, &mountpoint, mounted.device, layers, pending);
    let mount = mount.inspect_err(|_| take_away())?;
    let family = Supervisor::new(&mount, own, &signals, (0, supervisor::number()));
    let mut family = family.inspect_err(|_| take_away())?;
    let kept = family.run();
    let served = family.board.has_served();
    let kept = match kept {
        Err(_) if !served => family.word.outcome(),
        kept => kept,
    };
    if kept.is_err() && (!served || config.auto_unmount) {
        take_away();
    }
    if config.is_on_zoned() {
        family.close_inherited();
        store_server::sweep();
    }
    kept
}

/// Ceph's library prints some of what it cannot do. What is wrong with a mount is said in one line, by whoever waits for it.
fn be_quiet() {
    let null = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    if let Err(error) = null.and_then(rustix::stdio::dup2_stderr) {
        tracing::debug!(%error, "Ceph's library may print");
    }
}

/// A value whose descriptors are another process's to close, by the same table.
struct ForeignFds<T>(Option<T>);

impl<T> Drop for ForeignFds<T> {
    fn drop(&mut self) {
        std::mem::forget(self.0.take());
    }
}

/// A layer's root as it was when it was opened: device and inode number.
type Identity = (u64, u64);

struct Mount<'a> {
    config: &'a Config,
    point: &'a Path,
    /// Device of the filesystem that is mounted, as MAJOR:MINOR.
    device: String,
    gift: RefCell<ForeignFds<FirstMount>>,
    /// Those of the layers in the gift, in its order.
    roots: Vec<Identity>,
    pending: Option<&'a StartupReport>,
}

impl<'a> Mount<'a> {
    fn new(
        config: &'a Config,
        point: &'a Path,
        device: OwnedFd,
        layers: OpenLayers,
        pending: Option<&'a StartupReport>,
    ) -> Result<Self, Failure> {
        let request = MountRequest::new(config, point, &layers, false);
        let OpenLayers { lowers, upper, locks, store_socket, .. } = layers;
        let upper = upper.into_iter().flat_map(|(upper, work)| [upper, work]);
        let roots = upper.chain(lowers).filter_map(|layer| layer.root);
        let locks = locks.into_iter().map(OwnedFd::from);
        let descriptors: Vec<_> =
            [device].into_iter().chain(roots).chain(locks).chain(store_socket).collect();
        let (written, only_read) = request.roots();
        let roots =
            descriptors.iter().skip(1).take(written + only_read).map(identity).collect::<Result<_, _>>()?;
        let device = top_mount(point).map(|mount| mount.device).unwrap_or_default();
        Ok(Self {
            config,
            point,
            device,
            gift: RefCell::new(ForeignFds(Some(FirstMount { request, descriptors }))),
            roots,
            pending,
        })
    }

    /// The roots of the layers, for rules about files. Descriptors are the service's to close and to open, so it is looked whether they
    /// are still what they were.
    fn roots(&self) -> Result<Roots, Failure> {
        let gift = self.gift.borrow();
        let mut roots = Roots::default();
        let Some(gift) = &gift.0 else { return Ok(roots) };
        let (written, _) = gift.request.roots();
        for (number, (root, known)) in gift.descriptors.iter().skip(1).zip(&self.roots).enumerate() {
            if identity(root)? != *known {
                return Err(Failure::system("a layer's descriptor has been replaced"));
            }
            // A device is open already, and nothing else is to be opened there.
            if !is_directory(root)? {
                continue;
            }
            let copy = root.try_clone();
            let copy = copy.map_err(|e| Failure::system("a second descriptor of a layer").because(e))?;
            if number < written { roots.writable.push(copy) } else { roots.read_only.push(copy) }
        }
        Ok(roots)
    }
}

fn is_directory(root: &OwnedFd) -> Result<bool, Failure> {
    let found = fstat(root).map_err(|e| Failure::system("a layer").because(e))?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

fn identity(root: &OwnedFd) -> Result<Identity, Failure> {
    let found = fstat(root).map_err(|e| Failure::system("a layer").because(e))?;
    Ok((found.st_dev, found.st_ino))
}

impl Charge for Mount<'_> {
    fn plan(&self) -> Result<Plan, Failure> {
        let config = self.config;
        Ok(Plan {
            mode: config.sandbox,
            roots: Some(self.roots()?),
            passthrough: config.profile == Profile::Passthrough,
            writable: config.writable(),
            keep_awake: config.keep_awake.is_wanted(online_processors()),
            cache: config.cache.is_some(),
            zoned: config.is_on_zoned(),
            ceph: match &self.gift.borrow().0 {
                Some(gift) => ceph::prepare(&gift.request.config)?,
                None => None,
            },
        })
    }

    fn first(&self) -> Result<ServiceStart, Failure> {
        let gift = self.gift.borrow_mut().0.take();
        let gift = gift.ok_or_else(|| Failure::system("there is nothing to begin with"))?;
        if gift.request.config.ceph_layers().next().is_some() || gift.request.config.is_on_zoned() {
            // Clusters' clients have threads, and so has a store.
            return Ok(ServiceStart::Asked(Box::new(gift)));
        }
        NewMount::prepare(&gift.request, gift.descriptors, false).map(ServiceStart::fresh)
    }

    fn pending(&self) -> Option<&StartupReport> {
        self.pending
    }

    /// If it is still there: something else may have been mounted in its place.
    fn mountpoints(&self) -> Vec<PathBuf> {
        let is_ours = |mount: &mountpoint::Mount| mount.point == self.point && mount.device == self.device;
        mounts("self").into_iter().filter(is_ours).map(|mount| mount.point).collect()
    }
}
