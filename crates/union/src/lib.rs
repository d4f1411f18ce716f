//! The union: several layers become one writable tree.
//!
//! The union knows layers, whiteouts, opaque directories, redirects and copy-up. It knows nothing of FUSE, of
//! system calls or of threads: fronts call it through [`vellum_vfs::Filesystem`], and it stores through
//! [`vellum_vfs::Branch`].
//!
//! Where to find what: `marks` is what the union records on files and directories, `layer` the layers and their
//! directories, `stack` how one name is found through all layers, `node` and `table` what a front holds,
//! `listing` directories, `copyup` copy-up, and one file per group of operations.
//!
//! Locks, in the order in which they are taken (never the other way round):
//!
//! 1. `Dir::ops` of one or more directories, in the order of their node ids: shared by lookup and listing,
//!    exclusive for what changes names.
//! 2. `Dir::copy` or `File::copy`: one copy-up of that object at a time; a directory's before its parent's.
//!    A *file's* copy-up is never begun under `Dir::ops`, because it may walk the tree for other names.
//!    Under a file's, the search of a layer for names (`links`): only the layer is read meanwhile.
//! 3. `File::state`: where the object lives. Held shared during an operation by name, exclusive while that
//!    changes. `File::times` comes before it.
//! 4. `Dir::children`, handle slots, table slots: for the length of a few instructions.
//!
//! There is no lock of the whole mount.
#![forbid(unsafe_code)]

mod attr;
mod busy;
mod config;
mod copyup;
mod copyup_data;
mod create;
mod ctimes;
mod direct;
mod dress;
mod explain;
mod extents;
mod flags;
mod flatten;
mod forgotten;
mod fs;
mod generations;
mod handles;
mod ino;
mod io;
mod layer;
mod ledger;
mod links;
mod listing;
mod lookup;
mod mapped;
mod maps;
mod marks;
mod missing;
mod moves;
mod names;
mod node;
mod overrides;
mod partial;
mod publish;
mod quiet;
mod readdir;
mod remove;
mod rename;
mod revive;
mod seen;
mod stack;
mod sync;
mod table;
mod union;
mod unseen;
mod unsynced;
mod view;
mod work;
mod written;
mod xattr;

pub use config::{
    OverrideStat, PARTIAL_FROM, PARTIAL_FROM_PASSTHROUGH, Profile, Squash, UnionConfig, UpperConfig,
};
pub use direct::{Directory, Refused, Wanted};
pub use explain::{Blocks, NodeReport, Summary};
pub use flatten::{Extent, Flattening};
pub use generations::{Generations, Mappable};
pub use handles::Budget;
pub use ledger::Ledger;
pub use node::Owner;
pub use union::Union;
pub use view::View;
