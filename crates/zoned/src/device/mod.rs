//! Zoned devices: what they can do ([`ZonedDevice`]), and those there are.
//!
//! - [`Kernel`]: a zoned block device of the kernel's.
//! - [`Emulated`]: memory or a file, with the limits, the timing and the failures of a real device.
//! - [`Conventional`]: a file or a disk without zones, used in their manner.

mod aligned_buffer;
mod area;
mod conventional;
pub mod emulator;
mod error;
mod find;
mod geometry;
mod kernel;
mod machine;
mod write_pointers;
mod zone;
mod zoned_device;

pub use aligned_buffer::AlignedBuf;
pub use conventional::Conventional;
pub use emulator::Emulated;
pub use error::{Error, Result};
pub use find::{Access, FindError, Kind, OpenDevice, find, find_in, is_zoned, open_locked};
pub use geometry::{BLOCK_SIZES, Geometry, ZONES_MAX};
pub use kernel::{Kernel, KernelLimits};
pub use write_pointers::{has_zone_file, zone_file_length};
pub use zone::{Condition, Zone};
pub use zoned_device::ZonedDevice;
