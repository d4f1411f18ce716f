//! Modes, owners and times, by name. Those of descriptors are the kernel's.

use super::open_create::ring_or_next;
use crate::session::calls::{self, Change};
use crate::shim::attributes::AT_SYMLINK_NOFOLLOW;
use crate::shim::copy;
use crate::shim::hook_macros::{call_next, hooks};
use crate::shim::raw::AT_FDCWD;
use core::ffi::{c_char, c_int, c_uint};
use vellum_ring::files::{
    ACCESSED_NOW, FOLLOW, MODIFIED_NOW, SET_ACCESSED, SET_GROUP, SET_MODE, SET_MODIFIED, SET_OWNER,
};

type Chmod = unsafe extern "C" fn(*const c_char, c_uint) -> c_int;
type ChmodAt = unsafe extern "C" fn(c_int, *const c_char, c_uint, c_int) -> c_int;
type Chown = unsafe extern "C" fn(*const c_char, c_uint, c_uint) -> c_int;
type ChownAt = unsafe extern "C" fn(c_int, *const c_char, c_uint, c_uint, c_int) -> c_int;
type UtimensAt = unsafe extern "C" fn(c_int, *const c_char, *const Times, c_int) -> c_int;

/// Two of `struct timespec`.
type Times = [[i64; 2]; 2];

const UTIME_NOW: i64 = 0x3fff_ffff;
const UTIME_OMIT: i64 = 0x3fff_fffe;
const SECOND: i64 = 1_000_000_000;
/// No error of these calls: when the service has died in the middle of one, it is done once more.
const NEVER: c_int = 0;

/// A change by the ring, or by the next function. None: not by the ring.
///
/// # Safety
/// The path must be the program's.
unsafe fn set_by(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    change: Option<Change>,
    next: impl Fn() -> c_int,
) -> c_int {
    let Some(mut change) = change.filter(|_| flags & !AT_SYMLINK_NOFOLLOW == 0) else { return next() };
    if flags & AT_SYMLINK_NOFOLLOW == 0 {
        change.which |= FOLLOW;
    }
    // SAFETY: the caller's.
    ring_or_next(|| unsafe { calls::set(directory, path as usize, &change) }, NEVER, next)
}

fn mode(mode: c_uint) -> Option<Change> {
    Some(Change { which: SET_MODE, mode: mode & 0o7777, ..Change::default() })
}

fn ids(owner: c_uint, group: c_uint) -> Option<Change> {
    const STAYS: c_uint = c_uint::MAX;
    let bit = |id, bit| if id == STAYS { 0 } else { bit };
    let which = bit(owner, SET_OWNER) | bit(group, SET_GROUP);
    (which != 0).then_some(Change { which, owner, group, ..Change::default() })
}

/// A copy of what the program points to. None: it cannot be read here.
///
/// # Safety
/// What is pointed to must be the program's.
unsafe fn copied<T: Copy>(from: *const T, mut to: T) -> Option<T> {
    // SAFETY: the program's memory; if it is not there the kernel will say so.
    unsafe { copy::copy((&raw mut to) as usize, from as usize, size_of::<T>()) }.then_some(to)
}

/// # Safety
/// What is pointed to must be the program's.
unsafe fn times(from: *const Times) -> Option<Change> {
    let now: Times = [[0, UTIME_NOW]; 2];
    // SAFETY: the caller's.
    set_times(if from.is_null() { now } else { unsafe { copied(from, now) }? })
}

fn set_times(both: Times) -> Option<Change> {
    let mut change = Change::default();
    let bits = [(SET_ACCESSED, ACCESSED_NOW), (SET_MODIFIED, MODIFIED_NOW)];
    for (([seconds, nanos], (set, now)), time) in both.into_iter().zip(bits).zip(&mut change.times) {
        match nanos {
            UTIME_OMIT => {}
            UTIME_NOW => change.which |= set | now,
            0..SECOND => {
                change.which |= set;
                *time = seconds.checked_mul(SECOND)?.checked_add(nanos)?;
            }
            _ => return None,
        }
    }
    (change.which != 0).then_some(change)
}

hooks! {
    fn chmod(path: *const c_char, bits: c_uint) -> c_int {
        let next = || call_next!(CHMOD as Chmod, (path, bits));
        // SAFETY: the program's path.
        unsafe { set_by(AT_FDCWD, path, 0, mode(bits), next) }
    }

    fn fchmodat(directory: c_int, path: *const c_char, bits: c_uint, flags: c_int) -> c_int {
        let next = || call_next!(FCHMODAT as ChmodAt, (directory, path, bits, flags));
        // SAFETY: the program's path.
        unsafe { set_by(directory, path, flags, mode(bits), next) }
    }

    fn chown(path: *const c_char, owner: c_uint, group: c_uint) -> c_int {
        let next = || call_next!(CHOWN as Chown, (path, owner, group));
        // SAFETY: the program's path.
        unsafe { set_by(AT_FDCWD, path, 0, ids(owner, group), next) }
    }

    fn lchown(path: *const c_char, owner: c_uint, group: c_uint) -> c_int {
        let next = || call_next!(LCHOWN as Chown, (path, owner, group));
        // SAFETY: the program's path.
        unsafe { set_by(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, ids(owner, group), next) }
    }

    fn fchownat(directory: c_int, path: *const c_char, owner: c_uint, group: c_uint, flags: c_int) -> c_int {
        let next = || call_next!(FCHOWNAT as ChownAt, (directory, path, owner, group, flags));
        // SAFETY: the program's path.
        unsafe { set_by(directory, path, flags, ids(owner, group), next) }
    }

    fn utimensat(directory: c_int, path: *const c_char, to: *const Times, flags: c_int) -> c_int {
        let next = || call_next!(UTIMENSAT as UtimensAt, (directory, path, to, flags));
        // SAFETY: the program's times.
        let change = if path.is_null() { None } else { unsafe { times(to) } };
        // SAFETY: the program's path.
        unsafe { set_by(directory, path, flags, change, next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_kernel_reads_them() {
        let read = |times: Times| {
            // SAFETY: they are there.
            unsafe { super::times(&raw const times) }.map(|change| (change.which, change.times))
        };
        let (both, now) = (SET_ACCESSED | SET_MODIFIED, ACCESSED_NOW | MODIFIED_NOW);
        assert_eq!(read([[1, 2], [-1, 999_999_999]]), Some((both, [1_000_000_002, -1])));
        assert_eq!(read([[5, UTIME_OMIT], [7, UTIME_NOW]]), Some((SET_MODIFIED | MODIFIED_NOW, [0, 0])));
        // SAFETY: nothing is read.
        let none = unsafe { super::times(core::ptr::null()) }.unwrap();
        assert_eq!(none.which, both | now);
        let wrong = [[0, UTIME_OMIT], [0, SECOND], [0, -1], [i64::MAX, 0]];
        assert!(wrong.into_iter().all(|time| read([time, [0, UTIME_OMIT]]).is_none()));
    }

    #[test]
    fn an_unchanged_id_is_left_out() {
        assert_eq!(ids(c_uint::MAX, c_uint::MAX), None);
        assert_eq!(ids(c_uint::MAX, 5).unwrap().which, SET_GROUP);
        assert_eq!(ids(0, 5).unwrap().which, SET_OWNER | SET_GROUP);
    }
}
