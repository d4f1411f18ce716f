//! What the store refuses, and what fails.

use crate::device;
use rustix::io::Errno;
use std::fmt;

/// Why the store did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No object has this name.
    NotFound,
    /// A name that is empty or longer than [`NAME_MAX`](super::NAME_MAX) bytes.
    BadName,
    /// An offset or a size beyond [`SIZE_MAX`](super::SIZE_MAX).
    TooLarge,
    /// The device is full. Objects can still be removed.
    NoSpace,
    /// More writers at once than the device has active zones for. One must commit first.
    TooManyWriters,
    /// Blocks of this object cannot be read, or hold something else than was written.
    Unreadable {
        /// The zone where it is.
        zone: u32,
        /// The first such block of it.
        block: u64,
        /// Why.
        why: String,
    },
    /// The store cannot be written any more since this happened.
    ReadOnly(String),
    /// What is on the device is no store, or one that is damaged where nothing makes up for it.
    Damaged(String),
    /// The device does not do what is asked of it.
    Device(device::Error),
}

/// What the store answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(super) fn damaged<T>(what: impl Into<String>) -> Result<T> {
        Err(Self::Damaged(what.into()))
    }

    /// The nearest errno.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotFound => Errno::NOENT,
            Self::BadName => Errno::NAMETOOLONG,
            Self::TooLarge => Errno::FBIG,
            Self::NoSpace => Errno::NOSPC,
            Self::TooManyWriters => Errno::BUSY,
            Self::ReadOnly(_) => Errno::ROFS,
            Self::Unreadable { .. } | Self::Damaged(_) => Errno::IO,
            Self::Device(error) => error.errno(),
        }
    }
}

impl From<device::Error> for Error {
    fn from(error: device::Error) -> Self {
        Self::Device(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("no such object"),
            Self::BadName => f.write_str("a name of an object has 1 to 255 bytes"),
            Self::TooLarge => f.write_str("too large for an object"),
            Self::NoSpace => f.write_str("the device is full"),
            Self::TooManyWriters => f.write_str("more writers at once than the device has active zones for"),
            Self::Unreadable { zone, block, why } => write!(f, "zone {zone}, block {block}: {why}"),
            Self::ReadOnly(why) => write!(f, "the store is read-only now: {why}"),
            Self::Damaged(what) => f.write_str(what),
            Self::Device(error) => write!(f, "device: {error}"),
        }
    }
}

impl std::error::Error for Error {}
