//! What a device refuses, and what fails.

use rustix::io::Errno;
use std::fmt;

/// Why a device did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A zone, a block or a length that the device does not have, or a length that is no multiple of a block.
    OutOfRange,
    /// A write elsewhere than at the write pointer.
    OffPointer {
        /// The block that the pointer is at.
        pointer: u64,
    },
    /// A write beyond the zone's capacity, or to a full zone. Nothing was written.
    Full,
    /// A read at or beyond the write pointer.
    Unwritten,
    /// Writing would make one zone too many active. One must be finished or reset first.
    TooManyActive,
    /// One zone too many would be open. One must be closed first.
    TooManyOpen,
    /// The zone can be read, but neither written nor reset.
    ReadOnly,
    /// The zone can neither be read nor written, and never will.
    Offline,
    /// Not possible in the zone's condition.
    BadCondition,
    /// Power was lost: nothing more is answered.
    NoPower,
    /// The device, or the file beneath it, reported this error.
    Io(Errno),
    /// The device, or the file beneath it, says something of itself that cannot be.
    Untrusted(String),
}

/// What a device answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The nearest errno.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::OutOfRange | Self::OffPointer { .. } | Self::BadCondition => Errno::INVAL,
            Self::Full => Errno::NOSPC,
            Self::TooManyActive => Errno::OVERFLOW,
            Self::TooManyOpen => Errno::TOOMANYREFS,
            Self::ReadOnly => Errno::ROFS,
            Self::Io(errno) => *errno,
            Self::Unwritten | Self::Offline | Self::NoPower | Self::Untrusted(_) => Errno::IO,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Io(errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange => f.write_str("no such zone or block, or no whole blocks"),
            Self::OffPointer { pointer } => {
                write!(f, "write elsewhere than at the write pointer, block {pointer}")
            }
            Self::Full => f.write_str("the zone has no room for this"),
            Self::Unwritten => f.write_str("nothing was written there"),
            Self::TooManyActive => f.write_str("too many active zones"),
            Self::TooManyOpen => f.write_str("too many open zones"),
            Self::ReadOnly => f.write_str("the zone is read-only"),
            Self::Offline => f.write_str("the zone is offline"),
            Self::BadCondition => f.write_str("not possible in the zone's condition"),
            Self::NoPower => f.write_str("the device has no power"),
            Self::Io(errno) => write!(f, "{errno}"),
            Self::Untrusted(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
