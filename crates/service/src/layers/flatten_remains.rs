//! What a `vellum flatten` that was killed leaves beside an upper layer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The name beside an upper of this name. Hashed, because a name may have no room for more; the same in every version, for whoever comes next.
pub(crate) fn work_name(upper: Option<&OsStr>) -> String {
    let name = upper.unwrap_or_default().as_bytes();
    format!(".vellum-flatten-{:016x}", vellum_sys::fnv1a(name.iter().copied()))
}

/// Removes what a `vellum flatten` that was killed has left beside an upper layer. Whoever has the right to the layer may: nobody completes it.
pub(super) fn remove(upper: &Path, work: &Path) {
    let left = upper.with_file_name(work_name(upper.file_name()));
    if left == work {
        return;
    }
    match std::fs::remove_dir_all(&left) {
        Ok(()) => tracing::info!("{}: left by a flatten that was killed, and removed", left.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("{}: left by a flatten that was killed: {error}", left.display()),
    }
}
