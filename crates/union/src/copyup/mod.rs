//! Copy-up: an object of a lower layer comes into the upper one.

pub(crate) mod copy_metadata;
pub(crate) mod data;
pub(crate) mod partial;
pub(crate) mod publish;
pub(crate) mod unfinished;
pub(crate) mod unsynced;
pub(crate) mod whole;
