//! Conditions that are logged the first time only.

use std::sync::atomic::{AtomicBool, Ordering};

/// Logs a condition the first time.
pub(crate) fn warn_once(warned: &AtomicBool, log: impl FnOnce()) {
    if !warned.swap(true, Ordering::Relaxed) {
        log();
    }
}
