//! Variables of the environment.

use core::ffi::{CStr, c_char, c_ulong};

unsafe extern "C" {
    static environ: *const *const c_char;
    fn getauxval(which: c_ulong) -> c_ulong;
}

/// Whether the program has rights that who started it does not have, so that what he says is not to be believed.
pub(crate) fn has_elevated_rights() -> bool {
    const AT_SECURE: c_ulong = 23;
    // SAFETY: every libc has this function; it only reads what the kernel gave the process.
    unsafe { getauxval(AT_SECURE) != 0 }
}

/// The value of a variable.
pub(crate) fn variable(name: &[u8]) -> Option<&'static CStr> {
    // SAFETY: every libc has this variable, and sets it before constructors of libraries run.
    let mut at = unsafe { environ };
    while !at.is_null() {
        // SAFETY: it points into a list of strings that ends with a null pointer, which has not been reached.
        let entry = unsafe { at.read() };
        if entry.is_null() {
            break;
        }
        // SAFETY: every entry is a string.
        let text = unsafe { CStr::from_ptr(entry) };
        if text.to_bytes().strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'=')) {
            // SAFETY: the name and the sign are that long.
            return Some(unsafe { CStr::from_ptr(entry.add(name.len() + 1)) });
        }
        // SAFETY: the end has not been reached.
        at = unsafe { at.add(1) };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(variable(b"PATH").unwrap().to_str(), Ok(&*path));
        assert!(variable(b"PAT").is_none());
        assert!(variable(b"VELLUM_NO_SUCH").is_none());
    }
}
