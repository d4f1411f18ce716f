//! Bytes of a checkpoint on their way to the store: they are taken at memory's speed, as far as that is allowed to wait in it, and written by
//! a thread of their own.
//!
//! A container stands still while its memory is taken, and the device may be slow or shared. What waits in memory is bounded; when the bound
//! is reached, whoever brings more waits for the device.

use super::pacing::Pacing;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;
use std::thread::JoinHandle;
use vellum_zoned::store::{Class, Error, Store, Writer};

/// Bytes that are written at once, and of one buffer.
const PART: usize = 1 << 20;
/// The most that waits in memory: this part of what is available,
const OF_AVAILABLE: u64 = 4;
/// but between these, in bytes.
const WAITING: std::ops::RangeInclusive<u64> = 16 << 20..=8 << 30;
/// Buffers that were written and are kept for what comes.
const SPARE: usize = 64;

/// Where bytes are put. Clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct Sink {
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
    /// Nothing more is taken: all of it is to be written, or none.
    end: Option<End>,
    failed: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    GivenUp,
}

/// The object that is being written.
#[derive(Debug)]
pub(super) struct Writing {
    sink: Sink,
    thread: Option<JoinHandle<Result<Writer, Error>>>,
}

/// Bytes of memory that programs could have.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

impl Writing {
    /// Begins an object of the class for images.
    pub(super) fn begin(store: &Store, pacing: Pacing) -> Result<Self, Error> {
        let most = (available().unwrap_or(0) / OF_AVAILABLE).clamp(*WAITING.start(), *WAITING.end());
        Self::with_room(store, most as usize / PART, pacing)
    }

    fn with_room(store: &Store, most: usize, pacing: Pacing) -> Result<Self, Error> {
        let writer = store.writer(Class::Checkpoint)?;
        let shared = Arc::new(Shared { state: Mutex::new(State::default()), changed: Condvar::new(), most });
        let sink = Sink { shared: Arc::clone(&shared) };
        let builder = std::thread::Builder::new().name("images".to_owned());
        let thread = builder.spawn(move || shared.write(writer, pacing));
        let thread =
            thread.map_err(|e| Error::Device(Errno::from_io_error(&e).unwrap_or(Errno::AGAIN).into()))?;
        Ok(Self { sink, thread: Some(thread) })
    }

    pub(super) fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Waits until the device has taken all that was put; nothing more can be.
    pub(super) fn finish(mut self) -> Result<Writer, Error> {
        self.join(End::Finished)
            .unwrap_or_else(|| Err(Error::ReadOnly("the thread that writes has ended".to_owned())))
    }

    fn join(&mut self, end: End) -> Option<Result<Writer, Error>> {
        self.sink.shared.state.lock().end = Some(end);
        self.sink.shared.changed.notify_all();
        self.thread.take()?.join().ok()
    }
}

impl Drop for Writing {
    /// What was written is no object without its name; the store has its zones back with its next sync.
    fn drop(&mut self) {
        if self.thread.is_some() {
            drop(self.join(End::GivenUp));
        }
    }
}

impl Sink {
    /// Takes bytes: where they are in the object. Waits while too much is on its way.
    pub(super) fn put(&self, mut data: &[u8]) -> Result<u64, Errno> {
        let mut state = self.shared.state.lock();
        let from = state.at;
        state.at += data.len() as u64;
        while !data.is_empty() {
            if let Some(error) = &state.failed {
                return Err(error.errno());
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
        // Afterwards, so that bytes of one call are side by side.
        while state.waiting.len() > self.shared.most && state.failed.is_none() && state.end.is_none() {
            self.shared.changed.wait(&mut state);
        }
        state.failed.as_ref().map_or(Ok(from), |error| Err(error.errno()))
    }

    /// Bytes taken so far.
    pub(super) fn at(&self) -> u64 {
        self.shared.state.lock().at
    }

    /// Why it takes nothing more.
    pub(super) fn failed(&self) -> Option<Error> {
        self.shared.state.lock().failed.clone()
    }
}

impl Shared {
    /// Writes what comes until there is an end. The thread's work.
    fn write(&self, mut writer: Writer, mut pacing: Pacing) -> Result<Writer, Error> {
        loop {
            let (mut part, is_waited_for) = {
                let mut state = self.state.lock();
                loop {
                    match (state.end, state.waiting.pop_front()) {
                        (Some(End::GivenUp), _) => return Ok(writer),
                        // Whoever waits for room may be a container that stands still.
                        (_, Some(part)) => break (part, state.waiting.len() >= self.most),
                        (Some(End::Finished), None) => {
                            let last = std::mem::take(&mut state.filling);
                            drop(state);
                            pacing.settle()?;
                            return writer.write(&last).map(|()| writer);
                        }
                        (None, None) => self.changed.wait(&mut state),
                    }
                }
            };
            if !is_waited_for {
                pacing.wait_for_turn();
            }
            let done = writer.write(&part).and_then(|()| pacing.written(part.len() as u64));
            let mut state = self.state.lock();
            if let Err(error) = done {
                state.failed = Some(error.clone());
                state.waiting.clear();
                self.changed.notify_all();
                return Err(error);
            }
            if state.spare.len() < SPARE {
                part.clear();
                state.spare.push(part);
            }
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use vellum_zoned::device::Conventional;
    use vellum_zoned::store::Placement;

    pub(in super::super) fn store(zones: u32) -> Store {
        let device = Conventional::create(tempfile::tempfile().unwrap(), 4096, zones, 256).unwrap();
        Store::format(Arc::new(device), Placement::NONE).unwrap()
    }

    #[test]
    fn bytes_are_where_it_says_whoever_brings_them() {
        let store = store(64);
        // Room for one part, so that those who bring them wait.
        let writing = Writing::with_room(&store, 1, Pacing::None).unwrap();
        let places: Vec<(u8, u64, usize)> = std::thread::scope(|scope| {
            let bring = |byte: u8| {
                let sink = writing.sink().clone();
                move || {
                    let lens = (0..20_usize).map(|turn| turn * 40_000 % 700_001 + 1);
                    lens.map(|len| (byte, sink.put(&vec![byte; len]).unwrap(), len)).collect::<Vec<_>>()
                }
            };
            let all: Vec<_> = [1, 2, 3].into_iter().map(|byte| scope.spawn(bring(byte))).collect();
            all.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        let size = writing.sink().at();
        writing.finish().unwrap().commit(b"x").unwrap();
        let bytes = store.get(b"x").unwrap();
        assert_eq!(bytes.len() as u64, size);
        for (byte, from, len) in places {
            assert!(bytes[from as usize..][..len].iter().all(|one| *one == byte));
        }
    }

    #[test]
    fn a_full_device_is_said_and_nobody_waits_for_it() {
        let store = store(24);
        let before = store.stats().free_zones;
        let writing = Writing::with_room(&store, 1, Pacing::None).unwrap();
        let sink = writing.sink().clone();
        let part = vec![7; PART];
        let refused = (0..100).find_map(|_| sink.put(&part).err());
        assert_eq!(refused, Some(Errno::NOSPC));
        assert_eq!(sink.failed(), Some(Error::NoSpace));
        assert_eq!(writing.finish().unwrap_err(), Error::NoSpace);
        store.sync().unwrap();
        assert_eq!(store.stats().free_zones, before);
        // One that is given up is not there.
        let writing = Writing::begin(&store, Pacing::None).unwrap();
        writing.sink().put(&part).unwrap();
        drop(writing);
        assert!(store.list().is_empty() && sink.put(&part).is_err());
    }
}
