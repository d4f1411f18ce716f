//! The trait between a server beside the kernel and an instance: what a client may do past the kernel, given
//! the files of a tree themselves.
//!
//! Such a server is any way by which clients reach a service beside the kernel (a ring of shared memory, for
//! instance). It knows who the client is, carries words and descriptors, and believes nothing else; the
//! instance judges what the client may do and whether doing it here means the same as doing it by way of the
//! kernel. Whatever is not certain is refused, and the client asks the kernel as ever.

use crate::{Errno, Error, ExportFile, Name, NodeId, Progress, SetAttr};
use bitflags::bitflags;
use std::ffi::CStr;

bitflags! {
    /// How a client wants a file opened. As with open(2), without what makes no difference to a regular file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HandoutFlags: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 2;
        /// Cut to length 0. Only together with [`HandoutFlags::WRITE`].
        const TRUNCATE = 4;
        /// Made, where the name is free. Only together with [`HandoutFlags::WRITE`].
        const CREATE = 8;
        /// Not where it is taken.
        const EXCLUSIVE = 0x10;
        /// All writes go to the end.
        const APPEND = 0x20;
        /// Nothing is waited for.
        const NONBLOCK = 0x40;
        /// Each write is durable when it returns.
        const DSYNC = 0x80;
        /// Each write is durable with all attributes when it returns.
        const SYNC = 0x100;
        /// Past the page cache.
        const DIRECT = 0x200;
    }
}

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoutError {
    /// The error is the client's: the kernel would answer the same.
    Error(Errno),
    /// The kernel has to be asked.
    Kernel,
    /// The kernel knows this name: something may be mounted over it. The client looks, and asks again saying so.
    Known,
    /// This directory is not there any more, or not served. It is to be entered anew.
    Stale,
}

/// Whatever went wrong in the service, the kernel is to say what the client sees of it.
impl From<Error> for HandoutError {
    fn from(_: Error) -> Self {
        Self::Kernel
    }
}

/// The answer to a client.
pub type Verdict<T> = std::result::Result<T, HandoutError>;

/// Who asks. Ids are those by which its accesses to files are judged, in the service's user namespace, as the kernel states them; nothing
/// more than these is known of the client: no further groups, no capabilities.
#[derive(Clone, Copy)]
pub struct Client<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hears how far the call has come.
    pub progress: &'a dyn Progress,
}

/// A name in a directory that the client has entered.
#[derive(Debug)]
pub struct DirName<'a, D> {
    /// The directory.
    pub dir: &'a D,
    /// The name in it.
    pub name: Name<'a>,
    /// The client has looked whether something is mounted over it.
    pub checked: bool,
}

/// What an instance does for clients that reach it beside the kernel. A call that the instance does not have is the kernel's to do.
///
/// Each call is judged anew, by what directory and object are when it is carried out. Calls are made by many threads at the same time.
pub trait Handout: Send + Sync + 'static {
    /// A directory that a client has entered. It stays the same one when it is moved, and keeps no instance alive.
    type Dir: Send;

    /// Enters a directory. The client has shown, by way of the kernel, that it may write to it.
    fn enter(&self, node: NodeId) -> Verdict<Self::Dir>;
    /// The inode number of a directory, as the mount shows it.
    fn ino(&self, dir: &Self::Dir) -> u64;
    /// The node of a directory.
    fn node(&self, dir: &Self::Dir) -> NodeId;
    /// The directory of a name, if the client may search `dir` and the kernel knows nothing of the name, so that nothing can be mounted
    /// over it. [`HandoutError::Known`]: it is to be looked for by way of the kernel.
    fn below(&self, client: &Client<'_>, dir: &Self::Dir, name: Name<'_>) -> Verdict<NodeId>;

    /// Opens a file that is there, and cuts it if that is asked for. ENOENT: there is none.
    fn open(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Self::Dir>,
        flags: HandoutFlags,
    ) -> Verdict<ExportFile>;
    /// Makes and opens a file; `mode` has the umask applied. EEXIST: the name is taken, in whatever way.
    fn create(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Self::Dir>,
        flags: HandoutFlags,
        mode: u32,
    ) -> Verdict<ExportFile>;
    /// Opens the file of a node to write, for a client that has it open by way of the kernel and makes it shorter only there.
    fn reopen(&self, client: &Client<'_>, node: NodeId, flags: HandoutFlags) -> Verdict<ExportFile>;
    /// Changes attributes, but no size, of what the kernel does not know. `follows`: of a symbolic link that is meant which it leads to.
    fn setattr(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Self::Dir>,
        set: &SetAttr,
        follows: bool,
    ) -> Verdict<()>;
    /// Makes a directory and enters it; `mode` has the umask applied. None: it has been made, and is to be entered by way of the kernel.
    /// EEXIST: the name is taken, in whatever way.
    fn mkdir(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Self::Dir>,
        mode: u32,
    ) -> Verdict<Option<Self::Dir>>;
    /// Makes a symbolic link. EEXIST: the name is taken, in whatever way.
    fn symlink(&self, client: &Client<'_>, at: &DirName<'_, Self::Dir>, target: &CStr) -> Verdict<()>;

    /// Opens a file, and makes it where `flags` say so, as open(2).
    fn open_or_create(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Self::Dir>,
        flags: HandoutFlags,
        mode: u32,
    ) -> Verdict<ExportFile> {
        let creates = flags.contains(HandoutFlags::CREATE);
        if creates {
            match self.create(client, at, flags, mode) {
                // Taken, in whatever way; exclusively it is an error, which the kernel may find otherwise.
                Err(HandoutError::Error(Errno::EXIST)) if !flags.contains(HandoutFlags::EXCLUSIVE) => {}
                Err(HandoutError::Error(Errno::EXIST)) => return Err(HandoutError::Kernel),
                done => return done,
            }
        }
        match self.open(client, at, flags) {
            // A name that is taken, and nothing to be seen there: a whiteout, whose place the kernel's file takes.
            Err(HandoutError::Error(Errno::NOENT)) if creates => Err(HandoutError::Kernel),
            done => done,
        }
    }
}
