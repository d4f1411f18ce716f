//! From a request to its answer: the call of the filesystem, and what it says in the protocol's structures.

mod convert;
pub(crate) mod dispatch;
mod ioctl;
mod listing;
