//! A store on zoned devices.
//!
//! [`device`] is the device: a trait, and what implements it. Mechanisms and promises: `docs/design/zoned.md`.

#![forbid(unsafe_code)]

pub mod device;
