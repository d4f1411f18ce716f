//! A checkpoint as one object: frames of bytes as they came, what they are, the record, and where all this is.
//!
//! ```text
//! ┌─────────────────────────────────────────────────┬───────┬─────┬────────┬──────┐
//! │ frames: images and files of the layer, in pieces │ index │ map │ record │ foot │
//! └─────────────────────────────────────────────────┴───────┴─────┴────────┴──────┘
//! ```
//!
//! The index says which bytes are of which file, the map in which frames they are, or in which other object. Version 1 has no map and no
//! checksums: its bytes are as they were put; it is read.
//!
//! Whoever keeps the object gives it its name when all of it is there, so there is no half of one to recognise. What is read may have been put
//! there by anybody: lengths and places are checked before they are used.

use super::layer::Item;
use super::map::Map;
use super::parse_budget;
use super::storage::{ByteSource, MemorySource};
use super::unpack::ObjectBytes;
use crate::record::{RECORD_MAX, Record};
use crc_fast::crc32_iscsi;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vellum_service::Failure;

/// What it ends with.
const MAGIC: &[u8; 8] = b"vlmckpt2";
/// Bytes of the foot: the index's place, lengths of index, map and record, their checksums, its own, and the magic.
const FOOT: usize = 8 + 3 * 8 + 3 * 4 + 4 + 8;
/// Of version 1: places and lengths of index and record, and the magic.
const MAGIC_1: &[u8; 8] = b"vlmckpt1";
const FOOT_1: usize = 40;
/// The largest index that is read, in bytes, and what it may become in memory: a layer of some millions of objects.
const INDEX_MAX: u64 = 1 << 30;
const MEMORY_MAX: usize = 2 << 30;
/// No index of so few bytes, and no map, becomes more.
const SMALL: usize = MEMORY_MAX >> 6;

/// Bytes of a file that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// Where they are in the file.
    pub(crate) at: u64,
    /// Where they are among those that were put.
    pub(crate) from: u64,
    pub(crate) len: u64,
}

/// What a file holds. What no piece covers is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contents {
    pub(crate) size: u64,
    /// In order, and not on each other.
    #[serde(deserialize_with = "parse_budget::list")]
    pub(crate) pieces: Vec<Piece>,
}

impl Contents {
    /// Bytes that are in place of those that were there.
    pub(super) fn put(&mut self, new: Piece) {
        let end = new.at + new.len;
        self.size = self.size.max(end);
        match self.pieces.last_mut() {
            // The usual case: a file is written from its start to its end.
            Some(last) if last.at + last.len == new.at && last.from + last.len == new.from => {
                last.len += new.len;
                return;
            }
            Some(last) if last.at + last.len > new.at => {}
            _ => {
                self.pieces.push(new);
                return;
            }
        }
        let mut pieces = Vec::with_capacity(self.pieces.len() + 2);
        for old in self.pieces.drain(..) {
            let stop = old.at + old.len;
            if old.at < new.at {
                pieces.push(Piece { len: old.len.min(new.at - old.at), ..old });
            }
            if stop > end {
                let skipped = end.saturating_sub(old.at);
                pieces.push(Piece { at: old.at + skipped, from: old.from + skipped, len: old.len - skipped });
            }
        }
        pieces.push(new);
        pieces.sort_unstable_by_key(|piece| piece.at);
        self.pieces = pieces;
    }

    /// Makes it `size` bytes long.
    pub(super) fn cut(&mut self, size: u64) {
        self.size = size;
        self.pieces.retain_mut(|piece| {
            piece.len = piece.len.min(size.saturating_sub(piece.at));
            piece.len > 0
        });
    }

    /// Bytes that were put of it. None: more than there can be.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.pieces.iter().try_fold(0_u64, |all, piece| all.checked_add(piece.len))
    }

    /// Whether all of it is among `end` bytes that were put.
    fn is_within(&self, end: u64) -> bool {
        let mut at = 0;
        self.pieces.iter().all(|piece| {
            let is_next = piece.at >= at && piece.len > 0;
            at = piece.at.saturating_add(piece.len);
            is_next && at <= self.size && piece.from.checked_add(piece.len).is_some_and(|stop| stop <= end)
        })
    }
}

/// What is in the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Index {
    /// CRIU's images, by name.
    #[serde(deserialize_with = "parse_budget::map")]
    pub(crate) images: BTreeMap<String, Contents>,
    /// What the container sees in `/etc`, by name.
    #[serde(deserialize_with = "parse_budget::map")]
    pub(crate) files: BTreeMap<String, Contents>,
    /// The upper layer, by path; what is in a directory comes after it.
    #[serde(deserialize_with = "parse_budget::map")]
    pub(crate) layer: BTreeMap<Vec<u8>, Item>,
}

/// What ends an object of `at` bytes so far.
pub(crate) fn tail(at: u64, index: &Index, map: &Map, record: &Record) -> Result<Vec<u8>, Failure> {
    let failed = |e: postcard::Error| Failure::system("an index").because(e);
    let index = postcard::to_stdvec(index).map_err(failed)?;
    let map = postcard::to_stdvec(map).map_err(failed)?;
    let is_read =
        |index: &[u8]| index.len() as u64 <= INDEX_MAX && read::<Index>(index, MEMORY_MAX).is_some();
    if index.len() > SMALL && !is_read(&index) {
        return Err(Failure::input("the upper layer has more objects than a checkpoint may have")
            .remedy("have the container remove some"));
    }
    // One that nobody can read again would be found out when the container is gone.
    if map.len() > SMALL && (map.len() as u64 > INDEX_MAX || read::<Map>(&map, MEMORY_MAX).is_none()) {
        return Err(Failure::input("the contents are in more pieces than a checkpoint may have")
            .remedy("take it without --parent"));
    }
    let record = serde_json::to_vec_pretty(record).map_err(|e| Failure::system("a record").because(e))?;
    let mut foot = at.to_le_bytes().to_vec();
    for part in [&index, &map, &record] {
        foot.extend_from_slice(&(part.len() as u64).to_le_bytes());
    }
    for part in [&index, &map, &record] {
        foot.extend_from_slice(&crc32_iscsi(part).to_le_bytes());
    }
    foot.extend_from_slice(&crc32_iscsi(&foot).to_le_bytes());
    foot.extend_from_slice(MAGIC);
    Ok([index, map, record, foot].concat())
}

/// Bytes of an object, and their checksum if it has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    at: u64,
    len: u64,
    sum: Option<u32>,
}

/// Where things are in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Footer {
    index: Part,
    /// None: version 1.
    map: Option<Part>,
    record: Part,
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn sum(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The foot of an object of `size` bytes, of which `bytes` are the last ones.
fn foot(bytes: &[u8], size: u64) -> Option<Footer> {
    let last = |len: usize| bytes.get(bytes.len().checked_sub(len)?..);
    let foot = if let Some(numbers) = last(FOOT).and_then(|foot| foot.strip_suffix(MAGIC)) {
        let (checked, own) = numbers.split_at_checked(FOOT - MAGIC.len() - 4)?;
        if crc32_iscsi(checked) != sum(own, 0)? {
            return None;
        }
        let mut at = number(checked, 0)?;
        let mut part = |which: usize| {
            let part =
                Part { at, len: number(checked, 8 + which * 8)?, sum: Some(sum(checked, 32 + which * 4)?) };
            at = at.checked_add(part.len)?;
            Some(part)
        };
        let foot = Footer { index: part(0)?, map: Some(part(1)?), record: part(2)? };
        (at == size.checked_sub(FOOT as u64)?).then_some(foot)?
    } else {
        let numbers = last(FOOT_1)?.strip_suffix(MAGIC_1)?;
        let part = |which: usize| {
            Some(Part { at: number(numbers, which * 16)?, len: number(numbers, which * 16 + 8)?, sum: None })
        };
        let foot = Footer { index: part(0)?, map: None, record: part(1)? };
        let ends = |part: Part| part.at.checked_add(part.len);
        let is_right =
            ends(foot.index)? == foot.record.at && ends(foot.record)? == size.checked_sub(FOOT_1 as u64)?;
        is_right.then_some(foot)?
    };
    let index = foot.index.len.max(foot.map.map_or(0, |map| map.len));
    (index <= INDEX_MAX && foot.record.len <= RECORD_MAX).then_some(foot)
}

/// An object, as far as it was looked at.
#[derive(Debug)]
pub(crate) struct ObjectInfo {
    stored: Box<dyn ByteSource>,
    foot: Footer,
    display: String,
}

impl ObjectInfo {
    /// Looks at what should be an object; `display` is what it is called in errors.
    pub(crate) fn at(stored: Box<dyn ByteSource>, display: &str) -> Result<Self, Failure> {
        let size = stored.size();
        let len = size.min(FOOT as u64);
        let mut bytes = vec![0; len as usize];
        stored
            .read_exact(size - len, &mut bytes)
            .map_err(|e| Failure::system(display.to_owned()).because(e))?;
        let foot = foot(&bytes, size).ok_or_else(|| unclear(display))?;
        Ok(Self { stored, foot, display: display.to_owned() })
    }

    #[cfg(test)]
    pub(crate) fn in_memory(bytes: Vec<u8>, display: &str) -> Result<Self, Failure> {
        Self::at(Box::new(MemorySource(bytes)), display)
    }

    fn part(&self, Part { at, len, sum }: Part) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| unclear(&self.display))?];
        let read = self.stored.read_exact(at, &mut bytes);
        read.map_err(|e| Failure::system(self.display.clone()).because(e))?;
        if sum.is_some_and(|sum| sum != crc32_iscsi(&bytes)) {
            return Err(Failure::system(format!("{}: it is not what was written", self.display)));
        }
        Ok(bytes)
    }

    /// What it says of itself.
    pub(crate) fn record(&self) -> Result<Record, Failure> {
        Record::parse(&self.part(self.foot.record)?, &self.display)
    }

    /// What its bytes have become. None: version 1, whose bytes are as they were put.
    pub(crate) fn map(&self) -> Result<Option<Map>, Failure> {
        let Some(part) = self.foot.map else { return Ok(None) };
        let map = parse_map(&self.part(part)?, self.foot.index.at);
        map.map(Some).ok_or_else(|| unclear(&self.display))
    }

    /// What is in it, and its bytes. `parents`: the objects that it needs, in the order of its map.
    pub(crate) fn open(self, parents: Vec<Self>) -> Result<(Index, ObjectBytes), Failure> {
        let display = self.display.clone();
        let (index, map) = (self.part(self.foot.index)?, self.map()?);
        let end = map.as_ref().map_or(self.foot.index.at, |map| map.size);
        let index = parse(&index, end).ok_or_else(|| unclear(&display))?;
        let Some(map) = map else { return Ok((index, ObjectBytes::plain(self.stored, end))) };
        let mut opened = Vec::new();
        for parent in parents {
            let map = parent.map()?.ok_or_else(|| unclear(&parent.display))?;
            opened.push((parent.stored, map));
        }
        let unpacked = ObjectBytes::new((self.stored, &map), opened).ok_or_else(|| unclear(&display))?;
        Ok((index, unpacked))
    }
}

/// What is no checkpoint, or cannot be read.
fn unclear(display: &str) -> Failure {
    Failure::input(format!("{display}: no checkpoint that this version reads"))
}

/// Reads what somebody has written, with at most so many bytes of memory.
pub(super) fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8], memory: usize) -> Option<T> {
    parse_budget::within(memory, || postcard::from_bytes(bytes).ok())
}

/// A map of an object whose frames end at `end`.
fn parse_map(bytes: &[u8], end: u64) -> Option<Map> {
    read(bytes, MEMORY_MAX).filter(|map: &Map| map.is_valid(end))
}

/// An index of an object into which so many bytes were put.
fn parse(bytes: &[u8], end: u64) -> Option<Index> {
    let index: Index = read(bytes, MEMORY_MAX)?;
    let files =
        || index.images.values().chain(index.files.values()).chain(index.layer.values().map(Item::contents));
    // Nothing is in two files, so that what is restored has bounds.
    let all = files().try_fold(0_u64, |all, file| all.checked_add(file.bytes()?));
    (files().all(|file| file.is_within(end)) && all.is_some_and(|all| all <= end)).then_some(index)
}

/// Reads what may be anything, as restoring does. For the fuzz target.
pub(super) fn parse_hostile(bytes: &[u8]) -> bool {
    let _ = parse(bytes, 1 << 20);
    let _ = parse_map(bytes, 1 << 20);
    let Ok(object_info) = ObjectInfo::at(Box::new(MemorySource(bytes.to_vec())), "x") else { return false };
    if object_info.record().is_err() {
        return false;
    }
    let Ok((_, unpacked)) = object_info.open(Vec::new()) else { return false };
    let (mut at, mut buffer) = (0, vec![0; 100_000]);
    while at < unpacked.size().min(1 << 24) {
        let len = (unpacked.size() - at).min(buffer.len() as u64);
        if unpacked.read_exact(at, buffer.get_mut(..len as usize).unwrap_or_default()).is_err() {
            return false;
        }
        at += len;
    }
    true
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compression::Compress;
    use crate::object::pack::ParentGranules;
    use crate::object::sink::WriteOptions;
    use crate::object::sink::tests::InMemory;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn contents_read_the_last_written_bytes(
            writes in prop::collection::vec((0_u64..200, 1_u64..60, any::<bool>()), 1..24), size in 0_u64..200,
        ) {
            let (mut contents, mut model, mut next) = (Contents::default(), Vec::new(), 1000);
            for (at, len, cut) in writes {
                contents.put(Piece { at, from: next, len });
                model.resize(model.len().max((at + len) as usize), 0);
                for byte in 0..len {
                    model[(at + byte) as usize] = next + byte;
                }
                next += len;
                if cut {
                    contents.cut(size);
                    model.resize(size as usize, 0);
                }
            }
            let mut found = vec![0; contents.size as usize];
            for piece in &contents.pieces {
                for byte in 0..piece.len {
                    found[(piece.at + byte) as usize] = piece.from + byte;
                }
            }
            prop_assert!(contents.is_within(next));
            prop_assert_eq!(found, model);
        }

        #[test]
        fn nothing_that_is_read_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            parse_hostile(&bytes);
        }
    }

    fn record() -> Record {
        serde_json::from_str(
            r#"{ "format": 2, "vellum": "0.1.0", "criu": "4.1.1", "container": "one", "taken": 1, "pause_us": 2, "image_bytes": 3,
            "upper_bytes": 4, "upper_objects": 5, "left_running": false, "podman": { "id": "a", "podman": "5", "image": "b",
            "image_name": "c", "layers": [], "command": [], "mounts": [], "host_network": false } }"#,
        )
        .unwrap()
    }

    fn index(len: u64) -> Index {
        let contents = Contents { size: len + 7, pieces: vec![Piece { at: 7, from: 3, len: len - 3 }] };
        Index { images: BTreeMap::from([("pages-1.img".to_owned(), contents)]), ..Index::default() }
    }

    /// An index of small bytes that would be large in memory: empty attributes, empty pieces, objects with nothing in them.
    #[test]
    fn parsing_an_index_is_bounded_in_memory() {
        const MANY: usize = 1 << 20;
        let hostile = |head: &[u8], one: &[u8]| {
            let mut bytes = head.to_vec();
            let count = postcard::to_stdvec(&(MANY as u64)).unwrap();
            bytes.extend_from_slice(&count);
            (0..MANY).for_each(|_| bytes.extend_from_slice(one));
            bytes
        };
        // No images, no files, one object of no name: mode, owner, times, device, and then its attributes.
        let attributes = hostile(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0, 0]);
        // One image of no name: its size, and then its pieces.
        let pieces = hostile(&[1, 0, 0], &[0, 0, 0]);
        for bytes in [attributes, pieces] {
            let mut result = None;
            let taken = allocation_counter::measure(|| result = read::<Index>(&bytes, 4 << 20));
            assert_eq!(result, None);
            assert!(taken.bytes_max < 8 << 20, "{} bytes were taken", taken.bytes_max);
        }
        assert_eq!(read::<Index>(&postcard::to_stdvec(&index(100)).unwrap(), 4 << 20), Some(index(100)));
    }

    fn object_info(bytes: &[u8]) -> Result<ObjectInfo, Failure> {
        ObjectInfo::at(Box::new(MemorySource(bytes.to_vec())), "x")
    }

    /// As version 1 was written: bytes as they were put, index and record, and their places.
    #[test]
    fn version_1_is_read() {
        let body: Vec<u8> = (0..100).collect();
        let (list, text) =
            (postcard::to_stdvec(&index(100)).unwrap(), serde_json::to_vec(&record()).unwrap());
        let mut bytes = [&body[..], &list, &text].concat();
        for number in [100, list.len() as u64, 100 + list.len() as u64, text.len() as u64] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(b"vlmckpt1");
        let one = object_info(&bytes).unwrap();
        assert_eq!((one.record().unwrap(), one.map().unwrap()), (record(), None));
        let (found, unpacked) = one.open(Vec::new()).unwrap();
        assert_eq!(found, index(100));
        let mut part = [0; 97];
        unpacked.read_exact(3, &mut part).unwrap();
        assert_eq!(part, body[3..]);
        assert!(unpacked.read_exact(4, &mut part).is_err());
        assert!(parse_hostile(&bytes));
    }

    /// An object of these bytes, in one file, and its map.
    pub(crate) fn object(bytes: &[u8], known: ParentGranules, record: &Record) -> (Vec<u8>, Map) {
        let writing = InMemory::begin(WriteOptions { compress: Compress::Zstd(3), known });
        writing.pipeline.sink().put(bytes).unwrap();
        let (out, map) = writing.finish();
        let contents = Contents {
            size: bytes.len() as u64,
            pieces: vec![Piece { at: 0, from: 0, len: bytes.len() as u64 }],
        };
        let index =
            Index { images: BTreeMap::from([("pages-1.img".to_owned(), contents)]), ..Index::default() };
        let tail = tail(map.stored(), &index, &map, record).unwrap();
        ([out, tail].concat(), map)
    }

    #[test]
    fn objects_parse_back_and_altered_ones_do_not() {
        let body: Vec<u8> = (0..700_000_u32).map(|at| (at / 5000) as u8).collect();
        let right = object(&body, ParentGranules::default(), &record()).0;
        assert!(right.len() < 40_000 && parse_hostile(&right));
        let one = object_info(&right).unwrap();
        assert_eq!(one.record().unwrap(), record());
        let (found, unpacked) = one.open(Vec::new()).unwrap();
        let mut part = vec![0; body.len()];
        unpacked.read_exact(0, &mut part).unwrap();
        assert!(part == body && found.images.len() == 1);
        // No byte can be another one, and none can be missing, without somebody seeing it.
        for at in (0..right.len()).step_by(97).chain(right.len().saturating_sub(100)..right.len()) {
            let mut wrong = right.clone();
            wrong[at] ^= 0x10;
            assert!(!parse_hostile(&wrong), "byte {at} of {}", right.len());
            let whole = object_info(&right[..at]).and_then(|one| one.open(Vec::new()));
            assert!(whole.is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_footer_that_points_outside_is_invalid() {
        let ends = |numbers: [u64; 4], size| {
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            bytes.extend_from_slice(MAGIC_1);
            foot(&bytes, size)
        };
        assert!(ends([100, 10, 110, 5], 155).is_some());
        for bad in
            [[100, 10, 111, 5], [100, 10, 110, 6], [u64::MAX, 10, 110, 5], [0, u64::MAX, 110, 5], [0; 4]]
        {
            assert_eq!(ends(bad, 155), None, "{bad:?}");
        }
        assert_eq!(foot(b"vlmckpt1", 8), None);
        let ends = |numbers: [u64; 4], size| {
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            bytes.extend_from_slice(&[0; 12]);
            bytes.extend_from_slice(&crc32_iscsi(&bytes).to_le_bytes());
            bytes.extend_from_slice(MAGIC);
            foot(&bytes, size)
        };
        assert!(ends([100, 10, 20, 5], 135 + FOOT as u64).is_some());
        for bad in [[100, 10, 20, 6], [u64::MAX, 10, 20, 5], [0, u64::MAX, 131, 5], [0; 4]] {
            assert_eq!(ends(bad, 135 + FOOT as u64), None, "{bad:?}");
        }
        assert_eq!(foot(b"vlmckpt2", 8), None);
    }
}
