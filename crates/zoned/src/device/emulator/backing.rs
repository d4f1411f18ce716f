//! Where an emulated device keeps its bytes.

use super::power::{Step, Survival, UnflushedZone, further, survive};
use crate::device::error::Result;
use crate::device::machine::Machine;
use crate::device::write_pointers::ZoneFile;
use crate::device::zone::{Condition, Zone};

/// The bytes of all zones.
#[derive(Debug)]
pub(super) enum Backing {
    /// In memory, with what a loss of power can take away.
    Memory(Memory),
    /// In a file, which survives its process.
    File(Box<ZoneFile>),
}

/// Zones in memory; of each the blocks up to its pointer, or up to where it was finished.
#[derive(Debug)]
pub(super) struct Memory {
    block: usize,
    zones: Vec<Vec<u8>>,
    unflushed: Vec<Option<UnflushedZone>>,
    /// Of a device whose pointers run ahead.
    past: Option<Vec<PointerSlack>>,
}

/// What lies behind a zone's pointer, and how far that may be found ahead.
#[derive(Clone, Debug, Default)]
struct PointerSlack {
    /// What blocks held before they were reset; shorter or longer than what the zone holds now.
    bytes: Vec<u8>,
    ahead: u64,
}

impl PointerSlack {
    /// The blocks as they are on the medium: those of `now`, and behind them older ones.
    fn with_old_blocks(&self, now: &[u8]) -> Vec<u8> {
        let mut medium = now.to_vec();
        medium.extend_from_slice(self.bytes.get(now.len()..).unwrap_or(&[]));
        medium
    }
}

impl Memory {
    pub(super) fn new(block: u32, zones: u32) -> Self {
        Self {
            block: block as usize,
            zones: vec![Vec::new(); zones as usize],
            unflushed: vec![None; zones as usize],
            past: None,
        }
    }

    /// Pointers run ahead from now on, so what blocks held before a reset matters.
    pub(super) fn keep_old_blocks(&mut self) {
        self.past = Some(vec![PointerSlack::default(); self.zones.len()]);
    }

    /// A zone's pointer may be found so many blocks further.
    pub(super) fn run_ahead(&mut self, zone: u32, blocks: u64) {
        if let Some(past) = self.past.as_mut().and_then(|past| past.get_mut(zone as usize)) {
            past.ahead = blocks;
        }
    }

    fn step(&mut self, zone: u32, before: Zone, step: Step) {
        let unflushed = &mut self.unflushed[zone as usize];
        unflushed
            .get_or_insert_with(|| UnflushedZone { flushed: before, steps: Vec::new() })
            .steps
            .push(step);
    }

    /// The zones after a loss of power, and their bytes.
    pub(super) fn survivors(&self, survival: Survival, machine: &Machine) -> (Vec<Zone>, Self) {
        let mut after = Self::new(self.block as u32, self.zones.len() as u32);
        let (mut zones, mut pasts) = (Vec::with_capacity(self.zones.len()), Vec::new());
        for (number, now) in machine.zones().iter().enumerate() {
            let nothing = UnflushedZone { flushed: *now, steps: Vec::new() };
            let unflushed = self.unflushed[number].as_ref().unwrap_or(&nothing);
            let (mut zone, mut bytes) =
                survive(survival, number as u32, unflushed, *now, &self.zones[number], self.block);
            if let Some(past) = &self.past {
                let past = &past[number];
                let medium = past.with_old_blocks(&self.zones[number]);
                let further = further(survival, number as u32, zone, past.ahead);
                // Behind what was written lies whatever was there.
                let (from, to) = (bytes.len(), further as usize * self.block);
                if to > from {
                    bytes.extend_from_slice(medium.get(from..to.min(medium.len())).unwrap_or(&[]));
                    bytes.resize(to, 0);
                    zone.pointer = further;
                }
                pasts.push(PointerSlack { bytes: medium, ahead: 0 });
            }
            after.zones[number] = bytes;
            zones.push(zone);
        }
        after.past = self.past.is_some().then_some(pasts);
        (zones, after)
    }

    /// Changes what a block holds.
    pub(super) fn corrupt(&mut self, zone: u32, block: u64) {
        let start = block as usize * self.block;
        if let Some(byte) = self.zones.get_mut(zone as usize).and_then(|bytes| bytes.get_mut(start + 7)) {
            *byte ^= 0x40;
        }
    }
}

impl Backing {
    pub(super) fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Memory(memory) => {
                let start = block as usize * memory.block;
                let held = memory.zones[zone as usize].get(start..).unwrap_or(&[]);
                let len = held.len().min(into.len());
                into[..len].copy_from_slice(&held[..len]);
                into[len..].fill(0);
                Ok(())
            }
            Self::File(file) => file.read(zone, block, into),
        }
    }

    /// Writes at the pointer of a zone, which is as `before`.
    pub(super) fn write(&mut self, zone: u32, before: Zone, data: &[u8], machine: &Machine) -> Result<()> {
        match self {
            Self::Memory(memory) => {
                memory.step(zone, before, Step::Write((data.len() / memory.block) as u64));
                memory.zones[zone as usize].extend_from_slice(data);
                Ok(())
            }
            Self::File(file) => {
                file.write(zone, before.pointer, data, machine.zones())?;
                file.note(zone);
                Ok(())
            }
        }
    }

    pub(super) fn reset(&mut self, zone: u32, before: Zone) {
        match self {
            Self::Memory(memory) => {
                if before.condition != Condition::Empty {
                    let held = std::mem::take(&mut memory.zones[zone as usize]);
                    if let Some(past) = &mut memory.past {
                        past[zone as usize] =
                            PointerSlack { bytes: past[zone as usize].with_old_blocks(&held), ahead: 0 };
                    }
                    memory.step(zone, before, Step::Reset(held));
                }
            }
            Self::File(file) => file.note_reset(zone),
        }
    }

    pub(super) fn finish(&mut self, zone: u32, before: Zone, zones_before: &[Zone]) -> Result<()> {
        match self {
            Self::Memory(memory) => {
                memory.step(zone, before, Step::Finish);
                Ok(())
            }
            Self::File(file) => {
                file.zero_rest(zone, before.pointer, zones_before)?;
                file.note(zone);
                Ok(())
            }
        }
    }

    pub(super) fn flush(&mut self, machine: &Machine) -> Result<()> {
        match self {
            Self::Memory(memory) => {
                memory.unflushed.fill(None);
                Ok(())
            }
            Self::File(file) => file.flush(machine.zones()),
        }
    }
}
