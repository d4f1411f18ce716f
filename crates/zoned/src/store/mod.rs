//! The store: named objects in classes on a zoned device.
//!
//! How it lies on the device, and why: `docs/design/zoned.md`.

mod blocks;
mod change;
mod check;
mod core;
mod error;
mod format;
mod gc;
mod image_writer;
mod log;
#[cfg(test)]
mod log_test;
mod named_objects;
mod node;
mod object_read;
mod open;
mod overwrite;
mod parse;
mod reader;
mod roots;
mod shared;
mod state;
mod tree;
mod tree_state;
mod worker_thread;
mod writer;
mod zones;

pub use change::{Class, EXTENT_BLOCKS_MAX, NAME_MAX, SIZE_MAX};
pub use check::CheckReport;
pub use error::{Error, Result};
pub use format::{Placement, VERSION};
pub use named_objects::{Entry, Stats, Store};
pub use node::{Node, NodeTime, ROOT_NODE, TARGET_MAX, XATTRS_MAX, Xattrs};
pub use parse::parse_hostile;
pub use reader::Reader;
pub use tree::{FileShape, TreeChange, TreeDump};
pub use writer::Writer;
