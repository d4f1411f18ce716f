//! The trait of system calls.
//!
//! Each call is written once, as a provided method: it passes a gate, then enters the kernel. The gate of
//! [`Real`] is empty and vanishes when compiled; that of the twin for tests (`tests/support/faulty.rs`) counts, refuses and shortens.
#![forbid(unsafe_code)]

use crate::call::Call;
use crate::lock::LockKind;
use crate::proc_path::ProcPath;
use crate::stat::Stat;
use crate::stat_fs::FsStat;
use crate::xattr::XattrTarget;
use crate::{lock, mode, resolve_beneath, stat, stat_fs, xattr};
use rustix::fs::{
    AtFlags, CWD, Dev, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RawDir, RenameFlags, SeekFrom,
    Timestamps, Uid,
};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The result of a call: only an errno, so that an expected error costs nothing.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// The system calls that storage needs. Names are single components unless said otherwise.
pub trait Sys: Clone + Send + Sync + 'static {
    /// Lets a call pass, or not. `len` is how many bytes a transfer is about (0 elsewhere), the result how many
    /// of them may be tried.
    fn gate(&self, call: Call, len: usize) -> Result<usize>;

    /// openat(2). Restarted when a signal interrupts it.
    #[inline]
    fn open(&self, dir: BorrowedFd<'_>, name: &CStr, flags: OFlags, mode: u32) -> Result<OwnedFd> {
        self.gate(Call::Open, 0)?;
        retry_on_intr(|| rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(mode)))
    }

    /// Opens `path` (several components) beneath `dir` and without any symbolic link. ENOSYS on kernels before
    /// 5.6.
    #[inline]
    fn open_beneath(&self, dir: BorrowedFd<'_>, path: &CStr, flags: OFlags) -> Result<OwnedFd> {
        self.gate(Call::OpenBeneath, 0)?;
        resolve_beneath::open(dir, path, flags)
    }

    /// Opens anew what `held` (also O_PATH) holds, with other flags. The caller has checked what it is.
    #[inline]
    fn reopen(&self, held: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        self.gate(Call::Open, 0)?;
        let path = ProcPath::of_fd(held);
        retry_on_intr(|| rustix::fs::openat(CWD, path.as_c_str(), flags, Mode::empty()))
    }

    /// Attributes of `name`, not followed.
    #[inline]
    fn stat_at(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat> {
        self.gate(Call::StatAt, 0)?;
        stat::stat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Attributes of what `fd` holds (also O_PATH).
    #[inline]
    fn stat(&self, fd: BorrowedFd<'_>) -> Result<Stat> {
        self.gate(Call::Stat, 0)?;
        stat::stat(fd, c"", AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW)
    }

    /// One pread(2); may be short.
    #[inline]
    fn read_at(&self, fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<usize> {
        let len = self.gate(Call::Read, buf.len())?;
        let buf = buf.get_mut(..len).ok_or(Errno::INVAL)?;
        retry_on_intr(|| rustix::io::pread(fd, &mut *buf, offset))
    }

    /// One pwrite(2); may be short.
    #[inline]
    fn write_at(&self, fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize> {
        let len = self.gate(Call::Write, data.len())?;
        let data = data.get(..len).ok_or(Errno::INVAL)?;
        retry_on_intr(|| rustix::io::pwrite(fd, data, offset))
    }

    /// fsync(2).
    #[inline]
    fn sync(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.gate(Call::Sync, 0)?;
        retry_on_intr(|| rustix::fs::fsync(fd))
    }

    /// fdatasync(2).
    #[inline]
    fn data_sync(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.gate(Call::DataSync, 0)?;
        retry_on_intr(|| rustix::fs::fdatasync(fd))
    }

    /// syncfs(2) of the filesystem of `fd` (not O_PATH).
    #[inline]
    fn sync_fs(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.gate(Call::SyncFs, 0)?;
        rustix::fs::syncfs(fd)
    }

    /// ftruncate(2).
    #[inline]
    fn truncate(&self, fd: BorrowedFd<'_>, size: u64) -> Result<()> {
        self.gate(Call::Truncate, 0)?;
        retry_on_intr(|| rustix::fs::ftruncate(fd, size))
    }

    /// fallocate(2); `mode` are its FALLOC_FL_* bits.
    #[inline]
    fn allocate(&self, fd: BorrowedFd<'_>, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.gate(Call::Allocate, 0)?;
        retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::from_bits_retain(mode), offset, len))
    }

    /// lseek(2) with SEEK_DATA.
    #[inline]
    fn seek_data(&self, fd: BorrowedFd<'_>, offset: u64) -> Result<u64> {
        self.gate(Call::Seek, 0)?;
        rustix::fs::seek(fd, SeekFrom::Data(offset))
    }

    /// lseek(2) with SEEK_HOLE.
    #[inline]
    fn seek_hole(&self, fd: BorrowedFd<'_>, offset: u64) -> Result<u64> {
        self.gate(Call::Seek, 0)?;
        rustix::fs::seek(fd, SeekFrom::Hole(offset))
    }

    /// copy_file_range(2), from (file, offset) to (file, offset); may be short.
    #[inline]
    fn copy_range(
        &self,
        from: (BorrowedFd<'_>, u64),
        to: (BorrowedFd<'_>, u64),
        len: usize,
    ) -> Result<usize> {
        let len = self.gate(Call::CopyRange, len)?;
        let (mut in_offset, mut out_offset) = (from.1, to.1);
        retry_on_intr(|| {
            rustix::fs::copy_file_range(from.0, Some(&mut in_offset), to.0, Some(&mut out_offset), len)
        })
    }

    /// ioctl FICLONE: `to` shares all blocks of `from`.
    #[inline]
    fn clone_file(&self, to: BorrowedFd<'_>, from: BorrowedFd<'_>) -> Result<()> {
        self.gate(Call::Clone, 0)?;
        rustix::fs::ioctl_ficlone(to, from)
    }

    /// mkdirat(2).
    #[inline]
    fn make_dir(&self, dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> Result<()> {
        self.gate(Call::MakeDir, 0)?;
        rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))
    }

    /// mknodat(2); `mode` has type bits, `rdev` is in makedev form.
    #[inline]
    fn make_node(&self, dir: BorrowedFd<'_>, name: &CStr, mode: u32, rdev: u64) -> Result<()> {
        self.gate(Call::MakeNode, 0)?;
        let kind = FileType::from_raw_mode(mode);
        rustix::fs::mknodat(dir, name, kind, Mode::from_raw_mode(mode), rdev as Dev)
    }

    /// symlinkat(2).
    #[inline]
    fn make_symlink(&self, target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        self.gate(Call::MakeSymlink, 0)?;
        rustix::fs::symlinkat(target, dir, name)
    }

    /// linkat(2) of a name, not followed.
    #[inline]
    fn link(&self, dir: BorrowedFd<'_>, name: &CStr, to: BorrowedFd<'_>, to_name: &CStr) -> Result<()> {
        self.gate(Call::Link, 0)?;
        rustix::fs::linkat(dir, name, to, to_name, AtFlags::empty())
    }

    /// linkat(2) of what `held` holds: a file without a name gets one, any other file another.
    #[inline]
    fn link_fd(&self, held: BorrowedFd<'_>, to: BorrowedFd<'_>, to_name: &CStr) -> Result<()> {
        self.gate(Call::LinkFd, 0)?;
        match rustix::fs::linkat(held, c"", to, to_name, AtFlags::EMPTY_PATH) {
            // Needs CAP_DAC_READ_SEARCH, or (6.10) the very credentials that opened the file; refused with ENOENT.
            Err(Errno::NOENT | Errno::PERM | Errno::INVAL) => {
                let path = ProcPath::of_fd(held);
                rustix::fs::linkat(CWD, path.as_c_str(), to, to_name, AtFlags::SYMLINK_FOLLOW)
            }
            result => result,
        }
    }

    /// unlinkat(2) of a name that is not a directory.
    #[inline]
    fn unlink(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        self.gate(Call::Unlink, 0)?;
        rustix::fs::unlinkat(dir, name, AtFlags::empty())
    }

    /// unlinkat(2) of an empty directory.
    #[inline]
    fn remove_dir(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        self.gate(Call::Unlink, 0)?;
        rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
    }

    /// renameat2(2); `flags` are its RENAME_* bits. Without flags it is renameat(2), which every filesystem has.
    #[inline]
    fn rename(&self, from: (BorrowedFd<'_>, &CStr), to: (BorrowedFd<'_>, &CStr), flags: u32) -> Result<()> {
        self.gate(Call::Rename, 0)?;
        if flags == 0 {
            return rustix::fs::renameat(from.0, from.1, to.0, to.1);
        }
        rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::from_bits_retain(flags))
    }

    /// readlinkat(2) of `name`; an empty name asks for what `dir` itself (O_PATH) holds.
    #[inline]
    fn read_link(&self, dir: BorrowedFd<'_>, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        self.gate(Call::ReadLink, 0)?;
        match rustix::fs::readlinkat_raw(dir, name, buf) {
            // An empty name and no symbolic link: what readlink(2) says of other files is EINVAL.
            Err(Errno::NOENT) if name.is_empty() => Err(Errno::INVAL),
            result => result,
        }
    }

    /// Calls `each(name, ino, type bits of the mode or 0)` for every entry that getdents64(2) yields, `.` and `..`
    /// included, from the descriptor's position to the end. `buf` holds one batch.
    #[inline]
    fn list_dir<E: From<Errno>>(
        &self,
        dir: BorrowedFd<'_>,
        buf: &mut [MaybeUninit<u8>],
        mut each: impl FnMut(&CStr, u64, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut entries = RawDir::new(dir, buf);
        loop {
            if entries.is_buffer_empty() {
                self.gate(Call::ListDir, 0)?;
            }
            let Some(entry) = entries.next() else { return Ok(()) };
            let entry = entry?;
            let kind = match entry.file_type() {
                FileType::Unknown => 0,
                known => known.as_raw_mode(),
            };
            each(entry.file_name(), entry.ino(), kind)?;
        }
    }

    /// Sets the permission bits of what `fd` holds (also O_PATH). EOPNOTSUPP on a symbolic link.
    #[inline]
    fn set_mode(&self, fd: BorrowedFd<'_>, bits: u32) -> Result<()> {
        self.gate(Call::SetMode, 0)?;
        mode::set_of(fd, bits)
    }

    /// Sets the permission bits of `name`, not followed. EOPNOTSUPP on a symbolic link.
    #[inline]
    fn set_mode_at(&self, dir: BorrowedFd<'_>, name: &CStr, bits: u32) -> Result<()> {
        self.gate(Call::SetMode, 0)?;
        mode::set_at(dir, name, bits)
    }

    /// Sets the owner of `name`, not followed; an empty name means what `dir` itself holds (also O_PATH).
    #[inline]
    fn set_owner(&self, dir: BorrowedFd<'_>, name: &CStr, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.gate(Call::SetOwner, 0)?;
        // The largest id is the kernel's word for "stays" and no id at all.
        if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
            return Err(Errno::INVAL);
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        rustix::fs::chownat(dir, name, uid.map(Uid::from_raw), gid.map(Gid::from_raw), flags)
    }

    /// Sets the times of `name`, not followed; an empty name means what `dir` itself holds (also O_PATH).
    #[inline]
    fn set_times(&self, dir: BorrowedFd<'_>, name: &CStr, times: &Timestamps) -> Result<()> {
        self.gate(Call::SetTimes, 0)?;
        let mut flags = AtFlags::SYMLINK_NOFOLLOW;
        if name.is_empty() {
            flags |= AtFlags::EMPTY_PATH;
        }
        rustix::fs::utimensat(dir, name, times, flags)
    }

    /// Gets an extended attribute into `buf`; an empty `buf` asks for its length.
    #[inline]
    fn get_xattr(&self, of: XattrTarget<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize> {
        self.gate(Call::GetXattr, 0)?;
        xattr::get(of, attr, buf)
    }

    /// Sets an extended attribute; `flags` as in setxattr(2).
    #[inline]
    fn set_xattr(&self, of: XattrTarget<'_>, attr: &CStr, value: &[u8], flags: u32) -> Result<()> {
        self.gate(Call::SetXattr, 0)?;
        xattr::set(of, attr, value, flags)
    }

    /// Lists the names of extended attributes; an empty `buf` asks for their length in all.
    #[inline]
    fn list_xattr(&self, of: XattrTarget<'_>, buf: &mut [u8]) -> Result<usize> {
        self.gate(Call::ListXattr, 0)?;
        xattr::list(of, buf)
    }

    /// Removes an extended attribute.
    #[inline]
    fn remove_xattr(&self, of: XattrTarget<'_>, attr: &CStr) -> Result<()> {
        self.gate(Call::RemoveXattr, 0)?;
        xattr::remove(of, attr)
    }

    /// Flags of the inode that `fd` (not O_PATH) has open, as lsattr(1) shows them. ENOTTY where the filesystem has none.
    #[inline]
    fn get_flags(&self, fd: BorrowedFd<'_>) -> Result<u32> {
        self.gate(Call::GetFlags, 0)?;
        Ok(rustix::fs::ioctl_getflags(fd)?.bits())
    }

    /// Sets all flags of the inode.
    #[inline]
    fn set_flags(&self, fd: BorrowedFd<'_>, flags: u32) -> Result<()> {
        self.gate(Call::SetFlags, 0)?;
        rustix::fs::ioctl_setflags(fd, IFlags::from_bits_retain(flags))
    }

    /// fstatfs(2), also O_PATH.
    #[inline]
    fn stat_fs(&self, fd: BorrowedFd<'_>) -> Result<FsStat> {
        self.gate(Call::StatFs, 0)?;
        stat_fs::stat_fs(fd)
    }

    /// Locks a whole file for an open file description, without waiting. EAGAIN: someone else holds it.
    #[inline]
    fn ofd_lock(&self, fd: BorrowedFd<'_>, kind: LockKind) -> Result<()> {
        self.gate(Call::Lock, 0)?;
        lock::ofd_lock(fd, kind)
    }
}

/// The kernel itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

impl Sys for Real {
    #[inline(always)]
    fn gate(&self, _call: Call, len: usize) -> Result<usize> {
        Ok(len)
    }
}
