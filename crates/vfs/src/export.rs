//! Files of a branch that are handed out: to be read and written by a client itself, past the kernel's way to the service.
//!
//! [`Export`] is a face that a branch may have beside [`Branch`](crate::Branch). It opens nothing that the branch itself would not, but
//! what it opens is meant to leave the process. It judges nothing: who may have what is the caller's to know.

use crate::{Attr, HandoutFlags, Name, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An open regular file that can be handed out.
pub enum ExportFile {
    /// A descriptor, to be sent to another process.
    Descriptor(OwnedFd),
    /// An object of this process, of branches that have no descriptors (memory).
    Object(Arc<dyn crate::BranchFile>),
}

/// A file that has been opened, and what it was just then.
pub struct ExportedFile {
    /// The file.
    pub file: ExportFile,
    /// Its attributes.
    pub attr: Attr,
    /// It has an ACL, which says more than its mode.
    pub acl: bool,
}

/// The face of a branch by which files are handed out.
pub trait Export: Send + Sync + 'static {
    /// Holds the directory at `path` (components joined by `/`, no leading slash, empty for the branch's root) if its inode number is
    /// `ino`. ESTALE: another one is there. Nothing on the way may be a symbolic link.
    fn open_dir(&self, path: &[u8], ino: u64) -> Result<Arc<dyn ExportDir>>;
    /// Opens the file at `path`, as [`ExportDir::open`].
    fn open_file(&self, path: &[u8], flags: HandoutFlags) -> Result<ExportedFile>;
    /// Gives an opened file what it was not opened with: [`HandoutFlags::APPEND`] and [`HandoutFlags::DIRECT`] as `flags` have them, and
    /// waiting as they have it.
    fn set_flags(&self, file: &ExportFile, flags: HandoutFlags) -> Result<()>;
    /// Gives a new file to its owner.
    fn set_owner(&self, file: &ExportFile, uid: u32, gid: u32) -> Result<()>;
    /// Cuts an opened file to length 0.
    fn truncate_to_zero(&self, file: &ExportFile) -> Result<()>;
}

/// A directory of a branch whose files are handed out. It stays the same one when it is moved.
pub trait ExportDir: Send + Sync + 'static {
    /// Creates a regular file under a free name, opened as `flags` say, and nothing more: it belongs to the service. The process's umask
    /// is 0; the group of a set-group-id directory acts. EEXIST: the name is taken.
    fn create(&self, name: Name<'_>, flags: HandoutFlags, mode: u32) -> Result<ExportedFile>;
    /// Opens a regular file without changing it, whatever `flags` say of cutting; [`Export::set_flags`] is to follow. EAGAIN: somebody
    /// keeps a lease on it. Waits for no more than some milliseconds.
    fn open(&self, name: Name<'_>, flags: HandoutFlags) -> Result<ExportedFile>;
    /// Removes a name that is not a directory.
    fn remove(&self, name: Name<'_>) -> Result<()>;
    /// Holds a directory in it if its inode number is `ino`. ESTALE: another one is there.
    fn open_dir(&self, name: Name<'_>, ino: u64) -> Result<Arc<dyn ExportDir>>;
}
