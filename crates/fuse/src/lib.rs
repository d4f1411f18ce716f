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
//! The way of a request: `transport` receives it, [`request`] reads it, `answer` calls the filesystem and lays the
//! answer into the worker's reply buffer, `transport` sends that. Nothing is allocated on this way, and file data is
//! copied by the kernel only.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod answer;
mod files;
mod mount;
pub mod request;
mod session;
mod transport;
pub mod wire;
mod workers;

pub use mount::{FuseMount, Method, MountError, MountOptions, is_mounted, mount, unmount};
pub use session::inflight::{AnswerCounts, Inflight};
pub use session::init::{MAX_WRITE_LIMIT, SessionOptions, SessionParameters, WORKERS_MAX, Workers};
pub use session::notify::{FuseNotifier, disbelieve, resend};
pub use session::stats::{Counts, TIME_CLASSES, Times, class_limit};
pub use session::{Session, SessionHandle};

/// Logs a condition the first time.
pub(crate) fn warn_once(warned: &std::sync::atomic::AtomicBool, log: impl FnOnce()) {
    if !warned.swap(true, std::sync::atomic::Ordering::Relaxed) {
        log();
    }
}
