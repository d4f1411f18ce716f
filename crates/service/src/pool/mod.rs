//! One service for all mounts of a pool, or for a mount of its own.
//!
//! Who mounts in a pool (`mount_client`) opens the layers and makes the mount, in its own mount namespace and with its own rights, and
//! hands the descriptors over a socket to the *service* (`pool_service`), which serves all mounts of the pool. A mount of its own
//! (`single_mount`) is a pool of one without sockets. A *supervisor* (`supervisor`; `pool_server` for a pool) is the service's parent and shares its
//! table of descriptors: when the service dies, whatever it dies of, every descriptor stays open in the supervisor, so no mount ends; the
//! next service finds in them what the last one was serving (`mount_record`), takes the nodes from the ledger, and has the kernel send
//! again what had not been answered. A *standby* does for the supervisor what the supervisor does for the service.

mod abort;
mod format;
mod handout_mounts;
mod mount_client;
mod mount_memory;
mod mount_record;
mod new_mount;
mod pool_server;
mod pool_service;
mod resume;
mod short_lives;
mod single_mount;
mod sockets;
mod supervisor;
mod supervisor_state;
mod wire;

pub(crate) use abort::is_device;
pub use format::{FormatError, answer as format, parse_text};
pub use mount_client::{JoinOutcome, Pool, look, restart, stop};
pub(crate) use mount_record::RecordFile;
pub use mount_record::parse_mount_record;
pub use pool_server::{PoolServer, SupervisorOptions, listen, supervise};
pub use single_mount::run as serve_alone;
pub(crate) use sockets::bind_at;
pub use sockets::{
    directory as session_directory, make_directory as make_session_directory, path as session_path,
};
pub use wire::Status;

/// Version of everything that one service leaves to the next: mount records and the memory that they name.
pub const FORMAT: u32 = 18;

/// What supervisors and standbys are called in lists of processes.
pub const KEEPERS: [&str; 2] = ["vellum-keeper", "vellum-standby"];

/// Exit status of a service that is to be replaced.
const REPLACE: i32 = 64;
/// Of one that could not begin, and has said why.
const FAILED: i32 = 65;
/// Of one that nobody is to wait for.
const AT_ONCE: i32 = 66;
/// Of one whose client a cluster has expelled.
pub(crate) const EXPELLED: i32 = 67;

/// Those that ask for the end.
const ENDING: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
