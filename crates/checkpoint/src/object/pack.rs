//! Bytes become frames and a map of them: granules that an object before has are left out, and the others are packed.

use super::map::{Extent, FRAME, Frame, GRANULE, Hash, Map, Parent};
use crate::compression::{Compress, FAST};
use crc_fast::crc32_iscsi;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io;
use zstd::bulk::Compressor;

/// What is not at least this much shorter afterwards stays as it is: a sixteenth.
const WORTH: usize = 16;

pub(super) fn hash(granule: &[u8]) -> Hash {
    let mut hash = Hash::default();
    for (to, from) in hash.iter_mut().zip(Sha256::digest(granule)) {
        *to = from;
    }
    hash
}

/// Granules of objects that are there already.
#[derive(Debug, Default)]
pub(crate) struct ParentGranules {
    parents: Vec<Parent>,
    hashes: Vec<Vec<Hash>>,
    /// Which object has it, and as its which granule.
    places: HashMap<Hash, (u32, u64)>,
}

impl ParentGranules {
    /// Those of an object, and of the ones that it needs itself, the nearest first.
    pub(crate) fn from_parents(all: impl IntoIterator<Item = (Parent, Map)>) -> Self {
        let mut known = Self::default();
        for (parent, map) in all {
            known.parents.push(parent);
            let of = known.parents.len() as u32;
            for (at, hash) in map.hashes.iter().enumerate() {
                known.places.entry(*hash).or_insert((of, at as u64));
            }
            known.hashes.push(map.hashes);
        }
        known
    }

    pub(super) fn parents(&self) -> &[Parent] {
        &self.parents
    }

    /// Where a granule is. `next`: where it is if it is the one after the last one.
    fn find(&self, hash: &Hash, next: Option<(u32, u64)>) -> Option<(u32, u64)> {
        let is_at = |(of, at): (u32, u64)| {
            let all = self.hashes.get((of as usize).checked_sub(1)?)?;
            (all.get(usize::try_from(at).ok()?)? == hash).then_some((of, at))
        };
        next.and_then(is_at).or_else(|| self.places.get(hash).copied())
    }
}

/// An object's bytes on their way into frames.
pub(super) struct Packer {
    known: ParentGranules,
    compress: Compress,
    zstd: Compressor<'static>,
    map: Map,
    /// Granules of its own that are no frame yet.
    filling: Vec<u8>,
    packed: Vec<u8>,
}

impl Packer {
    /// `id`: the object's.
    pub(super) fn new(compress: Compress, known: ParentGranules, id: [u8; 16]) -> io::Result<Self> {
        let level = if let Compress::Zstd(level) = compress { level } else { FAST };
        let parents = known.parents.clone();
        Ok(Self {
            known,
            compress,
            zstd: Compressor::new(level)?,
            map: Map { id, parents, ..Map::default() },
            filling: Vec::with_capacity(FRAME),
            packed: Vec::new(),
        })
    }

    /// Takes bytes that follow: whole granules, unless they are the last ones. Adds to `frames` what there is to be written. `has_time`: packing
    /// costs no time, for whoever writes has something to do.
    pub(super) fn put(&mut self, bytes: &[u8], has_time: bool, frames: &mut Vec<u8>) -> io::Result<()> {
        self.map.size += bytes.len() as u64;
        let mut last = [0; GRANULE];
        for granule in bytes.chunks(GRANULE) {
            let granule = if granule.len() < GRANULE {
                last.get_mut(..granule.len()).unwrap_or_default().copy_from_slice(granule);
                &last
            } else {
                granule
            };
            let hash = hash(granule);
            if let Some((of, at)) = self.known.find(&hash, self.next()) {
                self.extend(of, at);
                continue;
            }
            self.extend(0, self.map.granules());
            self.map.hashes.push(hash);
            self.filling.extend_from_slice(granule);
            if self.filling.len() == FRAME {
                self.frame(has_time, frames)?;
            }
        }
        Ok(())
    }

    /// Nothing more comes.
    pub(super) fn finish(mut self, has_time: bool, frames: &mut Vec<u8>) -> io::Result<Map> {
        if !self.filling.is_empty() {
            self.frame(has_time, frames)?;
        }
        Ok(self.map)
    }

    /// Where the granule after the last one would be in an object before.
    fn next(&self) -> Option<(u32, u64)> {
        let last = self.map.extents.last().filter(|last| last.of > 0)?;
        Some((last.of, last.from + last.granules))
    }

    fn extend(&mut self, of: u32, from: u64) {
        match self.map.extents.last_mut() {
            Some(last) if last.of == of && last.from + last.granules == from => last.granules += 1,
            _ => self.map.extents.push(Extent { granules: 1, of, from }),
        }
    }

    fn frame(&mut self, has_time: bool, frames: &mut Vec<u8>) -> io::Result<()> {
        let packs = match self.compress {
            Compress::Auto => has_time,
            Compress::None => false,
            Compress::Zstd(_) => true,
        };
        let mut bytes = self.filling.as_slice();
        if packs {
            self.packed.clear();
            self.packed.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
            self.zstd.compress_to_buffer(bytes, &mut self.packed)?;
            if self.packed.len() <= bytes.len() - bytes.len() / WORTH {
                bytes = &self.packed;
            }
        }
        // A frame has at most FRAME bytes.
        self.map.frames.push(Frame { len: bytes.len() as u32, sum: crc32_iscsi(bytes) });
        frames.extend_from_slice(bytes);
        self.filling.clear();
        Ok(())
    }
}
