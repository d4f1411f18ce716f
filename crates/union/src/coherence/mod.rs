//! What the kernel, programs and mappings may believe, and how it is taken back.

pub(crate) mod ctimes;
pub(crate) mod generations;
pub(crate) mod leases;
pub(crate) mod mapped;
pub(crate) mod negative;
pub(crate) mod no_writers;
pub(crate) mod told;
pub(crate) mod unknown_to_kernel;
pub(crate) mod view;
pub(crate) mod writers;
