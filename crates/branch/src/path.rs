//! Paths below a branch's root.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_vfs::{BranchDir, Errno, Error, Name, Result};

/// Refuses a path whose components are not all names: empty ones, `.` and `..`. EINVAL.
pub(crate) fn check(path: &[u8]) -> Result<()> {
    let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    if path.split(|&byte| byte == b'/').all(is_name) {
        return Ok(());
    }
    Err(Error::new(Errno::INVAL, "open directory by path").at(path))
}

/// The directory at a path below a root, opened one component after the other.
pub(crate) fn walk(root: Arc<dyn BranchDir>, path: &CStr) -> Result<Arc<dyn BranchDir>> {
    if path.is_empty() {
        return Ok(root);
    }
    check(path.to_bytes())?;
    path.to_bytes().split(|&byte| byte == b'/').try_fold(root, |dir, component| {
        let component = CString::new(component).map_err(|_| Errno::INVAL)?;
        dir.open_dir(Name::new(&component)?)
    })
}
