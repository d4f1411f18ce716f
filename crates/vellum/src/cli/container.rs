//! Arguments of `vellum run` and of what is done with its containers: checkpoints.

use super::ClusterArgs;
use crate::zoned::ZonedArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use vellum_checkpoint::{Compress, Pace, Precopy};

/// Commands for containers, and what they need.
#[derive(Debug, Subcommand)]
pub enum ContainerCommand {
    /// Share the kernel's page cache among control groups by weight.
    ///
    /// A signal ends the command, and then all limits are as before.
    Balance(BalanceArgs),
    /// Run a command in a container on a Vellum mount, by crun or runc.
    ///
    /// At the end it removes the container, its mount and its changes. Unpacked layers stay, and `--upper`
    /// keeps the changes. It needs root, of the host or of a user namespace. Most options are those of
    /// podman-run(1). With `--pool` the container's programs use the preload library if it is installed.
    Run(Box<RunArgs>),
    /// Show the containers of `vellum run`: name, first process, age and state.
    ///
    /// The state `no manager` means that the `vellum run` of the container was killed.
    Ps(PsArgs),
    /// End containers whose `vellum run` was killed, and remove their mounts and directories.
    Rm(RmArgs),
    /// Manage stores on zoned devices, files and disks.
    ///
    /// A store has named objects and a tree of files on a zoned block device, or on a file or disk that is
    /// used like one. Checkpoints get zones of their own.
    Zoned(ZonedArgs),
    /// Save the memory and files of a container of `vellum run`, podman or containerd, by CRIU and runc.
    ///
    /// It needs criu(8) 4.0 or later. The container then ends, unless `--leave-running` is given. If a
    /// checkpoint fails, the container continues.
    ///
    Checkpoint(CheckpointArgs),
    /// Resume a container from a checkpoint, in the foreground like `vellum run`.
    ///
    /// The layers below must be the same. Accept a stream only from people to whom you would give a root shell.
    Restore(RestoreArgs),
    /// List, show and delete checkpoints.
    Checkpoints(CheckpointsArgs),
    /// Gives control groups their limits back when the process that balances them has been killed.
    #[command(name = vellum_balance::GUARD, hide = true)]
    BalanceGuard {
        /// The group whose children share.
        parent: PathBuf,
    },
    /// What sees to it that a container goes on whose checkpoint is interrupted.
    #[command(name = vellum_checkpoint::pause::GUARD, hide = true)]
    Guard {
        /// The runtime, where it keeps what it knows, the container, and what is removed.
        #[arg(num_args = 4)]
        arguments: Vec<OsString>,
    },
    /// What has the library go away from a container's programs.
    #[command(name = vellum_checkpoint::library::LEAVES, hide = true)]
    Leave {
        /// The container's control group.
        group: PathBuf,
        /// Its first process.
        init: u32,
        /// Where they see the library.
        place: PathBuf,
    },
    /// What shows an upper layer on CephFS to a checkpoint.
    #[command(name = vellum_checkpoint::upper_view::SHOWS, hide = true)]
    Show {
        /// The layer.
        layer: OsString,
    },
    /// A hook by which a restored container has its own loopback interface.
    #[command(name = vellum_container::loopback::HOOK, hide = true)]
    Loopback,
    /// A program that runs where another one is in a third one's place.
    #[command(name = vellum_checkpoint::podman::APART, hide = true)]
    Apart {
        /// The place.
        place: PathBuf,
        /// What is there instead.
        instead: PathBuf,
        /// Where what was there is.
        real: PathBuf,
        /// The program.
        program: OsString,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// What a program that podman starts waits at.
    #[command(name = vellum_checkpoint::podman::GATE, hide = true)]
    Gate {
        /// The socket.
        socket: PathBuf,
        /// The process that listens there.
        process: i32,
        /// What is locked until all is done.
        locked: PathBuf,
        /// The program.
        program: OsString,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// What `run` starts a runtime by.
    #[command(name = "internal-tied", hide = true)]
    Tied {
        /// What the runtime is to see elsewhere as well, and where.
        #[arg(long, num_args = 2)]
        show: Vec<OsString>,
        /// Who starts it.
        parent: u32,
        /// The runtime.
        program: OsString,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// Arguments of `vellum balance`.
#[derive(Args, Debug)]
pub struct BalanceArgs {
    /// Print each group's page cache and its share at each sample.
    #[arg(long)]
    pub show: bool,
    /// Seconds between two samples.
    #[arg(long, short, default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// End after this many samples.
    #[arg(long, short = 'n', value_name = "NUMBER")]
    pub times: Option<u64>,
    /// The group whose children share, e.g. machine.slice [default: the group of all pools].
    pub group: Option<PathBuf>,
}

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
    /// The directory of layers and containers. For a pool with `--uid-range`, everybody must be able to enter
    /// it [default: /var/lib/vellum, or vellum in the user's data directory].
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
    /// A first pass over memory while the container runs shortens the pause: auto (the default) for large
    /// memory if the kernel tracks writes, none never, always. Only for containers of `vellum run`.
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
