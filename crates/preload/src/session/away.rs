//! The library goes away from a process for a while: nothing of the service's is left in it, neither memory nor descriptors, so that a
//! checkpoint can be taken of it, and it can go on with another service.
//!
//! Whoever takes the checkpoint has all threads stand still, wherever they are, and one of them call [`leave`], as a signal handler would.
//! Where a call of the library is under way there is something left; that one goes on and comes to its end, and nothing new is begun.

use crate::fds::{companion, exclusive_fd, handed_fds, table};
use crate::session::{self, generations, root_mount, socket};
use crate::shim::hooks::xattrs;
use crate::shim::{mountinfo, process, raw};
use core::sync::atomic::AtomicI64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Nothing is left.
const GONE: usize = 0;
/// A call is under way: it is to be asked again.
const BUSY: usize = 1;
/// A descriptor that was handed out cannot be opened again by the mount.
const HELD: usize = 2;
/// The longest time that one is away, in seconds. What is longer was said by a clock that was set, or another machine's.
const MOST: i64 = 60;

/// When it comes back, in seconds of the time of day; 0: it is not away.
static UNTIL: AtomicI64 = AtomicI64::new(0);

/// Whether the library is away.
#[inline]
pub(crate) fn is_away() -> bool {
    UNTIL.load(Relaxed) != 0 && look()
}

#[cold]
fn look() -> bool {
    let until = UNTIL.load(SeqCst);
    if until == 0 || (1..=MOST).contains(&until.saturating_sub(raw::seconds())) {
        return until != 0;
    }
    // Who has just gone away again keeps his time.
    let _ = UNTIL.compare_exchange(until, 0, SeqCst, SeqCst);
    false
}

/// Goes away for so many seconds. All other threads stand still.
pub(crate) extern "C" fn leave(seconds: usize) -> usize {
    if !process::has_begun() {
        return GONE;
    }
    if process::is_borrowed() {
        return BUSY;
    }
    let seconds = i64::try_from(seconds).unwrap_or(MOST).clamp(1, MOST);
    UNTIL.store(raw::seconds() + seconds, SeqCst);
    session::end();
    // Somebody was interrupted there, and would be waited for in vain.
    if mountinfo::is_busy() {
        return BUSY;
    }
    exclusive_fd::before_sharing();
    table::retire_all(crate::fds::map::unmap);
    let is_left = session::is_any() || companion::is_any() || table::is_any() || socket::is_any();
    if is_left || generations::is_asking() {
        return BUSY;
    }
    if exclusive_fd::is_any() {
        return HELD;
    }
    // Numbers of devices and mounts may come to mean something else.
    session::forget();
    generations::forget();
    handed_fds::forget();
    root_mount::forget();
    xattrs::forget();
    GONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_whatever_the_clock_says() {
        assert!(!is_away());
        for (from_now, away) in [(5, true), (MOST + 100, false), (-1, false), (0, false)] {
            UNTIL.store(raw::seconds() + from_now, SeqCst);
            assert_eq!(is_away(), away, "{from_now}");
        }
        assert_eq!(UNTIL.load(SeqCst), 0);
    }
}
