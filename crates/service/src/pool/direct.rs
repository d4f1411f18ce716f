//! A mount of an upper layer of its own, seen nowhere: files that are handed out to programs are opened by it, so that everybody can
//! tell them from files that were opened otherwise, and their paths in /proc are those in the union.

use crate::config::{AccessTimes, MountFlags};
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, makedev, openat, openat2, statx,
};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::os::fd::OwnedFd;
use std::path::Path;
use vellum_ring::files::{MOUNT_IDS, MOUNT_NUMBERS, READ_ONLY};
use vellum_sys::mount::{Restrictions, restrict};

/// Such a mount, and others of the same directory.
#[derive(Debug)]
pub(super) struct DirectMount {
    root: OwnedFd,
    /// For files that are only read, with its id: whoever has one of these can change nothing of the file by it, now or later.
    /// None: no file is handed out to be read alone.
    reading: Option<(OwnedFd, u64)>,
    /// The same, of which nothing can be changed; None: there are no views.
    still: Option<OwnedFd>,
    /// `st_dev` of the union's mount.
    shown: u64,
    /// `st_dev` of files in it.
    device: u64,
    /// Its id, as statx(2) gives it.
    mount: u64,
}

/// The mounts that files of an upper layer are handed out by. They come in this order from whoever mounts, and stay for a successor.
#[derive(Debug)]
pub(super) struct Roots<T> {
    /// For files that are written to.
    pub(super) root: T,
    /// For files that are only read.
    pub(super) reading: Option<T>,
    /// For views, where the kernel makes such mounts.
    pub(super) still: Option<T>,
}

impl<T> Roots<T> {
    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.root].into_iter().chain(&self.reading).chain(&self.still)
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
        let made = mount_of(directory).and_then(|mount| restrict(&mount, what).map(|()| mount));
        made.inspect_err(|error| tracing::debug!(%error, "{without}")).ok()
    };
    // A file that cannot be changed keeps its access time.
    let reading = plain.no_atime.then_some(Restrictions { read_only: true, ..plain });
    Some(Roots {
        root: make(plain, "no files are handed out")?,
        reading: reading.and_then(|what| make(what, "no files are handed out to be read")),
        still: make(
            Restrictions { read_only: true, no_exec: true, no_atime: true },
            "there are no views of directories",
        ),
    })
}

fn mount_of(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    open_tree(directory, "", mount_flags())
}

/// All that a service asks of open_tree(2): the sandbox lets nothing else through.
pub(crate) fn mount_flags() -> OpenTreeFlags {
    OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::from_bits_retain(AtFlags::EMPTY_PATH.bits())
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

impl DirectMount {
    /// What is known of a mount. `shown`: `st_dev` of the union's. None: it cannot be told from others.
    pub(super) fn of(roots: Roots<OwnedFd>, shown: u64) -> Option<Self> {
        let Roots { root, reading, still } = roots;
        let (mount, device) = id_of(&root)?;
        let reading = reading.and_then(|root| id_of(&root).map(|(id, _)| (root, id)));
        (shown != 0).then_some(Self { root, reading, still, shown, device, mount })
    }

    /// As a greeting has them.
    pub(super) fn numbers(&self, flags: u64) -> impl Iterator<Item = [u64; MOUNT_NUMBERS]> {
        let reading = self.reading.as_ref().map(|(_, id)| [self.shown, self.device, *id, flags | READ_ONLY]);
        [[self.shown, self.device, self.mount, flags]].into_iter().chain(reading)
    }

    /// Opens a directory, whose inode number must be the given one.
    pub(super) fn directory(&self, path: &[u8], ino: u64) -> Result<OwnedFd, Errno> {
        self.directory_in(&self.root, path, ino)
    }

    /// The same, for files in it that are only read.
    pub(super) fn directory_to_read(&self, path: &[u8], ino: u64) -> Result<OwnedFd, Errno> {
        let (root, _) = self.reading.as_ref().ok_or(Errno::OPNOTSUPP)?;
        self.directory_in(root, path, ino)
    }

    /// A new mount of a directory alone, to look at. EINVAL: the kernel makes none of one that is not in the tree.
    pub(super) fn view(&self, path: &[u8], ino: u64) -> Result<OwnedFd, Errno> {
        let mount = mount_of(&self.directory_in(self.still.as_ref().ok_or(Errno::OPNOTSUPP)?, path, ino)?)?;
        // When the descriptor that has made it is closed the mount is in no namespace: whoever has mounts of his own to command, in a
        // user namespace for instance, can then neither make it writable nor put it anywhere.
        openat(&mount, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    fn directory_in(&self, root: &OwnedFd, path: &[u8], ino: u64) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let (found, stat) = self.open_in(root, path, OFlags::PATH | OFlags::DIRECTORY)?;
        if stat.st_ino == ino { Ok(found) } else { Err(Errno::STALE) }
    }

    /// Opens something, and says what it is.
    pub(super) fn open(&self, path: &[u8], flags: OFlags) -> Result<(OwnedFd, Stat), Errno> {
        self.open_in(&self.root, path, flags)
    }

    fn open_in(&self, root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<(OwnedFd, Stat), Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let found = openat2(root, path, flags, Mode::empty(), inside)?;
        let stat = fstat(&found)?;
        if stat.st_dev == self.device { Ok((found, stat)) } else { Err(Errno::STALE) }
    }
}
