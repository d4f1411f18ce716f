//! What can go wrong. None of it has to reach a program: who reads then reads the layer itself.

use rustix::io::Errno;
use std::fmt;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The memory said so; nothing has changed.
    Memory(Errno),
    /// No container of that number, or one that has left.
    NoContainer,
    /// There are as many containers as there may be.
    TooManyContainers,
    /// A weight of 0 or above the largest one.
    Weight,
    /// A block does not have the length that its place in the file asks for, or a file's size is not what was said before.
    Length,
    /// What was read from memory is not what was written there. The block has been dropped. Looked for in debug builds only.
    Damaged,
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        Self::Memory(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => write!(f, "the cache's memory: {error}"),
            Self::NoContainer => f.write_str("no such container in the cache"),
            Self::TooManyContainers => f.write_str("too many containers in one cache"),
            Self::Weight => f.write_str("a weight that is 0 or too large"),
            Self::Length => f.write_str("a cached block of the wrong length"),
            Self::Damaged => f.write_str("a cached block has changed in memory"),
        }
    }
}

impl std::error::Error for Error {}
