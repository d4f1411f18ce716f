//! Directories that no entry of a layer is about, but names of entries below them. Where a lower layer has such a directory, its mode
//! and owner are the lower one's: so the union has to know, and the unpacker marks them. No layer can: it sets no such attributes.

use rustix::fs::{XattrFlags, fremovexattr, fsetxattr};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::AsFd;
use vellum_service::layers::IMPLIED;

/// Whether an error says that attributes of this kind are not for this process, or not there.
fn is_none(e: Errno) -> bool {
    matches!(e, Errno::PERM | Errno::NOTSUP | Errno::NODATA)
}

/// Marks a directory, if that can be.
pub(super) fn mark(dir: impl AsFd) -> Result<(), Errno> {
    first(|name| fsetxattr(&dir, name, b"y", XattrFlags::empty()))
}

/// Takes the mark away: there is an entry about it.
pub(super) fn unmark(dir: impl AsFd) -> Result<(), Errno> {
    first(|name| fremovexattr(&dir, name))
}

/// Does it with the name that only a privileged process can use, or else with the other.
fn first(mut act: impl FnMut(&CStr) -> Result<(), Errno>) -> Result<(), Errno> {
    for name in IMPLIED {
        match act(name) {
            Err(e) if is_none(e) => {}
            done => return done,
        }
    }
    Ok(())
}
