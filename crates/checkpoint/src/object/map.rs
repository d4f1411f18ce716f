//! What the bytes that were put into an object have become: frames of its own, and places in the objects before it that hold the same.
//!
//! ```text
//! put       │ granules of 4 KiB ─────────────────────────────────────────┐
//!           ▼                                                            ▼
//! extents   own, from granule 0 │ of parent 2, from granule 700 │ own, from granule 16 │ …
//!           ▼                                                     ▼
//! frames    granules 0 to 63, packed or as they are │ granules 64 to 127 │ …      in the object, side by side
//! hashes    one for each granule of its own, by which a later object finds it
//! ```
//!
//! What is read may have been put there by anybody: every number is checked against the others before it is used.

use super::parse_budget;
use serde::{Deserialize, Serialize};
use vellum_container::plain_name;

/// Bytes that are compared with those of objects before.
pub(super) const GRANULE: usize = 4096;
/// Bytes of a frame before they are packed: what has to be unpacked for one of them.
pub(super) const FRAME: usize = 256 << 10;
/// The most objects that one may need: its parent, the parent of that, and so on. Each may be lost.
pub(crate) const PARENTS_MAX: usize = 16;

/// The first half of a granule's SHA-256.
pub(super) type Hash = [u8; 16];

/// Granules that are packed together. They are as they were if they have not become fewer bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Frame {
    /// Bytes in the object.
    pub(super) len: u32,
    /// Their CRC-32C.
    pub(super) sum: u32,
}

/// Granules that follow each other, where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extent {
    pub(super) granules: u64,
    /// 0: in the object itself; otherwise in one of its parents, counted from 1.
    pub(super) of: u32,
    /// The first one there, among those that it has itself.
    pub(super) from: u64,
}

/// An object that holds granules of this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parent {
    /// The checkpoint's name, at the same place.
    pub(crate) name: String,
    /// Another one of that name has another one.
    pub(crate) id: [u8; 16],
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Map {
    /// Drawn when the object was made.
    pub(crate) id: [u8; 16],
    /// The nearest one first.
    #[serde(deserialize_with = "parse_budget::list")]
    pub(crate) parents: Vec<Parent>,
    /// Bytes that were put. The last granule is filled up with zeros.
    pub(super) size: u64,
    #[serde(deserialize_with = "parse_budget::list")]
    pub(super) extents: Vec<Extent>,
    #[serde(deserialize_with = "parse_budget::list")]
    pub(super) frames: Vec<Frame>,
    #[serde(deserialize_with = "parse_budget::list")]
    pub(super) hashes: Vec<Hash>,
}

impl Map {
    /// Granules in the object itself.
    pub(super) fn granules(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// Bytes that its frames take.
    pub(crate) fn stored(&self) -> u64 {
        self.frames.iter().map(|frame| u64::from(frame.len)).sum()
    }

    /// Names of those that it needs, the nearest first.
    pub(crate) fn names(&self) -> Vec<String> {
        self.parents.iter().map(|parent| parent.name.clone()).collect()
    }

    /// Bytes of a frame before they were packed.
    pub(super) fn unpacked_len(&self, frame: usize) -> usize {
        let all = self.hashes.len() * GRANULE;
        FRAME.min(all.saturating_sub(frame * FRAME))
    }

    /// Whether its numbers can be, in an object whose frames end at `end`.
    pub(super) fn is_valid(&self, end: u64) -> bool {
        let frames = self.hashes.len().div_ceil(FRAME / GRANULE);
        let is_whole =
            |(at, frame): (usize, &Frame)| (1..=self.unpacked_len(at)).contains(&(frame.len as usize));
        let mut left = self.size.div_ceil(GRANULE as u64);
        let mut names: Vec<&str> = self.parents.iter().map(|parent| parent.name.as_str()).collect();
        names.sort_unstable();
        self.frames.len() == frames
            && self.frames.iter().enumerate().all(is_whole)
            && self.stored() == end
            && self.parents.len() <= PARENTS_MAX
            && names.iter().all(|name| plain_name("checkpoint", name).is_ok())
            && names.windows(2).all(|two| two[0] != two[1])
            && self.extents.iter().all(|extent| {
                let ends = extent.from.checked_add(extent.granules);
                let rest = left.checked_sub(extent.granules);
                left = rest.unwrap_or(0);
                extent.granules > 0
                    && rest.is_some()
                    && ends.is_some_and(|ends| extent.of > 0 || ends <= self.granules())
                    && extent.of as usize <= self.parents.len()
            })
            && left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_offsets_are_refused() {
        let parent = Parent { name: "one".into(), id: [1; 16] };
        let right = Map {
            id: [0; 16],
            parents: vec![parent.clone()],
            size: 5 * GRANULE as u64 - 1,
            extents: vec![Extent { granules: 2, of: 0, from: 0 }, Extent { granules: 3, of: 1, from: 9 }],
            frames: vec![Frame { len: 100, sum: 0 }],
            hashes: vec![[0; 16]; 2],
        };
        assert!(right.is_valid(100));
        let wrong: [&dyn Fn(&mut Map); 11] = [
            &|map| map.size += 2,
            &|map| map.size -= GRANULE as u64,
            &|map| map.extents[0].from = 1,
            &|map| map.extents[0].from = u64::MAX,
            &|map| map.extents[1].of = 2,
            &|map| map.extents[1].granules = 0,
            &|map| map.frames[0].len = 8193,
            &|map| map.frames.push(Frame { len: 1, sum: 0 }),
            &|map| map.parents[0].name = "../one".into(),
            &|map| map.parents.push(parent.clone()),
            &|map| map.hashes.clear(),
        ];
        for (number, change) in wrong.iter().enumerate() {
            let mut map = right.clone();
            change(&mut map);
            assert!(!map.is_valid(map.stored()), "{number}");
        }
        assert!(!right.is_valid(101));
    }
}
