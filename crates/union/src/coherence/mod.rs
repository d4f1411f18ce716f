//! What the kernel, programs and mappings may believe, and how it is taken back.

pub(crate) mod ctimes;
pub(crate) mod generations;
pub(crate) mod mapped;
pub(crate) mod missing;
pub(crate) mod quiet;
pub(crate) mod seen;
pub(crate) mod unseen;
pub(crate) mod view;
pub(crate) mod written;
