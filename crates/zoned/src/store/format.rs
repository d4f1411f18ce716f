//! Roots and records, as they are on the device. All numbers are little-endian.

use super::change::Change;
use super::error::{Error, Result};
use crate::sum::{crc32c, crc32c_of_both};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of everything here. Version 1 knew no tree of files, version 2 no records that were written beside their data, version 3 no numbers of
/// logs; they are read, and become this one when the store is opened to be written.
pub const VERSION: u32 = 4;
/// Of a record: the data that it speaks of were not flushed before it was written.
const BESIDE_DATA: u64 = 1;
/// Where the log's number begins in a record's flags.
const LOG_ID_SHIFT: u32 = 32;
/// Longest record, in bytes; a shorter one where a zone or a write can hold no more.
pub(super) const RECORD_MAX: usize = 64 << 10;
/// Bytes of a record before its changes.
pub(super) const RECORD_HEAD: usize = size_of::<RecordHead>();
const ROOT_MAGIC: [u8; 8] = *b"vlmroot\0";
const RECORD_MAGIC: [u8; 8] = *b"vlmrecrd";

/// Which zones are for what: those of the groups from 0 on are for images of checkpoints. A zone's group is the rest of its number divided by
/// the number of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// How many groups there are: zones of one disturb each other, zones of different ones do not. 1: nothing is known.
    pub groups: u32,
    /// How many of them are for images of checkpoints. Fewer than there are.
    pub checkpoint_groups: u32,
    /// How many zones an image is written to side by side.
    pub stripe: u32,
}

impl Placement {
    /// Nothing is known of the device.
    pub const NONE: Self = Self { groups: 1, checkpoint_groups: 0, stripe: 1 };

    /// Refuses what cannot be.
    pub fn check(&self) -> Result<()> {
        if self.groups == 0 || self.checkpoint_groups >= self.groups || self.stripe == 0 || self.stripe > 64 {
            return Error::damaged(format!(
                "placement {self:?}: groups are more than those of checkpoints, the stripe is 1 to 64"
            ));
        }
        Ok(())
    }

    /// Whether a zone is for images of checkpoints; true for all zones where nothing is known.
    #[must_use]
    pub fn is_for_checkpoints(&self, zone: u32) -> bool {
        self.checkpoint_groups == 0 || zone % self.groups < self.checkpoint_groups
    }

    /// Whether a zone is for everything else.
    #[must_use]
    pub fn is_for_normal(&self, zone: u32) -> bool {
        zone % self.groups >= self.checkpoint_groups
    }
}

/// What everything begins with: where the log is. The one with the highest generation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    /// Of the store, drawn when it was made.
    pub(super) uuid: [u8; 16],
    /// Counts checkpoints of the metadata.
    pub(super) generation: u64,
    /// The zones where the log of this generation begins.
    pub(super) log: [u32; 2],
    /// The log's number; 0 before version 4.
    pub(super) log_id: u32,
    /// The device's blocks, in bytes.
    pub(super) block_size: u32,
    /// The device's zones.
    pub(super) zones: u32,
    /// Blocks of a zone.
    pub(super) zone_blocks: u64,
    /// Which zones are for what.
    pub(super) placement: Placement,
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RootForm {
    magic: [u8; 8],
    version: U32,
    /// CRC-32C of this form with 0 here.
    crc: U32,
    uuid: [u8; 16],
    generation: U64,
    zone_blocks: U64,
    log: [U32; 2],
    block_size: U32,
    zones: U32,
    groups: U32,
    checkpoint_groups: U32,
    stripe: U32,
    log_id: U32,
}

impl Root {
    /// Its form, at the start of a block.
    #[must_use]
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut form = RootForm {
            magic: ROOT_MAGIC,
            version: U32::new(VERSION),
            crc: U32::new(0),
            uuid: self.uuid,
            generation: U64::new(self.generation),
            zone_blocks: U64::new(self.zone_blocks),
            log: self.log.map(U32::new),
            block_size: U32::new(self.block_size),
            zones: U32::new(self.zones),
            groups: U32::new(self.placement.groups),
            checkpoint_groups: U32::new(self.placement.checkpoint_groups),
            stripe: U32::new(self.placement.stripe),
            log_id: U32::new(self.log_id),
        };
        form.crc = U32::new(crc32c(form.as_bytes()));
        let mut block = form.as_bytes().to_vec();
        block.resize(self.block_size as usize, 0);
        block
    }

    /// None: no root. An error: a root of another version.
    pub(super) fn decode(block: &[u8]) -> Result<Option<Self>> {
        let Ok((mut form, _)) = RootForm::read_from_prefix(block) else { return Ok(None) };
        let crc = std::mem::replace(&mut form.crc, U32::new(0));
        if form.magic != ROOT_MAGIC || crc32c(form.as_bytes()) != crc.get() {
            return Ok(None);
        }
        if !(1..=VERSION).contains(&form.version.get()) {
            return Error::damaged(format!(
                "a store of version {}; this program knows {VERSION}",
                form.version
            ));
        }
        let root = Self {
            uuid: form.uuid,
            generation: form.generation.get(),
            log: form.log.map(U32::get),
            log_id: form.log_id.get(),
            block_size: form.block_size.get(),
            zones: form.zones.get(),
            zone_blocks: form.zone_blocks.get(),
            placement: Placement {
                groups: form.groups.get(),
                checkpoint_groups: form.checkpoint_groups.get(),
                stripe: form.stripe.get(),
            },
        };
        root.placement.check()?;
        Ok(Some(root))
    }
}

/// What a record belongs to, and its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordId {
    /// Of the store.
    pub(super) uuid: [u8; 16],
    /// Of the log.
    pub(super) generation: u64,
    /// Of the log, drawn when it was begun: what an earlier one of the same generation, which no root speaks of, has left in the same zone is no
    /// part of it.
    pub(super) log_id: u32,
    /// Of the record: from 0 on.
    pub(super) sequence: u64,
    /// All records before this one were flushed when this one was written.
    pub(super) flushed: u64,
    /// The data that it speaks of were not flushed before. Where no later record says that this one was, they may be missing.
    pub(super) is_beside_data: bool,
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHead {
    magic: [u8; 8],
    /// CRC-32C of the head, with 0 here, and the changes.
    crc: U32,
    /// Bytes of the changes.
    len: U32,
    uuid: [u8; 16],
    generation: U64,
    sequence: U64,
    flushed: U64,
    flags: U64,
}

impl RecordId {
    /// A record of changes that are encoded already, in whole blocks.
    #[must_use]
    pub(super) fn encode(&self, changes: &[u8], block_size: u32) -> Vec<u8> {
        let mut head = RecordHead {
            magic: RECORD_MAGIC,
            crc: U32::new(0),
            len: U32::new(changes.len() as u32),
            uuid: self.uuid,
            generation: U64::new(self.generation),
            sequence: U64::new(self.sequence),
            flushed: U64::new(self.flushed),
            flags: U64::new(
                u64::from(self.log_id) << LOG_ID_SHIFT | if self.is_beside_data { BESIDE_DATA } else { 0 },
            ),
        };
        head.crc = U32::new(crc32c_of_both(head.as_bytes(), changes));
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend_from_slice(changes);
        bytes.resize(bytes.len().next_multiple_of(block_size as usize), 0);
        bytes
    }

    /// How many bytes the record that begins with `block` has, if one does.
    #[must_use]
    pub(super) fn len_of(block: &[u8]) -> Option<usize> {
        let (head, _) = RecordHead::read_from_prefix(block).ok()?;
        let len = head.len.get() as usize;
        (head.magic == RECORD_MAGIC && len <= RECORD_MAX - RECORD_HEAD).then_some(RECORD_HEAD + len)
    }

    /// A record, if `bytes` begin with one that is whole, and its changes, still encoded.
    #[must_use]
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let len = Self::len_of(bytes)?;
        let (mut head, _) = RecordHead::read_from_prefix(bytes).ok()?;
        let changes = bytes.get(RECORD_HEAD..len)?;
        let crc = std::mem::replace(&mut head.crc, U32::new(0));
        if crc32c_of_both(head.as_bytes(), changes) != crc.get() {
            return None;
        }
        let id = Self {
            uuid: head.uuid,
            generation: head.generation.get(),
            sequence: head.sequence.get(),
            flushed: head.flushed.get(),
            log_id: (head.flags.get() >> LOG_ID_SHIFT) as u32,
            is_beside_data: head.flags.get() & BESIDE_DATA != 0,
        };
        Some((id, changes))
    }
}

/// The changes of a record.
pub(super) fn changes_of(mut bytes: &[u8]) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        changes.push(Change::decode(&mut bytes)?);
    }
    Ok(changes)
}
