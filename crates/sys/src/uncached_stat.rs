//! Attributes that the filesystem itself is asked for, by way of the C library.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The size of a file as its filesystem knows it, whatever the kernel remembers: statx(2) with `AT_STATX_FORCE_SYNC`.
///
/// By the C library's function, so that a library which was loaded in between sees the call, as it sees those of other programs.
///
/// # Errors
///
/// Those of statx(2), and a path with a zero byte in it.
pub fn uncached_size(path: &Path) -> std::io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_STATX_FORCE_SYNC, libc::STATX_BASIC_STATS);
    // SAFETY: `path` ends with a zero, and `found` is writable and of the size that statx expects.
    let rc = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, found.as_mut_ptr()) };
    if rc != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: all zeros is a valid statx, and the call has filled it.
    Ok(unsafe { found.assume_init() }.stx_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_errors_are_those_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, [0; 77]).unwrap();
        assert_eq!(uncached_size(&file).unwrap(), 77);
        let missing = uncached_size(&dir.path().join("y")).unwrap_err();
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        assert!(uncached_size(Path::new("a\0b")).is_err());
    }
}
