//! The end of mounts that nobody can serve any more.
//!
//! A connection whose last descriptor is closed fails every request; but much is done without one. The kernel believes names and
//! attributes as long as it was told, and a file that it may open without asking takes writes into its cache, which are gone when
//! they cannot be sent, without a word to who has closed it in the meantime. So before it is closed, the kernel is told to believe
//! nothing: then every call begins with a request.

use rustix::fs::{fstat, major, minor};
use std::os::fd::OwnedFd;
use vellum_sys::InheritedFds;
use vellum_union::Ledger;

/// The number of `/dev/fuse`.
const DEVICE: (u32, u32) = (10, 229);

/// Ends all connections among what a predecessor had open.
pub(super) fn end_all(mut inherited: InheritedFds) {
    let ledgers = inherited.take_memories(Ledger::MEMORY.name);
    // By what it is: its name is another one where it was opened from another tree.
    let devices: Vec<OwnedFd> = inherited.take_rest().into_iter().filter(is_device).collect();
    end(&devices, ledgers);
}

/// Ends connections whose nodes stand in these ledgers.
pub(super) fn end(devices: &[OwnedFd], ledgers: Vec<OwnedFd>) {
    let ledgers: Vec<Ledger> = ledgers.into_iter().filter_map(|ledger| Ledger::open(ledger).ok()).collect();
    for device in devices {
        vellum_fuse::disbelieve(device, ledgers.iter().flat_map(Ledger::kernel_nodes));
    }
}

/// Whether it is a connection of FUSE.
pub(crate) fn is_device(descriptor: &OwnedFd) -> bool {
    fstat(descriptor).is_ok_and(|found| (major(found.st_rdev), minor(found.st_rdev)) == DEVICE)
}
