//! The tree of files beside the named objects, as its users see it: nodes and names by changes in groups, contents by blocks.
//!
//! Who uses it keeps the tree in memory as well, and hands the changes over in their order. The store keeps what it needs to write them
//! down, and does not judge more of them than that what they speak of is there.

use super::blocks;
use super::change::{Change, Class, EXTENT_BLOCKS_MAX, GROUP_MAX, SIZE_MAX};
use super::core::{Core, Lane};
use super::error::{Error, Result};
use super::gc::LEAST_GAIN;
use super::named_objects::Store;
use super::node::{Node, NodeTime, ROOT_NODE, Xattrs};
use super::zones::Role;
use std::collections::BTreeMap;

/// Part of a device that metadata take where every 4 KiB lie by themselves: 40 bytes of them are in a checkpoint, in as much log, each twice, and
/// kept back for the next checkpoint, twice and with room for what does not fit: 320 for each 4,416.
const METADATA_MOST: (u64, u64) = (5, 69);

/// A change of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeChange {
    /// The contents of a regular file that is about to be made, empty. Its node follows in the same group.
    Contents(u64),
    /// A node is this now.
    Node(u64, Node),
    /// All extended attributes of a node.
    Xattrs(u64, Xattrs),
    /// The target of a symbolic link.
    Target(u64, Vec<u8>),
    /// A name in a directory leads to a node.
    Enter {
        /// The directory.
        dir: u64,
        /// The name.
        name: Vec<u8>,
        /// What it leads to.
        node: u64,
    },
    /// A name in a directory is gone.
    Leave {
        /// The directory.
        dir: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// A node that no name leads to is gone, with its contents.
    Drop(u64),
}

/// The contents of a file, as the store knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileShape {
    /// In bytes.
    pub size: u64,
    /// Where its blocks are, in blocks of the file: the first one, and how many. What no block covers is zeros.
    pub extents: Vec<(u64, u64)>,
}

/// All of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeDump {
    /// All nodes by their numbers, the root among them.
    pub nodes: BTreeMap<u64, Node>,
    /// Extended attributes.
    pub xattrs: BTreeMap<u64, Xattrs>,
    /// Where symbolic links lead.
    pub targets: BTreeMap<u64, Vec<u8>>,
    /// Names in directories.
    pub entries: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
    /// Contents of regular files.
    pub files: BTreeMap<u64, FileShape>,
}

impl From<TreeChange> for Change {
    fn from(change: TreeChange) -> Self {
        match change {
            TreeChange::Contents(object) => Self::Create { object, class: Class::Normal },
            TreeChange::Node(node, is) => Self::Node { node, is },
            TreeChange::Xattrs(node, xattrs) => Self::Xattrs { node, xattrs },
            TreeChange::Target(node, target) => Self::Target { node, target },
            TreeChange::Enter { dir, name, node } => Self::Enter { dir, node, name },
            TreeChange::Leave { dir, name } => Self::Leave { dir, name },
            TreeChange::Drop(object) => Self::Drop { object },
        }
    }
}

impl Store {
    /// The tree. A store without one gets a root directory with mode 0755 of `owner` (user, group), made `now`. An error: what is there makes no
    /// tree.
    pub fn tree(&self, owner: (u32, u32), now: NodeTime) -> Result<TreeDump> {
        let mut core = self.shared().core.lock();
        if core.state.tree.nodes.is_empty() {
            core.check_writable()?;
            core.make_room()?;
            let root = Node {
                mode: 0o040_755,
                uid: owner.0,
                gid: owner.1,
                nlink: 2,
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
                rdev: 0,
            };
            core.change(Change::Node { node: ROOT_NODE, is: root })?;
        }
        if let Some(problem) = core.state.tree.problems().into_iter().next() {
            return Err(Error::Damaged(problem));
        }
        let tree = &core.state.tree;
        let files = tree.nodes.keys().filter_map(|node| Some((*node, shape(&core, *node)?)));
        Ok(TreeDump {
            files: files.collect(),
            nodes: tree.nodes.clone(),
            xattrs: tree.xattrs.clone(),
            targets: tree.targets.clone(),
            entries: tree.entries.clone(),
        })
    }

    /// Numbers for new nodes, that nothing had before: the first one, `count` of them.
    #[must_use]
    pub fn new_numbers(&self, count: u64) -> u64 {
        let mut core = self.shared().core.lock();
        let first = core.state.next_object;
        core.state.next_object = first.saturating_add(count);
        first
    }

    /// READ_ONLY where nothing can be changed.
    pub fn check_writable(&self) -> Result<()> {
        self.shared().core.lock().check_writable()
    }

    /// NO_SPACE where nothing more should be made; READ_ONLY where nothing can be changed at all.
    pub fn check_room(&self) -> Result<()> {
        let mut core = self.shared().core.lock();
        core.check_writable()?;
        core.make_room()
    }

    /// Makes changes of the tree, all or none of them. Possible on a full device, too. After an error, which means that they do not fit the
    /// tree that is there, the store is read-only.
    pub fn change_tree(&self, changes: Vec<TreeChange>) -> Result<()> {
        let group = Change::Group(changes.into_iter().map(Change::from).collect());
        let mut core = self.shared().core.lock();
        core.check_writable()?;
        if group.encoded_len() > GROUP_MAX {
            return Err(Error::TooLarge);
        }
        if let Err(error) = core.change(group) {
            core.refuse_changes(&format!("a change of the tree went wrong: {error}"));
            return Err(error);
        }
        if core.is_full_of_changes() { core.commit() } else { Ok(()) }
    }

    /// Writes whole blocks of a file from block `at` on, which has `size` bytes then. Those that were written before an error are there: how
    /// many blocks, and the error.
    pub fn write_blocks(&self, node: u64, at: u64, data: &[u8], size: u64) -> (u64, Result<()>) {
        let mut core = self.shared().core.lock();
        let mut done = 0;
        let result = core.write_blocks(node, at, data, size, &mut done);
        (done, result)
    }

    /// Reads whole blocks of a file from block `at` on; zeros where it has none, beyond its end too.
    pub fn read_blocks(&self, node: u64, at: u64, into: &mut [u8]) -> Result<()> {
        self.shared().read_blocks(node, at, into)
    }

    /// Sets the size of a file in bytes. Blocks beyond it are gone; what the last one holds beyond it stays.
    pub fn set_size(&self, node: u64, size: u64) -> Result<()> {
        self.change_contents(Change::Size { object: node, size })
    }

    /// Takes blocks from a file, which are zeros then.
    pub fn punch(&self, node: u64, at: u64, count: u64) -> Result<()> {
        self.change_contents(Change::Punch { object: node, at, count })
    }

    fn change_contents(&self, change: Change) -> Result<()> {
        let mut core = self.shared().core.lock();
        core.check_writable()?;
        core.change(change)?;
        if core.is_full_of_changes() { core.commit() } else { Ok(()) }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.shared().device.geometry().block_size
    }

    /// Blocks for data: in all, and about how many can still be written, if what is dead is collected.
    ///
    /// What metadata come to when every 4 KiB lie by themselves is left out, so that the first number does not change as data are overwritten.
    /// So is one block in sixteen: a zone is collected only if it gives back that much, and with less room to spare each block that is
    /// overwritten at random would be moved many times.
    #[must_use]
    pub fn space(&self) -> (u64, u64) {
        self.shared().core.lock().space()
    }

    /// Promises room for blocks that are to be written later: for `waiting` that were counted before, and for more, `most` of them at the most. How
    /// many more: no image takes the room for them, until less is promised.
    #[must_use]
    pub fn reserve_blocks(&self, waiting: u64, most: u64) -> u64 {
        let mut core = self.shared().core.lock();
        let room = core.space().1.saturating_sub(waiting).min(most);
        core.promised_blocks = waiting + room;
        room
    }
}

/// The contents of a file; None: it is none.
fn shape(core: &Core, node: u64) -> Option<FileShape> {
    let object = core.state.objects.get(&node)?;
    let mut extents: Vec<(u64, u64)> = Vec::new();
    for (at, extent) in &object.extents {
        let count = extent.sums.len() as u64;
        match extents.last_mut() {
            Some((first, so_far)) if *first + *so_far == *at => *so_far += count,
            _ => extents.push((*at, count)),
        }
    }
    Some(FileShape { size: object.size, extents })
}

impl Core {
    /// As [`Store::space`].
    fn space(&self) -> (u64, u64) {
        let (mut all, mut left, mut live_blocks, mut metadata) = (0_u64, 0_u64, 0_u64, 0_u64);
        for (zone, info) in self.zones.all.iter().enumerate() {
            let live = self.state.zones.get(zone).map_or(0, |used| used.live_blocks);
            live_blocks += live;
            match info.role {
                Role::Root | Role::Dead => continue,
                _ if !info.is_usable => continue,
                Role::Log => metadata += info.capacity,
                Role::Free => left += info.capacity,
                Role::Lane => left += info.capacity - info.pointer,
                Role::Owned => {}
                // With a little left behind in each that is not worth collecting.
                Role::Data => {
                    left +=
                        (info.capacity - live.min(info.capacity)).saturating_sub(info.capacity.div_ceil(8));
                }
            }
            all += info.capacity;
        }
        let capacity = self.zones.all.iter().map(|info| info.capacity).max().unwrap_or(0);
        let kept = self.reserve() * capacity;
        let (part, of) = METADATA_MOST;
        let all = all - (metadata + kept).max(all / of * part).min(all);
        let all = all - all / LEAST_GAIN;
        (all, left.saturating_sub(kept + capacity).min(all.saturating_sub(live_blocks)))
    }

    /// Refuses with NO_SPACE when an image would take the room that was promised to blocks which wait.
    pub(super) fn check_reservation(&self) -> Result<()> {
        let zone = self.zones.all.iter().map(|info| info.capacity).max().unwrap_or(0);
        let is_kept = self.promised_blocks == 0 || self.space().1 >= self.promised_blocks + zone;
        if is_kept { Ok(()) } else { Err(Error::NoSpace) }
    }

    fn write_blocks(&mut self, node: u64, at: u64, data: &[u8], size: u64, done: &mut u64) -> Result<()> {
        let block = self.root.block_size as usize;
        self.check_writable()?;
        if !self.state.objects.contains_key(&node) {
            return Err(Error::NotFound);
        }
        if size > SIZE_MAX || at + (data.len() / block) as u64 > SIZE_MAX / block as u64 {
            return Err(Error::TooLarge);
        }
        let mut left = data;
        while !left.is_empty() {
            let most = left.len().min(EXTENT_BLOCKS_MAX * block);
            let (place, count) = self.write_to_lane(Lane::Normal, &left[..most])?;
            let (written, rest) = left.split_at(count * block);
            let sums = blocks::sums(written, block as u32);
            // What is not written yet has not made it longer.
            let known = self.state.objects.get(&node).map_or(0, |object| object.size);
            let end = (at + *done + count as u64) * block as u64;
            let size = if rest.is_empty() { size } else { known.max(end.min(size)) };
            self.change(Change::Map { object: node, at: at + *done, place, size, sums })?;
            *done += count as u64;
            left = rest;
        }
        if self.is_full_of_changes() { self.commit() } else { Ok(()) }
    }
}
