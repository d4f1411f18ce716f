//! Whether the library may do anything in this process, and whose memory it is in.

use crate::shim::{environment, raw};
use core::ffi::CStr;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

/// Where the pool's socket for programs is in a container.
const SOCKET: &CStr = c"/.vellum/socket";

/// The library does nothing until it has begun, nor after it has given up.
static ON: AtomicBool = AtomicBool::new(false);
/// A word of a page that is empty in a child made by fork: the process that the table of descriptors is about.
static OWNER: AtomicUsize = AtomicUsize::new(0);

/// The socket to ask.
pub(crate) fn socket() -> &'static CStr {
    #[cfg(test)]
    if let Some(path) = crate::tests::socket() {
        return path;
    }
    environment::variable(b"VELLUM_SOCKET").unwrap_or(SOCKET)
}

#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

/// To be called when the library is loaded.
pub(crate) fn begin() {
    // A program with little address space is to have all of it.
    if !raw::exists(socket()) || raw::space_is_limited() {
        return;
    }
    let Some(page) = raw::map_wiped_page() else { return };
    OWNER.store(page, SeqCst);
    forked();
    ON.store(true, SeqCst);
}

/// Whether the library has ever begun anything in this process.
pub(crate) fn has_begun() -> bool {
    owner().is_some()
}

/// From now on the table of descriptors is not this process's alone, or not the same for all of its threads.
pub(crate) fn end() {
    ON.store(false, SeqCst);
}

fn owner() -> Option<&'static AtomicU32> {
    let page = OWNER.load(Relaxed);
    // SAFETY: the page is mapped for good, and only reached through this function.
    (page != 0).then(|| unsafe { &*(page as *const AtomicU32) })
}

/// The table of descriptors is about this process: it has just begun, or is a child with memory of its own.
pub(crate) fn forked() {
    if let Some(owner) = owner() {
        owner.store(raw::getpid(), SeqCst);
    }
}

/// Whether this is a child made by vfork: its descriptors are its own, its memory is the parent's, and must stay as it is.
pub(crate) fn is_borrowed() -> bool {
    match owner().map_or(0, |owner| owner.load(SeqCst)) {
        // The memory has been copied by a fork that was not seen. This may be the copy's owner, or a child that borrows it from him:
        // it is given up for both, which is slow, and never wrong.
        0 => {
            end();
            true
        }
        owner => owner != raw::getpid(),
    }
}
