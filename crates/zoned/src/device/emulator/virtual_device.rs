//! The emulated device itself.

use super::backing::{Backing, Memory};
use super::fault::{Fault, Trigger};
use super::power::Survival;
use super::profile::Profile;
use super::random::Random;
use super::timing::{Command, Model, Nanos};
use crate::device::error::{Error, Result};
use crate::device::geometry::Geometry;
use crate::device::machine::Machine;
use crate::device::write_pointers::{Shape, ZoneFile};
use crate::device::zone::{Condition, Zone};
use crate::device::zoned_device::ZonedDevice;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::fs::File;
use std::time::{Duration, Instant};

/// How time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It does not: every call is answered at once.
    None,
    /// A call moves the device's clock on to when it would be done.
    Virtual,
    /// A call waits until it would be done.
    Real,
}

/// An emulated zoned device.
#[derive(Debug)]
pub struct Emulated {
    profile: Profile,
    seed: u64,
    pace: Pace,
    started: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    machine: Machine,
    backing: Backing,
    model: Model,
    now: Nanos,
    faults: Vec<(Trigger, Fault)>,
    /// Changes so far.
    changes: u64,
    has_power: bool,
    random: Random,
}

impl Emulated {
    /// A device in memory, all zones empty, which takes no time.
    pub fn in_memory(profile: Profile, seed: u64) -> Result<Self> {
        let machine = Machine::empty(&profile.geometry, profile.capacity)?;
        let mut memory = Memory::new(profile.geometry.block_size, profile.geometry.zones);
        if profile.runs_ahead {
            memory.keep_old_blocks();
        }
        Ok(Self::with(profile, seed, machine, Backing::Memory(memory)))
    }

    /// A device in `file`, all zones empty, which takes no time. Losses of power are not emulated there.
    pub fn create(file: File, profile: Profile, seed: u64) -> Result<Self> {
        let machine = Machine::empty(&profile.geometry, profile.capacity)?;
        let mut label = [0; 32];
        label[..profile.name.len()].copy_from_slice(profile.name.as_bytes());
        let shape = Shape { geometry: profile.geometry.clone(), capacity: profile.capacity, label };
        let backing = Backing::File(Box::new(ZoneFile::create(file, shape)?));
        Ok(Self::with(profile, seed, machine, backing))
    }

    /// Opens what [`create`](Self::create) has made.
    pub fn open_file(file: File, seed: u64) -> Result<Self> {
        let (file, zones) = ZoneFile::open(file)?;
        let shape = file.shape();
        let end = shape.label.iter().position(|byte| *byte == 0).unwrap_or(shape.label.len());
        let name = String::from_utf8_lossy(&shape.label[..end]).into_owned();
        let mut profile = Profile::named(&name).ok_or_else(|| {
            Error::Untrusted(format!("no profile of an emulated device is called {name:?}"))
        })?;
        profile.geometry = shape.geometry.clone();
        profile.capacity = shape.capacity;
        let machine = Machine::new(&profile.geometry, zones)?;
        Ok(Self::with(profile, seed, machine, Backing::File(Box::new(file))))
    }

    fn with(profile: Profile, seed: u64, machine: Machine, backing: Backing) -> Self {
        let inner = Inner {
            machine,
            backing,
            model: Model::new(&profile.timing, seed),
            now: 0,
            faults: Vec::new(),
            changes: 0,
            has_power: true,
            random: Random::new(seed),
        };
        Self { profile, seed, pace: Pace::None, started: Instant::now(), inner: Mutex::new(inner) }
    }

    /// With another pace.
    #[must_use]
    pub fn paced(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// What is emulated.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Of its file, drawn when that was made; None of a device in memory.
    #[must_use]
    pub fn uuid(&self) -> Option<[u8; 16]> {
        match &self.inner.lock().backing {
            Backing::File(file) => Some(file.uuid()),
            Backing::Memory(_) => None,
        }
    }

    /// The device's clock.
    #[must_use]
    pub fn now(&self) -> Nanos {
        match self.pace {
            Pace::Real => self.started.elapsed().as_nanos() as u64,
            Pace::None | Pace::Virtual => self.inner.lock().now,
        }
    }

    /// When a command would be done that arrives at `now`, among all others; it is not carried out. For loads of several clients in virtual
    /// time, who submit in the order of their times.
    pub fn schedule(&self, now: Nanos, command: Command) -> Nanos {
        self.inner.lock().model.submit(now, command)
    }

    /// Puts a failure in.
    pub fn inject(&self, trigger: Trigger, fault: Fault) {
        let inner = &mut *self.inner.lock();
        let trigger = match trigger {
            Trigger::Change(after) => Trigger::Change(inner.changes + after),
            other => other,
        };
        inner.faults.push((trigger, fault));
    }

    /// The zone goes read-only or offline now.
    pub fn fail_zone(&self, zone: u32, condition: Condition) {
        self.inner.lock().machine.fail(zone, condition);
    }

    /// Changes what a block in memory holds, as a worn cell does that no code notices.
    pub fn corrupt(&self, zone: u32, block: u64) {
        if let Backing::Memory(memory) = &mut self.inner.lock().backing {
            memory.corrupt(zone, block);
        }
    }

    /// Writes, appends, resets, finishes and flushes so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.inner.lock().changes
    }

    /// Whether it still has power.
    #[must_use]
    pub fn has_power(&self) -> bool {
        self.inner.lock().has_power
    }

    /// The device as it is found after a loss of power at this moment. BAD_CONDITION for one in a file.
    pub fn after_power_loss(&self, survival: Survival) -> Result<Self> {
        let inner = self.inner.lock();
        let Backing::Memory(memory) = &inner.backing else { return Err(Error::BadCondition) };
        let (zones, memory) = memory.survivors(survival, &inner.machine);
        let machine = Machine::new(&self.profile.geometry, zones)?;
        let new = Self::with(self.profile.clone(), self.seed, machine, Backing::Memory(memory));
        Ok(new.paced(self.pace))
    }

    /// Lets the time of a command pass.
    fn pass(&self, mut inner: parking_lot::MutexGuard<'_, Inner>, command: Command) {
        if self.pace == Pace::None {
            return;
        }
        let now = if self.pace == Pace::Real { self.started.elapsed().as_nanos() as u64 } else { inner.now };
        let done_at = inner.model.submit(now, command);
        inner.now = done_at;
        drop(inner);
        if self.pace == Pace::Real {
            std::thread::sleep(Duration::from_nanos(done_at.saturating_sub(now)));
        }
    }

    fn put(&self, zone: u32, block: Option<u64>, data: &[u8]) -> Result<u64> {
        let blocks = self.profile.geometry.blocks_of_write(data.len())?;
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.check_power()?;
        let at = inner.machine.begin_write(zone, block, blocks)?;
        let before = inner.machine.zone(zone)?;
        let fault = inner.change(Some(zone));
        let block_size = self.profile.geometry.block_size as usize;
        let done = if fault.is_some() { inner.random.below(blocks + 1) } else { blocks };
        if done > 0 {
            let some = &data[..done as usize * block_size];
            inner.backing.write(zone, before, some, &inner.machine)?;
            inner.machine.advance(zone, done);
        }
        if let Some(fault) = fault {
            return Err(inner.fail(zone, fault));
        }
        let at_bytes = at * block_size as u64;
        self.pass(guard, Command::Write { zone, at: at_bytes, bytes: data.len() as u64 });
        Ok(at)
    }
}

impl Inner {
    fn check_power(&self) -> Result<()> {
        if self.has_power { Ok(()) } else { Err(Error::NoPower) }
    }

    /// Counts a change, of a zone or of none, and says what goes wrong with it.
    fn change(&mut self, written: Option<u32>) -> Option<Fault> {
        let number = self.changes;
        self.changes += 1;
        let index = self.faults.iter().position(|(trigger, _)| match trigger {
            Trigger::Change(at) => *at == number,
            Trigger::WriteTo(zone) => written == Some(*zone),
            Trigger::ReadOf(..) => false,
        })?;
        Some(self.faults.remove(index).1)
    }

    fn fail(&mut self, zone: u32, fault: Fault) -> Error {
        match fault {
            Fault::Error => Error::Io(Errno::IO),
            Fault::ReadOnly => {
                self.machine.fail(zone, Condition::ReadOnly);
                Error::ReadOnly
            }
            Fault::Offline => {
                self.machine.fail(zone, Condition::Offline);
                Error::Offline
            }
            Fault::PowerLoss => {
                self.has_power = false;
                Error::NoPower
            }
        }
    }

    /// What a change of a zone's condition begins with.
    fn begin(&mut self, zone: u32) -> Result<Zone> {
        self.check_power()?;
        let before = self.machine.zone(zone)?;
        match self.change(None) {
            None => Ok(before),
            Some(fault) => Err(self.fail(zone, fault)),
        }
    }
}

impl ZonedDevice for Emulated {
    fn geometry(&self) -> &Geometry {
        &self.profile.geometry
    }

    fn report(&self, zone: u32) -> Result<Zone> {
        let inner = self.inner.lock();
        inner.check_power()?;
        inner.machine.zone(zone)
    }

    fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()> {
        let blocks = self.profile.geometry.blocks_of(into.len())?;
        let mut inner = self.inner.lock();
        inner.check_power()?;
        inner.machine.check_read(zone, block, blocks)?;
        let hit = inner.faults.iter().find_map(|(trigger, fault)| match trigger {
            Trigger::ReadOf(of, at) if *of == zone && (block..block + blocks).contains(at) => Some(*fault),
            _ => None,
        });
        if let Some(fault) = hit {
            return Err(inner.fail(zone, fault));
        }
        inner.backing.read(zone, block, into)?;
        let at = block * u64::from(self.profile.geometry.block_size);
        self.pass(inner, Command::Read { zone, at, bytes: into.len() as u64 });
        Ok(())
    }

    fn write(&self, zone: u32, block: u64, data: &[u8]) -> Result<()> {
        self.put(zone, Some(block), data).map(drop)
    }

    fn append(&self, zone: u32, data: &[u8]) -> Result<u64> {
        self.put(zone, None, data)
    }

    fn reset(&self, zone: u32) -> Result<()> {
        let mut inner = self.inner.lock();
        let before = inner.begin(zone)?;
        inner.machine.reset(zone)?;
        inner.backing.reset(zone, before);
        self.pass(inner, Command::Reset { written: before.pointer, capacity: before.capacity });
        Ok(())
    }

    fn finish(&self, zone: u32) -> Result<()> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let before = inner.begin(zone)?;
        if before.condition != Condition::Full {
            let zones = inner.machine.zones().to_vec();
            inner.machine.finish(zone)?;
            inner.backing.finish(zone, before, &zones)?;
        }
        let left = before.capacity - before.pointer;
        self.pass(guard, Command::Finish { left, capacity: before.capacity });
        Ok(())
    }

    fn open(&self, zone: u32) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_power()?;
        inner.machine.open(zone)
    }

    fn close(&self, zone: u32) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.check_power()?;
        inner.machine.close(zone)
    }

    fn run_ahead(&self, zone: u32, blocks: u64) {
        if let Backing::Memory(memory) = &mut self.inner.lock().backing {
            memory.run_ahead(zone, blocks);
        }
    }

    fn flush(&self) -> Result<()> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.check_power()?;
        if let Some(fault) = inner.change(None) {
            return Err(inner.fail(u32::MAX, fault));
        }
        inner.backing.flush(&inner.machine)?;
        self.pass(guard, Command::Flush);
        Ok(())
    }
}
