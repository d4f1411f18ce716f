//! Paced files: images that are written to an ordinary filesystem without holding up what others do on its disk.
//!
//! Others' calls do not come by here. So a thread of a disk's [`Disk`] looks at the disk's counters, which say whether others are at work,
//! and reads a block now and then, which says what they wait for. `crate::pace` makes a rate of that. An image goes past the page cache, in
//! pieces, so that nothing is queued ahead of others but what is under way.

mod counters;
mod disk;
mod file;
mod pool;
mod probe;

pub use disk::Disk;
pub use file::PacedFile;
