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
