//! The vocabulary of Vellum: node ids, attributes, errors, identity, and the traits between its houses:
//! [`Filesystem`] (a front calls an instance) and [`Branch`] (a union calls storage); beside these,
//! [`Handout`] (a ring server calls an instance) and [`Export`] (a union calls storage) for clients that are
//! given files themselves.
//!
//! This crate knows nothing of FUSE, of layers or of system calls other than their errno values.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod attr;
mod branch;
mod caller;
mod error;
mod export;
mod filesystem;
mod handout;
mod idmap;
mod name;
mod profile;
mod progress;

pub use attr::{Attr, FileKind, SetAttr, SetTime, StatFs, Timestamp};
pub use branch::{
    AdoptedObject, Branch, BranchDir, BranchFile, DirItem, Object, OpenMode, RenameFlags, Seek,
};
pub use caller::{Context, ThreadIdentity, UNKNOWN};
pub use error::{Error, Level, Result};
pub use export::{Export, ExportDir, ExportFile, ExportedFile};
pub use filesystem::{
    ActiveOperations, AttrReply, Connection, DirEntry, DirSink, Duties, Entry, Filesystem, Handle, NodeId,
    Notifier, OpenFlags, OpenIo, OpenReply, OwnOpens, WriteFlags, XattrFlags,
};
pub use handout::{Client, DirName, Handout, HandoutError, HandoutFlags, Verdict};
pub use idmap::{ID_RANGES_MAX, IdMap, IdMapError, IdRange, OVERFLOW_ID};
pub use name::{NAME_MAX, Name};
pub use profile::Profile;
pub use progress::Progress;
pub use rustix::io::Errno;
