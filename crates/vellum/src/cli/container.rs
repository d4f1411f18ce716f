//! Arguments of `vellum run` and of what is done with its containers: checkpoints.

use super::ClusterArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use vellum_engine::checkpoint::{Compress, Pace, Precopy};

/// Arguments of `vellum run`. Words that become part of the container's configuration are text, paths of the host need not be.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// What the root is made of: a directory tree, an OCI image layout, oci:DIR:TAG, or one of these on CephFS: ceph:PATH,
    /// oci:ceph:PATH:TAG. It is only read.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<PathBuf>,
    /// Which cluster ceph:PATH is on.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The pool that serves the mount and holds the container's processes.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Its share of the pool's cache where others want it too, from 1 to 10000; otherwise the pool's, or 100.
    #[arg(long, value_name = "NUMBER")]
    pub weight: Option<String>,
    /// Read the image through a cache of the service, for an image that lies on a slow storage.
    #[arg(long, value_enum)]
    pub cache: Option<CacheArg>,
    /// Keep what the container writes, in this directory, or in one on CephFS, ceph:PATH, or in a store, zoned:DEVICE/DIR.
    #[arg(long, value_name = "DIR")]
    pub upper: Option<PathBuf>,
    /// When the cluster is given what is written to --upper ceph:PATH: before it is answered (sync, which is usual), or later (back), as the option
    /// ceph.write of a mount says it.
    #[arg(long, value_enum)]
    pub ceph_write: Option<CephWriteArg>,
    /// The container's name; otherwise it has one of its own.
    #[arg(long, value_name = "ID")]
    pub name: Option<String>,
    /// Take the container away when it has ended, as is done in any case.
    #[arg(long)]
    pub rm: bool,
    /// Pass standard input on, as is done in any case.
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal of its own, shown in this one; false: none. Otherwise it has one where standard input and output
    /// are one.
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub tty: Option<bool>,
    /// Refused: the container ends with this command.
    #[arg(short, long, hide = true)]
    pub detach: bool,
    /// A variable for the command; without a value, the one that it has here. May be repeated.
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Where the command runs.
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// As whom it runs: numbers, or names of the image's own /etc/passwd and /etc/group.
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,
    /// Show a file or directory of the host in the container. May be repeated.
    #[arg(short, long, value_name = "SRC:DST[:ro]")]
    pub volume: Vec<String>,
    /// The root cannot be written.
    #[arg(long)]
    pub read_only: bool,
    /// The name of its host.
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,
    /// Its network.
    #[arg(long, value_enum, default_value = "none")]
    pub network: NetworkArg,
    /// What runs instead of the image's entrypoint; an empty one: the command itself.
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<String>,
    /// no-new-privileges=false: programs with set-user-ID bits or capabilities have them.
    #[arg(long, value_name = "OPTION")]
    pub security_opt: Vec<String>,
    /// The OCI runtime: crun, runc or a path; otherwise one that is found.
    #[arg(long, value_name = "PROGRAM")]
    pub runtime: Option<PathBuf>,
    /// Where layers and containers are kept; otherwise /var/lib/vellum, or the user's directory for data.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The command and its arguments; otherwise the image's.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `vellum ps`.
#[derive(Args, Debug)]
pub struct PsArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Where layers and containers are kept, as given to `vellum run`.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// Arguments of `vellum rm`.
#[derive(Args, Debug)]
pub struct RmArgs {
    /// Kill it also where its `vellum run` lives, which then takes it away.
    #[arg(short, long)]
    pub force: bool,
    /// Where layers and containers are kept, as given to `vellum run`.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The containers.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// Arguments of `vellum checkpoint`.
#[derive(Args, Debug)]
pub struct CheckpointArgs {
    /// The directory of checkpoints, made if it is not there; or a device with a store, see vellum zoned.
    #[arg(long, value_name = "DIR|zoned:DEVICE", required_unless_present = "stream")]
    pub to: Option<PathBuf>,
    /// Write it to standard output as one stream, for `vellum restore --stream` elsewhere.
    #[arg(long, conflicts_with_all = ["to", "name", "pace", "parent"])]
    pub stream: bool,
    /// The checkpoint's name, otherwise the container's. One of this name is replaced, when the new one is whole.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The container goes on; otherwise it ends when the checkpoint is on disk.
    #[arg(long)]
    pub leave_running: bool,
    /// So that others on the disk do not wait longer (auto, usual in a store), as fast as it goes (none, usual in a directory), or at
    /// most so many bytes per second.
    #[arg(long, value_name = "auto|none|RATE")]
    pub pace: Option<Pace>,
    /// Pack it by zstd as far as that makes it faster (auto, which is usual), not at all, or in any case, at a level from 1 to 19.
    #[arg(long, value_name = "auto|none|zstd[:LEVEL]", default_value = "auto", hide_default_value = true)]
    pub compress: Compress,
    /// Leave out what this checkpoint at the same place has already, in memory and in files. The new one needs it from then on.
    #[arg(long, value_name = "NAME")]
    pub parent: Option<String>,
    /// Read its memory once while it runs, so that it stands still only for what it has written meanwhile: where the kernel tells that and there
    /// is much of it (auto, which is usual), not at all, or in any case. For containers of `vellum run`.
    #[arg(long, value_name = "auto|none|always", default_value = "auto", hide_default_value = true)]
    pub memory_ahead: Precopy,
    /// Where layers and containers are kept, as given to `vellum run`.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The container, by the name that `vellum run` gave it (--name); or podman:NAME, podman:ID: one of podman; or
    /// containerd:ID, containerd:NAMESPACE/ID: one of containerd.
    #[arg(value_name = "CONTAINER|podman:NAME|containerd:ID")]
    pub container: String,
}

/// Arguments of `vellum restore`.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// The pool that it is in from now on; otherwise the one that it was in.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// The container's name; otherwise the one that it had.
    #[arg(long, value_name = "ID")]
    pub name: Option<String>,
    /// Where its image is now, if not where it was; a copy that is the same, also of or on CephFS.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<PathBuf>,
    /// Which cluster ceph:PATH is on.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The OCI runtime; otherwise runc.
    #[arg(long, value_name = "PROGRAM")]
    pub runtime: Option<PathBuf>,
    /// Where layers and containers are kept; otherwise /var/lib/vellum.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The checkpoint. One of a container of podman goes on as podman's, in the background.
    #[arg(value_name = "DIR/NAME|zoned:DEVICE/NAME", required_unless_present = "stream")]
    pub checkpoint: Option<PathBuf>,
    /// Read the checkpoint from standard input, where `vellum checkpoint --stream` writes it. What follows is the container's.
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
    /// Show all.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Where they are.
        dir: PathBuf,
    },
    /// Show one.
    Show {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Where it is.
        dir: PathBuf,
        /// Its name.
        name: String,
    },
    /// Remove some.
    Delete {
        /// Where they are.
        dir: PathBuf,
        /// Their names.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// A cache by who may change what is read through it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CacheArg {
    /// None.
    Off,
    /// Others, too.
    Shared,
    /// Nobody.
    Immutable,
}

/// When an upper layer's cluster is given what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CephWriteArg {
    /// Before it is answered.
    Sync,
    /// Later.
    Back,
}

/// A container's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArg {
    /// Nothing but itself.
    None,
    /// The host's.
    Host,
}
