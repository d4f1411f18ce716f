//! The atomics: those of the processor, or those of the model checker.

pub use core::sync::atomic::Ordering;
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
