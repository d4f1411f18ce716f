//! Space and inodes of a filesystem, with its identity, which no safe wrapper gives.

use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What statfs(2) says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Magic number of the filesystem type.
    pub kind: u64,
    /// Preferred I/O size in bytes.
    pub bsize: u32,
    /// The unit of the block counts in bytes.
    pub frsize: u32,
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for ordinary users.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Identity, as far as the filesystem has one.
    pub fsid: u64,
    /// ST_* flags of the mount.
    pub flags: u64,
}

/// Space and inodes of the filesystem that `fd` (also O_PATH) is on.
// The width and sign of these fields differ between architectures.
#[allow(clippy::unnecessary_cast, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn stat_fs(fd: BorrowedFd<'_>) -> Result<FsStat, Errno> {
    let mut found = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: the result has room for one `struct statfs64`.
    let result = unsafe { libc::fstatfs64(fd.as_raw_fd(), found.as_mut_ptr()) };
    if result != 0 {
        let raw = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(raw));
    }
    // SAFETY: the call has filled it, and all of its fields are numbers, for which zero is good too.
    let found = unsafe { found.assume_init() };
    // SAFETY: fsid_t is two ints whose names are private to libc.
    let [low, high] = unsafe { std::mem::transmute::<libc::fsid_t, [i32; 2]>(found.f_fsid) };
    Ok(FsStat {
        kind: u64::from(found.f_type as u32),
        bsize: found.f_bsize as u32,
        frsize: if found.f_frsize == 0 { found.f_bsize as u32 } else { found.f_frsize as u32 },
        blocks: found.f_blocks,
        bfree: found.f_bfree,
        bavail: found.f_bavail,
        files: found.f_files,
        ffree: found.f_ffree,
        namelen: found.f_namelen as u32,
        fsid: u64::from(low as u32) | (u64::from(high as u32) << 32),
        flags: found.f_flags as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn agrees_with_statvfs() {
        let dir = std::fs::File::open("/").unwrap();
        let found = stat_fs(dir.as_fd()).unwrap();
        let posix = rustix::fs::fstatvfs(&dir).unwrap();
        assert_eq!(
            (found.blocks, found.files, u64::from(found.namelen), u64::from(found.frsize)),
            (posix.f_blocks, posix.f_files, posix.f_namemax, posix.f_frsize)
        );
        assert_eq!(found.kind, rustix::fs::fstatfs(&dir).unwrap().f_type as u64);
    }
}
