//! From the kernel's words to those of the branch traits.

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use vellum_sys::{FsStat, Stat, Time};
use vellum_vfs::{Attr, Errno, SetTime, StatFs, Timestamp};

const fn timestamp(time: Time) -> Timestamp {
    Timestamp { secs: time.secs, nanos: time.nanos }
}

/// Attributes of an object.
#[inline]
pub(crate) const fn attr(stat: &Stat) -> Attr {
    Attr {
        ino: stat.ino,
        dev: stat.dev,
        size: stat.size,
        blocks: stat.blocks,
        atime: timestamp(stat.atime),
        mtime: timestamp(stat.mtime),
        ctime: timestamp(stat.ctime),
        btime: timestamp(stat.btime),
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        blksize: stat.blksize,
    }
}

/// Times for utimensat(2). EINVAL when the nanoseconds are none: the call gives some such values a meaning.
pub(crate) fn timestamps(atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<Timestamps, Errno> {
    const NANOS_A_SECOND: u32 = 1_000_000_000;
    let one = |time| match time {
        None => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
        Some(SetTime::Now) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        Some(SetTime::At(at)) if at.nanos < NANOS_A_SECOND => {
            Ok(Timespec { tv_sec: at.secs, tv_nsec: at.nanos.into() })
        }
        Some(SetTime::At(_)) => Err(Errno::INVAL),
    };
    Ok(Timestamps { last_access: one(atime)?, last_modification: one(mtime)? })
}

/// Space and inodes.
pub(crate) const fn stat_fs(found: &FsStat) -> StatFs {
    StatFs {
        frsize: found.frsize,
        bsize: found.bsize,
        blocks: found.blocks,
        bfree: found.bfree,
        bavail: found.bavail,
        files: found.files,
        ffree: found.ffree,
        namelen: found.namelen,
        fsid: found.fsid,
        fstype: found.kind,
    }
}
