//! The mount of the root directory, where FUSE serves it: in a container that is the union.

use crate::shim::attributes::{self, STATX_MNT_ID};
use crate::shim::{process, raw};
use crate::thresholds::root::{FEW, FOREIGN_EACH, FOREIGN_MANY};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Calls for attributes before the mount is looked at, which is a request.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// `st_dev`, if FUSE serves it; 0: not looked, or not so. It stays what it is when the program changes its root directory: what is said of
/// files with this number goes on being true.
static DEVICE: AtomicU64 = AtomicU64::new(0);
/// `st_dev` of the root directory, if FUSE serves it and reading sets no access times there; else 0.
static UNREAD: AtomicU64 = AtomicU64::new(0);
/// Calls in a row for files elsewhere.
static FOREIGN: AtomicU32 = AtomicU32::new(0);

/// As if it had not been looked at.
pub(crate) fn forget() {
    [&DEVICE, &UNREAD].iter().for_each(|device| device.store(0, Relaxed));
    CALLS.store(0, Relaxed);
}

/// Whether a file is of the root directory's filesystem, and FUSE serves that.
#[inline]
pub(crate) fn is_of(device: u64) -> bool {
    device != 0 && device == DEVICE.load(Relaxed)
}

/// Whether FUSE serves the root directory, as far as is known: a file may be of it.
#[inline]
pub(crate) fn may_be_fuse() -> bool {
    if CALLS.load(Relaxed) < FEW && process::is_on() {
        look();
    }
    DEVICE.load(Relaxed) != 0 && process::is_on()
}

/// Notes a call for attributes: whether those that the kernel knows may be worth a try.
#[inline]
pub(crate) fn should_try_attributes() -> bool {
    if UNREAD.load(Relaxed) != 0 {
        let foreign = FOREIGN.load(Relaxed);
        return foreign < FOREIGN_MANY || FOREIGN.fetch_add(1, Relaxed).is_multiple_of(FOREIGN_EACH);
    }
    if CALLS.load(Relaxed) < FEW && process::is_on() {
        look();
    }
    false
}

/// Whether the access time of a file with these attributes is what it was when they came.
#[inline]
pub(crate) fn observe_unread(device: u64) -> bool {
    let is_here = device == UNREAD.load(Relaxed);
    if is_here && FOREIGN.load(Relaxed) != 0 {
        FOREIGN.store(0, Relaxed);
    } else if !is_here {
        FOREIGN.fetch_add(1, Relaxed);
    }
    is_here
}

/// The kernel does not answer such questions here.
#[cold]
pub(crate) fn disable() {
    UNREAD.store(0, Relaxed);
}

#[cold]
fn look() {
    if process::is_borrowed() || CALLS.fetch_add(1, Relaxed) + 1 != FEW {
        return;
    }
    let Some(flags) = raw::fuse_flags(c"/") else { return };
    let root = attributes::at(raw::AT_FDCWD, c"/", attributes::AT_STATX_DONT_SYNC, STATX_MNT_ID);
    let device = root.map_or(0, |root| root.device());
    DEVICE.store(device, Relaxed);
    if flags & raw::ST_NOATIME != 0 {
        UNREAD.store(device, Relaxed);
    }
}
