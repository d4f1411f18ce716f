//! A FUSE protocol layer over [`vellum_vfs::Filesystem`]: mount, negotiate, serve, notify.
//!
//! ```no_run
//! # fn demo<F: vellum_vfs::Filesystem>(filesystem: F) -> Result<(), Box<dyn std::error::Error>> {
//! use vellum_fuse::{MountOptions, Session, SessionOptions, mount};
//! let mounted = mount("/mnt".as_ref(), &MountOptions::default())?;
//! let session = Session::new(std::sync::Arc::new(filesystem), mounted, SessionOptions::default())?;
//! session.run()?; // until it is unmounted
//! # Ok(()) }
//! ```
//!
//! The way of a request: `transport` receives it, [`request`] reads it, `dispatch` calls the filesystem and lays the
//! answer into the worker's reply buffer, `transport` sends that. Nothing is allocated on this way, and file data is
//! copied by the kernel only.
#![forbid(unsafe_code)]

mod backing;
mod buffer;
mod convert;
mod dispatch;
mod inflight;
mod init;
mod ioctl;
mod listing;
mod mount;
mod notify;
mod pages;
mod pool;
pub mod request;
mod session;
mod stats;
mod transport;
mod warned;
pub mod wire;
mod worker;
mod workers;

pub use inflight::Inflight;
pub use init::{MAX_WRITE_LIMIT, Negotiated, Profile, SessionOptions, WORKERS_MAX, Workers};
pub use mount::{Method, MountError, MountOptions, Mounted, is_mounted, mount, unmount};
pub use notify::{FuseNotifier, disbelieve, resend};
pub use session::{Session, SessionHandle};
pub use stats::{Counts, TIME_CLASSES, Times, class_limit};
