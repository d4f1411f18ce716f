//! How a case ends.

use rustix::io::Errno;
use std::fmt;

/// Why a case did not pass.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It failed, and why.
    Fail(String),
    /// It could not be tried here, and why.
    Skip(String),
}

/// The end of a case or of a part of one.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

pub(crate) fn fail<T>(why: impl fmt::Display) -> Outcome<T> {
    Err(Stop::Fail(why.to_string()))
}

/// A case that cannot be tried here.
pub(crate) fn skip<T>(why: impl fmt::Display) -> Outcome<T> {
    Err(Stop::Skip(why.to_string()))
}

impl From<std::io::Error> for Stop {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::Fail(format!("{} (at {})", error, std::panic::Location::caller()))
    }
}

impl From<Errno> for Stop {
    #[track_caller]
    fn from(errno: Errno) -> Self {
        Self::Fail(format!("{} (at {})", errno, std::panic::Location::caller()))
    }
}

/// Adds what was being done to an error.
pub(crate) trait DuringContext<T> {
    /// Names what was being done.
    fn doing(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> DuringContext<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Stop::Fail(format!("{what}: {error}")))
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail(why) => write!(f, "{why}"),
            Self::Skip(why) => write!(f, "SKIPPED: {why}"),
        }
    }
}

/// Ends the case with a failure unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return $crate::harness::fail(format!($($message)+));
        }
    };
}

/// Waits as long as the condition holds, and ends the case with a failure where that is too long.
macro_rules! wait_while {
    ($condition:expr, $($message:tt)+) => {{
        let begin = std::time::Instant::now();
        while $condition {
            $crate::harness::outcome::ensure!(begin.elapsed() < $crate::harness::PATIENCE, $($message)+);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }};
}

/// Ends the case with a failure unless the two are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return $crate::harness::fail(format!(
                "{}: {:?}, expected {:?} ({}:{})", format!($($message)+), left, right, file!(), line!()
            ));
        }
    }};
}

pub(crate) use {ensure, ensure_eq, wait_while};
