//! One error type: an errno, what was being done, and where.

use rustix::io::Errno;
use std::fmt;

/// The result of every fallible operation between Vellum's houses.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An errno with its context. Making one from an errno allocates nothing, so that an expected error
/// (a lookup that finds nothing) stays cheap; [`Error::at`] adds a path where a person will read it.
#[derive(Clone)]
pub struct Error {
    errno: Errno,
    doing: &'static str,
    path: Option<Box<str>>,
}

impl Error {
    /// An error while `doing` (a gerund or noun, e.g. "copy-up").
    #[must_use]
    pub const fn new(errno: Errno, doing: &'static str) -> Self {
        Self { errno, doing, path: None }
    }

    /// The same error, naming the path (in a layer or in the mount) that it concerns.
    #[must_use]
    pub fn at(mut self, path: impl AsRef<[u8]>) -> Self {
        self.path = Some(String::from_utf8_lossy(path.as_ref()).into());
        self
    }

    /// The same error, saying what was being done.
    #[must_use]
    pub const fn doing(mut self, doing: &'static str) -> Self {
        self.doing = doing;
        self
    }

    /// The errno that the application sees.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        self.errno
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::new(errno, "")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.doing.is_empty() {
            write!(f, "{}: ", self.doing)?;
        }
        if let Some(path) = &self.path {
            write!(f, "{path}: ")?;
        }
        write!(f, "{}", self.errno)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        self.errno == other.errno
    }
}
