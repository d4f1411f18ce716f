//! Which block of a queue goes first. Every container has a queue of its own; which container has to give is not decided here.
//!
//! All operations take constant time, [`Policy::victim`] in the mean: an entry that it passes by has had a hit since it was last
//! passed by. A hit allocates nothing.

mod list;
mod lru;
mod s3_fifo;
mod sieve;

pub use lru::Lru;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;

/// An entry of one queue, until it is removed or was the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub(crate) u32);

/// A queue of entries, from which one goes when room is needed. What has never been seen before may go at once, which is how a
/// policy refuses to admit it.
pub trait Policy: std::fmt::Debug + Send {
    /// A new entry, which stands for `item`. `print` is the same whenever the same data come again.
    fn insert(&mut self, item: u32, print: u64) -> Handle;
    /// The entry was used.
    fn hit(&mut self, entry: Handle);
    /// Takes an entry out without having chosen it. Nothing happens where there is none.
    fn remove(&mut self, entry: Handle);
    /// Chooses an entry, takes it out, and says what it stood for. None: the queue is empty. `uses` takes how often an item was used
    /// beside [`Policy::hit`] since it was last asked: it is asked of every item that is looked at.
    fn victim_by(&mut self, uses: &mut dyn FnMut(u32) -> u8) -> Option<u32>;
    /// As [`Policy::victim_by`], where every use has been told.
    fn victim(&mut self) -> Option<u32> {
        self.victim_by(&mut |_| 0)
    }
    /// How many entries there are.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// [`Lru`].
    Lru,
    /// [`Sieve`].
    Sieve,
    /// [`S3Fifo`], which docs/design/cache.md has the reasons for.
    #[default]
    S3Fifo,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Sieve, Self::S3Fifo];

    /// An empty queue.
    #[must_use]
    pub fn make(self) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::<Lru>::default(),
            Self::Sieve => Box::<Sieve>::default(),
            Self::S3Fifo => Box::<S3Fifo>::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "LRU",
            Self::Sieve => "SIEVE",
            Self::S3Fifo => "S3-FIFO",
        }
    }
}

#[cfg(test)]
mod tests;
