//! What a cache tells about itself.

use crate::shares::Container;

/// A cache, and each container in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes that it may hold now.
    pub capacity: u64,
    /// Bytes that it holds, in pages.
    pub size: u64,
    /// Bytes of that whose file is lent.
    pub lent: u64,
    /// Bytes of that which no container uses any more.
    pub ownerless: u64,
    /// Files of which it holds something.
    pub files: usize,
    /// Blocks that it holds.
    pub blocks: usize,
    /// Reads of a block that was there.
    pub hits: u64,
    /// Reads of a block that was not.
    pub misses: u64,
    /// Blocks that went to make room.
    pub evictions: u64,
    /// In the order in which their places are.
    pub containers: Vec<ContainerStats>,
}

/// One container in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerStats {
    /// Which.
    pub container: Container,
    /// Its weight.
    pub weight: u32,
    /// Whether part of its share is lent to others.
    pub idle: bool,
    /// Bytes that it pays for: its parts of what it uses.
    pub charge: u64,
    /// Bytes of that whose file is lent.
    pub lent: u64,
    /// Its reads of a block that was there.
    pub hits: u64,
    /// Its reads of a block that was not.
    pub misses: u64,
    /// Blocks that its queue has given up; others may still use them.
    pub evictions: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
}
