//! What the changes come to: objects, names, and what is live in which zone. In memory only; the same changes, in the same order, give the same.

use super::change::{Change, Class, DeviceExtent, EXTENT_BLOCKS_MAX, LOST, SIZE_MAX, check_name};
use super::error::{Error, Result};
use super::node::{FIRST_OBJECT, ROOT_NODE};
use super::tree_state::TreeState;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of an object that lie side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Where.
    pub(super) place: DeviceExtent,
    /// CRC-32C of each block.
    pub(super) sums: Box<[u32]>,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    /// What it is.
    pub(super) class: Class,
    /// Its size in bytes.
    pub(super) size: u64,
    /// How many names it has.
    pub(super) names: u32,
    /// Its blocks, by their number in the object. What is not there is zeros.
    pub(super) extents: BTreeMap<u64, Extent>,
}

/// Blocks of a zone that an object has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveBlocks {
    /// The object.
    pub(super) object: u64,
    /// The first block, in the object.
    pub(super) at: u64,
    /// How many.
    pub(super) count: u32,
}

/// What a zone holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ZoneUse {
    /// By the first block of each.
    pub(super) live: BTreeMap<u32, LiveBlocks>,
    /// Blocks that are live.
    pub(super) live_blocks: u64,
    /// How often it was reset.
    pub(super) resets: u32,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    capacities: Vec<u64>,
    /// Bytes of a block.
    block_size: u64,
    /// By their numbers.
    pub(super) objects: BTreeMap<u64, Object>,
    /// The objects' names.
    pub(super) names: BTreeMap<Vec<u8>, u64>,
    /// The tree of files. The contents of a file are an object without a name, of the same number.
    pub(super) tree: TreeState,
    /// By the zone's number.
    pub(super) zones: Vec<ZoneUse>,
    /// Zones in which nothing lives any more, since somebody asked.
    emptied: BTreeSet<u32>,
    /// The number of the next object.
    pub(super) next_object: u64,
    extents: u64,
    blocks: u64,
    name_bytes: u64,
    worn_zones: u64,
}

impl State {
    /// Nothing, on zones of these capacities, in blocks of this size.
    #[must_use]
    pub(super) fn new(capacities: Vec<u64>, block_size: u32) -> Self {
        let zones = vec![ZoneUse::default(); capacities.len()];
        Self {
            capacities,
            block_size: u64::from(block_size.max(1)),
            objects: BTreeMap::new(),
            names: BTreeMap::new(),
            tree: TreeState::default(),
            zones,
            emptied: BTreeSet::new(),
            next_object: FIRST_OBJECT,
            extents: 0,
            blocks: 0,
            name_bytes: 0,
            worn_zones: 0,
        }
    }

    /// Zones in which nothing lived any more at some time since this was asked last.
    pub(super) fn take_emptied(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.emptied)
    }

    /// About how many bytes [`changes`](Self::changes) have on the device; never less.
    #[must_use]
    pub(super) fn encoded_len(&self) -> u64 {
        self.extents * 36
            + self.blocks * 4
            + self.objects.len() as u64 * 13
            + self.name_bytes
            + self.worn_zones * 12
            + self.tree.encoded_len()
    }

    /// The object of a name.
    pub(super) fn object(&self, name: &[u8]) -> Result<(u64, &Object)> {
        let number = self.names.get(name).ok_or(Error::NotFound)?;
        Ok((*number, self.objects.get(number).ok_or(Error::NotFound)?))
    }

    /// Makes a change. One that cannot be is refused, and nothing is changed then; of a group, what comes before it is.
    pub(super) fn apply(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::Create { object, class } => {
                let is_taken = self.objects.contains_key(object) || self.tree.nodes.contains_key(object);
                if is_taken || *object == u64::MAX || *object == ROOT_NODE {
                    return Error::damaged(format!("object {object} is made twice"));
                }
                let new = Object { class: *class, size: 0, names: 0, extents: BTreeMap::new() };
                self.objects.insert(*object, new);
                self.next_object = self.next_object.max(*object + 1);
            }
            Change::Map { object, at, place, size, sums } => self.map(*object, *at, *place, *size, sums)?,
            Change::Link { object, name } => {
                check_name(name)?;
                self.get_object(*object)?;
                if self.tree.nodes.contains_key(object) {
                    return Error::damaged(format!("object {object} is of the tree, and gets a name"));
                }
                self.link(*object, name);
            }
            Change::Unlink { name } => {
                self.unlink(name).ok_or(Error::NotFound)?;
            }
            Change::Rename { from, to } => {
                check_name(to)?;
                let object = *self.names.get(from).ok_or(Error::NotFound)?;
                if from != to {
                    self.link(object, to);
                    self.unlink(from);
                }
            }
            Change::Drop { object } => {
                if self.tree.nodes.contains_key(object) {
                    self.tree.drop_node(*object)?;
                } else if self.get_object(*object)?.names > 0 {
                    return Error::damaged(format!("object {object} is dropped, but has a name"));
                }
                self.remove(*object);
            }
            Change::Node { node, is } => {
                let has_object =
                    self.objects.get(node).map(|object| object.names == 0 && object.class == Class::Normal);
                if *node == u64::MAX || has_object != is.is_regular().then_some(true) {
                    return Error::damaged(format!("node {node} has no contents of its kind"));
                }
                self.tree.set_node(*node, *is)?;
                self.next_object = self.next_object.max(*node + 1);
            }
            Change::Xattrs { .. } | Change::Target { .. } | Change::Enter { .. } | Change::Leave { .. } => {
                self.tree.apply(change)?;
            }
            Change::Size { object, size } => {
                if *size > SIZE_MAX {
                    return Err(Error::TooLarge);
                }
                self.get_object(*object)?;
                self.remove_blocks_from(*object, size.div_ceil(self.block_size));
                if let Some(object) = self.objects.get_mut(object) {
                    object.size = *size;
                }
            }
            Change::Punch { object, at, count } => {
                self.get_object(*object)?;
                if *at > SIZE_MAX || *count > SIZE_MAX {
                    return Err(Error::TooLarge);
                }
                self.remove_blocks(*object, *at, *count);
            }
            Change::Group(changes) => changes.iter().try_for_each(|change| self.apply(change))?,
            Change::Wear { zone, resets } => {
                let zone = self.zones.get_mut(*zone as usize).ok_or_else(|| no_zone(*zone))?;
                self.worn_zones += u64::from(zone.resets == 0 && *resets > 0);
                zone.resets = *resets;
            }
            Change::Next { .. } => return Error::damaged("the log goes on in the middle of a record"),
        }
        Ok(())
    }

    /// Whether another one has the same objects and names, at the same places. How often zones were reset does not count.
    #[must_use]
    pub(super) fn is_as(&self, other: &Self) -> bool {
        let lives = |state: &Self| state.zones.iter().map(|zone| zone.live.clone()).collect::<Vec<_>>();
        self.objects == other.objects
            && self.names == other.names
            && self.tree == other.tree
            && lives(self) == lives(other)
    }

    /// Removes the objects that have no name, and the nodes that have no links.
    pub(super) fn drop_nameless(&mut self) {
        self.tree.drop_unlinked();
        let is_of_none =
            |(number, object): &(&u64, &Object)| object.names == 0 && !self.tree.nodes.contains_key(*number);
        let nameless: Vec<u64> = self.objects.iter().filter(is_of_none).map(|(number, _)| *number).collect();
        nameless.into_iter().for_each(|object| self.remove(object));
    }

    /// The changes that make this from nothing.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        let worn = self.zones.iter().enumerate().filter(|(_, zone)| zone.resets > 0);
        let wear = worn.map(|(zone, used)| Change::Wear { zone: zone as u32, resets: used.resets });
        let objects = self.objects.iter().flat_map(|(number, object)| {
            let create = Change::Create { object: *number, class: object.class };
            let maps = object.extents.iter().map(|(at, extent)| Change::Map {
                object: *number,
                at: *at,
                place: extent.place,
                size: object.size,
                sums: extent.sums.to_vec(),
            });
            // The size that no extent says.
            let is_hole = object.extents.is_empty() && object.size > 0;
            let size = is_hole.then_some(Change::Size { object: *number, size: object.size });
            std::iter::once(create).chain(size).chain(maps)
        });
        let names =
            self.names.iter().map(|(name, object)| Change::Link { object: *object, name: name.clone() });
        wear.chain(objects).chain(names).chain(self.tree.changes())
    }

    fn get_object(&self, object: u64) -> Result<&Object> {
        self.objects.get(&object).ok_or_else(|| Error::Damaged(format!("there is no object {object}")))
    }

    fn map(&mut self, object: u64, at: u64, place: DeviceExtent, size: u64, sums: &[u32]) -> Result<()> {
        self.get_object(object)?;
        let count = sums.len() as u64;
        let start = u64::from(place.block);
        let bad = |what: &str| Error::damaged(format!("object {object}, block {at}: {what}"));
        if sums.is_empty() || sums.len() > EXTENT_BLOCKS_MAX || at > SIZE_MAX || size > SIZE_MAX {
            return bad("an extent that cannot be");
        }
        // Of blocks that are lost the numbers say nothing, but parts of such an extent are counted on from its first.
        let capacity = match place.zone {
            LOST => u64::from(u32::MAX),
            zone => *self.capacities.get(zone as usize).ok_or_else(|| no_zone(zone))?,
        };
        if start + count > capacity {
            return bad("an extent beyond its zone");
        }
        if place.zone != LOST {
            let live = &self.zones[place.zone as usize].live;
            let before = live.range(..(start + count) as u32).next_back();
            if before.is_some_and(|(block, live)| u64::from(*block) + u64::from(live.count) > start) {
                return bad("blocks that are in use already");
            }
        }
        self.remove_blocks(object, at, count);
        self.add_extent(object, at, Extent { place, sums: sums.into() });
        if let Some(object) = self.objects.get_mut(&object) {
            object.size = size;
        }
        Ok(())
    }

    /// Takes all blocks from `at` on from an object.
    fn remove_blocks_from(&mut self, object: u64, at: u64) {
        let last = self.objects.get(&object).and_then(|object| object.extents.last_key_value());
        if let Some(end) = last.map(|(start, extent)| start + extent.sums.len() as u64)
            && end > at
        {
            self.remove_blocks(object, at, end - at);
        }
    }

    /// Takes blocks from an object; what is left of extents at both ends stays.
    fn remove_blocks(&mut self, object: u64, at: u64, count: u64) {
        let end = at + count;
        let first = at.saturating_sub(EXTENT_BLOCKS_MAX as u64);
        let Some(known) = self.objects.get(&object) else { return };
        let hit: Vec<u64> = known
            .extents
            .range(first..end)
            .filter(|(start, extent)| **start + extent.sums.len() as u64 > at)
            .map(|(start, _)| *start)
            .collect();
        for start in hit {
            let Some(extent) = self.remove_extent(object, start) else { continue };
            let stop = start + extent.sums.len() as u64;
            let part = |from: u64, to: u64| Extent {
                place: DeviceExtent {
                    zone: extent.place.zone,
                    block: extent.place.block + (from - start) as u32,
                },
                sums: extent.sums[(from - start) as usize..(to - start) as usize].into(),
            };
            if start < at {
                self.add_extent(object, start, part(start, at));
            }
            if stop > end {
                self.add_extent(object, end, part(end, stop));
            }
        }
    }

    fn add_extent(&mut self, object: u64, at: u64, extent: Extent) {
        let count = extent.sums.len() as u32;
        self.extents += 1;
        self.blocks += u64::from(count);
        if let Some(zone) = self.zones.get_mut(extent.place.zone as usize) {
            zone.live.insert(extent.place.block, LiveBlocks { object, at, count });
            zone.live_blocks += u64::from(count);
        }
        if let Some(object) = self.objects.get_mut(&object) {
            object.extents.insert(at, extent);
        }
    }

    fn remove_extent(&mut self, object: u64, at: u64) -> Option<Extent> {
        let extent = self.objects.get_mut(&object)?.extents.remove(&at)?;
        let count = extent.sums.len() as u64;
        self.extents -= 1;
        self.blocks -= count;
        if let Some(zone) = self.zones.get_mut(extent.place.zone as usize) {
            zone.live.remove(&extent.place.block);
            zone.live_blocks -= count;
            if zone.live_blocks == 0 {
                self.emptied.insert(extent.place.zone);
            }
        }
        Some(extent)
    }

    fn link(&mut self, object: u64, name: &[u8]) {
        if self.names.get(name) == Some(&object) {
            return;
        }
        if let Some(known) = self.objects.get_mut(&object) {
            known.names += 1;
        }
        self.unlink(name);
        self.names.insert(name.to_vec(), object);
        self.name_bytes += 12 + name.len() as u64;
    }

    fn unlink(&mut self, name: &[u8]) -> Option<u64> {
        let object = self.names.remove(name)?;
        self.name_bytes -= 12 + name.len() as u64;
        let known = self.objects.get_mut(&object)?;
        known.names -= 1;
        if known.names == 0 {
            self.remove(object);
        }
        Some(object)
    }

    fn remove(&mut self, object: u64) {
        let Some(known) = self.objects.get(&object) else { return };
        let starts: Vec<u64> = known.extents.keys().copied().collect();
        for start in starts {
            self.remove_extent(object, start);
        }
        self.objects.remove(&object);
    }
}

fn no_zone(zone: u32) -> Error {
    Error::Damaged(format!("there is no zone {zone}"))
}
