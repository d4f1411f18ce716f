//! The union: several layers become one writable tree.
//!
//! The union knows layers, whiteouts, opaque directories, redirects and copy-up. It knows nothing of FUSE, of
//! system calls or of threads: fronts call it through [`vellum_vfs::Filesystem`], servers beside the kernel through
//! [`vellum_vfs::Handout`], and it stores through [`vellum_vfs::Branch`].
//!
//! Where to find what: `layers` is what the layers hold and how one name is found through all of them, `nodes` what a
//! front holds, and what a successor goes on with (`nodes::recovery`), `ops` the operations, `copyup` copy-up, `extents` files
//! that are copied block by block, `coherence` what the kernel and programs may believe, `handout` files handed to programs.
//!
//! What operations share is in four parts: `Layers`, `Nodes`, `Upper` and `Coherence`. A method belongs to the smallest that it
//! needs (what is only written to the upper layer to `Work`), and what can change in a part is changed in its folder alone.
//! Operations that need several parts belong to `Core`, which has all.
//!
//! Locks, in the order in which they are taken (never the other way round). Of one kind several are taken only where that is said:
//!
//! 1. `Recovery::gone`: one node of a predecessor without a name is made again at a time.
//! 2. `OpenState::copy`: one copy-up of that file at a time. Never begun with names of a directory held, because it may walk the tree for
//!    other names; for that `Ledger::search` or `LayerLinks::search`, with which only the layer is read.
//! 3. `Entries::ops`, the names of directories, in the order of their node ids: shared by lookups and listings, exclusive in
//!    `coherence::name_changes::LockedNames`.
//! 4. `Dir::copy`, of directories in the order of their node ids: one copy-up of that directory at a time, and none while it moves or
//!    goes. A directory's before its parent's.
//! 5. `Dir::inherit`, until what is inherited has been read.
//! 6. `OpenState::times`: shared by what writes and then puts times back, exclusive for what sets them.
//! 7. `File::state`, of two files in the order of their addresses: where the object lives. Held shared during an operation by name,
//!    exclusive while that changes.
//! 8. `OpenState::successor` and `Inodes::shards`: which node shows a file, until it has been made. What is dropped of a node's
//!    references is dropped after them: a node's end takes its file's state.
//! 9. `OpenState::partial`: the one partial file behind a file, until it has been opened. `OpenState::kernel_ctime`: until a file's time of change has been
//!    read and kept. `OpenState::doomed`: for an assignment. `OpenSidecars::open`: for a look; the end of a sidecar's last user is waited for
//!    with `OpenState::partial` held, and takes nothing but what follows.
//! 10. Of a partial file `BlockLocks::ranges` (waited for with nothing of it held), `PartialFile::shape`, `BlockMap::chunks`,
//!     `SidecarJournal::file`; `Sidecar::syncing` and then `Sidecar::dirty`.
//! 11. `Dir::place`, then `Dir::upper`: for a copy of what they say.
//! 12. `Entries::cache`, and under it `Recovery::spots`: what is known of names. No node is dropped with it held.
//! 13. `Slot::handle`, by which files and directories are open; `Budget::queue`, in which they stand.
//! 14. For the length of a few instructions, and nothing under them but what follows: `NegativeDentries`, `DirLease::waits` (which asks the
//!     kernel's side what it is answering), `HandleIds::notes`, `OpenState::replaced`, `LayerLinks::moved`, `Upper::partials`, `Recovery::held`, `Table::allocator`, `NodeLimit::rung`, `Chunk::slots`,
//!     `Ledger::orphan`, `Work::remake`, `Work::cleaner` and `OrphanNames::users` (which wait for nobody in the union).
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
mod questions;
mod sync;
mod union;

pub use coherence::generations::{Generations, Mappable};
pub use config::{
    DURABLE, OverrideStat, PARTIAL_FROM, PARTIAL_FROM_PASSTHROUGH, PASSTHROUGH_FROM, Run, Squash,
    UnionConfig, UpperConfig,
};
pub use extents::OwnBlocks;
pub use handout::Directory;
pub use layers::handles::Budget;
pub use layers::host_view::{HostEntry, HostView};
pub use layers::marks::IMPLIED;
pub use nodes::limit::{LimitEvent, NodeLimit};
pub use nodes::recovery::ledger::Ledger;
pub use nodes::recovery::lost_forgets::LostForgets;
pub use ops::flatten::{Extent, FlattenRun};
pub use ops::inspect::{Blocks, NodeReport, Summary};
pub use questions::{QUESTION, Questions};
pub use union::Union;

#[cfg(test)]
#[path = "../../branch/tests/support/fault/mod.rs"]
mod fault;
