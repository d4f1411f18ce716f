//! The layers: what a directory of one holds and means, and how one name is found through all of them.

pub(crate) mod handles;
pub(crate) mod layer;
pub(crate) mod links;
pub(crate) mod maps;
pub(crate) mod marks;
pub(crate) mod merge;
pub(crate) mod moves;
pub(crate) mod overrides;
pub(crate) mod read;
pub(crate) mod sidecars;
pub(crate) mod work;
