//! How operations are done to a tree, and the descriptors that they open.
//!
//! What the preload library may see goes by the C library, which the standard library calls: rustix makes system calls itself.

use super::ops::{Node, Op, Open, SLOTS, USER};
use crate::harness::raw::{Mapping, copy_range};
use crate::harness::user::WholeUser;
use crate::harness::{Rng, tree};
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, DirBuilder, File, FileTimes, Metadata, OpenOptions, Permissions};
use std::io::{Error, Result};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown, symlink,
};
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// What an operation gave.
enum Value {
    Nothing,
    Number(u64),
    Text(String),
    Bytes(Vec<u8>),
}

/// Does operations to a tree.
pub(super) struct Executor {
    root: PathBuf,
    slots: [Option<File>; SLOTS],
    /// While the user is acting.
    user: Option<WholeUser>,
    /// Times at or after it are those of the clock.
    since: i64,
    /// Opens for reading become opens for reading and writing. Kernel overlayfs goes on showing the lower file to
    /// a descriptor that was opened before copy-up; the union under test promises better.
    early_copy_up: bool,
    /// Whether set-id bits of regular files are left out of what is compared.
    without_setid: bool,
}

/// A mode without the set-id bits, if it is a regular file's.
pub(super) fn without_setid(mode: u32) -> u32 {
    if FileType::from_raw_mode(mode) == FileType::RegularFile { mode & !0o6000 } else { mode }
}

impl Executor {
    pub(super) fn new(root: PathBuf, since: i64, early_copy_up: bool, without_setid: bool) -> Self {
        Self { root, slots: Default::default(), user: None, since, early_copy_up, without_setid }
    }

    /// From now on this process is root.
    pub(super) fn be_root(&mut self) {
        self.user = None;
    }

    fn be_user(&mut self) -> Result<()> {
        if self.user.is_none() {
            self.user = Some(WholeUser::new(USER)?);
        }
        Ok(())
    }

    /// Closes every descriptor.
    pub(super) fn close_all(&mut self) {
        self.slots = Default::default();
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn slot(&self, slot: usize) -> Result<&File> {
        Ok(self.slots[slot].as_ref().ok_or(Errno::BADF)?)
    }

    /// Does one operation, and says what it has come to. This process goes on as root or the user, whoever has done it: for a program
    /// with the library a ring ends when it becomes somebody else.
    pub(super) fn act(&mut self, op: &Op, as_user: bool) -> String {
        let done = self.attempt(op, as_user);
        // Overlayfs changes the times of directories before it notices that a rename cannot be.
        if let (Op::Rename { from, to, .. }, Err(_)) = (op, &done) {
            self.be_root();
            // With a dot, for a parent may be a symbolic link to the directory that is meant.
            for path in [from, to].map(|path| path.rsplit_once('/').map_or("", |(parent, _)| parent)) {
                let path = if path.is_empty() { String::from(".") } else { format!("{path}/.") };
                let _ = self.act_path(&Op::Times { path, secs: 1_000_000_000, nanos: 0 });
            }
        }
        brief(&done)
    }

    fn attempt(&mut self, op: &Op, as_user: bool) -> Result<Value> {
        if as_user {
            self.be_user()?;
        } else {
            self.be_root();
        }
        if let Op::Open { path, how, mode, slot } = op {
            return self.open(path, *how, *mode, *slot);
        }
        if let Op::Close { slot } = op {
            return Ok(self.slots[*slot].take().map(|_| Value::Nothing).ok_or(Errno::BADF)?);
        }
        match op {
            Op::Write { .. }
            | Op::Read { .. }
            | Op::Resize { .. }
            | Op::Allocate { .. }
            | Op::CopyRange { .. }
            | Op::Sync { .. }
            | Op::StatOpen { .. }
            | Op::ChmodOpen { .. }
            | Op::ChownOpen { .. }
            | Op::TimesOpen { .. }
            | Op::MapWrite { .. } => self.act_open(op),
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::ListXattr { .. } | Op::RemoveXattr { .. } => {
                self.act_xattr(op)
            }
            _ => self.act_path(op),
        }
    }

    fn open(&mut self, path: &str, how: Open, mode: u32, slot: usize) -> Result<Value> {
        let full = self.at(path);
        // What a device does is no matter of the tree. What is only made is none, and a look at its name before would have the kernel
        // believe that it is not there, so that the kernel would have to make it.
        let only_makes = matches!(how, Open::CreateNew | Open::Unpack);
        if !only_makes && fs::metadata(&full).is_ok_and(|meta| !meta.is_file()) {
            return Err(Errno::NXIO.into());
        }
        let mut options = OpenOptions::new();
        options.mode(mode & 0o777).custom_flags(libc::O_NONBLOCK);
        options.read(!matches!(how, Open::Write | Open::Unpack)).write(!matches!(how, Open::Read));
        match how {
            Open::Read | Open::Write | Open::ReadWrite => {}
            Open::Truncate => _ = options.truncate(true),
            Open::Create => _ = options.create(true),
            Open::CreateNew | Open::Unpack => _ = options.create_new(true),
            Open::CreateTruncate => _ = options.create(true).truncate(true),
            Open::Append => _ = options.create(true).append(true),
        }
        let file = options.open(&full)?;
        if how == Open::Read && self.early_copy_up {
            // By root, so that permissions stand in nobody's way; the descriptor itself stays for reading.
            self.be_root();
            drop(OpenOptions::new().read(true).write(true).open(&full));
            self.slots[slot] = Some(File::open(&full)?);
            return Ok(Value::Nothing);
        }
        self.slots[slot] = Some(file);
        Ok(Value::Nothing)
    }

    fn act_open(&self, op: &Op) -> Result<Value> {
        match *op {
            Op::Write { slot, at, len, seed } => {
                let data = Rng::new(seed).bytes(len);
                Ok(Value::Number(self.slot(slot)?.write_at(&data, at)? as u64))
            }
            Op::Read { slot, at, len } => {
                let mut data = vec![0; len];
                let got = self.slot(slot)?.read_at(&mut data, at)?;
                data.truncate(got);
                Ok(Value::Bytes(data))
            }
            Op::Resize { slot, len } => nothing(self.slot(slot)?.set_len(len)),
            Op::Allocate { slot, mode, at, len } => {
                let mode = FallocateFlags::from_bits_retain(mode);
                nothing(rustix::fs::fallocate(self.slot(slot)?, mode, at, len))
            }
            Op::CopyRange { from, to, from_at, to_at, len } => {
                let (from, to) = (self.slot(from)?.as_fd(), self.slot(to)?.as_fd());
                let (mut from_at, mut to_at) = (from_at as i64, to_at as i64);
                let mut left = len;
                while left > 0 {
                    let done = copy_range((from, &mut from_at), (to, &mut to_at), left)?;
                    if done == 0 {
                        break;
                    }
                    left -= done;
                }
                Ok(Value::Number((len - left) as u64))
            }
            Op::Sync { slot } => nothing(self.slot(slot)?.sync_all()),
            Op::StatOpen { slot } => Ok(self.stat_text(&self.slot(slot)?.metadata()?)),
            Op::ChmodOpen { slot, mode } => {
                nothing(self.slot(slot)?.set_permissions(Permissions::from_mode(mode)))
            }
            Op::ChownOpen { slot, uid, gid } => nothing(fchown(self.slot(slot)?, uid, gid)),
            Op::TimesOpen { slot, secs, nanos } => {
                let time = UNIX_EPOCH + Duration::new(secs, nanos);
                let times = FileTimes::new().set_accessed(time).set_modified(time);
                nothing(self.slot(slot)?.set_times(times))
            }
            Op::MapWrite { slot, at, len, seed } => {
                let file = self.slot(slot)?;
                // Only what lies within the file; beyond its last page there would be a signal.
                let size = file.metadata()?.size() as usize;
                if at + len > size {
                    return Ok(Value::Nothing);
                }
                let map = Mapping::shared(file.as_fd(), size, true)?;
                map.write(at, &Rng::new(seed).bytes(len));
                map.sync()?;
                Ok(Value::Bytes(map.read(0, size.min(64))))
            }
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn act_xattr(&self, op: &Op) -> Result<Value> {
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
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn act_path(&self, op: &Op) -> Result<Value> {
        match op {
            Op::Truncate { path, len } => {
                let full = self.at(path);
                if fs::metadata(&full).is_ok_and(|meta| !meta.is_file()) {
                    return Err(Errno::NXIO.into());
                }
                let file = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&full)?;
                nothing(file.set_len(*len))
            }
            Op::ReadFile { path } => {
                let full = self.at(path);
                if !fs::metadata(&full)?.is_file() {
                    return Err(Errno::NXIO.into());
                }
                fs::read(full).map(Value::Bytes)
            }
            Op::Mkdir { path, mode } => nothing(DirBuilder::new().mode(*mode).create(self.at(path))),
            Op::Rmdir { path } => nothing(rustix::fs::unlinkat(CWD, self.at(path), AtFlags::REMOVEDIR)),
            Op::Unlink { path } => nothing(rustix::fs::unlinkat(CWD, self.at(path), AtFlags::empty())),
            Op::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                nothing(rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags))
            }
            Op::Link { from, to } => {
                nothing(rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty()))
            }
            Op::Symlink { target, path } => nothing(symlink(target, self.at(path))),
            Op::Readlink { path } => {
                Ok(Value::Bytes(fs::read_link(self.at(path))?.into_os_string().into_vec()))
            }
            Op::Chmod { path, mode } => {
                nothing(fs::set_permissions(self.at(path), Permissions::from_mode(*mode)))
            }
            Op::Chown { path, uid, gid } => nothing(lchown(self.at(path), *uid, *gid)),
            Op::Times { path, secs, nanos } => {
                let time = TimeSpec::new(*secs, i64::from(*nanos));
                let (path, flags) = (self.at(path), UtimensatFlags::NoFollowSymlink);
                nothing(utimensat(AT_FDCWD, &path, &time, &time, flags))
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
            Op::Stat { path } => Ok(self.stat_text(&fs::symlink_metadata(self.at(path))?)),
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
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn stat_text(&self, meta: &Metadata) -> Value {
        let mode = if self.without_setid { without_setid(meta.mode()) } else { meta.mode() };
        let (size, nlink) = if meta.is_dir() { (0, 1) } else { (meta.size(), meta.nlink()) };
        let mtime = if meta.mtime() >= self.since {
            "now".to_owned()
        } else {
            format!("{}.{:09}", meta.mtime(), meta.mtime_nsec())
        };
        Value::Text(format!(
            "mode {:o} owner {}:{} size {size} nlink {nlink} mtime {mtime}",
            mode,
            meta.uid(),
            meta.gid()
        ))
    }
}

fn nothing(result: std::result::Result<(), impl Into<Error>>) -> Result<Value> {
    result.map(|()| Value::Nothing).map_err(Into::into)
}

/// In one line.
fn brief(result: &Result<Value>) -> String {
    match result {
        Ok(Value::Bytes(bytes)) => {
            format!("{} bytes {:x} {:02x?}", bytes.len(), tree::sum(bytes), &bytes[..bytes.len().min(16)])
        }
        Ok(Value::Nothing) => "done".into(),
        Ok(Value::Number(number)) => number.to_string(),
        Ok(Value::Text(text)) => format!("{text:?}"),
        Err(error) => error.to_string(),
    }
}
