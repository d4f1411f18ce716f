//! What is cached is called by the storage it comes from, the inode there, and the version of its contents.
//!
//! The version is part of the key because notices of changes cannot be relied on (libcephfs gives them only while it has data of
//! its own): who reads asks the storage for the version, and data of another version are simply not found.

/// Bytes of a block. A fetch from a remote storage costs some hundred microseconds however small it is, so a block is as large as
/// can be sent in about that time at a gigabyte a second. Larger ones would throw more away that is still wanted when one goes, and
/// a record of about 100 bytes for each is no matter at this size.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// A file of more blocks (16 GiB) is not cached: each has a word, and a file may claim any size.
pub const BLOCKS_MAX: u64 = 1 << 18;

/// Memory comes in pages of so many bytes: what a block at the end of a file takes is rounded up to them.
pub const PAGE_BYTES: u64 = 4 << 10;

/// A file of a storage, whatever its contents are at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    /// Which filesystem or snapshot: one image has one number in all its mounts, and in a successor of the process.
    pub filesystem: u64,
    /// The inode's number there.
    pub inode: u64,
}

/// Contents of a file: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Whose contents.
    pub object: Object,
    /// What the storage calls this state of them: `stx_version` on Ceph. Compared for equality only.
    pub version: u64,
}

/// Contents of a file and how many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Which contents.
    pub key: Key,
    /// Bytes.
    pub size: u64,
}

/// The number of a block in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockIndex(pub u64);

impl Key {
    /// A number that stays when a block goes and comes again, by which a policy remembers it. Two blocks with one number do no harm.
    pub(crate) fn print(&self, index: BlockIndex) -> u64 {
        // The golden ratio as an odd number: its bits are well spread.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let parts = [self.object.filesystem, self.object.inode, self.version, index.0];
        parts.iter().fold(0, |print: u64, part| (print ^ part).wrapping_mul(SPREAD).rotate_left(29))
    }
}

impl Version {
    /// How many blocks the contents have.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK_BYTES)
    }

    /// Bytes of a block: fewer in the last one, 0 beyond it.
    #[must_use]
    pub fn block_len(&self, index: BlockIndex) -> u64 {
        index.0.checked_mul(BLOCK_BYTES).map_or(0, |start| self.size.saturating_sub(start).min(BLOCK_BYTES))
    }
}

/// What so many bytes take in memory.
pub(crate) const fn charged(len: u64) -> u64 {
    len.next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        let of = |size| Version { key: Key { object: Object { filesystem: 0, inode: 1 }, version: 1 }, size };
        assert_eq!((of(0).blocks(), of(0).block_len(BlockIndex(0))), (0, 0));
        let two = of(BLOCK_BYTES + 1);
        assert_eq!(two.blocks(), 2);
        assert_eq!([0, 1, 2, u64::MAX].map(|index| two.block_len(BlockIndex(index))), [BLOCK_BYTES, 1, 0, 0]);
        assert_eq!(
            [0, 1, PAGE_BYTES, PAGE_BYTES + 1].map(charged),
            [0, PAGE_BYTES, PAGE_BYTES, 2 * PAGE_BYTES]
        );
    }
}
