//! One side of a comparison: a mounted tree, its open descriptors, and how an operation is done to it.

use super::ops::{Node, Op, Open, SLOTS, USER};
use crate::harness::raw::{AsUser, Mapping};
use crate::harness::{Mount, Rng};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// What an operation gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Nothing,
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A tree and its descriptors.
pub(super) struct Side {
    pub(super) mount: Mount,
    slots: [Option<OwnedFd>; SLOTS],
    /// Times at or after it are those of the clock.
    since: i64,
    /// Opens for reading become opens for reading and writing. Kernel overlayfs goes on showing the lower file to
    /// a descriptor that was opened before copy-up; the union under test promises better.
    early_copy_up: bool,
    /// Whether set-id bits of regular files are left out of what is compared.
    pub(super) without_setid: bool,
}

/// A mode without the set-id bits, if it is a regular file's.
pub(super) fn without_setid(mode: u32) -> u32 {
    if FileType::from_raw_mode(mode) == FileType::RegularFile { mode & !0o6000 } else { mode }
}

impl Side {
    pub(super) fn new(mount: Mount, since: i64, early_copy_up: bool) -> Self {
        Self { mount, slots: Default::default(), since, early_copy_up, without_setid: false }
    }

    /// Closes every descriptor.
    pub(super) fn close_all(&mut self) {
        self.slots = Default::default();
    }

    /// Makes what was written durable.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(rustix::fs::open(self.mount.root(), OFlags::DIRECTORY, Mode::empty())?)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.mount.path(path)
    }

    fn slot(&self, slot: usize) -> Result<&OwnedFd, Errno> {
        self.slots[slot].as_ref().ok_or(Errno::BADF)
    }

    /// Does one operation.
    pub(super) fn act(&mut self, op: &Op, as_user: bool) -> Result<Value, Errno> {
        if let Op::Open { path, how, mode, slot } = op {
            return self.open(path, *how, *mode, *slot, as_user);
        }
        if let Op::Close { slot } = op {
            return self.slots[*slot].take().map(|_| Value::Nothing).ok_or(Errno::BADF);
        }
        let _user = as_user.then(|| AsUser::new(USER, USER));
        match op {
            Op::Write { .. }
            | Op::Read { .. }
            | Op::Resize { .. }
            | Op::Allocate { .. }
            | Op::CopyRange { .. }
            | Op::Sync { .. }
            | Op::StatOpen { .. }
            | Op::ChmodOpen { .. }
            | Op::MapWrite { .. } => self.act_open(op),
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::ListXattr { .. } | Op::RemoveXattr { .. } => {
                self.act_xattr(op)
            }
            _ => self.act_path(op),
        }
    }

    fn open(&mut self, path: &str, how: Open, mode: u32, slot: usize, as_user: bool) -> Result<Value, Errno> {
        let full = self.at(path);
        let stat = rustix::fs::statat(CWD, &full, AtFlags::empty());
        // What a device does is no matter of the tree.
        let device = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile;
        if stat.as_ref().is_ok_and(device) {
            return Err(Errno::NXIO);
        }
        let flags = OFlags::NONBLOCK
            | OFlags::CLOEXEC
            | match how {
                Open::Read => OFlags::RDONLY,
                Open::Write => OFlags::WRONLY,
                Open::ReadWrite => OFlags::RDWR,
                Open::Truncate => OFlags::RDWR | OFlags::TRUNC,
                Open::Create => OFlags::RDWR | OFlags::CREATE,
                Open::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
                Open::CreateTruncate => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
                Open::Append => OFlags::RDWR | OFlags::CREATE | OFlags::APPEND,
            };
        let fd = {
            let _user = as_user.then(|| AsUser::new(USER, USER));
            rustix::fs::open(&full, flags, Mode::from_raw_mode(mode & 0o777))?
        };
        if how == Open::Read && self.early_copy_up {
            // By root, so that permissions stand in nobody's way; the descriptor itself stays for reading.
            drop(rustix::fs::open(&full, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()));
            self.slots[slot] =
                Some(rustix::fs::open(&full, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
            return Ok(Value::Nothing);
        }
        self.slots[slot] = Some(fd);
        Ok(Value::Nothing)
    }

    fn act_open(&self, op: &Op) -> Result<Value, Errno> {
        match *op {
            Op::Write { slot, at, len, seed } => {
                let data = Rng::new(seed).bytes(len);
                Ok(Value::Number(rustix::io::pwrite(self.slot(slot)?, &data, at)? as u64))
            }
            Op::Read { slot, at, len } => {
                let mut data = vec![0; len];
                let got = rustix::io::pread(self.slot(slot)?, &mut data[..], at)?;
                data.truncate(got);
                Ok(Value::Bytes(data))
            }
            Op::Resize { slot, len } => nothing(rustix::fs::ftruncate(self.slot(slot)?, len)),
            Op::Allocate { slot, mode, at, len } => {
                let mode = FallocateFlags::from_bits_retain(mode);
                nothing(rustix::fs::fallocate(self.slot(slot)?, mode, at, len))
            }
            Op::CopyRange { from, to, mut from_at, mut to_at, len } => {
                let (from, to) = (self.slot(from)?, self.slot(to)?);
                let mut left = len;
                while left > 0 {
                    let done =
                        rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), left)?;
                    if done == 0 {
                        break;
                    }
                    left -= done;
                }
                Ok(Value::Number((len - left) as u64))
            }
            Op::Sync { slot } => nothing(rustix::fs::fsync(self.slot(slot)?)),
            Op::StatOpen { slot } => Ok(self.stat_text(&rustix::fs::fstat(self.slot(slot)?)?)),
            Op::ChmodOpen { slot, mode } => {
                nothing(rustix::fs::fchmod(self.slot(slot)?, Mode::from_raw_mode(mode)))
            }
            Op::MapWrite { slot, at, len, seed } => {
                let fd = self.slot(slot)?;
                // Only what lies within the file; beyond its last page there would be a signal.
                let size = rustix::fs::fstat(fd)?.st_size as usize;
                if at + len > size {
                    return Ok(Value::Nothing);
                }
                let map = Mapping::shared(fd.as_fd(), size, true)?;
                map.write(at, &Rng::new(seed).bytes(len));
                map.sync()?;
                Ok(Value::Bytes(map.read(0, size.min(64))))
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn act_xattr(&self, op: &Op) -> Result<Value, Errno> {
        match op {
            Op::SetXattr { path, name, value, flags } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                nothing(rustix::fs::lsetxattr(self.at(path), *name, value, flags))
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; 4096];
                let len = rustix::fs::lgetxattr(self.at(path), *name, &mut value[..])?;
                value.truncate(len);
                Ok(Value::Bytes(value))
            }
            Op::ListXattr { path } => {
                let mut list = vec![0; 4096];
                let len = rustix::fs::llistxattr(self.at(path), &mut list[..])?;
                let mut names: Vec<_> =
                    list[..len].split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
                names.sort();
                Ok(Value::Text(names.join(" ")))
            }
            Op::RemoveXattr { path, name } => nothing(rustix::fs::lremovexattr(self.at(path), *name)),
            _ => Err(Errno::NOSYS),
        }
    }

    fn act_path(&self, op: &Op) -> Result<Value, Errno> {
        match op {
            Op::Truncate { path, len } => {
                let full = self.at(path);
                let kind = rustix::fs::statat(CWD, &full, AtFlags::empty()).map(|stat| stat.st_mode);
                if kind.is_ok_and(|mode| FileType::from_raw_mode(mode) != FileType::RegularFile) {
                    return Err(Errno::NXIO);
                }
                match std::fs::OpenOptions::new().write(true).custom_flags_nonblock().open(&full) {
                    Ok(file) => nothing(rustix::fs::ftruncate(file, *len)),
                    Err(error) => Err(errno(&error)),
                }
            }
            Op::ReadFile { path } => {
                let full = self.at(path);
                let kind = rustix::fs::statat(CWD, &full, AtFlags::empty())?.st_mode;
                if FileType::from_raw_mode(kind) != FileType::RegularFile {
                    return Err(Errno::NXIO);
                }
                std::fs::read(full).map(Value::Bytes).map_err(|error| errno(&error))
            }
            Op::Mkdir { path, mode } => {
                nothing(rustix::fs::mkdirat(CWD, self.at(path), Mode::from_raw_mode(*mode)))
            }
            Op::Rmdir { path } => nothing(rustix::fs::unlinkat(CWD, self.at(path), AtFlags::REMOVEDIR)),
            Op::Unlink { path } => nothing(rustix::fs::unlinkat(CWD, self.at(path), AtFlags::empty())),
            Op::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                nothing(rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags))
            }
            Op::Link { from, to } => {
                nothing(rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty()))
            }
            Op::Symlink { target, path } => nothing(rustix::fs::symlinkat(target, CWD, self.at(path))),
            Op::Readlink { path } => {
                let target = rustix::fs::readlinkat(CWD, self.at(path), Vec::new())?;
                Ok(Value::Bytes(target.into_bytes()))
            }
            Op::Chmod { path, mode } => {
                nothing(rustix::fs::chmodat(CWD, self.at(path), Mode::from_raw_mode(*mode), AtFlags::empty()))
            }
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                nothing(rustix::fs::chownat(CWD, self.at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW))
            }
            Op::Times { path, secs, nanos } => {
                let time = Timespec { tv_sec: *secs, tv_nsec: i64::from(*nanos) };
                let times = Timestamps { last_access: time, last_modification: time };
                nothing(rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW))
            }
            Op::Mknod { path, node, mode } => {
                // Numbers that no driver has.
                let dev = rustix::fs::makedev(61, 7);
                let (kind, dev) = match node {
                    Node::File => (FileType::RegularFile, 0),
                    Node::Fifo => (FileType::Fifo, 0),
                    Node::Socket => (FileType::Socket, 0),
                    Node::Char => (FileType::CharacterDevice, dev),
                    Node::Block => (FileType::BlockDevice, dev),
                };
                let mode = Mode::from_raw_mode(*mode & 0o777);
                nothing(rustix::fs::mknodat(CWD, self.at(path), kind, mode, dev))
            }
            Op::Stat { path } => {
                Ok(self.stat_text(&rustix::fs::statat(CWD, self.at(path), AtFlags::SYMLINK_NOFOLLOW)?))
            }
            Op::List { path } => {
                let dir = rustix::fs::open(
                    self.at(path),
                    OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
                let mut names = Vec::new();
                for entry in rustix::fs::Dir::new(dir)? {
                    let entry = entry?;
                    names.push(format!("{:?} {}", entry.file_type(), entry.file_name().to_string_lossy()));
                }
                names.sort();
                Ok(Value::Text(names.join(", ")))
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn stat_text(&self, stat: &Stat) -> Value {
        let dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let mode = if self.without_setid { without_setid(stat.st_mode) } else { stat.st_mode };
        let (size, nlink) = if dir { (0, 1) } else { (stat.st_size, stat.st_nlink) };
        let mtime = if stat.st_mtime >= self.since {
            "now".to_owned()
        } else {
            format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec)
        };
        Value::Text(format!(
            "mode {:o} owner {}:{} size {size} nlink {nlink} mtime {mtime}",
            mode, stat.st_uid, stat.st_gid
        ))
    }
}

trait NonBlocking {
    fn custom_flags_nonblock(&mut self) -> &mut Self;
}

impl NonBlocking for std::fs::OpenOptions {
    fn custom_flags_nonblock(&mut self) -> &mut Self {
        use std::os::unix::fs::OpenOptionsExt;
        self.custom_flags(libc::O_NONBLOCK)
    }
}

fn nothing(result: Result<(), Errno>) -> Result<Value, Errno> {
    result.map(|()| Value::Nothing)
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}
