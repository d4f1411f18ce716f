//! Arguments of `vellum run` and of what is done with its containers: checkpoints.

use super::ClusterArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use vellum_checkpoint::{Compress, Pace, Precopy};

/// Arguments of `vellum run`. Words that become part of the container's configuration are text, paths of the host need not be.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// The image: a directory tree, an OCI image layout, oci:DIR:TAG, or one of these on CephFS: ceph:PATH, oci:ceph:PATH:TAG. Vellum
    /// only reads it.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<PathBuf>,
    /// Which cluster ceph:PATH is on.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The pool that serves the mount and holds the container's processes.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// The container's share of the pool's data cache under contention, from 1 to 10000 [default: the pool's mount weight, or 100].
    #[arg(long, value_name = "NUMBER")]
    pub weight: Option<String>,
    /// Read the image through the service's data cache. It helps where the storage of the image is slow.
    #[arg(long, value_enum)]
    pub cache: Option<CacheArg>,
    /// Save the container's changes in this directory, on CephFS (ceph:PATH) or in a store (zoned:DEVICE/DIR).
    #[arg(long, value_name = "DIR")]
    pub upper: Option<PathBuf>,
    /// Writes to --upper ceph:PATH reach the cluster before the answer (sync, the default) or later (back: write-back, see the mount option
    /// ceph.write).
    #[arg(long, value_enum)]
    pub ceph_write: Option<CephWriteArg>,
    /// The container's name [default: a generated name].
    #[arg(long, value_name = "ID")]
    pub name: Option<String>,
    /// Accepted for podman's users: the container is always removed at its end.
    #[arg(long)]
    pub rm: bool,
    /// Accepted for podman's users: standard input is always passed to the command.
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal; false: none [default: a terminal if standard input and output are one].
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub tty: Option<bool>,
    /// Refused: the container ends with this command.
    #[arg(short, long, hide = true)]
    pub detach: bool,
    /// An environment variable for the command; without a value, the caller's. May be repeated.
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// The command's working directory.
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// The command's user and group: numbers, or names from the image's /etc/passwd and /etc/group.
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,
    /// Bind a file or directory of the host into the container. Its owners are not mapped. May be repeated.
    #[arg(short, long, value_name = "SRC:DST[:ro]")]
    pub volume: Vec<String>,
    /// Mount the root read-only.
    #[arg(long)]
    pub read_only: bool,
    /// The container's host name.
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,
    /// The container's network.
    #[arg(long, value_enum, default_value = "none")]
    pub network: NetworkArg,
    /// Replaces the image's entrypoint; an empty one runs the command itself.
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<String>,
    /// no-new-privileges=false lets set-user-ID bits and file capabilities take effect.
    #[arg(long, value_name = "OPTION")]
    pub security_opt: Vec<String>,
    /// The OCI runtime: crun, runc or a path [default: the first one in PATH].
    #[arg(long, value_name = "PROGRAM")]
    pub runtime: Option<PathBuf>,
    /// The directory of layers and containers. For a pool with `--uid-range`, everybody must be able to enter it [default: /var/lib/vellum, or vellum in the
    /// user's data directory].
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The command and its arguments [default: the image's].
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `vellum ps`.
#[derive(Args, Debug)]
pub struct PsArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The directory of layers and containers, as given to `vellum run`.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// Arguments of `vellum rm`.
#[derive(Args, Debug)]
pub struct RmArgs {
    /// Also end containers whose `vellum run` is alive.
    #[arg(short, long)]
    pub force: bool,
    /// The directory of layers and containers, as given to `vellum run`.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The containers.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// Arguments of `vellum checkpoint`.
#[derive(Args, Debug)]
pub struct CheckpointArgs {
    /// The directory of checkpoints, created if missing, or a device with a store (see vellum zoned).
    #[arg(long, value_name = "DIR|zoned:DEVICE", required_unless_present = "stream")]
    pub to: Option<PathBuf>,
    /// Write the checkpoint to standard output, for `vellum restore --stream` on another host.
    #[arg(long, conflicts_with_all = ["to", "name", "pace", "parent"])]
    pub stream: bool,
    /// The checkpoint's name. A complete new checkpoint replaces an old one of this name [default: the container's].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Resume the container after the checkpoint; without this option it ends when the checkpoint is on disk.
    #[arg(long)]
    pub leave_running: bool,
    /// auto yields to other users of the disk (default in a store), none does not (default in a directory), RATE caps bytes per second.
    #[arg(long, value_name = "auto|none|RATE")]
    pub pace: Option<Pace>,
    /// Compress with zstd: auto (the default) while that is faster, none never, zstd always, at a level from 1 to 19.
    #[arg(long, value_name = "auto|none|zstd[:LEVEL]", default_value = "auto", hide_default_value = true)]
    pub compress: Compress,
    /// Omit pages and blocks that this earlier checkpoint in the same place has. The new checkpoint depends on it.
    #[arg(long, value_name = "NAME")]
    pub parent: Option<String>,
    /// A first pass over memory while the container runs shortens the pause: auto (the default) for large memory if the kernel tracks writes,
    /// none never, always. Only for containers of `vellum run`.
    #[arg(long, value_name = "auto|none|always", default_value = "auto", hide_default_value = true)]
    pub memory_ahead: Precopy,
    /// The directory of layers and containers, as given to `vellum run`.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// A container of `vellum run` by its name, of podman (podman:NAME, podman:ID), or of containerd (containerd:ID,
    /// containerd:NAMESPACE/ID).
    #[arg(value_name = "CONTAINER|podman:NAME|containerd:ID")]
    pub container: String,
}

/// Arguments of `vellum restore`.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// The container's pool from now on [default: its former pool].
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// The container's name [default: its former name].
    #[arg(long, value_name = "ID")]
    pub name: Option<String>,
    /// The new location of the image: an identical copy on this host or on CephFS [default: its former location].
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<PathBuf>,
    /// Which cluster ceph:PATH is on.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The OCI runtime [default: runc].
    #[arg(long, value_name = "PROGRAM")]
    pub runtime: Option<PathBuf>,
    /// The directory of layers and containers [default: /var/lib/vellum].
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The checkpoint. A container of podman or containerd resumes in that engine, in the background.
    #[arg(value_name = "DIR/NAME|zoned:DEVICE/NAME", required_unless_present = "stream")]
    pub checkpoint: Option<PathBuf>,
    /// Read a checkpoint of `vellum checkpoint --stream` from standard input. Later input belongs to the container.
    #[arg(long, conflicts_with = "checkpoint")]
    pub stream: bool,
}

/// Arguments of `vellum checkpoints`.
#[derive(Args, Debug)]
pub struct CheckpointsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CheckpointsCommand,
}

/// What to do with checkpoints.
#[derive(Debug, Subcommand)]
pub enum CheckpointsCommand {
    /// List checkpoints.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// The directory or store of the checkpoints.
        dir: PathBuf,
    },
    /// Show one checkpoint.
    Show {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// The directory or store of the checkpoint.
        dir: PathBuf,
        /// The checkpoint's name.
        name: String,
    },
    /// Delete checkpoints. One that others need is refused.
    Delete {
        /// The directory or store of the checkpoints.
        dir: PathBuf,
        /// Their names.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// The service's data cache for a container's image.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CacheArg {
    /// No cache.
    Off,
    /// Other hosts or programs may change the image.
    Shared,
    /// The image never changes.
    Immutable,
}

/// When writes to an upper layer reach its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CephWriteArg {
    /// Before the answer.
    Sync,
    /// Later (write-back).
    Back,
}

/// A container's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArg {
    /// Only the loopback interface.
    None,
    /// The host's network.
    Host,
}
