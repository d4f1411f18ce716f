//! A store on zoned devices.
//!
//! [`device`] is the device: a trait, and what implements it. [`calibrate`] finds which of its zones disturb each other. [`store`] has named objects in classes on it. [`pace`] holds background
//! writes back while others wait. Mechanisms and promises: `docs/design/zoned.md`.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod device;
pub mod pace;
pub mod paced_file;
pub mod store;
mod sum;
