//! Reads at an offset: from the mapping, or a word why not.

use crate::fds::map::{self, unmap};
use crate::fds::table::{Entry, View, entry};
use crate::session::file_generations::{self, Refusal};
use crate::shim::{copy, process, raw, signals};
use crate::stats::{Reason, count};
use crate::thresholds::reads::{AGAIN, FEW, LOOK};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::fence;

/// What one call of the kernel reads at most.
const LEN_MAX: usize = 0x7fff_f000;
/// In the place of a number of reads: never again, for the reason that follows.
const NEVER: u32 = u32::MAX - 8;
const NEVER_UNFIT: u32 = NEVER;
const NEVER_VELLUM: u32 = NEVER + 1;
const NEVER_SOCKET: u32 = NEVER + 2;

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IoVec {
    base: usize,
    len: usize,
}

/// Most parts of a read that is served.
const PARTS_MAX: usize = 64;

/// Reads into one buffer; None: the kernel is to be asked.
///
/// # Safety
/// The buffer must be the caller's to write, as far as it is mapped at all.
#[inline]
pub(crate) unsafe fn read(fd: i32, to: usize, len: usize, offset: i64) -> Option<usize> {
    serve(fd, offset, len, |from| {
        // SAFETY: the buffer is the caller's; of the mapping the length has been looked at.
        unsafe { copy::copy(to, from, len) }
    })
}

/// Reads into several.
///
/// # Safety
/// As above, for each; the list must be readable as far as it is mapped at all.
pub(crate) unsafe fn read_parts(fd: i32, list: usize, count_of: i32, offset: i64) -> Option<usize> {
    let count_of = usize::try_from(count_of).ok().filter(|n| (1..=PARTS_MAX).contains(n));
    let mut parts = [IoVec::default(); PARTS_MAX];
    let is_on = process::is_on() && entry(fd).is_some();
    let parts = count_of.and_then(|n| parts.get_mut(..n)).filter(|_| is_on);
    let Some(parts) = parts else {
        count(Reason::Other, 0);
        return None;
    };
    // Without the handlers a bad list would be the end of the program.
    let all = if signals::is_installed() {
        // SAFETY: the list is the caller's, and copied as far as it is there.
        let copied = unsafe { copy::copy(parts.as_mut_ptr() as usize, list, size_of_val(parts)) };
        copied.then(|| parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.len))).flatten()
    } else {
        // Only to be counted: nothing is mapped yet.
        Some(0)
    };
    let Some(all) = all else {
        count(Reason::Other, 0);
        return None;
    };
    serve(fd, offset, all, |from| {
        let mut from = from;
        parts.iter().all(|part| {
            // SAFETY: as in `read`.
            let copied = unsafe { copy::copy(part.base, from, part.len) };
            from += part.len;
            copied
        })
    })
}

#[inline]
fn serve(fd: i32, offset: i64, len: usize, copy: impl FnOnce(usize) -> bool) -> Option<usize> {
    if !process::is_on() {
        count(Reason::NoSocket, 0);
        return None;
    }
    let Some(entry) = entry(fd) else {
        count(Reason::Other, 0);
        return None;
    };
    let view = match entry.enter(unmap) {
        Some(view) => view,
        None => match warm(fd, entry) {
            Ok(view) => view,
            Err(reason) => {
                count(reason, 0);
                return None;
            }
        },
    };
    let done = attempt(&view, offset, len, copy);
    entry.leave(unmap);
    match done {
        Ok(()) => {
            count(Reason::Served, len);
            Some(len)
        }
        Err(reason) => {
            after(fd, entry, &view, reason);
            count(reason, 0);
            None
        }
    }
}

/// The seqlock's side of the reader: the word, the data, the word.
#[inline]
fn attempt(view: &View, offset: i64, len: usize, copy: impl FnOnce(usize) -> bool) -> Result<(), Reason> {
    let offset = usize::try_from(offset).map_err(|_| Reason::Other)?;
    // Of more the kernel reads a part.
    if len == 0 || len > LEN_MAX {
        return Err(Reason::Other);
    }
    if offset.checked_add(len).is_none_or(|end| end > view.size) {
        return Err(Reason::Beyond);
    }
    if file_generations::read(view.word) != view.generation {
        return Err(Reason::Changed);
    }
    if signals::is_exposed() || !copy(view.base + offset) {
        return Err(Reason::Other);
    }
    // What was copied was there before the word is read again.
    fence(Acquire);
    if file_generations::read(view.word) != view.generation { Err(Reason::Changed) } else { Ok(()) }
}

/// A read of a descriptor that has no mapping: whether it is to have one now.
#[cold]
fn warm(fd: i32, entry: &Entry) -> Result<View, Reason> {
    let due = entry.due.load(Relaxed);
    match due {
        NEVER_UNFIT => return Err(Reason::Other),
        NEVER_VELLUM => return Err(Reason::NotVellum),
        NEVER_SOCKET => return Err(Reason::NoSocket),
        0 => entry.due.store(FEW, Relaxed),
        _ => {}
    }
    let reads = entry.calls.fetch_add(1, Relaxed).saturating_add(1);
    if reads <= due.max(FEW) || process::is_borrowed() {
        return Err(Reason::Few);
    }
    let (next, reason) = match map::attach(fd, entry) {
        Ok(()) => return entry.enter(unmap).ok_or(Reason::Other),
        // Longer each time: the question is a request.
        Err(Refusal::Later) => (reads.saturating_mul(2).saturating_add(LOOK).min(NEVER - 1), Reason::Other),
        Err(Refusal::Unfit) => (NEVER_UNFIT, Reason::Other),
        Err(Refusal::NotVellum) => (NEVER_VELLUM, Reason::NotVellum),
        Err(Refusal::NoSocket) => (NEVER_SOCKET, Reason::NoSocket),
    };
    entry.due.store(next, Relaxed);
    Err(reason)
}

/// After a read that the mapping was no good for.
#[cold]
fn after(fd: i32, entry: &Entry, view: &View, reason: Reason) {
    match reason {
        Reason::Changed => {
            entry.due.store(entry.calls.load(Relaxed).saturating_add(AGAIN), Relaxed);
            entry.retire(unmap);
        }
        Reason::Beyond => {
            let looks = entry.beyond.fetch_add(1, Relaxed) % LOOK == LOOK - 1;
            if looks && raw::stat(fd).is_some_and(|(_, size)| size > view.size as u64) {
                entry.retire(unmap);
            }
        }
        _ => {}
    }
}
