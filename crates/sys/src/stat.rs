//! Attributes as the kernel states them.
#![forbid(unsafe_code)]

use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp, makedev};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds, may be negative.
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

/// What statx(2) says, or stat(2) where statx is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Device of the filesystem, in makedev form.
    pub dev: u64,
    /// Device number of a device node, in makedev form.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in 512-byte units.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of data.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth; zero where the filesystem does not keep it.
    pub btime: Time,
    /// The mount that it was reached by; 0 where the kernel does not say it.
    pub mount: u64,
    /// The subvolume of its filesystem; 0 where there are none, or the kernel does not say it.
    pub subvolume: u64,
}

/// Set once statx has been refused as a call (old kernels, strict seccomp filters).
pub(crate) static NO_STATX: AtomicBool = AtomicBool::new(false);

/// Since Linux 6.10.
const SUBVOLUME: StatxFlags = StatxFlags::from_bits_retain(0x8000);
const WANTED: StatxFlags =
    StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID).union(SUBVOLUME);

/// Attributes of `name` below `dir`, or of `dir` itself when `name` is empty and `flags` say so.
#[inline]
pub(crate) fn stat(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Stat, Errno> {
    if !NO_STATX.load(Ordering::Relaxed) {
        match rustix::fs::statx(dir, name, flags, WANTED) {
            Ok(found) => return Ok(from_statx(&found)),
            Err(Errno::NOSYS) => NO_STATX.store(true, Ordering::Relaxed),
            Err(errno) => return Err(errno),
        }
    }
    by_fstatat(dir, name, flags)
}

fn time(at: &StatxTimestamp) -> Time {
    Time { secs: at.tv_sec, nanos: at.tv_nsec }
}

fn from_statx(found: &Statx) -> Stat {
    let has = |what: StatxFlags| found.stx_mask & what.bits() != 0;
    Stat {
        ino: found.stx_ino,
        dev: makedev(found.stx_dev_major, found.stx_dev_minor),
        rdev: makedev(found.stx_rdev_major, found.stx_rdev_minor),
        size: found.stx_size,
        blocks: found.stx_blocks,
        blksize: found.stx_blksize,
        mode: u32::from(found.stx_mode),
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        atime: time(&found.stx_atime),
        mtime: time(&found.stx_mtime),
        ctime: time(&found.stx_ctime),
        btime: if has(StatxFlags::BTIME) { time(&found.stx_btime) } else { Time::default() },
        mount: if has(StatxFlags::MNT_ID) { found.stx_mnt_id } else { 0 },
        subvolume: if has(SUBVOLUME) { found.stx_subvol } else { 0 },
    }
}

// The width of these fields differs between architectures.
#[allow(clippy::unnecessary_cast, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn by_fstatat(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<Stat, Errno> {
    let found = rustix::fs::statat(dir, name, flags)?;
    let time = |secs: i64, nanos: u64| Time { secs, nanos: nanos as u32 };
    Ok(Stat {
        ino: found.st_ino as u64,
        dev: found.st_dev as u64,
        rdev: found.st_rdev as u64,
        size: found.st_size as u64,
        blocks: found.st_blocks as u64,
        blksize: found.st_blksize as u32,
        mode: found.st_mode as u32,
        nlink: found.st_nlink as u32,
        uid: found.st_uid,
        gid: found.st_gid,
        atime: time(found.st_atime as i64, found.st_atime_nsec as u64),
        mtime: time(found.st_mtime as i64, found.st_mtime_nsec as u64),
        ctime: time(found.st_ctime as i64, found.st_ctime_nsec as u64),
        btime: Time::default(),
        mount: 0,
        subvolume: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;

    #[test]
    fn statx_and_fstatat_agree() {
        for path in [c"/", c"/etc/passwd", c"/dev/null", c"/proc/self/exe"] {
            let new = stat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            let old = by_fstatat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            let unsaid = Stat { btime: Time::default(), mount: 0, subvolume: 0, ..new };
            assert_eq!(Stat { atime: old.atime, ..unsaid }, old, "{path:?}");
        }
    }
}
