//! Paths of the program's: taken over, and taken apart.

use crate::shim::{copy, raw, signals};
use vellum_ring::files::NAME_MAX;

/// Longest path, with the byte that ends it.
pub(crate) const PATH_MAX: usize = 4096;
/// Bytes that are looked at together.
const CHUNK: usize = 256;
const PAGE: usize = 4096;

/// Copies a string of the program's; its length, without the byte that ends it. None: it is too long, or cannot be read here.
///
/// # Safety
/// The string must be the program's own, as far as it is mapped at all.
pub(crate) unsafe fn take(directory: i32, path: usize, to: &mut [u8]) -> Option<usize> {
    if path == 0 || signals::is_exposed() {
        return None;
    }
    // While no fault would be caught the kernel looks first whether it is there.
    if !signals::is_installed() && !is_readable(directory, path) {
        return None;
    }
    let mut len = 0;
    while len < to.len() {
        let from = path.checked_add(len)?;
        let part = CHUNK.min(PAGE - from % PAGE).min(to.len() - len);
        let chunk = to.get_mut(len..len + part)?;
        // SAFETY: no more than what is in the page of the string's next byte.
        if !unsafe { copy::copy(chunk.as_mut_ptr() as usize, from, part) } {
            return None;
        }
        if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
            return Some(len + end);
        }
        len += part;
    }
    None
}

fn is_readable(directory: i32, path: usize) -> bool {
    const EFAULT: isize = -14;
    raw::plain(raw::number::FACCESSAT, [raw::word(directory), path, 0, 0, 0, 0]) != EFAULT
}

/// A path's directory, as so many first bytes of it, and the place of the name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// 0: there is none, the name is one of the directory that the path begins at.
    pub(crate) parent: usize,
    pub(crate) name: usize,
    pub(crate) end: usize,
}

/// Takes a path apart. None: its last part is no name of a file.
pub(crate) fn split(path: &[u8]) -> Option<Split> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let at = slash.map_or(0, |slash| slash + 1);
    let name = path.get(at..)?;
    if matches!(name, b"" | b"." | b"..") || name.len() > NAME_MAX || name.starts_with(b".wh.") {
        return None;
    }
    // Slashes at the end of the directory say nothing, except for the root's.
    let parent = slash.map_or(0, |slash| {
        let before = path.get(..slash).unwrap_or_default();
        before.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1)
    });
    Some(Split { parent, name: at, end: path.len() })
}

/// Takes the path of a directory apart, which may have slashes at its end.
pub(crate) fn split_dir(path: &[u8]) -> Option<Split> {
    let last = path.iter().rposition(|byte| *byte != b'/')?;
    split(path.get(..=last)?)
}

/// A number in decimal digits, and nothing else.
pub(crate) fn number(text: &[u8]) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u32, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// The path in /proc of a descriptor, with the byte that ends it.
pub(crate) fn of_descriptor(fd: i32) -> [u8; 28] {
    let mut path = [0; 28];
    let mut digits = [0u8; 10];
    let mut rest = fd.unsigned_abs();
    let mut begin = 0;
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        begin = at;
        if rest == 0 {
            break;
        }
    }
    let digits = digits.get(begin..).unwrap_or_default();
    path.iter_mut().zip(b"/proc/self/fd/".iter().chain(digits)).for_each(|(to, from)| *to = *from);
    path
}

/// The number of the descriptor that a path of this process leads to.
pub(crate) fn descriptor_of(path: &[u8]) -> Option<i32> {
    let digits = path.strip_prefix(b"/proc/self/fd/").or_else(|| path.strip_prefix(b"/dev/fd/"))?;
    i32::try_from(number(digits)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_alone() {
        assert_eq!((number(b"0"), number(b"4294967295")), (Some(0), Some(u32::MAX)));
        assert!(
            [&b""[..], b"4294967296", b"1a", b"-1", b"+1", b" 1"].iter().all(|text| number(text).is_none())
        );
    }

    #[test]
    fn descriptors_have_paths() {
        assert_eq!(&of_descriptor(0)[..17], b"/proc/self/fd/0\0\0");
        assert_eq!(&of_descriptor(i32::MAX)[..25], b"/proc/self/fd/2147483647\0");
        assert_eq!((descriptor_of(b"/proc/self/fd/7"), descriptor_of(b"/dev/fd/12")), (Some(7), Some(12)));
        assert!(
            [&b"/dev/fd/"[..], b"/proc/self/fd/1/x", b"7"].iter().all(|path| descriptor_of(path).is_none())
        );
    }

    #[test]
    fn paths_are_split_into_parent_and_name() {
        let parts = |path: &'static str| {
            split(path.as_bytes()).map(|split| (&path[..split.parent], &path[split.name..]))
        };
        assert_eq!(parts("name"), Some(("", "name")));
        assert_eq!(parts("/name"), Some(("/", "name")));
        assert_eq!(parts("//name"), Some(("/", "name")));
        assert_eq!(parts("a/b/name"), Some(("a/b", "name")));
        assert_eq!(parts("/a//name"), Some(("/a", "name")));
        assert_eq!(parts("../name"), Some(("..", "name")));
        assert_eq!(parts("a/.../..x"), Some(("a/...", "..x")));
        for path in ["", "/", ".", "..", "a/", "a/.", "a/..", "a/.wh.b", ".wh..opq"] {
            assert_eq!(parts(path), None, "{path}");
        }
        for (path, parent, name) in [("a/b//", "a", "b"), ("b/", "", "b"), ("/b", "/", "b")] {
            let found = split_dir(path.as_bytes()).unwrap();
            assert_eq!((&path[..found.parent], &path[found.name..found.end]), (parent, name));
        }
        assert!(["", "//", "./", "a/../"].iter().all(|path| split_dir(path.as_bytes()).is_none()));
        let long = "x".repeat(NAME_MAX);
        assert!(split(long.as_bytes()).is_some());
        assert!(split(format!("{long}x").as_bytes()).is_none());
    }

    #[test]
    fn strings_are_copied_up_to_unmapped_memory() {
        let mut to = [0; PATH_MAX];
        for len in [0, 1, 255, 256, 257, 4095] {
            let text = std::ffi::CString::new("x".repeat(len)).unwrap();
            // SAFETY: it is a string.
            assert_eq!(unsafe { take(raw::AT_FDCWD, text.as_ptr() as usize, &mut to) }, Some(len));
            assert_eq!(&to[..len], text.as_bytes());
        }
        let long = std::ffi::CString::new("x".repeat(4096)).unwrap();
        // SAFETY: it is a string.
        assert_eq!(unsafe { take(raw::AT_FDCWD, long.as_ptr() as usize, &mut to) }, None);
        for nowhere in [0, 1, usize::MAX - 3] {
            // SAFETY: nothing is mapped there.
            assert_eq!(unsafe { take(raw::AT_FDCWD, nowhere, &mut to) }, None);
        }
    }
}
