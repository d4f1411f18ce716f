//! The log of changes: written twice, to two zones, and read from whichever copy of a record is whole.

use super::change::{Change, DeviceExtent};
use super::error::{Error, Result};
use super::format::{RECORD_HEAD, RECORD_MAX, RecordId, Root, changes_of};
use super::state::{LiveBlocks, State};
use crate::device::{self, Geometry, ZonedDevice};
use std::collections::{BTreeSet, VecDeque};

/// No zone: the log has one copy here.
pub(super) const NO_ZONE: u32 = u32::MAX;
/// A record holds at least this, so that any change fits one.
const RECORD_LEAST: usize = 2048;

/// How long a record may be, in bytes, where zones have `capacity` blocks.
pub(super) fn record_max(geometry: &Geometry, capacity: u64) -> usize {
    let size = geometry.block_size as usize;
    let quarter = (capacity.saturating_sub(1) / 4).min(geometry.write_blocks_max) as usize;
    quarter.saturating_mul(size).clamp(RECORD_LEAST.next_multiple_of(size), RECORD_MAX)
}

/// Puts changes into records of at most `record_max` bytes, encoded.
pub(super) fn pack(changes: impl Iterator<Item = Change>, record_max: usize) -> Vec<Vec<u8>> {
    let mut packed = vec![Vec::new()];
    for change in changes {
        let last = packed.len() - 1;
        if packed[last].len() + change.encoded_len() + RECORD_HEAD > record_max {
            packed.push(Vec::new());
        }
        let last = packed.len() - 1;
        change.encode(&mut packed[last]);
    }
    packed.retain(|record| !record.is_empty());
    packed
}

/// Where the log is written.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    /// The two zones of each part, the first part first.
    pub(super) parts: Vec<[u32; 2]>,
    /// Which of the last two can still be written.
    pub(super) is_sound: [bool; 2],
    /// The next block of them.
    pub(super) at: u64,
    /// Of the next record.
    pub(super) sequence: u64,
    /// All records before this one are flushed.
    pub(super) flushed: u64,
    pub(super) generation: u64,
    /// The log's number.
    pub(super) log_id: u32,
    /// Blocks written of all parts, each counted once.
    pub(super) blocks: u64,
}

impl Tail {
    pub(super) fn new(generation: u64, log_id: u32, zones: [u32; 2]) -> Self {
        let is_sound = zones.map(|zone| zone != NO_ZONE);
        Self { parts: vec![zones], is_sound, at: 0, sequence: 0, flushed: 0, generation, log_id, blocks: 0 }
    }

    pub(super) fn zones(&self) -> [u32; 2] {
        self.parts.last().copied().unwrap_or([NO_ZONE; 2])
    }

    pub(super) fn all_zones(&self) -> impl Iterator<Item = u32> + '_ {
        self.parts.iter().flatten().copied().filter(|zone| *zone != NO_ZONE)
    }

    /// Whether a copy is missing.
    pub(super) fn is_degraded(&self) -> bool {
        self.is_sound != [true; 2]
    }

    /// The next record, of changes that are encoded.
    pub(super) fn record(&self, root: &Root, changes: &[u8], is_beside_data: bool) -> Vec<u8> {
        let id = RecordId {
            uuid: root.uuid,
            generation: self.generation,
            log_id: self.log_id,
            sequence: self.sequence,
            flushed: self.flushed,
            is_beside_data,
        };
        id.encode(changes, root.block_size)
    }
}

/// What reading the log has found.
#[derive(Clone, Debug)]
pub(super) struct LogReplay {
    /// The zones of each part.
    pub(super) parts: Vec<[u32; 2]>,
    /// For each, the number of its first record.
    pub(super) begins: Vec<u64>,
    /// Records that were read.
    pub(super) records: u64,
    /// All records before this one were flushed, as far as the log says.
    pub(super) flushed: u64,
    /// The numbers of records of which one copy was not whole, while the other one was.
    pub(super) single: Vec<u64>,
}

impl LogReplay {
    /// Records with one whole copy that were flushed when there were two.
    pub(super) fn damaged(&self) -> usize {
        self.single.iter().filter(|record| **record < self.flushed).count()
    }
}

/// Reads the log of `root` into a state that [`State::new`] has made.
///
/// A record that was written beside its data counts if they are there, or if a later one says that it was flushed. So it is the longest first
/// part of the log whose data are all there that counts: the others were lost with the power before anybody was told of them.
///
/// The log is read three times at most, whatever it says.
pub(super) fn replay(
    device: &dyn ZonedDevice,
    root: &Root,
    new: impl Fn() -> State,
) -> Result<(State, LogReplay)> {
    let mut state = new();
    let mut beside = VecDeque::new();
    let replayed = replay_until(device, root, &mut state, u64::MAX, &mut |found, _| {
        // Also one that does not count itself knows which ones were flushed.
        while beside.front().is_some_and(|first: &UnflushedBlocks| first.record < found.flushed) {
            beside.pop_front();
        }
        found.places(&mut |place, count| {
            beside.push_back(UnflushedBlocks { record: found.record, place, count })
        });
        Ok(())
    })?;
    let Some(record) = first_missing(device, &state, &beside)? else { return Ok((state, replayed)) };
    tracing::info!("record {record} of log {}: its data were lost with the power", root.generation);
    let end = longest(device, root, new(), replayed.flushed)?;
    let mut state = new();
    let replayed = replay_until(device, root, &mut state, end, &mut |_, _| Ok(()))?;
    Ok((state, replayed))
}

/// Blocks that a record speaks of which may not have been flushed.
struct UnflushedBlocks {
    record: u64,
    place: DeviceExtent,
    count: u32,
}

/// The first record that has data which are live in the end, and are not there.
fn first_missing(
    device: &dyn ZonedDevice,
    state: &State,
    beside: &VecDeque<UnflushedBlocks>,
) -> Result<Option<u64>> {
    // By zone and first block: several records may speak of an extent.
    let mut seen = BTreeSet::new();
    for UnflushedBlocks { record, place, count } in beside {
        for (block, live) in live_in(state, *place, *count) {
            if seen.insert((place.zone, block))
                && !missing_blocks(device, state, place.zone, block, live)?.is_empty()
            {
                return Ok(Some(*record));
            }
        }
    }
    Ok(None)
}

/// The end of the longest first part of the log whose live data are all there. Records before `flushed` have theirs.
///
/// A block that is lost has every end excluded between its record and the one by which it lives no more. So the lost blocks that still live are
/// looked at after each record, each until it is dead: that takes as long as there are blocks.
fn longest(device: &dyn ZonedDevice, root: &Root, mut state: State, flushed: u64) -> Result<u64> {
    let geometry = device.geometry();
    // Each block is written once before it is flushed.
    let mut left = geometry.zone_blocks.saturating_mul(u64::from(geometry.zones));
    let mut end = flushed;
    let mut missing: Vec<MissingBlock> = Vec::new();
    replay_until(device, root, &mut state, u64::MAX, &mut |found, state| {
        if found.record < flushed {
            return Ok(());
        }
        let mut places = Vec::new();
        found.places(&mut |place, count| places.push((place, count)));
        for (place, count) in places {
            for (block, live) in live_in(state, place, count) {
                left = left.checked_sub(u64::from(live.count)).ok_or_else(|| {
                    Error::Damaged(format!("log {}: it has more blocks than the device", root.generation))
                })?;
                missing.extend(missing_blocks(device, state, place.zone, block, live)?);
            }
        }
        while missing.last().is_some_and(|last| !last.is_live(state)) {
            missing.pop();
        }
        if missing.is_empty() {
            end = found.record + 1;
        }
        Ok(())
    })?;
    Ok(end)
}

/// A block that is not there, of an object.
struct MissingBlock {
    zone: u32,
    block: u32,
    object: u64,
}

impl MissingBlock {
    fn is_live(&self, state: &State) -> bool {
        let place = DeviceExtent { zone: self.zone, block: self.block };
        live_in(state, place, 1).any(|(_, live)| live.object == self.object)
    }
}

/// What is live among blocks of a zone: all extents that have some of them.
fn live_in(state: &State, place: DeviceExtent, count: u32) -> impl Iterator<Item = (u32, LiveBlocks)> + '_ {
    let end = place.block.saturating_add(count);
    let of_zone = state.zones.get(place.zone as usize);
    of_zone.into_iter().flat_map(move |used| {
        let before = used.live.range(..place.block).next_back();
        let before = before.filter(move |(block, live)| block.saturating_add(live.count) > place.block);
        before.into_iter().chain(used.live.range(place.block..end)).map(|(block, live)| (*block, *live))
    })
}

/// The blocks of an extent that are not there.
fn missing_blocks(
    device: &dyn ZonedDevice,
    state: &State,
    zone: u32,
    block: u32,
    live: LiveBlocks,
) -> Result<Vec<MissingBlock>> {
    let size = device.geometry().block_size as usize;
    let extent = state.objects.get(&live.object).and_then(|object| object.extents.get(&live.at));
    let Some(extent) = extent else { return Ok(Vec::new()) };
    let mut bytes = vec![0; extent.sums.len() * size];
    let missing = |number: usize| MissingBlock { zone, block: block + number as u32, object: live.object };
    if is_present(device.read(zone, u64::from(block), &mut bytes))? == Some(true) {
        let sums = super::blocks::sums(&bytes, size as u32);
        let wrong = extent.sums.iter().zip(&sums[..]).enumerate().filter(|(_, (said, is))| said != is);
        return Ok(wrong.map(|(number, _)| missing(number)).collect());
    }
    // One by one, for some may be there.
    let mut all = Vec::new();
    for (number, bytes) in bytes.chunks_mut(size).enumerate() {
        let is_there = match is_present(device.read(zone, u64::from(block) + number as u64, bytes))? {
            Some(true) => extent.sums.get(number) == super::blocks::sums(bytes, size as u32).first(),
            // A zone that has failed says nothing of what was flushed. Who reads these blocks gets the error.
            None => true,
            Some(false) => false,
        };
        if !is_there {
            all.push(missing(number));
        }
    }
    Ok(all)
}

/// Whether what was read is there, as the device says. None: it does not say.
fn is_present(read: device::Result<()>) -> Result<Option<bool>> {
    match read {
        Ok(()) => Ok(Some(true)),
        Err(device::Error::NoPower) => Err(device::Error::NoPower.into()),
        Err(device::Error::Unwritten | device::Error::OutOfRange) => Ok(Some(false)),
        Err(_) => Ok(None),
    }
}

/// Blocks of all extents that changes speak of.
fn places(changes: &[Change], into: &mut impl FnMut(DeviceExtent, u32)) {
    for change in changes {
        match change {
            Change::Map { place, sums, .. } => into(*place, sums.len() as u32),
            Change::Group(changes) => places(changes, into),
            _ => {}
        }
    }
}

/// A record that was read.
struct FoundRecord<'a> {
    record: u64,
    /// Records before this one were flushed.
    flushed: u64,
    is_beside_data: bool,
    changes: &'a [Change],
}

impl FoundRecord<'_> {
    /// The blocks that it speaks of, if they may not have been flushed.
    fn places(&self, into: &mut impl FnMut(DeviceExtent, u32)) {
        if self.is_beside_data {
            places(self.changes, into);
        }
    }
}

/// Reads all records, and applies those before `end`. `look` sees each of these, with the state that it leads to.
fn replay_until(
    device: &dyn ZonedDevice,
    root: &Root,
    state: &mut State,
    end: u64,
    look: &mut dyn FnMut(&FoundRecord<'_>, &State) -> Result<()>,
) -> Result<LogReplay> {
    let mut reader = Reader { device, root, zones: root.log, at: 0, sequence: 0, single: Vec::new() };
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    let (mut parts, mut begins, mut flushed) = (Vec::new(), vec![0], 0);
    reader.enter(root.log, &mut seen, &mut parts)?;
    while let Some((id, changes)) = reader.next()? {
        flushed = flushed.max(id.flushed);
        let counts = id.sequence < end;
        match changes.as_slice() {
            [Change::Next { zones }] => {
                reader.enter(*zones, &mut seen, &mut parts)?;
                begins.push(reader.sequence);
            }
            _ if !counts => {}
            changes => {
                for change in changes {
                    let sequence = reader.sequence - 1;
                    state.apply(change).map_err(|error| {
                        Error::Damaged(format!("record {sequence} of log {}: {error}", root.generation))
                    })?;
                }
            }
        }
        if counts {
            let (record, is_beside_data) = (id.sequence, id.is_beside_data);
            look(&FoundRecord { record, flushed, is_beside_data, changes: &changes }, state)?;
        }
    }
    reader.check_end()?;
    for zone in parts.iter().flatten().filter(|zone| **zone != NO_ZONE) {
        if state.zones.get(*zone as usize).is_none_or(|used| used.live_blocks > 0) {
            return Error::damaged(format!("zone {zone} has the log, and an object"));
        }
    }
    let records = reader.sequence.min(end);
    Ok(LogReplay { parts, begins, records, flushed, single: reader.single })
}

struct Reader<'a> {
    device: &'a dyn ZonedDevice,
    root: &'a Root,
    zones: [u32; 2],
    at: u64,
    sequence: u64,
    single: Vec<u64>,
}

impl Reader<'_> {
    /// Goes on in other zones.
    fn enter(&mut self, zones: [u32; 2], seen: &mut BTreeSet<u32>, parts: &mut Vec<[u32; 2]>) -> Result<()> {
        let named: Vec<u32> = zones.into_iter().filter(|zone| *zone != NO_ZONE).collect();
        let sound =
            |zone: &u32| *zone >= super::roots::ROOT_ZONES && *zone < self.root.zones && seen.insert(*zone);
        if named.is_empty() || !named.iter().all(sound) {
            return Error::damaged(format!("log {} goes on in zones {zones:?}", self.root.generation));
        }
        (self.zones, self.at) = (zones, 0);
        parts.push(zones);
        Ok(())
    }

    /// The next record's changes, of whichever copy is whole.
    fn next(&mut self) -> Result<Option<(RecordId, Vec<Change>)>> {
        let mut found = None;
        let mut is_single = false;
        for zone in self.zones.into_iter().filter(|zone| *zone != NO_ZONE) {
            match read_record(self.device, self.root, zone, self.at) {
                Some((id, changes, blocks)) if id.sequence == self.sequence => {
                    found = found.or(Some((id, changes, blocks)));
                }
                _ => is_single = true,
            }
        }
        let Some((id, changes, blocks)) = found else { return Ok(None) };
        if is_single {
            self.single.push(self.sequence);
        }
        self.sequence += 1;
        self.at += blocks;
        Ok(Some((id, changes_of(&changes)?)))
    }

    /// The log ends here. Not so if a later record says that the one that is missing was flushed.
    fn check_end(&self) -> Result<()> {
        for zone in self.zones.into_iter().filter(|zone| *zone != NO_ZONE) {
            let Ok(reported) = self.device.report(zone) else { continue };
            for at in self.at..reported.pointer {
                let Some((id, ..)) = read_record(self.device, self.root, zone, at) else { continue };
                if id.flushed > self.sequence {
                    return Error::damaged(format!(
                        "record {} of log {} is damaged in both copies",
                        self.sequence, self.root.generation
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The record at a block, if there is a whole one of this log: its changes, encoded, and how many blocks it has.
pub(super) fn read_record(
    device: &dyn ZonedDevice,
    root: &Root,
    zone: u32,
    at: u64,
) -> Option<(RecordId, Vec<u8>, u64)> {
    let size = device.geometry().block_size as usize;
    let mut bytes = vec![0; size];
    device.read(zone, at, &mut bytes).ok()?;
    let len = RecordId::len_of(&bytes)?.next_multiple_of(size);
    if len > size {
        bytes.resize(len, 0);
        device.read(zone, at, &mut bytes).ok()?;
    }
    let (id, changes) = RecordId::decode(&bytes)?;
    let is_ours = id.uuid == root.uuid && id.generation == root.generation && id.log_id == root.log_id;
    is_ours.then(|| (id, changes.to_vec(), (len / size) as u64))
}
