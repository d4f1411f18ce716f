//! A tree of files that Linux does not see: it answers as ext4 does to root, errno for errno. Where the contents of its files are, and what
//! becomes of its changes, is for the [`Medium`] to say.

mod change_set;
mod medium;
mod namespace;
mod objects;
mod state;
mod xattr;

pub(crate) use change_set::{ChangeSet, EntryChange};
pub(crate) use medium::{Medium, Pin};
pub(crate) use objects::{Dir, File};
pub use state::Options;
pub(crate) use state::{Body, Contents, IO_SIZE, Inode, ROOT, State};
