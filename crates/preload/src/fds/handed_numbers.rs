//! Which numbers the service's descriptors were given, and which of them are to be read only.

use crate::fds::table::DESCRIPTORS;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};

/// Numbers that were handed out; some may be other files by now.
pub(super) static HELD: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];
/// Those of them that were handed out to be read.
pub(super) static READ: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];
/// Any were.
pub(super) static ANY: AtomicBool = AtomicBool::new(false);
/// Any were to be read.
pub(super) static ANY_READ: AtomicBool = AtomicBool::new(false);

/// The service has handed a descriptor out.
pub(crate) fn hold(fd: i32, only_reads: bool) {
    let Ok(fd) = usize::try_from(fd) else { return };
    let (index, bit) = (fd / 64, 1 << (fd % 64));
    if let (Some(held), Some(read)) = (HELD.get(index), READ.get(index)) {
        held.fetch_or(bit, Relaxed);
        if only_reads {
            read.fetch_or(bit, Relaxed);
        } else if read.load(Relaxed) & bit != 0 {
            read.fetch_and(!bit, Relaxed);
        }
    }
    if only_reads {
        ANY_READ.store(true, Release);
    }
    ANY.store(true, Release);
}
