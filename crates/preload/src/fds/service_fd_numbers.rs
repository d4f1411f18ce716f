//! Which numbers the service's descriptors were given.

use crate::fds::table::DESCRIPTORS;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};

/// Numbers that were handed out; some may be other files by now.
pub(super) static HELD: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];
pub(super) static ANY: AtomicBool = AtomicBool::new(false);

/// The service has handed a descriptor out.
pub(crate) fn hold(fd: i32) {
    let Ok(fd) = usize::try_from(fd) else { return };
    if let Some(held) = HELD.get(fd / 64) {
        held.fetch_or(1 << (fd % 64), Relaxed);
    }
    ANY.store(true, Release);
}

/// Whether a number was handed out in this process.
pub(crate) fn was_handed_out(fd: i32) -> bool {
    let held =
        usize::try_from(fd).ok().and_then(|fd| Some(HELD.get(fd / 64)?.load(Relaxed) >> (fd % 64) & 1));
    held == Some(1)
}
