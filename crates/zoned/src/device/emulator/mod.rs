//! An emulated zoned device: memory or a file, with the limits, the timing and the failures of a real one.
//!
//! What it does follows from its profile, its seed and the calls made to it, and from nothing else, except that real time passes in
//! [`Pace::Real`].

mod backing;
mod fault;
mod power;
mod profile;
mod random;
mod timing;
mod virtual_device;

pub use fault::{Fault, Trigger};
pub use power::Survival;
pub use profile::{LARGE_ZONE, Profile, SMALL_ZONE, Timing};
pub use random::Random;
pub use timing::{Command, Model, Nanos};
pub use virtual_device::{Emulated, Pace};
