//! What Linux itself looks at before a filesystem is asked, for branches that it does not see.

use vellum_vfs::{Errno, Error, FileKind, Result, SetTime};

/// EINVAL for the id that means "stays" to the kernel. Checked before anything is looked up.
pub(crate) fn check_owner(uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) { Err(Errno::INVAL) } else { Ok(()) }
}

/// EINVAL for nanoseconds that are none. Checked before anything is looked up.
pub(crate) fn check_times(atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<(), Errno> {
    let bad = |time| matches!(time, Some(SetTime::At(at)) if at.nanos >= 1_000_000_000);
    if bad(atime) || bad(mtime) { Err(Errno::INVAL) } else { Ok(()) }
}

/// Longest target of a symbolic link that the kernel passes on, in bytes.
pub(crate) const TARGET_MAX: usize = 4095;

/// ENAMETOOLONG for a target that no link of the kernel's has: cut to a buffer it would be another name. `size`: of a link that has filled it.
pub(crate) fn check_target(len: usize, room: usize, size: impl FnOnce() -> Result<u64>) -> Result<usize> {
    if len >= room && size()? > TARGET_MAX as u64 {
        return Err(Error::new(Errno::NAMETOOLONG, "read symbolic link"));
    }
    Ok(len)
}

/// EINVAL for an offset or a size that is a negative number to the kernel.
pub(crate) fn check_offset(offset: u64) -> Result<()> {
    if i64::try_from(offset).is_ok() { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// EISDIR, ELOOP or ENXIO for what is no regular file.
pub(crate) fn require_regular(kind: Option<FileKind>) -> Result<()> {
    match kind {
        Some(FileKind::Regular) => Ok(()),
        Some(FileKind::Directory) => Err(Error::new(Errno::ISDIR, "open file")),
        Some(FileKind::Symlink) => Err(Error::new(Errno::LOOP, "open file")),
        _ => Err(Error::new(Errno::NXIO, "open file")),
    }
}

pub(crate) const KEEP_SIZE: u32 = 0x01;
pub(crate) const PUNCH_HOLE: u32 = 0x02;
pub(crate) const COLLAPSE_RANGE: u32 = 0x08;
pub(crate) const ZERO_RANGE: u32 = 0x10;
pub(crate) const INSERT_RANGE: u32 = 0x20;
pub(crate) const UNSHARE_RANGE: u32 = 0x40;
pub(crate) const WRITE_ZEROES: u32 = 0x80;

/// What the kernel says of the arguments of fallocate(2) before it looks at the file.
pub(crate) fn check_allocate(mode: u32, offset: u64, len: u64) -> Result<(), Errno> {
    let negative = |number: u64| i64::try_from(number).is_err();
    if negative(offset) || negative(len) || len == 0 {
        return Err(Errno::INVAL);
    }
    match (mode & !KEEP_SIZE, mode & KEEP_SIZE != 0) {
        (0 | ZERO_RANGE | UNSHARE_RANGE, _) | (PUNCH_HOLE, true) => Ok(()),
        (COLLAPSE_RANGE | INSERT_RANGE | WRITE_ZEROES, false) => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}
