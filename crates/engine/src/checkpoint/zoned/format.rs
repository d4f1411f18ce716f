//! A checkpoint as one object of a store: bytes as they came, an index of what they are, the record, and where both are.
//!
//! ```text
//! ┌───────────────────────────────────────────┬───────┬────────┬──────┐
//! │ images and files of the layer, in pieces  │ index │ record │ foot │
//! └───────────────────────────────────────────┴───────┴────────┴──────┘
//! ```
//!
//! The store gives the object its name when all of it is there, so there is no half of one to recognise. What is read may have been put
//! there by anybody: lengths and places are checked before they are used.

use super::layer::Item;
use crate::checkpoint::record::{RECORD_MAX, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vellum_service::Failure;
use vellum_zoned::store::{Error, Store};

/// What it ends with.
const MAGIC: &[u8; 8] = b"vlmckpt1";
/// Bytes of the foot: places and lengths of index and record, and the magic.
pub(super) const FOOT: usize = 40;
/// The largest index that is read, in bytes: a layer of some millions of objects.
const INDEX_MAX: u64 = 1 << 30;

/// Bytes of a file that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// Where they are in the file.
    pub(super) at: u64,
    /// Where they are in the object.
    pub(super) from: u64,
    pub(super) len: u64,
}

/// What a file holds. What no piece covers is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) size: u64,
    /// In order, and not on each other.
    pub(super) pieces: Vec<Piece>,
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

    /// Bytes that it has in the object.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// Whether all of it is in an object whose bytes end at `end`.
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
pub(super) struct Index {
    /// CRIU's images, by name.
    pub(super) images: BTreeMap<String, Contents>,
    /// What the container sees in `/etc`, by name.
    pub(super) files: BTreeMap<String, Contents>,
    /// The upper layer, by path; what is in a directory comes after it.
    pub(super) layer: BTreeMap<Vec<u8>, Item>,
}

/// What ends an object of `at` bytes so far.
pub(super) fn tail(at: u64, index: &Index, record: &Record) -> Result<Vec<u8>, Failure> {
    let mut tail = postcard::to_stdvec(index).map_err(|e| Failure::system("an index").because(e))?;
    let record = serde_json::to_vec_pretty(record).map_err(|e| Failure::system("a record").because(e))?;
    let (index, record_at) = (tail.len() as u64, at + tail.len() as u64);
    tail.extend_from_slice(&record);
    for number in [at, index, record_at, record.len() as u64] {
        tail.extend_from_slice(&number.to_le_bytes());
    }
    tail.extend_from_slice(MAGIC);
    Ok(tail)
}

/// Where things are in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Foot {
    index: (u64, u64),
    record: (u64, u64),
}

fn foot(bytes: &[u8], size: u64) -> Option<Foot> {
    let numbers = bytes.strip_suffix(MAGIC)?;
    let number = |at: usize| Some(u64::from_le_bytes(numbers.get(at * 8..at * 8 + 8)?.try_into().ok()?));
    let foot = Foot { index: (number(0)?, number(1)?), record: (number(2)?, number(3)?) };
    let ends = |part: (u64, u64)| part.0.checked_add(part.1);
    let is_right = ends(foot.index)? == foot.record.0
        && ends(foot.record)? == size.checked_sub(FOOT as u64)?
        && foot.index.1 <= INDEX_MAX
        && foot.record.1 <= RECORD_MAX;
    is_right.then_some(foot)
}

/// Reads bytes of an object; fewer are an error.
fn bytes(store: &Store, name: &[u8], (at, len): (u64, u64)) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| Error::TooLarge)?];
    read_exact(store, name, at, &mut bytes)?;
    Ok(bytes)
}

/// Fills `into`.
pub(super) fn read_exact(store: &Store, name: &[u8], mut at: u64, mut into: &mut [u8]) -> Result<(), Error> {
    while !into.is_empty() {
        let read = store.read(name, at, into)?;
        if read == 0 {
            return Err(Error::Damaged("an object is shorter than it says".to_owned()));
        }
        at += read as u64;
        into = into.get_mut(read..).unwrap_or_default();
    }
    Ok(())
}

/// What is no checkpoint, or cannot be read.
fn unclear(shown: &str) -> Failure {
    Failure::input(format!("{shown}: no checkpoint that this version reads"))
}

fn find(store: &Store, name: &[u8], shown: &str) -> Result<Foot, Failure> {
    let failed = |e: Error| Failure::system(shown.to_owned()).because(e);
    let size = store.entry(name).map_err(failed)?.size;
    let at = size.checked_sub(FOOT as u64).ok_or_else(|| unclear(shown))?;
    let end = bytes(store, name, (at, FOOT as u64)).map_err(failed)?;
    foot(&end, size).ok_or_else(|| unclear(shown))
}

/// Reads the record of one; `shown` is what it is called in errors.
pub(super) fn record(store: &Store, name: &[u8], shown: &str) -> Result<Record, Failure> {
    let foot = find(store, name, shown)?;
    let text = bytes(store, name, foot.record).map_err(|e| Failure::system(shown.to_owned()).because(e))?;
    Record::parse(&text, shown)
}

/// Reads the index of one.
pub(super) fn index(store: &Store, name: &[u8], shown: &str) -> Result<Index, Failure> {
    let foot = find(store, name, shown)?;
    let bytes = bytes(store, name, foot.index).map_err(|e| Failure::system(shown.to_owned()).because(e))?;
    parse(&bytes, foot.index.0).ok_or_else(|| unclear(shown))
}

/// An index of an object whose bytes end at `end`.
fn parse(bytes: &[u8], end: u64) -> Option<Index> {
    let index: Index = postcard::from_bytes(bytes).ok()?;
    let files = index.images.values().chain(index.files.values());
    let is_right = files.chain(index.layer.values().map(Item::contents)).all(|file| file.is_within(end));
    is_right.then_some(index)
}

/// Reads what may be anything, as restoring does. For the fuzz target.
pub(super) fn parse_hostile(bytes: &[u8]) {
    let at = bytes.len().saturating_sub(FOOT);
    if let Some(Foot { index: (at, len), .. }) = foot(bytes.get(at..).unwrap_or_default(), bytes.len() as u64)
    {
        let index = bytes.get(at as usize..(at + len) as usize).unwrap_or_default();
        let _ = parse(index, at);
    }
    let _ = parse(bytes, 1 << 20);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn contents_are_what_was_written_last(
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

    #[test]
    fn a_foot_that_leads_outside_is_none() {
        let ends = |numbers: [u64; 4], size| {
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            bytes.extend_from_slice(MAGIC);
            foot(&bytes, size)
        };
        assert!(ends([100, 10, 110, 5], 155).is_some());
        for bad in
            [[100, 10, 111, 5], [100, 10, 110, 6], [u64::MAX, 10, 110, 5], [0, u64::MAX, 110, 5], [0; 4]]
        {
            assert_eq!(ends(bad, 155), None, "{bad:?}");
        }
        assert_eq!(foot(b"vlmckpt1", 8), None);
    }
}
