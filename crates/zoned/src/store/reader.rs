//! Reading an object from its start to its end, ahead of whoever asks.

use super::error::{Error, Result};
use super::shared::Shared;
use super::worker_thread::WorkerThread;
use crate::device::{self, AlignedBuf};
use std::collections::VecDeque;
use std::sync::Arc;

/// Threads that read ahead.
const HANDS: usize = 4;
/// Parts that each of them has: one that it reads, and one that it goes on with while the first waits to be taken.
const DEPTH: usize = 2;
/// Bytes of a part.
const PART: usize = 1 << 20;

#[derive(Debug)]
struct Job {
    /// The first block.
    at: u64,
    buffer: AlignedBuf,
    /// Bytes of whole blocks that are read.
    len: usize,
}

type ReadResult = (Job, Result<()>);

/// Reads an object from its start to its end: parts of it are read ahead, by some threads at once, and compared with their checksums there.
///
/// An object that is removed meanwhile is NOT_FOUND from some part on.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    number: u64,
    size: u64,
    hands: Vec<WorkerThread<Job, ReadResult>>,
    /// Hands that have a job, in the order of the object.
    busy: VecDeque<usize>,
    /// Bytes of the object that were asked for from hands.
    asked: u64,
    /// What is handed out next, and how much of it was.
    part: Option<Job>,
    taken: usize,
    given: u64,
    /// Why nothing more is read.
    failed: Option<Error>,
}

impl Reader {
    pub(super) fn new(shared: &Arc<Shared>, name: &[u8]) -> Result<Self> {
        let (number, size) = {
            let core = shared.core.lock();
            let (number, object) = core.state.object(name)?;
            (number, object.size)
        };
        let shared = Arc::clone(shared);
        let (hands, busy) = (Vec::new(), VecDeque::new());
        Ok(Self { shared, number, size, hands, busy, asked: 0, part: None, taken: 0, given: 0, failed: None })
    }

    /// Bytes of the object when reading began.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads what follows, as much as there is of it in a part, and says how much that was; 0 at the end. After an error it is always that.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let read = self.read_on(into);
        self.failed = read.clone().err();
        read
    }

    fn read_on(&mut self, into: &mut [u8]) -> Result<usize> {
        if into.is_empty() || self.given >= self.size {
            return Ok(0);
        }
        self.begin()?;
        if self.part.is_none() {
            self.part = Some(self.next_part()?);
            self.taken = 0;
        }
        let Some(part) = &self.part else { return Ok(0) };
        let left = (self.size - self.given).min((part.len - self.taken) as u64) as usize;
        let some = left.min(into.len());
        into[..some].copy_from_slice(&part.buffer.as_slice()[self.taken..self.taken + some]);
        self.taken += some;
        self.given += some as u64;
        if self.taken == part.len || self.given == self.size {
            // The hand that has read it reads the part that nobody has yet.
            if let Some((job, hand)) = self.part.take().zip(self.busy.pop_front()) {
                self.ask(hand, job.buffer)?;
            }
        }
        Ok(some)
    }

    /// Starts as many hands as there are parts for.
    fn begin(&mut self) -> Result<()> {
        if !self.hands.is_empty() || self.given > 0 {
            return Ok(());
        }
        let parts = usize::try_from(self.size.div_ceil(PART as u64)).unwrap_or(usize::MAX);
        for _ in 0..HANDS.min(parts) {
            let (shared, number) = (Arc::clone(&self.shared), self.number);
            let started = WorkerThread::new(move |mut job: Job| {
                let read = shared.read_blocks(number, job.at, &mut job.buffer.as_mut_slice()[..job.len]);
                (job, read)
            });
            self.hands.push(started.ok_or(NO_THREAD)?);
        }
        let block = self.shared.device.geometry().block_size as usize;
        let bytes = self.size.min(PART as u64) as usize;
        for part in 0..(HANDS * DEPTH).min(parts) {
            self.ask(part % self.hands.len(), AlignedBuf::zeroed(bytes.next_multiple_of(block)))?;
        }
        Ok(())
    }

    /// Has a hand read the next part, if there is one.
    fn ask(&mut self, hand: usize, buffer: AlignedBuf) -> Result<()> {
        let left = self.size - self.asked;
        if left == 0 {
            return Ok(());
        }
        let block = u64::from(self.shared.device.geometry().block_size);
        let bytes = left.min(PART as u64);
        let job = Job { at: self.asked / block, buffer, len: bytes.next_multiple_of(block) as usize };
        self.asked += bytes;
        self.busy.push_back(hand);
        let given = self.hands.get(hand).map(|hand| hand.submit(job));
        given.and_then(std::result::Result::ok).ok_or(NO_THREAD)
    }

    fn next_part(&mut self) -> Result<Job> {
        let hand = self.busy.front().and_then(|hand| self.hands.get(*hand));
        let (job, read) = hand.and_then(WorkerThread::take).ok_or(NO_THREAD)?;
        read.map(|()| job)
    }
}

/// No thread can be started, or one has died.
const NO_THREAD: Error = Error::Device(device::Error::Io(rustix::io::Errno::AGAIN));
