//! Paths below a branch's root.

use vellum_vfs::{Errno, Error, Result};

/// Refuses a path whose components are not all names: empty ones, `.` and `..`. EINVAL.
pub(crate) fn check(path: &[u8]) -> Result<()> {
    let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    if path.split(|&byte| byte == b'/').all(is_name) {
        return Ok(());
    }
    Err(Error::new(Errno::INVAL, "open directory by path").at(path))
}
