//! A mount of an upper layer of its own, seen nowhere: files that are handed out to programs are opened by it, so that everybody can
//! tell them from files that were opened otherwise, and their paths in /proc are those in the union.

use crate::config::{AccessTimes, MountFlags};
use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use vellum_branch::{ExportRoots, LocalExport};
use vellum_ring::files::{MOUNT_IDS, MOUNT_NUMBERS, READ_ONLY};
use vellum_sys::mount::{Restrictions, alone, restrict};
use vellum_vfs::Export;

/// By what clients tell files that come from such mounts: numbers for them to know.
#[derive(Debug)]
pub(super) struct HandoutMounts {
    /// `st_dev` of the union's mount.
    shown: u64,
    /// `st_dev` of files in it.
    device: u64,
    /// Its id, as statx(2) gives it.
    mount: u64,
    /// The id of the one for files that are only read; None: no file is handed out to be read alone.
    reading: Option<u64>,
}

/// The mounts that files of an upper layer are handed out by. They come in this order from whoever mounts, and stay for a successor.
#[derive(Debug)]
pub(super) struct Roots<T> {
    /// For files that are written to.
    pub(super) root: T,
    /// For files that are only read.
    pub(super) reading: Option<T>,
}

impl<T> Roots<T> {
    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.root].into_iter().chain(&self.reading)
    }
}

/// New mounts of a directory, for whoever may make some. What the union's mount does not do these do not do either.
pub(super) fn mounts_of(directory: &OwnedFd, flags: &MountFlags) -> Option<Roots<OwnedFd>> {
    let plain = Restrictions {
        no_exec: flags.exec == Some(false),
        no_atime: flags.access_times == AccessTimes::Never,
        ..Restrictions::default()
    };
    let make = |what: Restrictions, without: &'static str| {
        let made = alone(directory).and_then(|mount| restrict(&mount, what).map(|()| mount));
        made.inspect_err(|error| tracing::debug!(%error, "{without}")).ok()
    };
    // A file that cannot be changed keeps its access time.
    let reading = plain.no_atime.then_some(Restrictions { read_only: true, ..plain });
    Some(Roots {
        root: make(plain, "no files are handed out")?,
        reading: reading.and_then(|what| make(what, "no files are handed out to be read")),
    })
}

/// The id of a mount, which no other one has at any time where the kernel gives such (Linux 6.8), and `st_dev` of what is in it.
fn id_of(root: &OwnedFd) -> Option<(u64, u64)> {
    let wanted = StatxFlags::from_bits_retain(MOUNT_IDS);
    let found = statx(root, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    let device = makedev(found.stx_dev_major, found.stx_dev_minor);
    (found.stx_mask & MOUNT_IDS != 0).then_some((found.stx_mnt_id, device))
}

/// `st_dev` of what is mounted somewhere, without asking it; 0: not known.
pub(super) fn device_of(mountpoint: &Path) -> u64 {
    let flags = AtFlags::STATX_DONT_SYNC;
    statx(rustix::fs::CWD, mountpoint, flags, StatxFlags::INO)
        .map_or(0, |found| makedev(found.stx_dev_major, found.stx_dev_minor))
}

impl HandoutMounts {
    /// What is known of mounts, and the face by which files are opened in them. `shown`: `st_dev` of the union's. None: they cannot be told
    /// from others.
    pub(super) fn of(roots: Roots<OwnedFd>, shown: u64) -> Option<(Arc<Self>, Arc<dyn Export>)> {
        let Roots { root, reading } = roots;
        let (mount, device) = id_of(&root)?;
        let reading = reading.and_then(|root| id_of(&root).map(|(id, _)| (root, id)));
        let numbers = Self { shown, device, mount, reading: reading.as_ref().map(|(_, id)| *id) };
        let roots = ExportRoots { write: root, read: reading.map(|(root, _)| root) };
        let export = LocalExport::new(roots).ok()?;
        (shown != 0).then(|| (Arc::new(numbers), export as Arc<dyn Export>))
    }

    /// As a greeting has them.
    pub(super) fn numbers(&self, flags: u64) -> impl Iterator<Item = [u64; MOUNT_NUMBERS]> {
        let reading = self.reading.map(|id| [self.shown, self.device, id, flags | READ_ONLY]);
        [[self.shown, self.device, self.mount, flags]].into_iter().chain(reading)
    }
}
