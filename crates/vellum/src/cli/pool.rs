//! Arguments of `vellum pool`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Arguments of `vellum pool`.
#[derive(Args, Debug)]
pub struct PoolArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PoolCommand,
}

/// What to do with pools.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Create a pool.
    Create {
        /// The pool's name.
        name: String,
        /// Its limits.
        #[command(flatten)]
        settings: PoolSettings,
    },
    /// Change a pool's limits, many of them for existing mounts as well. The value none removes a limit.
    Set {
        /// The pool's name.
        name: String,
        /// Its limits; the value none removes one.
        #[command(flatten)]
        settings: PoolSettings,
    },
    /// List pools and their use.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a pool, its use and its mounts.
    Show {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// The pool's name.
        name: String,
    },
    /// Replace a pool's service by the installed program. Mounts stay, and programs see no error.
    Restart {
        /// The pool's name.
        name: String,
    },
    /// Run a pool's service in the foreground, for systemd. Otherwise the first mount of a pool starts the service, and the service ends
    /// with the last.
    Serve {
        /// The pool's name.
        name: String,
        /// Go to the background when the service answers, and end with its last mount.
        #[arg(long)]
        background: bool,
        /// With --background: say on standard output, as data, how that went.
        #[arg(long, hide = true)]
        outcome: bool,
        /// What an older program hands over when this one takes its place.
        #[arg(long, hide = true, value_name = "NUMBERS")]
        inherit: Option<String>,
    },
    /// Print the version of the state that one service leaves to the next; for vellum itself.
    #[command(hide = true)]
    Format,
    /// Delete a pool. It must have no mounts.
    Delete {
        /// The pool's name.
        name: String,
    },
}

/// What a pool may use.
#[derive(Args, Debug, Default, PartialEq)]
pub struct PoolSettings {
    /// The most processor time of its services, in processors, e.g. 1.5.
    #[arg(long, value_name = "NUMBER")]
    pub cpus: Option<String>,
    /// The processors of its services, e.g. 0-3,8.
    #[arg(long, value_name = "LIST")]
    pub cpuset_cpus: Option<String>,
    /// The most memory of its services, page cache included, e.g. 2G. A service that needs more is killed repeatedly.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Its share of processors and disks, from 1 to 10000 [default: 100].
    #[arg(long, value_name = "NUMBER")]
    pub weight: Option<String>,
    /// The default weight of its mounts, from 1 to 10000: their shares of the service's data cache.
    #[arg(long, value_name = "NUMBER")]
    pub mount_weight: Option<String>,
    /// The most that its service's data cache holds, whatever cache_size its mounts have, e.g. 256M.
    #[arg(long, value_name = "BYTES")]
    pub cache: Option<String>,
    /// The most bytes per second that its services read from the disks of its layers, e.g. 50M.
    #[arg(long, value_name = "BYTES")]
    pub read_limit: Option<String>,
    /// The most bytes per second that its services write to the disks of its layers.
    #[arg(long, value_name = "BYTES")]
    pub write_limit: Option<String>,
    /// The host's user and group ids for its containers; START is their root, e.g. 100000:65536. Pools share
    /// no ids. Mounts show owner 0 as START.
    #[arg(long, value_name = "START:COUNT")]
    pub uid_range: Option<String>,
    /// on: its service may connect to Ceph clusters; none: not. For a running pool it takes effect after vellum pool restart.
    #[arg(long, value_name = "on")]
    pub ceph: Option<String>,
    /// The default cluster configuration file of its mounts. This and the next two options imply --ceph on.
    #[arg(long, value_name = "FILE")]
    pub ceph_conf: Option<PathBuf>,
    /// The default Ceph client's name, e.g. tenant for client.tenant.
    #[arg(long, value_name = "NAME")]
    pub ceph_id: Option<String>,
    /// The default filesystem name in the cluster.
    #[arg(long, value_name = "NAME")]
    pub ceph_fs: Option<String>,
    /// Mounts with layers below this directory belong to the pool without the option pool=NAME. May be repeated.
    #[arg(long, value_name = "DIR")]
    pub storage: Vec<PathBuf>,
}

impl PoolSettings {
    /// Whether nothing was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
