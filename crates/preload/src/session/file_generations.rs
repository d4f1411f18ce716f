//! The memory in which services say that a file may have become shorter: asked for once, mapped to read, and kept.

use crate::fds::service_fds;
use crate::session::detach_state;
use crate::session::socket::{self, Delivery, Greeting, Take, is_sealed};
use crate::shim::raw;
use crate::thresholds::generations::{ASKED as ASKED_MAX, KNOWN as KNOWN_MAX};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use vellum_ring::memory::{GENERATIONS, GENERATIONS_ID, HEADER};

/// Why a descriptor is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It may be worth another try.
    Later,
    NotVellum,
    NoSocket,
    /// Opened in a way that must reach the kernel, or too large.
    Unfit,
}

struct Memory {
    /// 0: the place is free.
    id: AtomicU64,
    base: AtomicUsize,
    words: AtomicUsize,
}

static KNOWN: [Memory; KNOWN_MAX] =
    [const { Memory { id: AtomicU64::new(0), base: AtomicUsize::new(0), words: AtomicUsize::new(0) } };
        KNOWN_MAX];
static ASKING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicU32 = AtomicU32::new(0);

/// The address of the word of a slot.
pub(crate) fn word(id: u64, slot: u32) -> Result<usize, Refusal> {
    let find = || KNOWN.iter().find(|memory| id != 0 && memory.id.load(Acquire) == id);
    let memory = match find() {
        Some(memory) => memory,
        // Another thread is just asking.
        None if !ask(id) => return Err(Refusal::Later),
        None => find().ok_or(Refusal::NoSocket)?,
    };
    let index = HEADER + slot as usize;
    let is_there = index < memory.words.load(Relaxed);
    if is_there { Ok(memory.base.load(Relaxed) + index * 8) } else { Err(Refusal::NoSocket) }
}

/// Whether somebody asks for a memory.
pub(crate) fn is_asking() -> bool {
    ASKING.load(SeqCst)
}

/// Takes all memories away. No descriptor has a mapping, none is being made, and all other threads stand still.
pub(crate) fn forget() {
    for memory in &KNOWN {
        if memory.id.swap(0, SeqCst) != 0 {
            raw::unmap(memory.base.load(Relaxed), memory.words.load(Relaxed) * 8);
        }
    }
    ASKED.store(0, Relaxed);
}

/// What a word says now.
#[inline]
pub(crate) fn read(word: usize) -> u64 {
    // SAFETY: `word` gave the address; memories stay mapped as long as a descriptor has a mapping, or one is being made, cannot become
    // shorter, and are only read atomically.
    unsafe { &*(word as *const AtomicU64) }.load(Acquire)
}

/// Asks for a memory. False: somebody is just doing that.
fn ask(id: u64) -> bool {
    if detach_state::is_detached() || ASKING.swap(true, SeqCst) {
        return false;
    }
    if ASKED.fetch_add(1, Relaxed) < ASKED_MAX {
        socket::with_one(|socket| {
            if socket::send(socket, id)
                && service_fds::greeted(socket, &mut Greeting::new())
                && let Some(Delivery { number, fd: Some(fd), .. }) = socket::take(socket, Take::Waiting)
            {
                if number == id {
                    keep(fd, id);
                }
                raw::close(fd);
            }
        });
    }
    ASKING.store(false, SeqCst);
    true
}

/// Maps a memory, if there is a place for it.
fn keep(fd: i32, id: u64) {
    let Some(place) = KNOWN.iter().find(|memory| memory.id.load(Relaxed) == 0) else { return };
    let Some((_, bytes)) = raw::stat(fd) else { return };
    let Ok(bytes) = usize::try_from(bytes) else { return };
    if bytes < HEADER * 8 || !is_sealed(fd) {
        return;
    }
    let Some(base) = raw::map_file(fd, bytes) else { return };
    if read(base) != GENERATIONS || read(base + GENERATIONS_ID * 8) != id {
        return raw::unmap(base, bytes);
    }
    place.base.store(base, Relaxed);
    place.words.store(bytes / 8, Relaxed);
    place.id.store(id, Release);
}
