//! Clients of a real device: threads that read and write zones which were empty, and are emptied again.

use super::clients::{Bench, Client, ClientLatency};
use crate::device::emulator::Random;
use crate::device::{AlignedBuf, Error, Result, ZonedDevice};
use crate::pace::Direction;
use std::time::{Duration, Instant};

/// Clients work for so long.
const LOOK: Duration = Duration::from_millis(60);
/// Written to a zone that is to be read, in bytes, if it holds so much.
const PREPARED: u64 = 2 << 20;
/// Zones that have something written at once: of some devices few may be active.
const USED_MAX: usize = 3;

pub(super) struct RealTime<'a> {
    device: &'a dyn ZonedDevice,
    until: Instant,
    used: Vec<u32>,
}

impl<'a> RealTime<'a> {
    pub(super) fn new(device: &'a dyn ZonedDevice, limit: Duration) -> Self {
        Self { device, until: Instant::now() + limit, used: Vec::new() }
    }

    fn bytes_of(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.device.geometry().block_size)
    }

    /// Whole blocks, at most what one write takes.
    fn call_bytes(&self, bytes: u64) -> u64 {
        let block = u64::from(self.device.geometry().block_size);
        let most = self.device.geometry().write_blocks_max * block;
        (bytes.min(most) / block).max(1) * block
    }

    /// The zone has something to read, or room to be written to.
    fn prepare(&mut self, client: Client, others: &[Client]) -> Result<()> {
        if !self.used.contains(&client.zone) {
            while self.used.len() >= USED_MAX {
                let is_free = |zone: &u32| others.iter().all(|other| other.zone != *zone);
                let Some(at) = self.used.iter().position(is_free) else { break };
                self.device.reset(self.used.remove(at))?;
            }
            self.used.push(client.zone);
        }
        let zone = self.device.report(client.zone)?;
        match client.direction {
            Direction::Write if zone.pointer > zone.capacity / 2 => self.device.reset(client.zone),
            Direction::Write => Ok(()),
            Direction::Read => {
                let wanted = PREPARED.min(self.bytes_of(zone.capacity) / 2);
                let piece = AlignedBuf::zeroed(self.call_bytes(wanted.min(1 << 20)) as usize);
                while self.bytes_of(self.device.report(client.zone)?.pointer) < wanted {
                    self.device.append(client.zone, piece.as_slice())?;
                }
                Ok(())
            }
        }
    }

    /// One thread of a client: bytes, calls, and the time they took together.
    fn work(&self, client: Client, seed: u64, until: Instant) -> Result<(u64, u64, Duration)> {
        let block = u64::from(self.device.geometry().block_size);
        let written = self.device.report(client.zone)?.pointer;
        let mut bytes = self.call_bytes(client.bytes);
        if client.direction == Direction::Read {
            bytes = bytes.min((written * block).max(block));
        }
        let mut buffer = AlignedBuf::zeroed(bytes as usize);
        let mut random = Random::new(seed);
        let (mut calls, mut took) = (0, Duration::ZERO);
        while Instant::now() < until {
            let begins = Instant::now();
            let done = match client.direction {
                Direction::Write => self.device.append(client.zone, buffer.as_slice()).map(drop),
                Direction::Read => {
                    let at = random.below(written - (bytes / block).min(written) + 1);
                    self.device.read(client.zone, at, buffer.as_mut_slice())
                }
            };
            match done {
                Ok(()) => {}
                // The zone was too small for the time.
                Err(Error::Full) => break,
                Err(error) => return Err(error),
            }
            calls += 1;
            took += begins.elapsed();
            if client.pause > 0 {
                std::thread::sleep(Duration::from_nanos(client.pause));
            }
        }
        Ok((calls * bytes, calls, took))
    }

    /// All threads of one client.
    fn run_client(&self, client: Client, until: Instant) -> Result<ClientLatency> {
        let begins = Instant::now();
        let done = std::thread::scope(|scope| {
            let work = |seed| scope.spawn(move || self.work(client, seed, until));
            let all: Vec<_> = (0..client.depth as u64).map(work).collect();
            let joined =
                all.into_iter().map(|one| one.join().unwrap_or(Err(Error::Io(rustix::io::Errno::IO))));
            joined.collect::<Result<Vec<_>>>()
        })?;
        let worked = begins.elapsed().as_secs_f64();
        let sum = |part: fn(&(u64, u64, Duration)) -> f64| done.iter().map(part).sum::<f64>();
        let calls = sum(|one| one.1 as f64);
        Ok(ClientLatency {
            rate: sum(|one| one.0 as f64) / worked.max(1e-9),
            wait: sum(|one| one.2.as_nanos() as f64) / calls.max(1.0),
        })
    }
}

impl Bench for RealTime<'_> {
    fn run_together(&mut self, clients: &[Client]) -> Result<Vec<ClientLatency>> {
        clients.iter().try_for_each(|client| self.prepare(*client, clients))?;
        self.device.flush()?;
        let this = &*self;
        let until = Instant::now() + LOOK;
        std::thread::scope(|scope| {
            let all: Vec<_> =
                clients.iter().map(|client| scope.spawn(move || this.run_client(*client, until))).collect();
            let joined =
                all.into_iter().map(|one| one.join().unwrap_or(Err(Error::Io(rustix::io::Errno::IO))));
            joined.collect()
        })
    }

    fn is_time_up(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl Drop for RealTime<'_> {
    fn drop(&mut self) {
        for zone in self.used.drain(..) {
            if let Err(error) = self.device.reset(zone) {
                tracing::warn!(
                    "zone {zone}, which was empty before it was tried, cannot be emptied: {error}"
                );
            }
        }
    }
}
