//! The library goes away from a process: nothing of the service's is left in it, neither memory nor descriptors, so that a checkpoint can be
//! taken of it, and it can go on with another service.
//!
//! Whoever takes the checkpoint has all threads stand still, wherever they are, and one of them call [`leave`], as a signal handler would.
//! Where a call of the library is under way there is something left; that one goes on and comes to its end, and nothing new is begun.

use crate::fds::{companion, exclusive_fd, map, service_fds, table};
use crate::session::{self, detach_state, file_generations, root_mount, socket};
use crate::shim::hooks::xattrs;
use crate::shim::{mountinfo, process};

/// Nothing is left.
const GONE: usize = 0;
/// A call is under way: it is to be asked again.
const BUSY: usize = 1;
/// A descriptor that was handed out cannot be opened again by the mount.
const HELD: usize = 2;

/// Goes away for so many seconds. All other threads stand still.
pub(crate) extern "C" fn leave(seconds: usize) -> usize {
    if !process::has_begun() {
        return GONE;
    }
    if process::is_borrowed() {
        return BUSY;
    }
    detach_state::begin(i64::try_from(seconds).unwrap_or(detach_state::MOST));
    session::end();
    // Somebody was interrupted there, and would be waited for in vain.
    if mountinfo::is_busy() {
        return BUSY;
    }
    exclusive_fd::before_sharing();
    table::retire_all(map::unmap);
    let is_left = session::is_any() || companion::is_any() || table::is_any() || socket::is_any();
    if is_left || file_generations::is_asking() {
        return BUSY;
    }
    if exclusive_fd::is_any() {
        return HELD;
    }
    // Numbers of devices and mounts may come to mean something else.
    session::forget();
    file_generations::forget();
    service_fds::forget();
    root_mount::forget();
    xattrs::forget();
    GONE
}
