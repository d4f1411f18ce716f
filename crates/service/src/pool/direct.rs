//! A mount of an upper layer of its own, seen nowhere: files that are handed out to programs are opened by it, so that everybody can
//! tell them from files that were opened otherwise, and their paths in /proc are those in the union.

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, makedev, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::os::fd::OwnedFd;
use std::path::Path;
use vellum_ring::files::MOUNT_NUMBERS;

/// Such a mount.
#[derive(Debug)]
pub(super) struct DirectMount {
    root: OwnedFd,
    /// `st_dev` of the union's mount.
    shown: u64,
    /// `st_dev` of files in it.
    device: u64,
    /// Its id, as statx(2) gives it.
    mount: u64,
}

/// A new mount of a directory, for whoever may make one.
pub(super) fn mount_of(directory: &OwnedFd) -> Option<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::from_bits_retain(AtFlags::EMPTY_PATH.bits());
    open_tree(directory, "", flags)
        .inspect_err(|error| tracing::debug!(%error, "no files are handed out"))
        .ok()
}

/// `st_dev` of what is mounted somewhere, without asking it; 0: not known.
pub(super) fn device_of(mountpoint: &Path) -> u64 {
    let flags = AtFlags::STATX_DONT_SYNC;
    statx(rustix::fs::CWD, mountpoint, flags, StatxFlags::INO)
        .map_or(0, |found| makedev(found.stx_dev_major, found.stx_dev_minor))
}

impl DirectMount {
    /// What is known of a mount. `shown`: `st_dev` of the union's. None: it cannot be told from others.
    pub(super) fn of(root: OwnedFd, shown: u64) -> Option<Self> {
        let found = statx(&root, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
        let known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
        let device = makedev(found.stx_dev_major, found.stx_dev_minor);
        (known && shown != 0).then_some(Self { root, shown, device, mount: found.stx_mnt_id })
    }

    /// As a greeting has them.
    pub(super) const fn numbers(&self, flags: u64) -> [u64; MOUNT_NUMBERS] {
        [self.shown, self.device, self.mount, flags]
    }

    /// Opens a directory, whose inode number must be the given one.
    pub(super) fn directory(&self, path: &[u8], ino: u64) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let (found, stat) = self.open(path, OFlags::PATH | OFlags::DIRECTORY)?;
        if stat.st_ino == ino { Ok(found) } else { Err(Errno::STALE) }
    }

    /// Opens something, and says what it is.
    pub(super) fn open(&self, path: &[u8], flags: OFlags) -> Result<(OwnedFd, Stat), Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(&self.root, path, flags, Mode::empty(), inside)?;
        let stat = fstat(&found)?;
        if stat.st_dev == self.device { Ok((found, stat)) } else { Err(Errno::STALE) }
    }
}
