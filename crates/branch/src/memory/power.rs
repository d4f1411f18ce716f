//! What a loss of power may leave of a disk: a model of a filesystem with a journal of its metadata and ordered data (ext4's
//! default, and no weaker than XFS).
//!
//! - Changes of metadata arrive in their order, up to some moment that is no earlier than what any sync has committed. A full
//!   sync commits everything up to now; one of data only (fdatasync) what it takes to read the data from the inode: everything
//!   up to the last change of the file's size or blocks. A name, a link or an extended attribute that has come after that it
//!   leaves to chance.
//! - A block of data that had its place on the disk arrives by itself: what it holds is one of its states since the file was
//!   last synced.
//! - A block that had none gets it when it is written back (delayed allocation): until then it is a hole, and the file's
//!   size, where only such blocks have made it grow, is what it was.

use super::data::{BLOCK, Block, Data};
use super::disk::State;
use crate::tree::Body;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Whether a block has a place but no data.
const fn reserved(block: Option<&Block>) -> bool {
    matches!(block, Some(Block::Unwritten | Block::Cached))
}

/// Every state of a disk since a moment at which all of it was durable.
pub(super) struct History {
    states: Vec<State>,
    /// In their order.
    syncs: Vec<Sync>,
}

/// A file that was synced.
#[derive(Clone, Copy)]
struct Sync {
    ino: u64,
    /// The number of the state at that time: its data are durable as they were then.
    moment: usize,
    /// The number of the state up to which metadata are.
    committed: usize,
}

/// Whether two contents have the same size, and the same blocks in the same states.
fn same_shape(a: &Data, b: &Data) -> bool {
    a.size == b.size
        && a.blocks.len() == b.blocks.len()
        && a.blocks
            .iter()
            .zip(&b.blocks)
            .all(|((at, a), (bt, b))| at == bt && reserved(Some(a)) == reserved(Some(b)))
}

impl History {
    pub(super) fn new(state: &State) -> Self {
        Self { states: vec![state.clone()], syncs: Vec::new() }
    }

    pub(super) fn note(&mut self, state: &State) {
        if self.states.last().is_none_or(|last| last.ticks != state.ticks) {
            self.states.push(state.clone());
        }
    }

    pub(super) fn synced(&mut self, ino: u64, datasync: bool) {
        let moment = self.now();
        let committed = if datasync { self.shaped(ino, moment) } else { moment };
        self.syncs.push(Sync { ino, moment, committed });
        // A moment of its own: the one before it is without the sync.
        self.states.extend(self.states.last().cloned());
    }

    /// The number of the newest state.
    pub(super) const fn now(&self) -> usize {
        self.states.len() - 1
    }

    /// When a file last got the size and the blocks that it has at some moment.
    fn shaped(&self, ino: u64, moment: usize) -> usize {
        let is_as_before = |at: usize| {
            let before = at.checked_sub(1).and_then(|before| self.file(before, ino));
            before.zip(self.file(at, ino)).is_some_and(|(before, now)| same_shape(before, now))
        };
        let mut at = moment;
        while is_as_before(at) {
            at -= 1;
        }
        at
    }

    fn file(&self, moment: usize, ino: u64) -> Option<&Data> {
        match &self.states.get(moment)?.inodes.get(&ino)?.body {
            Body::Regular(data) => Some(data),
            _ => None,
        }
    }

    /// What may be left by a client that has kept of each file what was changed since it was synced, but for its names and extended
    /// attributes: contents of one moment, and attributes of one.
    pub(super) fn after_client_loss(&self, choose: &mut dyn FnMut(usize) -> usize) -> State {
        let last = self.now();
        let Some(mut state) = self.states.last().cloned() else {
            unreachable!("a history begins with a state")
        };
        let mut files: Vec<u64> =
            state.inodes.keys().copied().filter(|ino| self.file(last, *ino).is_some()).collect();
        files.sort_unstable();
        for ino in files {
            let synced = self.syncs.iter().rev().find(|sync| sync.ino == ino).map_or(0, |sync| sync.moment);
            let first = (synced..=last).find(|at| self.file(*at, ino).is_some()).unwrap_or(last);
            let mut then =
                || self.states.get(first + choose(last - first + 1)).and_then(|s| s.inodes.get(&ino));
            let (Some(contents), Some(attributes)) = (then(), then()) else { continue };
            if let Some(inode) = state.inodes.get_mut(&ino) {
                inode.body = contents.body.clone();
                (inode.mode, inode.uid, inode.gid) = (attributes.mode, attributes.uid, attributes.gid);
                (inode.atime, inode.mtime) = (attributes.atime, attributes.mtime);
            }
        }
        state
    }

    /// What may be left if the power is lost at or after the state numbered `earliest`.
    pub(super) fn after_power_loss(&self, earliest: usize, choose: &mut dyn FnMut(usize) -> usize) -> State {
        let lost = earliest.min(self.now());
        let lost = lost + choose(self.now() - lost + 1);
        // Nothing that came later.
        let before = Self {
            states: self.states.iter().take(lost + 1).cloned().collect(),
            // A sync at the very moment has not come to its end.
            syncs: self.syncs.iter().filter(|sync| sync.moment < lost).copied().collect(),
        };
        before.survivors(choose)
    }

    fn survivors(&self, choose: &mut dyn FnMut(usize) -> usize) -> State {
        let last = self.now();
        let first = self.syncs.iter().map(|sync| sync.committed).max().unwrap_or(0);
        let moment = first + choose(last - first + 1);
        let mut state = self.states.get(moment).or(self.states.last()).cloned().unwrap_or_else(|| {
            unreachable!("a history begins with a state");
        });
        let mut files: Vec<u64> = state
            .inodes
            .iter()
            .filter(|(_, inode)| matches!(inode.body, Body::Regular(_)))
            .map(|(ino, _)| *ino)
            .collect();
        files.sort_unstable();
        for ino in files {
            let data = self.survivor(ino, moment, choose);
            if let Some(inode) = state.inodes.get_mut(&ino) {
                inode.body = Body::Regular(data);
            }
        }
        state
    }

    /// What is left of a file's data, if the metadata are those of `moment`.
    fn survivor(&self, ino: u64, moment: usize, choose: &mut dyn FnMut(usize) -> usize) -> Data {
        let synced = self.syncs.iter().rev().find(|sync| sync.ino == ino).map_or(0, |sync| sync.moment);
        // With data that were synced after these metadata: the file has had this size and these blocks ever since.
        let moment = moment.max(synced);
        // A file that was made since then was empty at first.
        let from = (synced..=moment).find(|at| self.file(*at, ino).is_some()).unwrap_or(moment);
        let nothing = Data::default();
        let known = if from == synced { self.file(from, ino).unwrap_or(&nothing) } else { &nothing };
        let now = self.file(moment, ino).unwrap_or(&nothing);
        let (mut size, cuts) = self.sizes(ino, from, moment, known.size);
        let mut out = Data::default();
        let blocks: BTreeSet<u64> = now.blocks.keys().copied().collect();
        for number in blocks {
            let held = known.blocks.contains_key(&number);
            let versions = self.versions(ino, number, from, moment, held, &cuts);
            let Some(choice) = versions.get(choose(versions.len())) else { continue };
            if let Some((at, block)) = choice {
                out.blocks.insert(number, block.clone());
                if matches!(block, Block::Data(_)) && *at > from {
                    let then = self.file(*at, ino).map_or(0, |data| data.size);
                    size = size.max(((number + 1) * BLOCK).min(then).min(now.size));
                }
            }
        }
        out.size = size.min(now.size);
        drop(out.blocks.split_off(&now.size.div_ceil(BLOCK).max(out.size.div_ceil(BLOCK))));
        let end = out.size.next_multiple_of(BLOCK);
        out.zero_within(out.size, end);
        // Data never lie beyond the end; what was reserved there may.
        out.blocks.retain(|number, block| number * BLOCK < out.size || reserved(Some(block)));
        out.forget_cache();
        out
    }

    /// The size without what only data have made grow, and when the file was made shorter, to what.
    fn sizes(&self, ino: u64, from: usize, moment: usize, known: u64) -> (u64, Vec<(usize, u64)>) {
        let (mut size, mut cuts) = (known, Vec::new());
        for at in from + 1..=moment {
            let (Some(before), Some(after)) = (self.file(at - 1, ino), self.file(at, ino)) else { continue };
            if after.size < before.size {
                size = after.size;
                cuts.push((at, after.size));
            } else if after.size > before.size {
                let end = (after.size - 1) / BLOCK;
                let written = match (before.blocks.get(&end), after.blocks.get(&end)) {
                    (Some(Block::Data(a)), Some(Block::Data(b))) => !Arc::ptr_eq(a, b),
                    (_, Some(Block::Data(_))) => true,
                    _ => false,
                };
                if !written {
                    size = after.size;
                }
            }
        }
        (size, cuts)
    }

    /// What may be found in a block that the metadata of `moment` show; None: a hole.
    fn versions(
        &self,
        ino: u64,
        number: u64,
        from: usize,
        moment: usize,
        held: bool,
        cuts: &[(usize, u64)],
    ) -> Vec<Option<(usize, Block)>> {
        let block_at = |at: usize| self.file(at, ino).and_then(|data| data.blocks.get(&number));
        // Since when it has been there without a gap.
        let mut since = moment;
        while since > from && block_at(since - 1).is_some() {
            since -= 1;
        }
        let mut had_place = since == from && held;
        // A reservation is metadata, and so is that a file was cut within this block.
        let reserves = |at: usize| {
            at > from && reserved(block_at(at)) && !reserved(at.checked_sub(1).and_then(block_at))
        };
        if let Some(at) = (since..=moment).rev().find(|at| reserves(*at)) {
            since = at;
            had_place = true;
        }
        for (at, size) in cuts {
            if *at >= since && size / BLOCK == number {
                since = *at;
            }
        }
        // Into its place a block may also be written later than that; without one it has none in these metadata.
        let mut until = moment;
        if had_place {
            while matches!(block_at(until + 1), Some(Block::Data(_))) {
                until += 1;
            }
        }
        let mut versions: Vec<Option<(usize, Block)>> = Vec::new();
        if !had_place {
            versions.push(None);
        }
        for at in since..=until {
            let Some(block) = block_at(at) else { continue };
            let same = match (versions.last(), block) {
                (Some(Some((_, Block::Data(a)))), Block::Data(b)) => Arc::ptr_eq(a, b),
                (Some(Some((_, old))), new) => reserved(Some(old)) && reserved(Some(new)),
                _ => false,
            };
            if !same {
                versions.push(Some((at, block.clone())));
            }
        }
        versions
    }
}
