//! How long a device takes: a queueing model of write buffer, channels and dies.
//!
//! Every command has a time of arrival and gets a time of completion; commands arrive in the order of their times. A write is answered when
//! all of it is in the write buffer, which all zones share and enter in the order of arrival: a write that waits for room holds up those
//! behind it. Its pages go over the zone's channel to its die, and leave the buffer when the die has written them. A read's pages come from the
//! die and over the channel. Channels and dies serve what they have in order.

use super::profile::Timing;
use super::random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds since the device was made.
pub type Nanos = u64;

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A read of `bytes`, `at` bytes into a zone.
    Read {
        /// The zone.
        zone: u32,
        /// Where in it, in bytes.
        at: u64,
        /// How much, in bytes.
        bytes: u64,
    },
    /// A write of `bytes`, `at` bytes into a zone.
    Write {
        /// The zone.
        zone: u32,
        /// Where in it, in bytes.
        at: u64,
        /// How much, in bytes.
        bytes: u64,
    },
    /// Finishing a zone of which `left` of `capacity` blocks are not written.
    Finish {
        /// Blocks that are left.
        left: u64,
        /// Blocks that the zone can hold.
        capacity: u64,
    },
    /// Resetting a zone of which `written` of `capacity` blocks are written.
    Reset {
        /// Blocks that are written.
        written: u64,
        /// Blocks that the zone can hold.
        capacity: u64,
    },
    /// Waiting until the write buffer is empty.
    Flush,
}

/// A die: when it has done all that it has, and the zone that it served last.
#[derive(Clone, Copy, Debug, Default)]
struct Die {
    free_at: Nanos,
    zone: u32,
}

/// The model, with what it is busy with.
#[derive(Clone, Debug)]
pub struct Model {
    timing: Timing,
    channels: Vec<Nanos>,
    dies: Vec<Die>,
    /// Pages in the write buffer: when they leave it, and their bytes.
    buffered: BinaryHeap<Reverse<(Nanos, u64)>>,
    buffered_bytes: u64,
    /// When the last write was let into the buffer.
    admitted_at: Nanos,
    random: Random,
}

impl Model {
    /// An idle device.
    #[must_use]
    pub fn new(timing: &Timing, seed: u64) -> Self {
        let channels = timing.channels.max(1) as usize;
        let dies = channels * timing.dies_per_channel.max(1) as usize;
        Self {
            timing: timing.clone(),
            channels: vec![0; channels],
            dies: vec![Die::default(); dies],
            buffered: BinaryHeap::new(),
            buffered_bytes: 0,
            admitted_at: 0,
            random: Random::new(seed),
        }
    }

    /// When a command is done that arrives at `now`.
    pub fn submit(&mut self, now: Nanos, command: Command) -> Nanos {
        let share = |part: u64, whole: u64, of: Nanos| {
            (u128::from(of) * u128::from(part) / u128::from(whole.max(1))) as u64
        };
        let timing = &self.timing;
        match command {
            Command::Read { zone, at, bytes } => self.read(now, zone, at, bytes),
            Command::Write { zone, at, bytes } => self.write(now, zone, at, bytes),
            Command::Finish { left, capacity } => {
                now + timing.finish_least_ns + share(left, capacity, timing.finish_rest_ns)
            }
            Command::Reset { written, capacity } => {
                now + timing.reset_least_ns + share(written, capacity, timing.reset_rest_ns)
            }
            Command::Flush => {
                self.buffered.iter().map(|Reverse((leaves_at, _))| *leaves_at).max().unwrap_or(0).max(now)
            }
        }
    }

    fn write(&mut self, now: Nanos, zone: u32, at: u64, bytes: u64) -> Nanos {
        let mut inside_at = now.max(self.admitted_at);
        for (at, part) in pages(at, bytes, self.timing.page) {
            inside_at = self.admit(inside_at, part) + time_of(part, self.timing.host_rate);
            let (channel, die) = self.place_of(zone, at);
            let over_at =
                inside_at.max(self.channels[channel]) + time_of(part, self.timing.channel_write_rate);
            self.channels[channel] = over_at;
            let written_at = self.use_die(die, zone, over_at, time_of(part, self.timing.die_write_rate));
            self.buffered.push(Reverse((written_at, part)));
            self.buffered_bytes += part;
        }
        self.admitted_at = inside_at;
        inside_at + self.timing.write_ns
    }

    /// When there is room for `part` in the buffer.
    fn admit(&mut self, mut at: Nanos, part: u64) -> Nanos {
        while let Some(Reverse((leaves_at, bytes))) = self.buffered.peek().copied() {
            let is_full = self.buffered_bytes + part > self.timing.buffer;
            if leaves_at > at && !is_full {
                break;
            }
            at = at.max(leaves_at);
            self.buffered.pop();
            self.buffered_bytes -= bytes;
        }
        at
    }

    fn read(&mut self, now: Nanos, zone: u32, at: u64, bytes: u64) -> Nanos {
        let mut done_at = now;
        for (at, part) in pages(at, bytes, self.timing.page) {
            let (channel, die) = self.place_of(zone, at);
            let sensed_at = self.use_die(die, zone, now, time_of(part, self.timing.die_read_rate));
            let over_at =
                sensed_at.max(self.channels[channel]) + time_of(part, self.timing.channel_read_rate);
            self.channels[channel] = over_at;
            done_at = done_at.max(over_at);
        }
        done_at + self.timing.read_ns
    }

    fn use_die(&mut self, die: usize, zone: u32, from: Nanos, takes: Nanos) -> Nanos {
        let jitter = self.timing.jitter_percent.min(99);
        let percent = 100 - jitter + self.random.below(2 * jitter + 1);
        let die = &mut self.dies[die];
        let switch = if die.zone == zone { 0 } else { self.timing.die_switch_ns };
        *die = Die { free_at: from.max(die.free_at) + switch + takes * percent / 100, zone };
        die.free_at
    }

    /// The channel and the die of a page that begins `at` bytes into a zone.
    fn place_of(&self, zone: u32, at: u64) -> (usize, usize) {
        let channels = self.channels.len();
        let number = if self.timing.is_striped {
            (u64::from(zone) + at / self.timing.page) as usize % self.dies.len()
        } else {
            zone as usize % self.dies.len()
        };
        (number % channels, number)
    }
}

/// The parts of a command that lie in one page each: where they begin, and their bytes.
fn pages(at: u64, bytes: u64, page: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = at + bytes;
    let mut next = at;
    std::iter::from_fn(move || {
        let start = next;
        next = (start / page + 1).saturating_mul(page).min(end);
        (start < end).then(|| (start, next - start))
    })
}

fn time_of(bytes: u64, rate: u64) -> Nanos {
    (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64
}
