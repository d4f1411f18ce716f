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
