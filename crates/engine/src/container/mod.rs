//! Containers: a process whose root is a Vellum tree, started by an OCI runtime that is there, in a pool where one is asked for.
//!
//! `process`, `user`, `volume` and `preload` say what is to run, `spec` writes it down for the runtime, `placement` finds its control
//! group. `state` keeps what belongs to a container in one directory, and takes away what others have left; `union` mounts the tree,
//! `runtime` calls the runtime, which `exec_helper` lets end with us, `settings`
//! keeps what a container was started with, `container_process` finds one of somebody else, `list` shows all and ends those that were left, `restore` has one go on from a checkpoint, `display` shows it what it may not reach, `stdio` guards the host's devices against it, `signals` passes
//! signals on, and `run` puts them together.

mod container_process;
pub mod exec_helper;
mod host_mounts;
mod list;
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

pub(crate) use container_process::ContainerProcess;
pub use list::{ContainerEntry, Manager, list, remove};
pub(crate) use preload::{INSIDE as VELLUM_DIR, LIBRARY};
pub use preload::{LIBRARY_VARIABLE, SOCKET_VARIABLE};
pub use process::ProcessOptions;
pub use restore::{Restore, restore};
pub(crate) use run::RUN_FILES;
pub use run::{ContainerExit, Request, run};
pub(crate) use runtime::{Kind, Runtime, in_path};
pub use settings::{Image, Settings};
pub(crate) use state::{State, own, plain_name, random_name};
pub use volume::Volume;

/// The exit status when Vellum itself or the runtime failed, as podman has it.
pub const STATUS_FAILED: u8 = 125;
