//! Containers: a process whose root is a Vellum tree, started by an OCI runtime, in a pool where one is asked for.
//!
//! `image` says what a container's root is made of. `process`, `user`, `volume` and `preload` say what is to
//! run, `spec` writes it down for the runtime, `placement` finds its control group. `state` keeps what
//! belongs to a container in one directory, and takes away what others have left; `union` mounts the tree,
//! `runtime` calls the runtime, which `exec_helper` lets end with us, `settings` keeps what a container was
//! started with, `container_process` finds one of somebody else, `list` shows all and ends those that were
//! left, `host_mounts` shows it what it may not reach, `stdio` guards the host's devices against it,
//! `signals` passes signals on, and `run` puts them together. `restore` has one go on from a checkpoint: by
//! `criu`, above layers of the same `identity`, with `loopback` up.
#![forbid(unsafe_code)]

mod container_process;
pub mod criu;
pub mod exec_helper;
mod fingerprint;
mod host_mounts;
mod identity;
pub mod image;
mod list;
pub mod loopback;
mod placement;
mod preload;
mod process;
mod remote_upper;
mod restore;
mod run;
mod runtime;
mod settings;
mod signals;
mod spec;
mod state;
mod stdio;
mod union;
mod user;
mod volume;

pub use container_process::ContainerProcess;
pub use identity::Lowers;
pub use list::{ContainerEntry, list, remove};
pub use preload::{INSIDE as VELLUM_DIR, LIBRARY};
pub use process::ProcessOptions;
pub use restore::{Restore, SavedContainer, restore};
pub use run::{ContainerExit, RUN_FILES, Request, run};
pub use runtime::{Kind, Runtime, in_path};
pub use settings::{Image, Settings};
pub use state::{State, check_owner, plain_name, random_name};
pub use volume::Volume;

/// The exit status when Vellum itself or the runtime failed, as podman has it.
pub const STATUS_FAILED: u8 = 125;
