//! A name: one component of a path, checked once where it enters.

use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt;

/// Longest name that any layer can hold, in bytes (Linux's NAME_MAX). A layer may allow less.
pub const NAME_MAX: usize = 255;

/// One path component: not empty, no slash, not `.` or `..`, at most [`NAME_MAX`] bytes.
///
/// Borrowed and NUL-terminated, so that it goes from a request to a system call without a copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name<'a>(&'a CStr);

impl<'a> Name<'a> {
    /// Checks a component. EINVAL: empty, `.`, `..` or with a slash; ENAMETOOLONG: too long.
    pub fn new(name: &'a CStr) -> Result<Self, Errno> {
        let bytes = name.to_bytes();
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
            return Err(Errno::INVAL);
        }
        if bytes.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(Self(name))
    }

    /// The name as system calls take it.
    #[must_use]
    pub const fn as_c_str(self) -> &'a CStr {
        self.0
    }

    /// The name's bytes, without the terminating NUL.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0.to_bytes()
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        for bad in [c"", c".", c"..", c"a/b", c"/"] {
            assert_eq!(Name::new(bad), Err(Errno::INVAL), "{bad:?}");
        }
        let long = std::ffi::CString::new(vec![b'x'; 256]).unwrap();
        assert_eq!(Name::new(&long), Err(Errno::NAMETOOLONG));
        assert_eq!(Name::new(c"...").unwrap().bytes(), b"...");
    }
}
