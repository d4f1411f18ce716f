//! The union: several layers become one writable tree.
//!
//! The union knows layers, whiteouts, opaque directories, redirects and copy-up. It knows nothing of FUSE, of
//! system calls or of threads: fronts call it through [`vellum_vfs::Filesystem`], doors through
//! [`vellum_vfs::Handout`], and it stores through [`vellum_vfs::Branch`].
//!
//! Where to find what: `layers` is what the layers hold and how one name is found through all of them, `nodes` what a
//! front holds, `ops` the operations, `copyup` copy-up, `extents` files that are copied block by block, `coherence` what
//! the kernel and programs may believe, `recovery` what a successor goes on with, `handout` files handed to programs.
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

mod coherence;
mod config;
mod copyup;
mod extents;
mod handout;
mod layers;
mod nodes;
mod ops;
mod recovery;
mod sync;
mod union;

pub use coherence::generations::{Generations, Mappable};
pub use config::{
    OverrideStat, PARTIAL_FROM, PARTIAL_FROM_PASSTHROUGH, Profile, Squash, UnionConfig, UpperConfig,
};
pub use handout::Directory;
pub use nodes::handles::Budget;
pub use ops::explain::{Blocks, NodeReport, Summary};
pub use ops::flatten::{Extent, Flattening};
pub use recovery::ledger::Ledger;
pub use union::Union;
