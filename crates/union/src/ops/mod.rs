//! The operations, one file per group, and `fs`, which offers them as a [`vellum_vfs::Filesystem`].

pub(crate) mod attr;
pub(crate) mod create;
pub(crate) mod flags;
pub(crate) mod flatten;
pub(crate) mod forget;
pub(crate) mod fs;
pub(crate) mod inspect;
pub(crate) mod io;
pub(crate) mod lookup;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod sync_all;
pub(crate) mod xattr;
