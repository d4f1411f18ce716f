//! Containers: a process whose root is a Vellum tree, started by an OCI runtime that is there, in a pool where one is asked for.
//!
//! `process`, `user`, `volume` and `preload` say what is to run, `spec` writes it down for the runtime, `placement` finds its control
//! group. `state` keeps what belongs to a container in one directory, and takes away what others have left; `union` mounts the tree,
//! `runtime` calls the runtime, which `tied` lets end with us, `stdio` guards the host's devices against it, `signals` passes
//! signals on, and `run` puts them together.

mod placement;
mod preload;
mod process;
mod run;
mod runtime;
mod signals;
mod spec;
mod state;
mod stdio;
pub mod tied;
mod union;
mod user;
mod volume;

pub use preload::{LIBRARY_VARIABLE, SOCKET_VARIABLE};
pub use process::Asked;
pub use run::{Ending, Request, run};
pub use volume::Volume;

/// The exit status when Vellum itself or the runtime failed, as podman has it.
pub const STATUS_FAILED: u8 = 125;
