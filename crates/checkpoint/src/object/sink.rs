//! Bytes of a checkpoint on their way to where they stay: they are taken at memory's speed, as far as that is allowed to wait in it. One thread
//! packs them, another one writes.
//!
//! A container stands still while its memory is taken, and the device may be slow or shared. What waits in memory is bounded; when the bound
//! is reached, whoever brings more waits for the device.
//!
//! Whether packing makes it faster shows while it is done (`Compress::Auto`): as long as something waits for the device, packing what comes next
//! costs no time and leaves the device less to do; when the device waits for us, it gets bytes as they are.

use super::map::{GRANULE, Map, Parent};
use super::pack::{Packer, ParentGranules};
use super::storage::{ByteSink, errno};
use crate::compression::Compress;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use vellum_service::Failure;

/// Bytes of one buffer: whole granules.
const PART: usize = 1 << 20;
/// A quarter of the available memory is the most that waits.
const OF_AVAILABLE: u64 = 4;
/// Bounds of that, in bytes.
const WAITING: std::ops::RangeInclusive<u64> = 16 << 20..=8 << 30;
/// Buffers that were written and are kept for what comes.
const SPARE: usize = 64;
/// Bytes of frames that are written at once, at the least.
const TOGETHER: usize = 1 << 20;
/// Such writes that wait for the device at the most.
const READY: usize = 8;

/// Where bytes are put. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Most buffers that wait.
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    /// What is not a whole part yet.
    filling: Vec<u8>,
    waiting: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// Bytes taken.
    at: u64,
    /// Frames that wait for the device.
    ready: VecDeque<Vec<u8>>,
    /// Some is being packed.
    is_packing: bool,
    /// The device has some.
    is_writing: bool,
    /// No more frames come.
    is_packed: bool,
    /// Nothing more is taken: all of it is to be written, or none.
    end: Option<End>,
    /// What whoever brings bytes gets, and why.
    failed: Option<(Errno, Failure)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    GivenUp,
}

/// None: it has failed.
type Thread<T> = Option<JoinHandle<Option<T>>>;

/// The object that is being written.
pub(crate) struct WritePipeline {
    sink: Sink,
    packing: Thread<Map>,
    writing: Thread<Box<dyn ByteSink>>,
}

/// How an object is made.
#[derive(Debug, Default)]
pub(crate) struct WriteOptions {
    pub(crate) compress: Compress,
    /// What is in other objects already.
    pub(crate) known: ParentGranules,
}

impl WriteOptions {
    /// The objects that are needed, the nearest first.
    pub(crate) fn parents(&self) -> &[Parent] {
        self.known.parents()
    }
}

/// Bytes of memory that programs could have.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

impl WritePipeline {
    pub(crate) fn begin(out: Box<dyn ByteSink>, how: WriteOptions) -> Result<Self, Failure> {
        let most = (available().unwrap_or(0) / OF_AVAILABLE).clamp(*WAITING.start(), *WAITING.end());
        Self::with_room(out, most as usize / PART, how)
            .map_err(|e| Failure::system("no thread to write a checkpoint").because(e))
    }

    pub(super) fn with_room(
        mut out: Box<dyn ByteSink>,
        most: usize,
        WriteOptions { compress, known }: WriteOptions,
    ) -> io::Result<Self> {
        let mut id = [0; 16];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
        let packer = Packer::new(compress, known, id)?;
        let shared = Arc::new(Shared { state: Mutex::new(State::default()), changed: Condvar::new(), most });
        let (packs, writes) = (Arc::clone(&shared), Arc::clone(&shared));
        let mut all = Self { sink: Sink { shared }, packing: None, writing: None };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let pack = move || {
            packs.pack(packer).map_err(|e| packs.fail(&e, Failure::system("packing").because(&e))).ok()
        };
        let write = move || match writes.write(&mut *out) {
            Ok(()) => Some(out),
            Err(e) => {
                writes.fail(&e, out.explain(&e));
                None
            }
        };
        all.packing = Some(thread("images").spawn(pack)?);
        all.writing = Some(thread("device").spawn(write)?);
        Ok(all)
    }

    pub(crate) fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Waits until all that was put has been taken; nothing more can be. What it has become.
    pub(crate) fn finish(mut self) -> Result<(Box<dyn ByteSink>, Map), Failure> {
        self.end(End::Finished);
        let map = self.packing.take().and_then(|thread| thread.join().ok()).flatten();
        let out = self.writing.take().and_then(|thread| thread.join().ok()).flatten();
        let ended = || Failure::system("a thread that writes a checkpoint has ended");
        // Who has failed first says why.
        out.zip(map).ok_or_else(|| self.sink.failed().unwrap_or_else(ended))
    }

    fn end(&self, end: End) {
        self.sink.shared.state.lock().end.get_or_insert(end);
        self.sink.shared.changed.notify_all();
    }
}

impl Drop for WritePipeline {
    /// What was written is no object without its name.
    fn drop(&mut self) {
        self.end(End::GivenUp);
        drop(self.packing.take().map(JoinHandle::join));
        drop(self.writing.take().map(JoinHandle::join));
    }
}

impl Sink {
    /// Takes bytes: where they are among all that was put. Waits while too much is on its way. As much as a granule begins with a new one, so that it is
    /// known again whatever comes before it.
    pub(crate) fn put(&self, data: &[u8]) -> Result<u64, Errno> {
        let mut state = self.shared.state.lock();
        if data.len() >= GRANULE {
            let rest = state.at.next_multiple_of(GRANULE as u64) - state.at;
            self.add(&mut state, [0; GRANULE].get(..rest as usize).unwrap_or_default())?;
        }
        let from = state.at;
        self.add(&mut state, data)?;
        // Afterwards, so that bytes of one call are side by side.
        while state.waiting.len() > self.shared.most && state.failed.is_none() && state.end.is_none() {
            self.shared.changed.wait(&mut state);
        }
        state.failed.as_ref().map_or(Ok(from), |(errno, _)| Err(*errno))
    }

    fn add(&self, state: &mut State, mut data: &[u8]) -> Result<(), Errno> {
        state.at += data.len() as u64;
        while !data.is_empty() {
            if let Some((errno, _)) = &state.failed {
                return Err(*errno);
            }
            if state.end.is_some() {
                return Err(Errno::IO);
            }
            let some = data.len().min(PART - state.filling.len());
            let (now, rest) = data.split_at(some);
            state.filling.extend_from_slice(now);
            data = rest;
            if state.filling.len() == PART {
                let empty = state.spare.pop().unwrap_or_else(|| Vec::with_capacity(PART));
                let full = std::mem::replace(&mut state.filling, empty);
                state.waiting.push_back(full);
                self.shared.changed.notify_all();
            }
        }
        Ok(())
    }

    /// Waits until no more is on its way than half of what may be.
    pub(super) fn wait_for_space(&self) {
        let mut state = self.shared.state.lock();
        while state.waiting.len() > self.shared.most / 2 && state.failed.is_none() && state.end.is_none() {
            self.shared.changed.wait(&mut state);
        }
    }

    /// What comes next begins with a granule of its own, however short it is.
    pub(super) fn align(&self) -> Result<(), Errno> {
        let mut state = self.shared.state.lock();
        let rest = state.at.next_multiple_of(GRANULE as u64) - state.at;
        self.add(&mut state, [0; GRANULE].get(..rest as usize).unwrap_or_default())
    }

    /// Why it takes nothing more.
    pub(crate) fn failed(&self) -> Option<Failure> {
        self.shared.state.lock().failed.as_ref().map(|(_, why)| why.clone())
    }
}

impl Shared {
    /// A thread has failed: nobody waits for it.
    fn fail(&self, error: &io::Error, why: Failure) {
        let mut state = self.state.lock();
        state.failed.get_or_insert_with(|| (errno(error), why));
        state.waiting.clear();
        state.ready.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Packs what comes until there is an end.
    fn pack(&self, mut packer: Packer) -> io::Result<Map> {
        let mut frames = Vec::new();
        loop {
            let mut state = self.state.lock();
            let (mut part, has_time) = loop {
                if state.failed.is_some() || state.end == Some(End::GivenUp) {
                    return Err(io::Error::other("given up"));
                }
                // One that is being written, and one that waits for it.
                let has_time = state.ready.len() + usize::from(state.is_writing) >= 2;
                match (state.end, state.waiting.pop_front()) {
                    (_, Some(part)) => break (part, has_time),
                    (Some(_), None) => {
                        let last = std::mem::take(&mut state.filling);
                        drop(state);
                        packer.put(&last, has_time, &mut frames)?;
                        let map = packer.finish(has_time, &mut frames)?;
                        let mut state = self.state.lock();
                        state.ready.push_back(frames);
                        state.is_packed = true;
                        self.changed.notify_all();
                        return Ok(map);
                    }
                    (None, None) => self.changed.wait(&mut state),
                }
            };
            state.is_packing = true;
            drop(state);
            self.changed.notify_all();
            packer.put(&part, has_time, &mut frames)?;
            let mut state = self.state.lock();
            if frames.len() >= TOGETHER {
                while state.ready.len() >= READY && state.failed.is_none() && state.end != Some(End::GivenUp)
                {
                    self.changed.wait(&mut state);
                }
                state.ready.push_back(std::mem::take(&mut frames));
            }
            state.is_packing = false;
            if state.spare.len() < SPARE {
                part.clear();
                state.spare.push(part);
            }
            self.changed.notify_all();
        }
    }

    /// Writes what was packed until there is an end.
    fn write(&self, out: &mut dyn ByteSink) -> io::Result<()> {
        loop {
            let mut state = self.state.lock();
            let (frames, hurry) = loop {
                if state.failed.is_some() || state.end == Some(End::GivenUp) {
                    return Err(io::Error::other("given up"));
                }
                match state.ready.pop_front() {
                    // Whoever waits for room may be a container that stands still.
                    Some(frames) => break (frames, state.waiting.len() >= self.most),
                    None if state.is_packed => return Ok(()),
                    None => self.changed.wait(&mut state),
                }
            };
            state.is_writing = true;
            drop(state);
            self.changed.notify_all();
            out.write(&frames, hurry)?;
            self.state.lock().is_writing = false;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
#[path = "sink_test.rs"]
pub(super) mod tests;
