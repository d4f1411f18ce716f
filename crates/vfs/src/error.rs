//! One error type: an errno, what was being done, where, and how loud the log says it.

use rustix::io::Errno;
use std::fmt;

/// The result of every fallible operation between Vellum's houses.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How loud an error is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// An answer like any other, such as that a name is not there: for who follows single calls.
    Answer,
    /// Something has failed that should not. EIO is this, unless it says otherwise.
    Failure,
    /// What is stored is not whole, so that it stays as it is until somebody does something about it.
    Damage,
}

/// An errno with its context. Making one from an errno allocates nothing, so that an expected error
/// (a lookup that finds nothing) stays cheap; [`Error::at`] adds a path where a person will read it.
#[derive(Clone)]
pub struct Error {
    errno: Errno,
    level: Level,
    doing: &'static str,
    path: Option<Box<str>>,
    /// What a layer below has said, where this one has said more.
    cause: Option<Box<Self>>,
}

impl Error {
    /// An error while `doing` (a gerund or noun, e.g. "copy-up").
    #[must_use]
    pub const fn new(errno: Errno, doing: &'static str) -> Self {
        let level =
            if errno.raw_os_error() == Errno::IO.raw_os_error() { Level::Failure } else { Level::Answer };
        Self { errno, level, doing, path: None, cause: None }
    }

    /// Adds the path (in a layer or in the mount) that the error concerns. What has been said stays.
    #[must_use]
    pub fn at(self, path: impl AsRef<[u8]>) -> Self {
        let path: Box<str> = String::from_utf8_lossy(path.as_ref()).into();
        if self.path.as_ref() == Some(&path) {
            return self;
        }
        let mut error = if self.path.is_some() { self.cause_of("") } else { self };
        error.path = Some(path);
        error
    }

    /// Adds what was being done. What has been said stays.
    #[must_use]
    pub fn doing(mut self, doing: &'static str) -> Self {
        if !self.doing.is_empty() || self.cause.is_some() {
            return self.cause_of(doing);
        }
        self.doing = doing;
        self
    }

    /// Another error of which this one is the cause.
    fn cause_of(self, doing: &'static str) -> Self {
        Self { errno: self.errno, level: self.level, doing, path: None, cause: Some(Box::new(self)) }
    }

    /// Says that this is to be heard of whatever the errno.
    #[must_use]
    pub fn failure(mut self) -> Self {
        self.level = self.level.max(Level::Failure);
        self
    }

    /// Says that something stored is not whole.
    #[must_use]
    pub const fn damage(mut self) -> Self {
        self.level = Level::Damage;
        self
    }

    /// The errno that the application sees.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        self.errno
    }

    /// How loud the error is in the log.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
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
        match &self.cause {
            Some(cause) => write!(f, "{cause}"),
            None => write!(f, "{}", self.errno),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_alone_is_quiet_and_small() {
        assert!(size_of::<Error>() <= 48, "{} bytes", size_of::<Error>());
        let error = Error::from(Errno::NOENT);
        assert!(error.path.is_none() && error.cause.is_none(), "nothing is allocated");
        assert_eq!(error.level(), Level::Answer);
        assert_eq!(Error::from(Errno::IO).level(), Level::Failure);
    }

    #[test]
    fn added_context_keeps_the_error_level() {
        let error = Error::new(Errno::IO, "a mark").damage().at("f").at("/lower").doing("reading");
        assert_eq!(error.level(), Level::Damage);
        assert_eq!(error.failure().level(), Level::Damage);
        assert_eq!(Error::from(Errno::MFILE).failure().doing("reading").level(), Level::Failure);
    }

    #[test]
    fn error_messages_accumulate_and_name_the_errno_once() {
        let said = |error: Error| error.to_string().replace(&Errno::IO.to_string(), "EIO");
        let error = Error::from(Errno::IO);
        assert_eq!(said(error.clone().doing("reading").at("f")), "reading: f: EIO");
        assert_eq!(said(error.clone().at("f").doing("reading")), "reading: f: EIO");
        let below = Error::new(Errno::IO, "its origin has changed").at("f");
        assert_eq!(said(below.clone().at("f")), "its origin has changed: f: EIO");
        let above = below.doing("copy-up").at("/dir/f");
        assert_eq!(said(above.clone()), "copy-up: /dir/f: its origin has changed: f: EIO");
        assert_eq!(said(above.at("/m")), "/m: copy-up: /dir/f: its origin has changed: f: EIO");
        assert_eq!(said(error.at("a").at("b")), "b: a: EIO");
    }
}
