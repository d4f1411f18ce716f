//! Reading what was put into an object, at any place of it: from its own frames, and from those of the objects that it needs.

use super::map::{Extent, FRAME, Frame, GRANULE, Map};
use super::storage::ByteSource;
use crc_fast::crc32_iscsi;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use zstd::bulk::Decompressor;

/// Frames that are kept unpacked, of each object: what is read next is mostly in one of them.
const CACHED: usize = 16;

/// What was put into an object.
#[derive(Debug)]
pub(crate) struct ObjectBytes {
    /// None: bytes are in the object as they were put, as version 1 has it.
    extents: Option<Vec<(u64, Extent)>>,
    size: u64,
    /// The object, and those that it needs, the nearest first.
    parts: Vec<Part>,
}

/// One object's own granules.
#[derive(Debug)]
struct Part {
    stored: Box<dyn ByteSource>,
    /// Where each frame is, and how many bytes it unpacks to.
    frames: Vec<(u64, Frame, usize)>,
    granules: u64,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    frames: VecDeque<(usize, Arc<Vec<u8>>)>,
    zstd: Vec<Decompressor<'static>>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("frames", &self.frames.len()).finish_non_exhaustive()
    }
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Part {
    fn new(stored: Box<dyn ByteSource>, map: &Map) -> Self {
        let mut at = 0;
        let place = |(number, frame): (usize, &Frame)| {
            let from = at;
            at += u64::from(frame.len);
            (from, *frame, map.unpacked_len(number))
        };
        let frames = map.frames.iter().enumerate().map(place).collect();
        Self { stored, frames, granules: map.granules(), cache: Mutex::default() }
    }

    /// A frame's granules.
    fn frame(&self, number: usize) -> io::Result<Arc<Vec<u8>>> {
        let mut cache = self.cache.lock();
        if let Some((_, frame)) = cache.frames.iter().find(|(one, _)| *one == number) {
            return Ok(Arc::clone(frame));
        }
        let zstd = cache.zstd.pop();
        drop(cache);
        let &(at, frame, whole) = self.frames.get(number).ok_or_else(|| damaged("no such frame"))?;
        let mut bytes = vec![0; frame.len as usize];
        self.stored.read_exact(at, &mut bytes)?;
        if crc32_iscsi(&bytes) != frame.sum {
            return Err(damaged("a frame is not what was written"));
        }
        let mut used = None;
        if bytes.len() < whole {
            let mut zstd = zstd.map_or_else(Decompressor::new, Ok)?;
            // Never more than there is to be, whatever the frame says of itself.
            let mut unpacked = Vec::with_capacity(whole);
            let len = zstd.decompress_to_buffer(&bytes, &mut unpacked);
            if !len.is_ok_and(|len| len == whole) {
                return Err(damaged("a frame does not unpack to as much as it has to"));
            }
            bytes = unpacked;
            used = Some(zstd);
        }
        let frame = Arc::new(bytes);
        let mut cache = self.cache.lock();
        cache.zstd.extend(used);
        if cache.frames.len() >= CACHED {
            cache.frames.pop_front();
        }
        cache.frames.push_back((number, Arc::clone(&frame)));
        Ok(frame)
    }

    /// Fills `into` with its own bytes from `at` on.
    fn read(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            let frame = self.frame(usize::try_from(at / FRAME as u64).unwrap_or(usize::MAX))?;
            let rest = frame.get((at % FRAME as u64) as usize..).unwrap_or_default();
            let len = rest.len().min(into.len());
            if len == 0 {
                return Err(damaged("an object is shorter than another one says"));
            }
            let (now, later) = into.split_at_mut(len);
            now.copy_from_slice(rest.get(..len).unwrap_or_default());
            (into, at) = (later, at + len as u64);
        }
        Ok(())
    }
}

impl ObjectBytes {
    /// An object whose bytes are as they were put, up to `size`.
    pub(super) fn plain(stored: Box<dyn ByteSource>, size: u64) -> Self {
        let part = Part { stored, frames: Vec::new(), granules: 0, cache: Mutex::default() };
        Self { extents: None, size, parts: vec![part] }
    }

    /// An object and those that it needs, in the order of its map. None: one of them is too short for it.
    pub(super) fn new(
        own: (Box<dyn ByteSource>, &Map),
        parents: Vec<(Box<dyn ByteSource>, Map)>,
    ) -> Option<Self> {
        let mut at = 0;
        let place = |extent: &Extent| {
            let from = at;
            at += extent.granules;
            (from, *extent)
        };
        let extents: Vec<(u64, Extent)> = own.1.extents.iter().map(place).collect();
        let size = own.1.size;
        let mut parts = vec![Part::new(own.0, own.1)];
        parts.extend(parents.into_iter().map(|(stored, map)| Part::new(stored, &map)));
        let fits = |(_, extent): &(u64, Extent)| {
            let part = parts.get(extent.of as usize);
            part.is_some_and(|part| {
                extent.from.checked_add(extent.granules).is_some_and(|end| end <= part.granules)
            })
        };
        extents.iter().all(fits).then_some(Self { extents: Some(extents), size, parts })
    }

    /// Bytes that were put.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Fills `into` with what was put from `at` on. Fewer bytes are an error.
    pub(super) fn read_exact(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<()> {
        let (Some(first), true) =
            (self.parts.first(), at.checked_add(into.len() as u64).is_some_and(|end| end <= self.size))
        else {
            return Err(damaged("an object is shorter than it says"));
        };
        let Some(extents) = &self.extents else { return first.stored.read_exact(at, into) };
        while !into.is_empty() {
            let granule = at / GRANULE as u64;
            let found = extents.partition_point(|(from, _)| *from <= granule).checked_sub(1);
            let (from, extent) =
                found.and_then(|found| extents.get(found)).ok_or_else(|| damaged("no such granule"))?;
            let part = self.parts.get(extent.of as usize).ok_or_else(|| damaged("no such object"))?;
            let inside = at - from * GRANULE as u64;
            let left = (extent.granules * GRANULE as u64).saturating_sub(inside);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
            if len == 0 {
                return Err(damaged("no such granule"));
            }
            let (now, later) = into.split_at_mut(len);
            part.read(extent.from * GRANULE as u64 + inside, now)?;
            (into, at) = (later, at + len as u64);
        }
        Ok(())
    }
}
