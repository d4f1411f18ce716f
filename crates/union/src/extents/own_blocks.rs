//! The own blocks of a partial file, for whoever copies it to a filesystem that shows holes.

use super::record::Record;
use super::sidecar_journal::SidecarJournal;
use std::sync::Arc;
use vellum_vfs::{BranchFile, Errno, Result, Seek};

/// Bits that are looked at together.
const WORD: u64 = 64;
/// Bytes that are read at a time.
const PART: usize = 64 << 10;

/// Which blocks of a partial file are its own, by its sidecar, as it was when that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnBlocks {
    shift: u8,
    /// The first block that does not come from below as a whole.
    beyond: u64,
    bits: Vec<u64>,
}

impl OwnBlocks {
    /// What sidecars list, the map itself first.
    pub(crate) fn read(record: &Record, sidecars: &[Arc<dyn BranchFile>]) -> Result<Self> {
        let beyond = record.limit >> record.shift;
        let most = usize::try_from(beyond.div_ceil(WORD)).map_err(|_| Errno::FBIG)?;
        let mut bits: Vec<u64> = Vec::new();
        let mut buf = vec![0; PART];
        for (number, file) in sidecars.iter().enumerate() {
            let begin = if number == 0 { 0 } else { SidecarJournal::HEADER_LEN };
            let mut first = 0;
            // No more than there is: a record may be anybody's.
            while first < most {
                let len = file.read_at(&mut buf, begin + first as u64 * 8)?;
                let words = len.div_ceil(8).min(most - first);
                bits.resize(bits.len().max(first + words), 0);
                let known = bits.get_mut(first..).unwrap_or_default();
                for (word, bytes) in known.iter_mut().zip(buf.get(..len).unwrap_or_default().chunks(8)) {
                    let mut whole = [0; 8];
                    whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                    *word |= u64::from_le_bytes(whole);
                }
                if len < buf.len() {
                    break;
                }
                first += words;
            }
        }
        Ok(Self { shift: record.shift, beyond, bits })
    }

    fn word(&self, block: u64) -> u64 {
        usize::try_from(block / WORD).ok().and_then(|word| self.bits.get(word)).copied().unwrap_or(0)
    }

    fn is_own(&self, block: u64) -> bool {
        block >= self.beyond || self.word(block) >> (block % WORD) & 1 == 1
    }

    /// The first block from `from` on, before `end`, that is own or is not.
    fn next(&self, from: u64, end: u64, own: bool) -> Option<u64> {
        let other = if own { 0 } else { u64::MAX };
        let mut at = from;
        while at < end {
            // Whole words that say the same are passed over.
            if at.is_multiple_of(WORD) && at + WORD <= self.beyond && self.word(at) == other {
                at += WORD;
            } else if self.is_own(at) == own {
                return Some(at);
            } else if at >= self.beyond {
                return None;
            } else {
                at += 1;
            }
        }
        None
    }

    /// As lseek(2) finds it in a file of so many bytes where all other blocks are holes. ENXIO.
    pub fn seek(&self, offset: u64, whence: Seek, size: u64) -> Result<u64> {
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        let (from, end) = (offset >> self.shift, size.div_ceil(1 << self.shift));
        match (whence, self.next(from, end, whence == Seek::Data)) {
            (_, Some(block)) => Ok((block << self.shift).max(offset)),
            (Seek::Hole, None) => Ok(size),
            (Seek::Data, None) => Err(Errno::NXIO.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_are_the_own_blocks(
            own in proptest::collection::btree_set(0_u64..300, 0..40), limit in 0_u64..300 * 4096, size in 1_u64..320 * 4096,
        ) {
            let beyond = limit >> 12;
            let mut bits = vec![0; beyond.div_ceil(WORD) as usize];
            for block in own.iter().filter(|block| **block < beyond) {
                bits[(block / WORD) as usize] |= 1 << (block % WORD);
            }
            let blocks = OwnBlocks { shift: 12, beyond, bits };
            let mut at = 0;
            let mut found = std::collections::BTreeSet::new();
            while let Ok(data) = blocks.seek(at, Seek::Data, size) {
                let hole = blocks.seek(data, Seek::Hole, size).unwrap();
                prop_assert!(data >= at && hole > data && hole <= size);
                found.extend(data >> 12..hole.div_ceil(4096));
                at = hole;
            }
            let all = 0..size.div_ceil(4096);
            let wanted = all.filter(|block| *block >= beyond || own.contains(block)).collect();
            prop_assert_eq!(found, wanted);
            prop_assert!(blocks.seek(size, Seek::Hole, size).is_err());
        }
    }
}
