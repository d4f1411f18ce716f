//! What the tables of descriptors are told before descriptors become other files.

use crate::fds::companion;
use crate::fds::map::unmap;
use crate::fds::table::{DESCRIPTORS, Entry, entry};
use crate::shim::process;
use core::ffi::{c_int, c_uint};
use core::ops::Range;

/// Descriptors that are about to become other files, until this is dropped.
pub(crate) struct CloseGuard(Range<c_int>);

impl CloseGuard {
    fn for_range(descriptors: Range<c_int>) -> Self {
        // In a child made by vfork the memory is the parent's, and so is the table.
        if !process::is_on() || process::is_borrowed() {
            return Self(0..0);
        }
        for fd in descriptors.clone() {
            if let Some(entry) = entry(fd) {
                entry.close_begins(unmap);
                companion::closing(fd);
            }
        }
        Self(descriptors)
    }
}

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.0.clone().filter_map(entry).for_each(Entry::close_ends);
    }
}

/// A descriptor is about to become another file.
pub(crate) fn closing(fd: c_int) -> CloseGuard {
    CloseGuard::for_range(fd..fd.saturating_add(1))
}

/// All descriptors from one number to another are about to become other files.
pub(crate) fn closing_range(first: c_uint, last: c_uint) -> CloseGuard {
    let [first, end] = [first, last.saturating_add(1)].map(|fd| fd.min(DESCRIPTORS as c_uint) as c_int);
    // Companions of others may be among them.
    companion::end_all();
    CloseGuard::for_range(first..end)
}

/// Does something after which a descriptor is another file.
pub(crate) fn while_closing<R>(fd: c_int, act: impl FnOnce() -> R) -> R {
    let _closing = closing(fd);
    act()
}
