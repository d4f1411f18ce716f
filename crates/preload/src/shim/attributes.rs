//! What files are: the kernel's answers, and the forms in which programs want them.

use crate::shim::raw;
use core::ffi::CStr;
use vellum_ring::files::MOUNT_IDS;

pub(crate) const AT_SYMLINK_NOFOLLOW: i32 = 0x100;
pub(crate) const AT_EMPTY_PATH: i32 = 0x1000;
pub(crate) const AT_STATX_DONT_SYNC: i32 = 0x4000;
/// Both bits of it.
pub(crate) const AT_STATX_SYNC_TYPE: i32 = 0x6000;
pub(crate) const AT_NO_AUTOMOUNT: i32 = 0x800;
pub(crate) const STATX_TYPE: u32 = 1;
pub(crate) const STATX_ATIME: u32 = 0x20;
pub(crate) const STATX_CTIME: u32 = 0x80;
pub(crate) const STATX_INO: u32 = 0x100;
pub(crate) const STATX_SIZE: u32 = 0x200;
pub(crate) const STATX_BASIC_STATS: u32 = 0x7ff;
pub(crate) const STATX_MNT_ID: u32 = 0x1000;
pub(crate) const STATX_ATTR_MOUNT_ROOT: u64 = 0x2000;
pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;

/// Words of `struct stat`: 144 bytes, and 128.
pub(crate) const STAT_LEN: usize = if cfg!(target_arch = "x86_64") { 18 } else { 16 };

/// `struct statx_timestamp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
    pub(crate) pad: i32,
}

/// `struct statx`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statx {
    pub(crate) mask: u32,
    pub(crate) blksize: u32,
    pub(crate) attributes: u64,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    pub(crate) pad: u16,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) attributes_mask: u64,
    pub(crate) atime: Time,
    pub(crate) btime: Time,
    pub(crate) ctime: Time,
    pub(crate) mtime: Time,
    pub(crate) rdev: [u32; 2],
    pub(crate) dev: [u32; 2],
    pub(crate) mnt_id: u64,
    pub(crate) more: [u64; 13],
}

impl Statx {
    /// As in `st_dev`.
    pub(crate) fn device(&self) -> u64 {
        join(self.dev)
    }

    pub(crate) fn kind(&self) -> u32 {
        u32::from(self.mode) & S_IFMT
    }

    /// As `struct stat`.
    pub(crate) fn as_stat(&self) -> [u64; STAT_LEN] {
        let [mode, nlink, blksize] = [self.mode.into(), self.nlink.into(), self.blksize.into()];
        let [uid, gid] = [self.uid, self.gid].map(u64::from);
        let times = [self.atime, self.mtime, self.ctime];
        let [atime, mtime, ctime] = times.map(|time| [time.seconds as u64, time.nanoseconds.into()]);
        let (device, special) = (self.device(), join(self.rdev));
        let mut stat = [0; STAT_LEN];
        #[cfg(target_arch = "x86_64")]
        let head = [device, self.ino, nlink, mode | uid << 32, gid, special, self.size, blksize, self.blocks];
        #[cfg(target_arch = "aarch64")]
        let head = [
            device,
            self.ino,
            mode | nlink << 32,
            uid | gid << 32,
            special,
            0,
            self.size,
            blksize,
            self.blocks,
        ];
        let words = head.into_iter().chain([atime, mtime, ctime].into_iter().flatten());
        stat.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        stat
    }

    /// The id of the mount, if it was asked for: where the kernel has such, one that no other mount ever gets.
    pub(crate) fn mount(&self) -> Option<u64> {
        (self.mask & MOUNT_IDS != 0).then_some(self.mnt_id)
    }
}

/// Asks the kernel; an error number else.
///
/// # Safety
/// The path must be a string, or one of the program's, for the kernel to read.
pub(crate) unsafe fn ask(directory: i32, path: usize, flags: i32, mask: u32) -> Result<Statx, i32> {
    let mut to = Statx::default();
    let words = [raw::word(directory), path, flags as usize, mask as usize, &raw mut to as usize, 0];
    // SAFETY: the kernel writes this one structure.
    match unsafe { raw::call(raw::number::STATX, words) } {
        0 => Ok(to),
        error => Err(-error as i32),
    }
}

pub(crate) fn at(directory: i32, path: &CStr, flags: i32, mask: u32) -> Result<Statx, i32> {
    // SAFETY: it is a string.
    unsafe { ask(directory, path.as_ptr() as usize, flags, mask) }
}

pub(crate) fn stat_fd(fd: i32) -> Result<Statx, i32> {
    at(fd, c"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO | STATX_MNT_ID)
}

/// What a descriptor is, by which mount it was opened, and how large the file is.
pub(crate) fn sized(fd: i32) -> Result<Statx, i32> {
    let mask = STATX_TYPE | STATX_INO | STATX_SIZE | MOUNT_IDS;
    at(fd, c"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, mask)
}

/// The id of the mount by which a descriptor was opened.
pub(crate) fn mount_of(fd: i32) -> Option<u64> {
    at(fd, c"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, MOUNT_IDS).ok()?.mount()
}

/// `makedev`.
pub(crate) const fn join([major, minor]: [u32; 2]) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | minor & 0xff
}

/// `major` and `minor`.
pub(crate) const fn split(device: u64) -> [u32; 2] {
    let major = device >> 32 & 0xffff_f000 | device >> 8 & 0xfff;
    let minor = device >> 12 & 0xffff_ff00 | device & 0xff;
    [major as u32, minor as u32]
}

/// Kind and device of a `struct stat` that has been filled.
pub(crate) fn kind_and_device(stat: &[u64; STAT_LEN]) -> (u32, u64) {
    #[cfg(target_arch = "x86_64")]
    let [device, _, _, mode, ..] = *stat;
    #[cfg(target_arch = "aarch64")]
    let [device, _, mode, ..] = *stat;
    (mode as u32 & S_IFMT, device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn device_numbers_are_split_as_libc_does() {
        for device in [0, 0x0806, 0x1234_5678_9abc_def0, u64::MAX] {
            assert_eq!(join(split(device)), device);
            assert_eq!(split(device), [libc::major(device), libc::minor(device)]);
        }
    }

    #[test]
    fn the_kernel_answers_in_this_form() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (ours, metadata) = (stat_fd(file.as_raw_fd()).unwrap(), file.metadata().unwrap());
        assert_eq!((ours.ino, ours.device(), ours.kind()), (metadata.ino(), metadata.dev(), S_IFREG));
        assert_eq!(at(raw::AT_FDCWD, c"/proc/self/missing", 0, STATX_INO), Err(2));
        let mut stat = [0; STAT_LEN];
        let words = [raw::word(file.as_raw_fd()), stat.as_mut_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: the kernel fills this one structure.
        assert_eq!(unsafe { raw::call(raw::number::FSTAT, words) }, 0);
        assert_eq!(kind_and_device(&stat), (S_IFREG, metadata.dev()));
        for path in [c"/proc/self/exe", c"/", c"/dev/null"] {
            let words =
                [raw::word(raw::AT_FDCWD), path.as_ptr() as usize, stat.as_mut_ptr() as usize, 0, 0, 0];
            // SAFETY: the kernel fills this one structure.
            assert_eq!(unsafe { raw::call(raw::number::NEWFSTATAT, words) }, 0);
            let ours = at(raw::AT_FDCWD, path, 0, STATX_BASIC_STATS).unwrap().as_stat();
            assert_eq!(ours, stat, "{path:?}");
        }
    }
}
