//! The trait between a union and the storage under it.
//!
//! A branch hands out objects: directories, files, and handles to anything. Names are relative to a directory
//! object and never followed when they are symbolic links, so nothing can lead out of the branch's root. A
//! branch knows nothing of whiteouts, layers or unions.

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

/// What can be done with any object that is held: a directory, an open file, or a handle to a symbolic link,
/// device, fifo or socket. It stays valid when the object is renamed or removed.
pub trait Object: Send + Sync + 'static {
    /// Attributes.
    fn stat(&self) -> Result<Attr>;
    /// Sets permission bits. EOPNOTSUPP on symbolic links.
    fn set_mode(&self, mode: u32) -> Result<()>;
    /// Sets owner and group; None stays.
    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
    /// Sets times; None stays.
    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
    /// Gets an extended attribute into `buf`, returns its length; an empty `buf` asks for the length. ENODATA,
    /// ERANGE, EOPNOTSUPP as in getxattr(2).
    fn get_xattr(&self, name: &CStr, buf: &mut [u8]) -> Result<usize>;
    /// Sets an extended attribute; `flags` as in setxattr(2) (1 create, 2 replace).
    fn set_xattr(&self, name: &CStr, value: &[u8], flags: u32) -> Result<()>;
    /// Lists names of extended attributes, each ended by NUL; `buf` as in get_xattr.
    fn list_xattr(&self, buf: &mut [u8]) -> Result<usize>;
    /// Removes an extended attribute.
    fn remove_xattr(&self, name: &CStr) -> Result<()>;
    /// Flags of a regular file or a directory, as lsattr(1) shows them. EOPNOTSUPP: it has none.
    fn flags(&self) -> Result<u32> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// Sets all flags.
    fn set_flags(&self, _flags: u32) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// The target of a symbolic link: written into `buf`, its length returned. EINVAL on anything else.
    fn read_link(&self, buf: &mut [u8]) -> Result<usize>;
    /// Opens the regular file that this handle holds, also when it has no name any more. ELOOP, ENXIO or EISDIR
    /// when it is something else.
    fn reopen(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>>;
    /// The descriptor behind it, where there is one: a successor of this process that has inherited it can make the object of it
    /// again ([`Branch::adopt`]).
    fn as_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
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
    /// Reads at `offset` (bytes); fewer bytes only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of `data` at `offset`, or as much as fits before an error; returns how much.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize>;
    /// Makes data (and, unless `datasync`, attributes) durable.
    fn sync(&self, datasync: bool) -> Result<()>;
    /// Sets the size in bytes.
    fn truncate(&self, size: u64) -> Result<()>;
    /// fallocate(2) with its FALLOC_FL_* `mode`.
    fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()>;
    /// Finds data or a hole at or after `offset`; ENXIO beyond the end.
    fn seek(&self, offset: u64, whence: Seek) -> Result<u64>;
    /// Copies up to `len` bytes into this file at `offset` from `from` at `from_offset`, within the branch's
    /// filesystem (sharing blocks where it can); returns how much. EXDEV or EOPNOTSUPP: copy by hand.
    fn copy_range(&self, offset: u64, from: &dyn BranchFile, from_offset: u64, len: u64) -> Result<u64>;
    /// Makes this file share all blocks of `from` (reflink). EXDEV, EOPNOTSUPP or EINVAL: not possible here.
    fn clone_from(&self, from: &dyn BranchFile) -> Result<()>;
    /// The descriptor behind, for passthrough; None where there is none (memory, distributed storage).
    fn descriptor(&self) -> Option<Arc<OwnedFd>>;
    /// A copy of the contents that nobody changes any more, to read and map without asking: of a file that is open to be read only,
    /// and has no descriptor of its own. None: there is none at present.
    fn lent(&self) -> Option<Arc<OwnedFd>> {
        None
    }
    /// Whether anybody, in whatever process, has the file open to be written. For a file that is open to be read only; true where it
    /// cannot be told.
    fn has_writers(&self) -> bool {
        true
    }
    /// Closes it, and says what has failed of writing that nobody was told of. Where others have it too, nothing is known yet.
    fn close(self: Arc<Self>) -> Result<()> {
        drop(self);
        Ok(())
    }
    /// Attributes, and a number that stands for what the file is now: every change of contents or attributes, by whoever, that was
    /// done before has given it another one. None: the storage counts no changes, and the time of the last one has to do.
    fn version(&self) -> Result<(Attr, Option<u64>)> {
        Ok((self.stat()?, None))
    }
    /// Whether [`BranchFile::version`] asks nobody: it says what was found when contents of the file were last asked for.
    fn version_is_known(&self) -> bool {
        false
    }
}

/// A directory that is held.
pub trait BranchDir: Object {
    /// Attributes of `name` in it, not following a symbolic link.
    fn stat_at(&self, name: Name<'_>) -> Result<Attr>;
    /// Gets an extended attribute of `name`, as [`Object::get_xattr`].
    fn get_xattr_at(&self, name: Name<'_>, attr: &CStr, buf: &mut [u8]) -> Result<usize>;
    /// Sets owner and group of `name`, not following a symbolic link.
    fn set_owner_at(&self, name: Name<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
    /// Sets permission bits of `name`. EOPNOTSUPP on a symbolic link.
    fn set_mode_at(&self, name: Name<'_>, mode: u32) -> Result<()>;
    /// Sets times of `name`, not following a symbolic link.
    fn set_times_at(&self, name: Name<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()>;
    /// The target of a symbolic link `name`, as [`Object::read_link`].
    fn read_link_at(&self, name: Name<'_>, buf: &mut [u8]) -> Result<usize>;

    /// Holds a directory in it. ENOTDIR or ELOOP when `name` is something else.
    fn open_dir(&self, name: Name<'_>) -> Result<Arc<dyn BranchDir>>;
    /// Opens a regular file in it. ELOOP on a symbolic link; never blocks on a fifo; ENXIO or EISDIR on
    /// anything that is not a regular file.
    fn open_file(&self, name: Name<'_>, mode: OpenMode) -> Result<Arc<dyn BranchFile>>;
    /// Holds anything in it, without opening it for I/O.
    fn hold(&self, name: Name<'_>) -> Result<Arc<dyn Object>>;

    /// Creates a regular file, opened for reading and writing; EEXIST if the name is taken. The process's umask
    /// is 0; a default ACL of the directory acts.
    fn create(&self, name: Name<'_>, mode: u32) -> Result<Arc<dyn BranchFile>>;
    /// Creates a regular file without a name, opened for reading and writing. EOPNOTSUPP: not possible here.
    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn BranchFile>>;
    /// Gives a name in this directory to a file from [`BranchDir::create_unnamed`], or another name to a held
    /// object of the same branch. EEXIST if the name is taken.
    fn link_object(&self, object: &dyn Object, name: Name<'_>) -> Result<()>;
    /// Makes a directory.
    fn make_dir(&self, name: Name<'_>, mode: u32) -> Result<()>;
    /// Makes a file, device, fifo or socket; `mode` has type bits, `rdev` is in makedev form.
    fn make_node(&self, name: Name<'_>, mode: u32, rdev: u64) -> Result<()>;
    /// Makes a symbolic link.
    fn make_symlink(&self, name: Name<'_>, target: &CStr) -> Result<()>;
    /// Removes a name that is not a directory.
    fn remove(&self, name: Name<'_>) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, name: Name<'_>) -> Result<()>;
    /// Makes another name `to_name` in `to` for `name` in this directory. `to` is of the same branch.
    fn link(&self, name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>) -> Result<()>;
    /// Renames `name` in this directory to `to_name` in `to`, as renameat2(2). `to` is of the same branch. EINVAL: flags that the
    /// branch has not.
    fn rename(&self, name: Name<'_>, to: &dyn BranchDir, to_name: Name<'_>, flags: RenameFlags)
    -> Result<()>;

    /// Calls `each` for every entry, without `.` and `..`, in the branch's own order. An error that `each`
    /// returns ends the listing and is returned.
    fn list(&self, each: &mut dyn FnMut(DirItem<'_>) -> Result<()>) -> Result<()>;
    /// Makes the directory's entries durable.
    fn sync_dir(&self) -> Result<()>;
}

/// One place of storage: a local directory, a Ceph directory, memory.
pub trait Branch: Send + Sync + 'static {
    /// The root directory.
    fn root(&self) -> Arc<dyn BranchDir>;
    /// Holds a directory by its path below the root: components joined by `/`, no leading slash, empty for the
    /// root. Nothing in it may be a symbolic link, `..` or outside.
    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>>;
    /// Space and inodes, and the filesystem's identity.
    fn statfs(&self) -> Result<StatFs>;
    /// The filesystem's identity alone.
    fn fsid(&self) -> Result<u64> {
        Ok(self.statfs()?.fsid)
    }
    /// Makes everything that was written to the branch durable.
    fn sync(&self) -> Result<()>;
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
    fn exchanges(&self) -> bool;
    /// The directory of this host that it is, by which it can be found again; None: it is none.
    fn directory(&self) -> Option<&Path> {
        None
    }
    /// How messages call it: a path or a URL.
    fn describe(&self) -> String;
}
