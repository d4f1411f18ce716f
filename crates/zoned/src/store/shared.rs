//! What a store and its writers share.

use super::core::Core;
use crate::device::ZonedDevice;
use parking_lot::Mutex;
use std::sync::Arc;

/// The store's inside, under its one lock. Reads, and writes of images to their own zones, go to the device without it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) device: Arc<dyn ZonedDevice>,
    pub(super) core: Mutex<Core>,
}

/// What was flushed is said, so that damage is told from what a loss of power takes.
impl Drop for Shared {
    fn drop(&mut self) {
        self.core.get_mut().acknowledge();
    }
}
