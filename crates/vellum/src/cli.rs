//! The subcommands' arguments.

use crate::options::{BadInput, Options, Request};
use crate::zoned::ZonedArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use vellum_service::config::Profile;

/// One writable tree made of layers, for containers, served at user level.
///
/// Called without a subcommand, it is a mount program: `vellum -o lowerdir=A:B,upperdir=D,workdir=W MOUNTPOINT`, as
/// container engines and mount(8) call it. See vellum(8).
#[derive(Debug, Parser)]
#[command(name = "vellum", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount layers as one tree.
    Mount(MountArgs),
    /// Take a mount away.
    #[command(alias = "unmount")]
    Umount(UmountArgs),
    /// Show where a path of a mount comes from, and how it is served.
    Inspect(InspectArgs),
    /// Copy into an upper layer what its files still take from the layers below. It must not be mounted. The work can be
    /// interrupted and taken up again at any time.
    Flatten(FlattenArgs),
    /// Write everything in mounts to disk, as `sync -f` does on other filesystems: the kernel does not ask FUSE servers to.
    Sync(SyncArgs),
    /// What the tenants of this host may use: processors, memory, disks.
    Pool(PoolArgs),
    /// Show what the services of mounts have done: requests and how long they took.
    Stats(StatsArgs),
    /// Show what the services of mounts do at the moment, again and again.
    Top(TopArgs),
    /// Give a mount another weight among those of its service, from now on: its share of the service's cache.
    Weight(WeightArgs),
    /// Tell Prometheus what services and pools have done.
    Metrics(MetricsArgs),
    /// Share the kernel's page cache among control groups by weight, until it is ended.
    Balance(BalanceArgs),
    /// Run a command in a container whose root is a Vellum tree, by crun or runc.
    Run(Box<RunArgs>),
    /// The store on zoned devices, and on files and disks that are used in their manner: images of checkpoints have zones of their own.
    Zoned(ZonedArgs),
    /// Keep what a container of `vellum run` is at this moment, its memory and its files, by CRIU and runc.
    Checkpoint(CheckpointArgs),
    /// Have a container go on from a checkpoint, in the foreground as `vellum run`.
    Restore(RestoreArgs),
    /// Checkpoints that are kept in a directory.
    Checkpoints(CheckpointsArgs),
    /// What sees to it that a container goes on whose checkpoint is interrupted.
    #[command(name = vellum_engine::checkpoint::pause::GUARD, hide = true)]
    Guard {
        /// The runtime, where it keeps what it knows, the container, and what is removed.
        #[arg(num_args = 4)]
        arguments: Vec<OsString>,
    },
    /// A hook by which a restored container has its own loopback interface.
    #[command(name = vellum_engine::checkpoint::loopback::HOOK, hide = true)]
    Loopback,
    /// What `run` starts a runtime by.
    #[command(name = "internal-tied", hide = true)]
    Tied {
        /// Who starts it.
        parent: u32,
        /// The runtime.
        program: OsString,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// What others mount by who cannot do it themselves.
    #[command(name = vellum_engine::mount::HELPER, hide = true)]
    MountForAnother {
        /// Where, for lists of processes; all that counts is said on standard input.
        mountpoint: Option<OsString>,
    },
    /// Print the version.
    Version,
    /// Compare Vellum with other filesystems on this machine: `vellum bench compare`, and more (`vellum bench --help`).
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
}

/// Arguments of `vellum mount`.
#[derive(Args, Debug)]
pub struct MountArgs {
    /// Options as in fstab, e.g. lowerdir=A:B,upperdir=D,workdir=W; may be repeated.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<OsString>,
    /// A lower layer; the first one is on top. May be repeated.
    #[arg(long, value_name = "DIR")]
    pub lower: Vec<PathBuf>,
    /// The layer that takes changes. Without it the tree is read-only.
    #[arg(long, value_name = "DIR", requires = "work")]
    pub upper: Option<PathBuf>,
    /// A directory for unfinished work, on the filesystem of the upper.
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// How file data travels.
    #[arg(long, value_enum)]
    pub profile: Option<ProfileArg>,
    /// The pool that is to serve it.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<OsString>,
    /// Mount read-only.
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Stay in the foreground.
    #[arg(short, long)]
    pub foreground: bool,
    /// Log everything to stderr; stay in the foreground.
    #[arg(short, long)]
    pub debug: bool,
    /// Answer requests one at a time.
    #[arg(short, long)]
    pub single: bool,
    /// What mount(8) is to show as the source.
    #[arg(value_name = "SOURCE")]
    pub first: OsString,
    /// Where to mount (or SOURCE and then this).
    #[arg(value_name = "MOUNTPOINT")]
    pub second: Option<OsString>,
}

/// A profile by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ProfileArg {
    /// Through the page cache of the mount.
    Cached,
    /// Straight to the layer's file; privileged.
    Passthrough,
}

/// Arguments of `vellum umount`.
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Now from the tree, and for good when nobody uses it any more.
    #[arg(short, long)]
    pub lazy: bool,
    /// The directory that is mounted on.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

/// Arguments of `vellum inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// A mount, or any path in one. Symbolic links are not followed at its end.
    pub path: PathBuf,
}

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
    /// Processors that its services run on, e.g. 0-3,8.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Memory of its services, page cache included, e.g. 2G.
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Its share of processors and disks, from 1 to 10000; who has none has 100.
    #[arg(long, value_name = "NUMBER")]
    pub weight: Option<String>,
    /// The weight of those of its mounts that are given none, from 1 to 10000: their shares of its service's cache.
    #[arg(long, value_name = "NUMBER")]
    pub mount_weight: Option<String>,
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

/// Arguments of `vellum sync`.
#[derive(Args, Debug)]
pub struct SyncArgs {
    /// Mounts, or anything in them.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

/// Arguments of `vellum stats`.
#[derive(Args, Debug)]
pub struct StatsArgs {
    /// Only mounts in this pool.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Where they are; without any: all that can be seen.
    pub mountpoint: Vec<PathBuf>,
}

/// Arguments of `vellum top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Only mounts in this pool.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Seconds between two looks.
    #[arg(long, short, default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// End after so many looks.
    #[arg(long, short = 'n', value_name = "NUMBER")]
    pub times: Option<u64>,
}

/// Arguments of `vellum balance`.
#[derive(Args, Debug)]
pub struct BalanceArgs {
    /// Print at each look what every group has and may keep.
    #[arg(long)]
    pub show: bool,
    /// Seconds between two looks.
    #[arg(long, short, default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// End after so many looks.
    #[arg(long, short = 'n', value_name = "NUMBER")]
    pub times: Option<u64>,
    /// The group whose children share, e.g. machine.slice; otherwise that of all pools.
    pub group: Option<PathBuf>,
}

/// Arguments of `vellum weight`.
#[derive(Args, Debug)]
pub struct WeightArgs {
    /// Where it is mounted, or any path in it.
    pub mountpoint: PathBuf,
    /// From 1 to 10000; who was given none has 100.
    pub weight: String,
}

/// Arguments of `vellum metrics`.
#[derive(Args, Debug)]
pub struct MetricsArgs {
    /// Answer HTTP at /metrics: 127.0.0.1:PORT, [::1]:PORT or unix:PATH. Without it: print once.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
}

/// Arguments of `vellum run`. Words that become part of the container's configuration are text, paths of the host need not be.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// What the root is made of: a directory tree, an OCI image layout, oci:DIR:TAG, or ceph:PATH, a directory tree on CephFS. It is
    /// only read.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<PathBuf>,
    /// The configuration of the cluster that ceph:PATH is on; otherwise /etc/ceph/ceph.conf.
    #[arg(long, value_name = "FILE")]
    pub ceph_conf: Option<PathBuf>,
    /// As which client it is reached; otherwise client.admin.
    #[arg(long, value_name = "NAME")]
    pub ceph_id: Option<String>,
    /// The filesystem's name there; otherwise the default one.
    #[arg(long, value_name = "NAME")]
    pub ceph_fs: Option<String>,
    /// The pool that serves the mount and holds the container's processes.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Its share of the pool's cache where others want it too, from 1 to 10000; otherwise the pool's, or 100.
    #[arg(long, value_name = "NUMBER")]
    pub weight: Option<String>,
    /// Read the image through a cache of the service, for an image that lies on a slow storage.
    #[arg(long, value_enum)]
    pub cache: Option<CacheArg>,
    /// Keep what the container writes, in this directory, or in one on CephFS: ceph:PATH.
    #[arg(long, value_name = "DIR")]
    pub upper: Option<PathBuf>,
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

/// Arguments of `vellum checkpoint`.
#[derive(Args, Debug)]
pub struct CheckpointArgs {
    /// The directory of checkpoints. It is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The checkpoint's name, otherwise the container's. One of this name is replaced, when the new one is whole.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The container goes on; otherwise it ends when the checkpoint is on disk.
    #[arg(long)]
    pub leave_running: bool,
    /// Where layers and containers are kept, as given to `vellum run`.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The container, by the name that `vellum run` gave it (--name).
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
    /// Where its image is now, if not where it was.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<PathBuf>,
    /// The OCI runtime; otherwise runc.
    #[arg(long, value_name = "PROGRAM")]
    pub runtime: Option<PathBuf>,
    /// Where layers and containers are kept; otherwise /var/lib/vellum.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The checkpoint.
    #[arg(value_name = "DIR/NAME")]
    pub checkpoint: PathBuf,
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

/// A container's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArg {
    /// Nothing but itself.
    None,
    /// The host's.
    Host,
}

/// Arguments of `vellum bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// What vellum-bench takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Arguments of `vellum flatten`.
#[derive(Args, Debug)]
pub struct FlattenArgs {
    /// A layer below it; the first one is on top. May be repeated. Without it: the layers that the upper records.
    #[arg(long, value_name = "DIR")]
    pub lower: Vec<PathBuf>,
    /// A directory for unfinished work, on the filesystem of the upper. Without it: one is made beside the upper.
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// The upper layer; or the directory in which an engine keeps its layers (podman's graphroot), for all that are not in use.
    pub upper: PathBuf,
}

impl MountArgs {
    /// The mount that they ask for.
    pub fn request(self) -> Result<Request, BadInput> {
        let mut options = Options::default();
        for text in &self.options {
            options.take(text, false)?;
        }
        for lower in self.lower {
            options.add_lower(lower.into());
        }
        if let Some(upper) = self.upper {
            options.set_upper(upper.into());
        }
        if let Some(work) = self.work {
            options.set_work(work.into());
        }
        match self.profile {
            Some(ProfileArg::Cached) => options.set_profile(Profile::Cached),
            Some(ProfileArg::Passthrough) => options.set_profile(Profile::Passthrough),
            None => {}
        }
        if let Some(pool) = self.pool {
            options.set_pool(pool);
        }
        if self.read_only {
            options.set_read_only(true);
        }
        if self.debug {
            options.set_debug();
        }
        if self.single {
            options.set_single_threaded();
        }
        let mountpoint = match self.second {
            Some(target) => {
                options.set_source(self.first);
                target
            }
            None => self.first,
        };
        options.finish(mountpoint.into(), self.foreground)
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use crate::options::argv::SUBCOMMANDS;
    use clap::CommandFactory;

    /// A word that is missing there would be taken for a mount point.
    #[test]
    fn every_subcommand_is_known_as_one() {
        let command = Cli::command();
        let names = command.get_subcommands().flat_map(|one| {
            std::iter::once(one.get_name())
                .chain(one.get_all_aliases())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        });
        let unknown: Vec<String> = names.filter(|name| !SUBCOMMANDS.contains(&name.as_str())).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
