//! Paths below /proc/self/fd: the way to a held object that has no name, or whose name must not be followed.
#![forbid(unsafe_code)]

use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

const PREFIX: &[u8] = b"/proc/self/fd/";
/// Digits of the largest descriptor number.
const DIGITS: usize = 10;
/// Longest name after the descriptor.
const NAME: usize = 255;
/// Prefix, descriptor, slash, name, NUL.
const CAPACITY: usize = PREFIX.len() + DIGITS + 1 + NAME + 1;

/// `/proc/self/fd/N` or `/proc/self/fd/N/name`, made without an allocation.
pub(crate) struct ProcPath {
    buf: [u8; CAPACITY],
    len: usize,
}

impl ProcPath {
    /// The path of a descriptor itself. Following it leads to exactly the held object, even to a symbolic link.
    pub(crate) fn of_fd(fd: BorrowedFd<'_>) -> Self {
        let mut path = Self { buf: [0; CAPACITY], len: 0 };
        path.push(PREFIX);
        // A borrowed descriptor is never negative.
        let mut number = fd.as_raw_fd().unsigned_abs();
        let mut digits = [0_u8; DIGITS];
        let mut first = DIGITS;
        for slot in digits.iter_mut().rev() {
            *slot = b'0' + u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
            first -= 1;
            if number == 0 {
                break;
            }
        }
        path.push(digits.get(first..).unwrap_or(&[]));
        path
    }

    /// The path of `name` in a held directory. ENAMETOOLONG beyond 255 bytes.
    pub(crate) fn below(fd: BorrowedFd<'_>, name: &CStr) -> Result<Self, Errno> {
        let name = name.to_bytes();
        if name.len() > NAME {
            return Err(Errno::NAMETOOLONG);
        }
        let mut path = Self::of_fd(fd);
        path.push(b"/");
        path.push(name);
        Ok(path)
    }

    fn push(&mut self, bytes: &[u8]) {
        // The last byte stays NUL; what does not fit cannot occur (see CAPACITY).
        let end = self.len + bytes.len();
        if let Some(room) = self.buf.get_mut(self.len..end).filter(|_| end < CAPACITY) {
            room.copy_from_slice(bytes);
            self.len = end;
        }
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.buf).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::fd::AsFd;

    #[test]
    fn paths_are_what_the_kernel_expects() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = file.as_raw_fd();
        let of = |p: &ProcPath| p.as_c_str().to_str().unwrap().to_owned();
        assert_eq!(of(&ProcPath::of_fd(file.as_fd())), format!("/proc/self/fd/{number}"));
        let below = ProcPath::below(file.as_fd(), c"x y").unwrap();
        assert_eq!(of(&below), format!("/proc/self/fd/{number}/x y"));
        let long = CString::new(vec![b'n'; 255]).unwrap();
        assert!(of(&ProcPath::below(file.as_fd(), &long).unwrap()).ends_with("nnn"));
        let longer = CString::new(vec![b'n'; 256]).unwrap();
        assert_eq!(ProcPath::below(file.as_fd(), &longer).err(), Some(Errno::NAMETOOLONG));
    }
}
