//! Which block of a queue goes first. Every container has a queue of its own; which container has to give is not decided here.
//!
//! All operations take constant time, [`Policy::victim`] in the mean: an entry that it passes by has had a hit since it was last
//! passed by. A hit allocates nothing.

mod list;
mod s3_fifo;

pub use s3_fifo::S3Fifo;

/// An entry of one queue, until it is removed or was the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u32);

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
