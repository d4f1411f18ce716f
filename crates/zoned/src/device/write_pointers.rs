//! A file, or a disk without zones, that remembers where the write pointers of its zones are.
//!
//! # Layout
//! All numbers are little-endian. A header of 4096 bytes, then a table of zones, then the zones, from a multiple of 1 MiB on. The table has
//! pages of 4096 bytes, each of them twice: a page is written where its older copy is, and the younger copy that is whole counts. Every page
//! carries the file's uuid and a CRC-32C of itself.
//!
//! # When power is lost
//! A page says pointers that were true when it was written, or, of zones that may run ahead, that are some blocks further: these are then
//! written and flushed without the table. Closing the file makes it say how the zones are. Data and pages are written in any order between two flushes, which the rules of
//! [`ZonedDevice`](super::ZonedDevice) allow, with one exception: a zone that was reset is written to only after the table says that it is
//! empty, because the old pointer must not stand over new blocks.

use super::area::{Area, io};
use super::error::{Error, Result};
use super::geometry::Geometry;
use super::zone::{Condition, Zone};
use crate::sum::crc32c;
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"vlmzones";
const VERSION: u32 = 1;
const PAGE: u64 = 4096;
const ENTRIES: usize = 508;
/// Zones begin at a multiple of this.
const DATA_ALIGN: u64 = 1 << 20;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    /// CRC-32C of the header with 0 here.
    crc: U32,
    uuid: [u8; 16],
    zone_blocks: U64,
    capacity: U64,
    write_blocks_max: U64,
    block_size: U32,
    zones: U32,
    open_max: U32,
    active_max: U32,
    /// What the owner of the file wants to find again.
    label: [u8; 32],
}

#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Page {
    /// CRC-32C of the page with 0 here.
    crc: U32,
    index: U32,
    generation: U64,
    uuid: [u8; 16],
    entries: [Entry; ENTRIES],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    pointer: U32,
    condition: u8,
    reserved: [u8; 3],
}

/// What a file is made with.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) geometry: Geometry,
    pub(super) capacity: u64,
    pub(super) label: [u8; 32],
}

/// The file.
#[derive(Debug)]
pub(super) struct ZoneFile {
    area: Arc<Area>,
    shape: Shape,
    uuid: [u8; 16],
    /// Of each page, the generation of its younger copy, which is in the slot of its lowest bit.
    generations: Vec<u64>,
    changed: BTreeSet<usize>,
    /// Zones that were reset since the table was written.
    reset: BTreeSet<u32>,
    /// Zones that are empty, also by the table, and still take space in the file.
    emptied: BTreeSet<u32>,
    /// Zones of which the table may say a pointer that is further than what was written.
    ahead: BTreeMap<u32, PointerLead>,
}

/// How far the table runs ahead of a zone.
#[derive(Clone, Copy, Debug)]
struct PointerLead {
    /// By so many blocks at most.
    blocks: u64,
    /// The pointer that the table says, or is about to say; 0 if it says nothing yet.
    said: u64,
}

/// What the table is to say, for pages that have changed.
#[derive(Debug)]
pub(super) struct Save {
    /// Each with its number, its generation, and what it is then.
    pages: Vec<(usize, u64, Page)>,
    /// Zones that were reset, and are empty by these pages.
    reset: BTreeSet<u32>,
}

impl Save {
    /// Writes the pages, and makes everything durable.
    pub(super) fn write(&self, area: &Area) -> Result<()> {
        for (index, generation, page) in &self.pages {
            area.file.write_all_at(page.as_bytes(), page_at(*index, generation % 2)).map_err(io)?;
        }
        fdatasync(&area.file)?;
        Ok(())
    }
}

/// Whether `file` was made by [`Conventional`](super::Conventional) or as the file of an [`Emulated`](super::Emulated) device.
#[must_use]
pub fn has_zone_file(file: &File) -> bool {
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == MAGIC
}

/// The label of files that were made by [`Conventional`](super::Conventional).
pub(super) const CONVENTIONAL: &str = "conventional";

/// What the owner of such a file has called it; None of other files. The rest of the header may still be damaged.
pub(super) fn zone_file_label(file: &File) -> Option<String> {
    let mut bytes = [0; size_of::<Header>()];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let header = Header::read_from_bytes(&bytes).ok().filter(|header| header.magic == MAGIC)?;
    let end = header.label.iter().position(|byte| *byte == 0).unwrap_or(header.label.len());
    Some(String::from_utf8_lossy(&header.label[..end]).into_owned())
}

/// Bytes of a file, or a disk, that has zones of this geometry.
#[must_use]
pub fn zone_file_length(geometry: &Geometry) -> u64 {
    data_at(geometry) + u64::from(geometry.zones) * geometry.byte_at(1, 0)
}

/// Where the zones begin.
fn data_at(geometry: &Geometry) -> u64 {
    let pages = (geometry.zones as usize).div_ceil(ENTRIES) as u64;
    (PAGE + 2 * PAGE * pages).next_multiple_of(DATA_ALIGN)
}

impl ZoneFile {
    /// Makes the file new, with empty zones. What it held is lost.
    pub(super) fn create(file: File, shape: Shape) -> Result<Self> {
        shape.geometry.check()?;
        if shape.capacity == 0 || shape.capacity > shape.geometry.zone_blocks {
            return Err(Error::OutOfRange);
        }
        let mut uuid = [0; 16];
        rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty())?;
        let mut new = Self::with(file, shape, uuid);
        let end = new.end();
        if new.area.file.metadata().map_err(io)?.is_file() {
            new.area.file.set_len(end).map_err(io)?;
        }
        new.check_length()?;
        // No header until the table is there.
        new.area.file.write_all_at(&[0; PAGE as usize], 0).map_err(io)?;
        let empty = Zone { capacity: new.shape.capacity, pointer: 0, condition: Condition::Empty };
        let zones = vec![empty; new.shape.geometry.zones as usize];
        for _ in 0..2 {
            new.changed.extend(0..new.generations.len());
            new.save(&zones)?;
        }
        let header = new.header();
        new.area.file.write_all_at(header.as_bytes(), 0).map_err(io)?;
        fdatasync(&new.area.file)?;
        Ok(new)
    }

    /// Opens a file that [`create`](Self::create) has made. Zones on a page of the table that is damaged in both copies are offline.
    pub(super) fn open(file: File) -> Result<(Self, Vec<Zone>)> {
        let mut bytes = [0; size_of::<Header>()];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        let mut header = Header::read_from_bytes(&bytes).map_err(|_| Error::OutOfRange)?;
        let untrusted = |what: &str| Err(Error::Untrusted(what.to_owned()));
        if header.magic != MAGIC {
            return untrusted("no zones were laid out here");
        }
        if header.version.get() != VERSION {
            return Err(Error::Untrusted(format!("layout of zones {}, not {VERSION}", header.version)));
        }
        let crc = std::mem::replace(&mut header.crc, U32::new(0));
        if crc32c(header.as_bytes()) != crc.get() {
            return untrusted("the layout of zones has a wrong checksum");
        }
        let geometry = Geometry {
            block_size: header.block_size.get(),
            zones: header.zones.get(),
            zone_blocks: header.zone_blocks.get(),
            open_max: header.open_max.get(),
            active_max: header.active_max.get(),
            write_blocks_max: header.write_blocks_max.get(),
        };
        geometry.check()?;
        let shape = Shape { geometry, capacity: header.capacity.get(), label: header.label };
        Zone { capacity: shape.capacity, pointer: 0, condition: Condition::Empty }.check(&shape.geometry)?;
        let mut new = Self::with(file, shape, header.uuid);
        new.check_length()?;
        let zones = new.read_table()?;
        Ok((new, zones))
    }

    fn with(file: File, shape: Shape, uuid: [u8; 16]) -> Self {
        let pages = (shape.geometry.zones as usize).div_ceil(ENTRIES);
        let area = Area::new(file, data_at(&shape.geometry), shape.geometry.clone());
        Self {
            area: Arc::new(area),
            shape,
            uuid,
            generations: vec![0; pages],
            changed: BTreeSet::new(),
            reset: BTreeSet::new(),
            emptied: BTreeSet::new(),
            ahead: BTreeMap::new(),
        }
    }

    fn end(&self) -> u64 {
        zone_file_length(&self.shape.geometry)
    }

    fn check_length(&self) -> Result<()> {
        let length = (&self.area.file).seek(SeekFrom::End(0)).map_err(io)?;
        if length < self.end() {
            return Err(Error::Untrusted(format!("{length} bytes, where the zones need {}", self.end())));
        }
        Ok(())
    }

    fn header(&self) -> Header {
        let geometry = &self.shape.geometry;
        let mut header = Header {
            magic: MAGIC,
            version: U32::new(VERSION),
            crc: U32::new(0),
            uuid: self.uuid,
            zone_blocks: U64::new(geometry.zone_blocks),
            capacity: U64::new(self.shape.capacity),
            write_blocks_max: U64::new(geometry.write_blocks_max),
            block_size: U32::new(geometry.block_size),
            zones: U32::new(geometry.zones),
            open_max: U32::new(geometry.open_max),
            active_max: U32::new(geometry.active_max),
            label: self.shape.label,
        };
        header.crc = U32::new(crc32c(header.as_bytes()));
        header
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Of the file, drawn when it was made.
    pub(super) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn read_table(&mut self) -> Result<Vec<Zone>> {
        let mut zones = Vec::with_capacity(self.shape.geometry.zones as usize);
        for index in 0..self.generations.len() {
            let copies = [self.read_page(index, 0)?, self.read_page(index, 1)?];
            let page = copies.into_iter().flatten().max_by_key(|page| page.generation.get());
            if let Some(page) = &page {
                self.generations[index] = page.generation.get();
            }
            let left = self.shape.geometry.zones as usize - zones.len();
            for number in 0..left.min(ENTRIES) {
                let entry = page.as_ref().and_then(|page| page.entries.get(number));
                zones.push(self.zone_of(entry));
            }
        }
        Ok(zones)
    }

    /// The page's copy in a slot, if it is whole.
    fn read_page(&self, index: usize, slot: u64) -> Result<Option<Page>> {
        let mut page = Page::new_zeroed();
        self.area.file.read_exact_at(page.as_mut_bytes(), page_at(index, slot)).map_err(io)?;
        let crc = std::mem::replace(&mut page.crc, U32::new(0));
        let whole = crc32c(page.as_bytes()) == crc.get()
            && page.uuid == self.uuid
            && page.index.get() as usize == index
            && page.generation.get() % 2 == slot;
        Ok(whole.then_some(page))
    }

    /// What an entry says; offline where there is none, or it says what cannot be.
    fn zone_of(&self, entry: Option<&Entry>) -> Zone {
        let capacity = self.shape.capacity;
        let offline = Zone { capacity, pointer: 0, condition: Condition::Offline };
        let Some(entry) = entry else { return offline };
        let condition = match entry.condition {
            0 => Condition::Empty,
            1 => Condition::Closed,
            2 => Condition::Full,
            3 => Condition::ReadOnly,
            _ => return offline,
        };
        let zone = Zone { capacity, pointer: u64::from(entry.pointer.get()), condition };
        if zone.check(&self.shape.geometry).is_ok() { zone } else { offline }
    }

    /// Writes the pages with changed zones.
    fn save(&mut self, zones: &[Zone]) -> Result<()> {
        let save = self.begin_save(zones);
        let written = save.write(&self.area);
        self.end_save(save, written.is_ok(), zones);
        written
    }

    /// What is to be written for the table to say how the zones are. One at a time.
    pub(super) fn begin_save(&mut self, zones: &[Zone]) -> Save {
        let changed = std::mem::take(&mut self.changed);
        let pages = changed.into_iter().map(|index| {
            let generation = self.generations[index] + 1;
            (index, generation, self.page(index, generation, zones))
        });
        let pages: Vec<_> = pages.collect();
        for (index, _, page) in &pages {
            let first = index * ENTRIES;
            for (zone, ahead) in self.ahead.range_mut(first as u32..(first + ENTRIES) as u32) {
                ahead.said = u64::from(page.entries[*zone as usize - first].pointer.get());
            }
        }
        Save { pages, reset: self.reset.clone() }
    }

    /// It was written, or not.
    pub(super) fn end_save(&mut self, save: Save, is_written: bool, zones: &[Zone]) {
        if !is_written {
            self.changed.extend(save.pages.iter().map(|(index, ..)| *index));
            return;
        }
        for (index, generation, _) in &save.pages {
            self.generations[*index] = *generation;
        }
        self.reset.retain(|zone| !save.reset.contains(zone));
        let has_emptied = !save.reset.is_empty();
        self.emptied.extend(save.reset);
        if has_emptied && self.emptied.len() > zones.len() / 2 && self.area.is_space_short() {
            self.discard_emptied(zones);
        }
    }

    /// A page of the table.
    fn page(&self, index: usize, generation: u64, zones: &[Zone]) -> Page {
        let mut page = Page::new_zeroed();
        page.index = U32::new(index as u32);
        page.generation = U64::new(generation);
        page.uuid = self.uuid;
        let numbers = (index * ENTRIES) as u32..;
        for ((entry, zone), number) in
            page.entries.iter_mut().zip(zones.iter().skip(index * ENTRIES)).zip(numbers)
        {
            entry.pointer = U32::new(self.table_pointer(number, zone) as u32);
            entry.condition = match zone.condition {
                Condition::Empty => 0,
                Condition::Full => 2,
                Condition::ReadOnly => 3,
                Condition::Offline => 4,
                _ if zone.pointer == 0 => 0,
                _ => 1,
            };
        }
        page.crc = U32::new(crc32c(page.as_bytes()));
        page
    }

    /// What the table is to say of a zone's pointer. Never that the zone is full, unless it is.
    fn table_pointer(&self, number: u32, zone: &Zone) -> u64 {
        match self.ahead.get(&number) {
            Some(ahead) if zone.condition.is_active() && zone.pointer > 0 => {
                zone.pointer.saturating_add(ahead.blocks).min(zone.capacity - 1)
            }
            _ => zone.pointer,
        }
    }

    /// The table may say of this zone, up to its next reset, that so many blocks more are written than are.
    pub(super) fn run_ahead(&mut self, zone: u32, blocks: u64) {
        self.ahead.insert(zone, PointerLead { blocks, said: 0 });
    }

    /// The zone was written to, and is this now.
    pub(super) fn note_written(&mut self, number: u32, zone: Zone) {
        if !zone.condition.is_active() {
            // It is full: there is nothing ahead of it.
            self.ahead.remove(&number);
        }
        if self.ahead.get(&number).is_none_or(|ahead| zone.pointer > ahead.said) {
            self.note(number);
        }
    }

    /// Reads and writes of zones, beside the table.
    pub(super) fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Large reads and writes go past the page cache from now on, where that is possible.
    pub(super) fn enable_direct_io(&mut self) {
        if let Some(area) = Arc::get_mut(&mut self.area) {
            area.enable_direct_io();
        }
    }

    /// Whether the zone may be written to only after the table says that it is empty.
    pub(super) fn is_reset(&self, zone: u32) -> bool {
        self.reset.contains(&zone)
    }

    /// Whether the zone, which is empty, takes space in the file.
    pub(super) fn has_space(&self, zone: u32) -> bool {
        self.emptied.contains(&zone) || self.reset.contains(&zone)
    }

    /// The zone has changed.
    pub(super) fn note(&mut self, zone: u32) {
        self.emptied.remove(&zone);
        self.changed.insert(zone as usize / ENTRIES);
    }

    /// The zone was reset: it holds nothing, also after a loss of power, before it is written to again.
    pub(super) fn note_reset(&mut self, zone: u32) {
        self.note(zone);
        self.ahead.remove(&zone);
        self.reset.insert(zone);
    }

    pub(super) fn read(&self, zone: u32, block: u64, into: &mut [u8]) -> Result<()> {
        self.area.read(zone, block, into)
    }

    /// Writes blocks; `zones` are as they were before.
    pub(super) fn write(&mut self, zone: u32, block: u64, data: &[u8], zones: &[Zone]) -> Result<()> {
        if self.is_reset(zone) {
            self.save(zones)?;
        }
        self.area.write(zone, block, data)
    }

    /// Makes everything durable.
    pub(super) fn flush(&mut self, zones: &[Zone]) -> Result<()> {
        self.save(zones)
    }

    /// Says how the zones are, if that is not known yet, and gives the space of empty ones back.
    pub(super) fn close(&mut self, zones: &[Zone]) -> Result<()> {
        for (number, ahead) in std::mem::take(&mut self.ahead) {
            if zones.get(number as usize).is_some_and(|zone| zone.pointer < ahead.said) {
                self.note(number);
            }
        }
        if !self.changed.is_empty() {
            self.save(zones)?;
        }
        self.discard_emptied(zones);
        Ok(())
    }

    /// Gives the space of zones back that are still empty, where that is possible.
    ///
    /// Not at once: zones are mostly written to again soon. Then a filesystem would have to find blocks anew, and to write where they are
    /// at every flush.
    pub(super) fn discard_emptied(&mut self, zones: &[Zone]) {
        let length = self.shape.geometry.byte_at(1, 0);
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for zone in std::mem::take(&mut self.emptied) {
            let is_empty = zones.get(zone as usize).is_some_and(|zone| zone.condition == Condition::Empty);
            if is_empty && !self.is_reset(zone) {
                // The zone is empty by its pointer, so what lies there does not matter.
                let _ = fallocate(&self.area.file, how, self.area.byte_at(zone, 0), length);
            }
        }
    }

    /// Zeros from `block` on to the end of a zone that is finished.
    pub(super) fn zero_rest(&mut self, zone: u32, block: u64, zones: &[Zone]) -> Result<()> {
        if self.reset.contains(&zone) {
            self.save(zones)?;
        }
        let geometry = &self.shape.geometry;
        let start = self.area.byte_at(zone, block);
        let length = (geometry.zone_blocks - block) * u64::from(geometry.block_size);
        if length == 0 {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.area.file, how, start, length).is_ok() {
            return Ok(());
        }
        let zeros = vec![0; 1 << 16];
        let mut at = start;
        while at < start + length {
            let some = zeros.len().min((start + length - at) as usize);
            self.area.file.write_all_at(&zeros[..some], at).map_err(io)?;
            at += some as u64;
        }
        Ok(())
    }
}

fn page_at(index: usize, slot: u64) -> u64 {
    PAGE + PAGE * (2 * index as u64 + slot)
}
