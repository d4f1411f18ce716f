//! The memory in which services say that a file may have become shorter: asked for once, mapped to read, and kept.

use crate::map::Refusal;
use crate::{process, raw};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// The form of an answer, as `pool/session.rs` of the service has it.
const MAGIC: u64 = 0x7665_6c6c_7365_7373;
const VERSION: u64 = 1;
const MEMORIES_MAX: usize = 128;
const NUMBERS: usize = 3 + MEMORIES_MAX;
/// The form of the memory, as `generations.rs` of the union has it.
const MEMORY_MAGIC: u64 = 0x7665_6c6c_6765_0001;
const HEADER: usize = 512;
/// Memories that one process uses; those of further mounts are left alone.
const KNOWN_MAX: usize = 16;
/// How often the socket is asked in all.
const ASKED_MAX: u32 = 32;

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

/// What a word says now.
#[inline]
pub(crate) fn read(word: usize) -> u64 {
    // SAFETY: `word` gave the address; memories stay mapped for good, cannot become shorter, and are only read atomically.
    unsafe { &*(word as *const AtomicU64) }.load(Acquire)
}

/// Asks for a memory. False: somebody is just doing that.
fn ask(id: u64) -> bool {
    if ASKING.swap(true, SeqCst) {
        return false;
    }
    if ASKED.fetch_add(1, Relaxed) < ASKED_MAX
        && let Some(socket) = connect()
    {
        receive(socket, id);
        raw::close(socket);
    }
    ASKING.store(false, SeqCst);
    true
}

/// `struct sockaddr_un`.
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; 108],
}

#[repr(C)]
struct Part {
    base: usize,
    len: usize,
}

/// `struct msghdr`.
#[repr(C)]
struct Message {
    name: usize,
    name_len: usize,
    parts: usize,
    part_count: usize,
    control: usize,
    control_len: usize,
    flags: i32,
}

/// Room for all descriptors of an answer, with the header of the control message.
#[repr(C, align(8))]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; MEMORIES_MAX],
}

fn connect() -> Option<i32> {
    const AF_UNIX: usize = 1;
    const STREAM_CLOEXEC: usize = 0x8_0001;
    const SOL_SOCKET: usize = 1;
    const SO_RCVTIMEO: usize = 20;
    const SO_SNDTIMEO: usize = 21;
    let mut address = Address { family: AF_UNIX as u16, path: [0; 108] };
    let path = process::socket().to_bytes();
    if path.is_empty() || path.len() >= address.path.len() {
        return None;
    }
    address.path.iter_mut().zip(path).for_each(|(to, from)| *to = *from);
    // SAFETY: plain numbers.
    let socket = unsafe { raw::call(raw::number::SOCKET, [AF_UNIX, STREAM_CLOEXEC, 0, 0, 0, 0]) };
    let fd = usize::try_from(socket).ok()?;
    let second = [1i64, 0];
    for option in [SO_RCVTIMEO, SO_SNDTIMEO] {
        let words = [fd, SOL_SOCKET, option, second.as_ptr() as usize, 16, 0];
        // SAFETY: the kernel reads two words.
        unsafe { raw::call(raw::number::SETSOCKOPT, words) };
    }
    let words = [fd, &raw const address as usize, size_of::<Address>(), 0, 0, 0];
    // SAFETY: the kernel reads an address of that length.
    if unsafe { raw::call(raw::number::CONNECT, words) } == 0 {
        return Some(fd as i32);
    }
    raw::close(fd as i32);
    None
}

fn receive(socket: i32, id: u64) {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    const MSG_WAITALL: usize = 0x100;
    const SCM_RIGHTS: (i32, i32) = (1, 1);
    let mut numbers = [0u64; NUMBERS];
    let mut control = Control { len: 0, level: 0, kind: 0, descriptors: [-1; MEMORIES_MAX] };
    let part = Part { base: numbers.as_mut_ptr() as usize, len: size_of_val(&numbers) };
    let mut message = Message {
        name: 0,
        name_len: 0,
        parts: &raw const part as usize,
        part_count: 1,
        control: &raw mut control as usize,
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let words = [socket as usize, &raw mut message as usize, MSG_CMSG_CLOEXEC | MSG_WAITALL, 0, 0, 0];
    // SAFETY: the message describes memory of this function, which the kernel fills.
    let got = unsafe { raw::call(raw::number::RECVMSG, words) };
    let header = 16;
    let came = message.control_len >= header && (control.level, control.kind) == SCM_RIGHTS;
    let count = if came { control.len.saturating_sub(header) / 4 } else { 0 };
    let [magic, version, ..] = numbers;
    let is_answer = got == size_of_val(&numbers) as isize && magic == MAGIC && version == VERSION;
    let ids = numbers.get(3..).unwrap_or_default();
    for (fd, of) in control.descriptors.iter().take(count).zip(ids) {
        if is_answer && *of == id {
            keep(*fd, id);
        }
        raw::close(*fd);
    }
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
    if read(base) != MEMORY_MAGIC || read(base + 8) != id {
        return raw::unmap(base, bytes);
    }
    place.base.store(base, Relaxed);
    place.words.store(bytes / 8, Relaxed);
    place.id.store(id, Release);
}

/// Whether the memory cannot become shorter, so that reading it never faults.
fn is_sealed(fd: i32) -> bool {
    const F_GET_SEALS: usize = 1034;
    const F_SEAL_SHRINK: isize = 2;
    // SAFETY: plain numbers.
    let seals = unsafe { raw::call(raw::number::FCNTL, [fd as usize, F_GET_SEALS, 0, 0, 0, 0]) };
    seals > 0 && seals & F_SEAL_SHRINK != 0
}
