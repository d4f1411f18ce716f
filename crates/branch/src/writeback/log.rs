//! The log: changes of files that were answered and are not on the storage yet, in memory that outlives the process.
//!
//! ```text
//! page 0     magic, run, tail, head
//! the rest   a ring: ...│ record │ record (done) │ record │...
//!                       ▲ tail                            ▲ head
//! ```
//!
//! Positions count bytes and never go back; where they are in the ring is what is left of them by its size. A process may be killed
//! between any two stores: a record's data and words are there before the head is moved behind it, and of the records of one file the older
//! ones are done before the newer ones. So whatever the moment, what is between tail and head and not done is a file's last changes, in
//! their order, and to make them again leaves the file as it was to be.

use super::limits::{RING_MAX, RING_MIN};
use super::record::{Change, HEAD_BYTES, HEAD_WORDS, Head, LIVE, ParsedHead, STATE, WHEN, room, times};
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;
use vellum_sys::{MemoryKind, PersistentMemory};
use vellum_vfs::{Errno, Timestamp};

/// Words before the ring; a page.
const BEFORE: usize = PersistentMemory::HEADER;
/// Words of the first page.
const RUN: usize = 1;
const TAIL: usize = 3;
const HEAD: usize = 4;
/// Bytes of a word, and what positions are multiples of.
const WORD: u64 = size_of::<u64>() as u64;
/// A ring with nothing in it is given back when so many bytes have been written to it.
const GIVEN_BACK: u64 = 4 << 20;
const MEMORY: MemoryKind = MemoryKind {
    name: c"vellum-dirty",
    magic: 0x7665_6c6c_6472_0001,
    words: BEFORE + (RING_MIN / WORD) as usize..=BEFORE + (RING_MAX / WORD) as usize,
};

const _: () = assert!(RING_MAX.is_multiple_of(BEFORE as u64 * WORD) && HEAD < BEFORE);

pub(super) struct Log {
    words: PersistentMemory,
    /// Bytes of the ring.
    ring: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tail: u64,
    head: u64,
    /// Promised to records that come.
    reserved: u64,
    /// All records from tail to head.
    entries: VecDeque<Entry>,
    /// Positions of those that are not done, by file.
    live: HashMap<u64, VecDeque<u64>>,
    /// Where the head was when the ring's memory was last given back.
    given_back: u64,
}

struct Entry {
    position: u64,
    bytes: u64,
    ino: u64,
    since: Instant,
    live: bool,
}

/// Room for a record, until it is dropped.
pub(super) struct Room<'a> {
    log: &'a Log,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.log.state.lock().reserved -= self.bytes;
    }
}

/// How a reading of what a predecessor has left has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogScan {
    /// Records that are still to be done.
    pub(super) records: u64,
    /// Bytes at the end that make no sense.
    pub(super) unread: u64,
}

impl Log {
    /// An empty one, whose ring has so many bytes. EINVAL: too few or too many.
    pub(super) fn create(bytes: u64) -> Result<Self, Errno> {
        if !(RING_MIN..=RING_MAX).contains(&bytes) {
            return Err(Errno::INVAL);
        }
        let ring = bytes.next_multiple_of(BEFORE as u64 * WORD);
        let words = PersistentMemory::create(&MEMORY, BEFORE + (ring / WORD) as usize)?;
        let mut run = [0; 16];
        getrandom(&mut run, GetRandomFlags::empty())?;
        let log = Self { words, ring, state: Mutex::default() };
        for (at, half) in run.chunks_exact(size_of::<u64>()).enumerate() {
            log.words.store(RUN + at, half.try_into().map_or(0, u64::from_ne_bytes), Release);
        }
        Ok(log)
    }

    /// One that a predecessor has left. EBADMSG: it is none.
    pub(super) fn open(memory: OwnedFd) -> Result<Self, Errno> {
        let words = PersistentMemory::open(&MEMORY, memory)?;
        let ring = (words.len() - BEFORE) as u64 * WORD;
        let log = Self { words, ring, state: Mutex::default() };
        let (tail, head) = (log.words.load(TAIL, Acquire), log.words.load(HEAD, Acquire));
        let is_right = tail % WORD == 0
            && head % WORD == 0
            && head.checked_sub(tail).is_some_and(|used| used <= ring)
            && head < u64::MAX / 2;
        if !is_right {
            return Err(Errno::BADMSG);
        }
        *log.state.lock() = State { tail, head, given_back: tail, ..State::default() };
        Ok(log)
    }

    /// What no other log is called.
    pub(super) fn run(&self) -> [u8; 16] {
        let mut run = [0; 16];
        for (at, half) in run.chunks_exact_mut(size_of::<u64>()).enumerate() {
            half.copy_from_slice(&self.words.load(RUN + at, Acquire).to_ne_bytes());
        }
        run
    }

    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// Bytes of its ring.
    pub(super) const fn size(&self) -> u64 {
        self.ring
    }

    /// Bytes in it.
    pub(super) fn used(&self) -> u64 {
        let state = self.state.lock();
        state.head - state.tail
    }

    /// Where the next record will be.
    pub(super) fn head(&self) -> u64 {
        self.state.lock().head
    }

    /// The file of the oldest record that is not done, and since when it is there.
    pub(super) fn oldest(&self) -> Option<(u64, Instant)> {
        self.state.lock().entries.front().map(|entry| (entry.ino, entry.since))
    }

    /// Since when the oldest record of a file is there.
    pub(super) fn since(&self, ino: u64) -> Option<Instant> {
        let state = self.state.lock();
        let position = *state.live.get(&ino)?.front()?;
        state.entry(position).and_then(|at| Some(state.entries.get(at)?.since))
    }

    /// Files of which something is in it.
    pub(super) fn files(&self) -> Vec<u64> {
        self.state.lock().live.keys().copied().collect()
    }

    /// How many files those are.
    pub(super) fn count_files(&self) -> usize {
        self.state.lock().live.len()
    }

    /// Room for a record with so much data. None: others have to be done first.
    pub(super) fn reserve(&self, data: usize) -> Option<Room<'_>> {
        let bytes = room(data);
        let mut state = self.state.lock();
        if state.head - state.tail + state.reserved + bytes > self.ring {
            return None;
        }
        state.reserved += bytes;
        Some(Room { log: self, bytes })
    }

    /// Writes a change of a file down, in room that was reserved for it. Its position.
    pub(super) fn append(
        &self,
        room: Room<'_>,
        ino: u64,
        change: Change<'_>,
        when: Timestamp,
    ) -> Result<u64, Errno> {
        let own;
        let data = match change {
            Change::Write(_, data) | Change::Acl(Some(data)) => data,
            Change::Times(atime, mtime) => {
                own = times(atime, mtime);
                &own
            }
            _ => &[],
        };
        let bytes = super::record::room(data.len());
        if bytes > room.bytes {
            return Err(Errno::NOSPC);
        }
        let mut state = self.state.lock();
        let position = state.head;
        self.write(position + HEAD_BYTES, data)?;
        for (at, word) in Head::new(position, ino, change, data, when).0.into_iter().enumerate() {
            self.words.store(self.word(position, at), word, Release);
        }
        state.head += bytes;
        self.words.store(HEAD, state.head, Release);
        state.entries.push_back(Entry { position, bytes, ino, since: Instant::now(), live: true });
        state.live.entry(ino).or_default().push_back(position);
        drop(state);
        drop(room);
        Ok(position)
    }

    /// A change that was just written down has been made at that time.
    pub(super) fn dated(&self, position: u64, when: Timestamp) {
        self.words.store(self.word(position, WHEN), when.secs.cast_unsigned(), Release);
        self.words.store(self.word(position, WHEN + 1), when.nanos.into(), Release);
    }

    /// The changes of a file before a position are done, and are not made again.
    pub(super) fn done(&self, ino: u64, before: u64) {
        let mut state = self.state.lock();
        while let Some(position) =
            state.live.get(&ino).and_then(|all| all.front().copied()).filter(|at| *at < before)
        {
            self.strike(&mut state, position);
            if let Some(all) = state.live.get_mut(&ino) {
                all.pop_front();
            }
        }
        if state.live.get(&ino).is_some_and(VecDeque::is_empty) {
            state.live.remove(&ino);
        }
        self.advance(&mut state);
    }

    /// A change has not been made after all. It is its file's last one.
    pub(super) fn cancel(&self, ino: u64, position: u64) {
        let mut state = self.state.lock();
        self.strike(&mut state, position);
        if let Some(all) = state.live.get_mut(&ino) {
            all.retain(|at| *at != position);
            if all.is_empty() {
                state.live.remove(&ino);
            }
        }
        self.advance(&mut state);
    }

    fn strike(&self, state: &mut State, position: u64) {
        if let Some(entry) = state.entry(position).and_then(|at| state.entries.get_mut(at)) {
            self.words.store(self.word(position, STATE), LIVE + 1, Release);
            entry.live = false;
        }
    }

    /// Moves the tail behind what is done.
    fn advance(&self, state: &mut State) {
        let before = state.tail;
        while let Some(entry) = state.entries.front().filter(|entry| !entry.live) {
            state.tail = entry.position + entry.bytes;
            state.entries.pop_front();
        }
        if state.tail != before {
            // Before any of it is written over.
            self.words.store(TAIL, state.tail, Release);
        }
        if state.tail == state.head && state.head - state.given_back > GIVEN_BACK && state.reserved == 0 {
            state.given_back = state.head;
            // Where memory cannot be given back it is used again.
            let _ = self.words.clear(BEFORE, (self.ring / WORD) as usize);
        }
    }

    /// Reads what a predecessor has left, once, and has `each` make it, in order. What makes no sense ends it.
    pub(super) fn replay_log(&self, mut each: impl FnMut(u64, Change<'_>, Timestamp)) -> LogScan {
        let (mut at, head) = {
            let state = self.state.lock();
            (state.tail, state.head)
        };
        let mut reading = LogScan::default();
        let mut data = Vec::new();
        while at < head {
            let Ok((left, end)) = self.read_record(at, head, &mut data) else { break };
            if left.is_live() {
                let Ok((ino, change, when)) = left.read(&data) else { break };
                each(ino, change, when);
                reading.records += 1;
            }
            at = end;
        }
        reading.unread = head - at;
        reading
    }

    fn read_record(&self, at: u64, head: u64, data: &mut Vec<u8>) -> Result<(ParsedHead, u64), Errno> {
        if head - at < HEAD_BYTES {
            return Err(Errno::BADMSG);
        }
        let mut bytes = [0; HEAD_BYTES as usize];
        self.read(at, &mut bytes)?;
        let mut words = [0; HEAD_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        }
        let left = ParsedHead::parse(words, at)?;
        let end = at + super::record::room(left.len);
        if end > head {
            return Err(Errno::BADMSG);
        }
        data.resize(left.len, 0);
        self.read(at + HEAD_BYTES, data)?;
        Ok((left, end))
    }

    /// All that a predecessor has left is done.
    pub(super) fn finish_replay(&self) {
        let mut state = self.state.lock();
        state.tail = state.head;
        self.words.store(TAIL, state.tail, Release);
    }

    /// Makes these bytes what a predecessor has left, up to a head. EINVAL: they are too many.
    pub(super) fn load_predecessor(&self, ring: &[u8], head: u64) -> Result<(), Errno> {
        if ring.len() as u64 > self.ring {
            return Err(Errno::INVAL);
        }
        self.write(0, ring)?;
        self.words.store(HEAD, head, Release);
        self.state.lock().head = head;
        Ok(())
    }

    /// The pieces of the memory file in which bytes of the ring lie.
    fn pieces(&self, position: u64, len: usize) -> [(u64, usize); 2] {
        let at = position % self.ring;
        let first = len.min(usize::try_from(self.ring - at).unwrap_or(usize::MAX));
        let start = BEFORE as u64 * WORD;
        [(start + at, first), (start, len - first)]
    }

    fn write(&self, position: u64, mut data: &[u8]) -> Result<(), Errno> {
        for (at, len) in self.pieces(position, data.len()).into_iter().filter(|(_, len)| *len > 0) {
            let (piece, rest) = data.split_at_checked(len).unwrap_or((data, &[]));
            data = rest;
            self.words.write(piece, at)?;
        }
        Ok(())
    }

    fn read(&self, position: u64, data: &mut [u8]) -> Result<(), Errno> {
        let [(at, first), (start, _)] = self.pieces(position, data.len());
        let (one, other) = data.split_at_mut_checked(first).ok_or(Errno::IO)?;
        self.words.read(one, at)?;
        self.words.read(other, start)
    }

    /// The index of a record's word.
    fn word(&self, position: u64, at: usize) -> usize {
        let words = self.ring / WORD;
        BEFORE + ((position / WORD + at as u64) % words) as usize
    }
}

impl State {
    fn entry(&self, position: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&position, |entry| entry.position).ok()
    }
}
