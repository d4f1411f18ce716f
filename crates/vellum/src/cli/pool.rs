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
    /// Make a pool.
    Create {
        /// Its name.
        name: String,
        /// What it may use.
        #[command(flatten)]
        settings: PoolSettings,
    },
    /// Change what a pool may use, from now on and for the mounts that it has.
    Set {
        /// Its name.
        name: String,
        /// What it may use; the word none takes a setting back.
        #[command(flatten)]
        settings: PoolSettings,
    },
    /// Show all pools, and what they use.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a pool, what it uses, and its mounts.
    Show {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Its name.
        name: String,
    },
    /// Replace a pool's service by a new one, of the program as it is on disk. Mounts stay, and who uses them notices nothing.
    Restart {
        /// Its name.
        name: String,
    },
    /// Run a pool's service, in the foreground; for systemd. Without it, the first mount in a pool starts the service, and it ends
    /// after the last.
    Serve {
        /// Its name.
        name: String,
        /// Go to the background when the service can be reached, and end with its last mount.
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
    /// Take a pool away. Nothing may be mounted in it.
    Delete {
        /// Its name.
        name: String,
    },
}

/// What a pool may use.
#[derive(Args, Debug, Default, PartialEq)]
pub struct PoolSettings {
    /// How many processors' time its services use at most, e.g. 1.5.
    #[arg(long, value_name = "NUMBER")]
    pub cpus: Option<String>,
    /// The processors that its services run on, e.g. 0-3,8.
    #[arg(long, value_name = "LIST")]
    pub cpuset_cpus: Option<String>,
    /// Memory of its services, page cache included, e.g. 2G.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Its share of processors and disks, from 1 to 10000; who has none has 100.
    #[arg(long, value_name = "NUMBER")]
    pub weight: Option<String>,
    /// The weight of those of its mounts that are given none, from 1 to 10000: their shares of its service's cache.
    #[arg(long, value_name = "NUMBER")]
    pub mount_weight: Option<String>,
    /// The most that its service's cache may hold, whatever its mounts ask for by cache_size, e.g. 256M.
    #[arg(long, value_name = "BYTES")]
    pub cache: Option<String>,
    /// Bytes per second that its services read from the disks of its layers, e.g. 50M.
    #[arg(long, value_name = "BYTES")]
    pub read_limit: Option<String>,
    /// Bytes per second that its services write to the disks of its layers.
    #[arg(long, value_name = "BYTES")]
    pub write_limit: Option<String>,
    /// Users and groups of the host that its containers run as: their root is START, e.g. 100000:65536. No two pools share any.
    #[arg(long, value_name = "START:COUNT")]
    pub uid_range: Option<String>,
    /// Whether its service may connect to Ceph clusters, for layers on CephFS: on, or none. A service that is there: vellum pool restart.
    #[arg(long, value_name = "on")]
    pub ceph: Option<String>,
    /// The configuration of the cluster of its mounts' layers on CephFS, where their options name none. Means --ceph on, as the next two.
    #[arg(long, value_name = "FILE")]
    pub ceph_conf: Option<PathBuf>,
    /// As which client that is reached, e.g. tenant for client.tenant.
    #[arg(long, value_name = "NAME")]
    pub ceph_id: Option<String>,
    /// The filesystem's name there.
    #[arg(long, value_name = "NAME")]
    pub ceph_fs: Option<String>,
    /// Mounts with layers below this directory belong to the pool without saying so; may be repeated.
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
