//! The trait between a union and the storage under it.
//!
//! A branch hands out objects: directories, files, and handles to anything. Names are relative to a directory
//! object and never followed when they are symbolic links, so nothing can lead out of the branch's root. A
//! branch knows nothing of whiteouts, layers or unions.
//!
//! A branch around another one (a cache, a log, faults) names what it wraps by `inner`, and has bodies for what it does differently.
//! What has neither refuses changes with EROFS, as a storage that nobody changes does.

use crate::{Attr, FileKind, Name, Result, SetTime, StatFs};
use bitflags::bitflags;
use rustix::io::Errno;
use std::any::Any;
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

bitflags! {
    /// How to open a regular file in a branch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenMode: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 2;
        /// Cut to length 0.
        const TRUNCATE = 4;
        /// What is read is kept by whoever reads it: a storage whose client keeps it, too, need not.
        const KEPT_ABOVE = 8;
    }

    /// Flags of renameat2(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST if the target exists.
        const NOREPLACE = 1;
        /// Exchange the two.
        const EXCHANGE = 2;
        /// Leave a whiteout at the source.
        const WHITEOUT = 4;
    }
}

/// What lseek(2) is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// One entry of a branch's directory.
#[derive(Clone, Copy, Debug)]
pub struct DirItem<'a> {
    /// Name; `.` and `..` are left out.
    pub name: Name<'a>,
    /// Inode number, as the directory states it.
    pub ino: u64,
    /// Kind, where the directory states it.
    pub kind: Option<FileKind>,
}

/// Methods whose default body is the wrapped object's method. Without one they are refused with EROFS.
macro_rules! forward {
    ($inner:ident; $($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> Result<$result:ty>;)*) => {
        $($(#[$doc])*
        fn $name(&self, $($arg: $type),*) -> Result<$result> {
            self.$inner()?.$name($($arg),*)
        })*
    };
}

/// What can be done with any object that is held: a directory, an open file, or a handle to a symbolic link,
/// device, fifo or socket. It stays valid when the object is renamed or removed.
pub trait Object: Send + Sync + 'static {
    /// The object that this one wraps. EROFS: none.
    fn inner(&self) -> Result<&dyn Object> {
        Err(Errno::ROFS.into())
    }
    forward! {
        inner;
        /// Attributes.
        fn stat() -> Result<Attr>;
        /// Sets permission bits. EOPNOTSUPP on symbolic links.
        fn set_mode(mode: u32) -> Result<()>;
        /// Sets owner and group; None stays.
        fn set_owner(uid: Option<u32>, gid: Option<u32>) -> Result<()>;
        /// Sets times; None stays.
        fn set_times(atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
        /// Gets an extended attribute into `buf`, returns its length; an empty `buf` asks for the length. ENODATA,
        /// ERANGE, EOPNOTSUPP as in getxattr(2).
        fn get_xattr(name: &CStr, buf: &mut [u8]) -> Result<usize>;
        /// Sets an extended attribute; `flags` as in setxattr(2) (1 create, 2 replace).
        fn set_xattr(name: &CStr, value: &[u8], flags: u32) -> Result<()>;
        /// Lists names of extended attributes, each ended by NUL; `buf` as in get_xattr.
        fn list_xattr(buf: &mut [u8]) -> Result<usize>;
        /// Removes an extended attribute.
        fn remove_xattr(name: &CStr) -> Result<()>;
        /// The target of a symbolic link: written into `buf`, its length returned. EINVAL on anything else.
        fn read_link(buf: &mut [u8]) -> Result<usize>;
    }
    /// Flags of a regular file or a directory, as lsattr(1) shows them. EOPNOTSUPP: it has none.
    fn flags(&self) -> Result<u32> {
        self.inner().map_err(|_| Errno::OPNOTSUPP)?.flags()
    }
    /// Sets all flags.
    fn set_flags(&self, flags: u32) -> Result<()> {
        self.inner().map_err(|_| Errno::OPNOTSUPP)?.set_flags(flags)
    }
    /// Opens the regular file that this handle holds, also when it has no name any more. ELOOP, ENXIO or EISDIR
    /// when it is something else.
    fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>>;
    /// The descriptor behind it, where there is one: a successor of this process that has inherited it can make the object of it
    /// again ([`Branch::adopt`]).
    fn as_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner().ok()?.as_descriptor()
    }
    /// For a branch to recognise its own objects.
    fn as_any(&self) -> &dyn Any;
}

/// An object that a branch has made of a descriptor.
pub enum AdoptedObject {
    /// A directory.
    Dir(Arc<dyn BranchDir>),
    /// Anything else.
    Other(Arc<dyn Object>),
}

/// An open regular file.
pub trait BranchFile: Object {
    /// The file that this one wraps. EROFS: none.
    fn inner_file(&self) -> Result<&dyn BranchFile> {
        Err(Errno::ROFS.into())
    }
    forward! {
        inner_file;
        /// Reads at `offset` (bytes); fewer bytes only at the end of the file.
        fn read_at(buf: &mut [u8], offset: u64) -> Result<usize>;
        /// Writes all of `data` at `offset`, or as much as fits before an error; returns how much.
        fn write_at(data: &[u8], offset: u64) -> Result<usize>;
        /// Makes data (and, unless `datasync`, attributes) durable.
        fn sync(datasync: bool) -> Result<()>;
        /// Sets the size in bytes.
        fn truncate(size: u64) -> Result<()>;
        /// fallocate(2) with its FALLOC_FL_* `mode`.
        fn allocate(mode: u32, offset: u64, len: u64) -> Result<()>;
        /// Finds data or a hole at or after `offset`; ENXIO beyond the end.
        fn seek(offset: u64, whence: Seek) -> Result<u64>;
        /// Copies up to `len` bytes into this file at `offset` from `from` at `from_offset`, within the branch's
        /// filesystem (sharing blocks where it can); returns how much. EXDEV or EOPNOTSUPP: copy by hand.
        fn copy_range(offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64>;
        /// Makes this file share all blocks of `from` (reflink). EXDEV, EOPNOTSUPP or EINVAL: not possible here.
        fn clone_from(from: &dyn BranchFile) -> Result<()>;
    }
    /// The descriptor behind, for passthrough; None where there is none (memory, distributed storage).
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.inner_file().ok()?.descriptor()
    }
    /// A copy of the contents that nobody changes any more, to read and map without asking: of a file that is open to be read only,
    /// and has no descriptor of its own. None: there is none at present.
    fn lent_descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.inner_file().ok()?.lent_descriptor()
    }
    /// Whether anybody, in whatever process, has the file open to be written. For a file that is open to be read only; true where it
    /// cannot be told.
    fn has_writers(&self) -> bool {
        self.inner_file().map_or(true, |inner| inner.has_writers())
    }
    /// Closes it, and says what has failed of writing that nobody was told of. Where others have it too, nothing is known yet.
    fn close(self: Arc<Self>) -> Result<()> {
        drop(self);
        Ok(())
    }
    /// Attributes, and a number that stands for what the file is now: every change of contents or attributes, by whoever, that was
    /// done before has given it another one. None: the storage counts no changes, and the time of the last one has to do.
    fn version(&self) -> Result<(Attr, Option<u64>)> {
        self.inner_file().map_or_else(|_| Ok((self.stat()?, None)), |inner| inner.version())
    }
    /// Whether [`BranchFile::version`] asks nobody: it says what was found when contents of the file were last asked for.
    fn version_is_known(&self) -> bool {
        false
    }
}

/// A directory that is held.
#[allow(unused_variables)]
pub trait BranchDir: Object {
    /// The directory that this one wraps. EROFS: none.
    fn inner_dir(&self) -> Result<&dyn BranchDir> {
        Err(Errno::ROFS.into())
    }
    forward! {
        inner_dir;
        /// Attributes of `name` in it, not following a symbolic link.
        fn stat_at(name: Name<'_>) -> Result<Attr>;
        /// Gets an extended attribute of `name`, as [`Object::get_xattr`].
        fn get_xattr_at(name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize>;
        /// Sets owner and group of `name`, not following a symbolic link.
        fn set_owner_at(name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
        /// Sets permission bits of `name`. EOPNOTSUPP on a symbolic link.
        fn set_mode_at(name: Name<'_>, mode: u32) -> Result<()>;
        /// Sets times of `name`, not following a symbolic link.
        fn set_times_at(name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
        /// The target of a symbolic link `name`, as [`Object::read_link`].
        fn read_link_at(name: Name<'_>, buf: &mut [u8]) -> Result<usize>;
        /// Gives a name in this directory to a file from [`BranchDir::create_unnamed`], or another name to a held
        /// object of the same branch. EEXIST if the name is taken.
        fn link_object(object: &dyn Object, name: Name<'_>) -> Result<()>;
        /// Makes a directory.
        fn make_dir(name: Name<'_>, mode: u32) -> Result<()>;
        /// Makes a file, device, fifo or socket; `mode` has type bits, `rdev` is in makedev form.
        fn make_node(name: Name<'_>, mode: u32, rdev: u64) -> Result<()>;
        /// Makes a symbolic link.
        fn make_symlink(name: Name<'_>, target: &CStr) -> Result<()>;
        /// Removes a name that is not a directory.
        fn remove(name: Name<'_>) -> Result<()>;
        /// Removes an empty directory.
        fn remove_dir(name: Name<'_>) -> Result<()>;
        /// Makes another name `to_name` in `to` for `name` in this directory. `to` is of the same branch.
        fn link(name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()>;
        /// Renames `name` in this directory to `to_name` in `to`, as renameat2(2). `to` is of the same branch. EINVAL: flags that the
        /// branch has not.
        fn rename(name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>, flags: RenameFlags) -> Result<()>;
        /// Calls `each` for every entry, without `.` and `..`, in the branch's own order. An error that `each`
        /// returns ends the listing and is returned.
        fn list(each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()>;
        /// Makes the directory's entries durable.
        fn sync_dir() -> Result<()>;
    }

    /// Holds a directory in it. ENOTDIR or ELOOP when `name` is something else.
    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>>;
    /// Opens a regular file in it. ELOOP on a symbolic link; never blocks on a fifo; ENXIO or EISDIR on
    /// anything that is not a regular file.
    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>>;
    /// Holds anything in it, without opening it for I/O.
    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>>;

    /// Creates a regular file, opened for reading and writing; EEXIST if the name is taken. The process's umask
    /// is 0; a default ACL of the directory acts.
    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>> {
        Err(Errno::ROFS.into())
    }
    /// Creates a regular file without a name, opened for reading and writing. EOPNOTSUPP: not possible here.
    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn BranchFile>> {
        Err(Errno::ROFS.into())
    }
}

/// One place of storage: a local directory, a Ceph directory, memory.
pub trait Branch: Send + Sync + 'static {
    /// The branch that this one wraps. EROFS: none.
    fn inner(&self) -> Result<&dyn Branch> {
        Err(Errno::ROFS.into())
    }
    forward! {
        inner;
        /// Space and inodes, and the filesystem's identity.
        fn statfs() -> Result<StatFs>;
        /// Makes everything that was written to the branch durable.
        fn sync() -> Result<()>;
    }
    /// The root directory.
    fn root(&self) -> Arc<dyn BranchDir>;
    /// Holds a directory by its path below the root: components joined by `/`, no leading slash, empty for the
    /// root. Nothing in it may be a symbolic link, `..` or outside.
    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>>;
    /// The filesystem's identity alone.
    fn fsid(&self) -> Result<u64> {
        self.inner().map_or_else(|_| Ok(self.statfs()?.fsid), |inner| inner.fsid())
    }
    /// The object of a descriptor that an object of this branch had in another process. EOPNOTSUPP: the branch has none.
    fn adopt(&self, descriptor: OwnedFd) -> Result<AdoptedObject> {
        drop(descriptor);
        Err(Errno::OPNOTSUPP.into())
    }
    /// The regular file with an inode number, open for reading and writing, wherever it is below the root. ENOENT: there is none (any more),
    /// or it lies elsewhere. EOPNOTSUPP: the branch finds nothing by numbers.
    fn find_file(&self, ino: u64) -> Result<Arc<dyn BranchFile>> {
        let _ = ino;
        Err(Errno::OPNOTSUPP.into())
    }
    /// Whether two names can change places in one step ([`RenameFlags::EXCHANGE`]). In an upper layer without it,
    /// whiteouts stand beside the names that they hide. A branch that cannot has no other flags of renames, either.
    fn exchanges(&self) -> bool {
        self.inner().is_ok_and(|inner| inner.exchanges())
    }
    /// The directory of this host that it is, by which it can be found again; None: it is none.
    fn directory(&self) -> Option<&Path> {
        self.inner().ok()?.directory()
    }
    /// How messages call it: a path or a URL.
    fn describe(&self) -> String {
        self.inner().map_or_else(|_| String::new(), |inner| inner.describe())
    }
}
