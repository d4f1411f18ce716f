//! The subcommands' arguments.

mod container;
mod mount;
mod pool;

pub use container::{
    CacheArg, CephWriteArg, CheckpointArgs, CheckpointsArgs, CheckpointsCommand, NetworkArg, PsArgs,
    RestoreArgs, RmArgs, RunArgs,
};
pub use mount::{MountArgs, ProfileArg};
pub use pool::{PoolArgs, PoolCommand, PoolSettings};

use crate::zoned::ZonedArgs;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;
use vellum_service::layers::ceph::Cluster;

/// Mounts layers as one writable tree for containers, by FUSE.
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
    /// Unmount.
    ///
    /// It waits up to two seconds for the services. If another mount namespace has a copy of the mount, the command names a process there.
    #[command(alias = "unmount")]
    Umount(UmountArgs),
    /// Show the layer, the service and the options behind a path of a mount.
    ///
    /// It also shows the upper layer's contents, the kernel's features and the sandbox. Only root and the user who mounted may ask, and only outside
    /// of containers with their own processes.
    Inspect(InspectArgs),
    /// Check this host: kernel, FUSE, control groups, user namespaces, container engines, stores, mounts.
    ///
    /// It prints one line for each, with a remedy. The exit status is 1 when there is a problem.
    Doctor(DoctorArgs),
    /// Complete the partial files of an upper layer, or of an engine's store.
    ///
    /// The layer then needs no other layer for its files' contents. Run it before another program reads the layers. The layer must not be mounted.
    /// An interrupted run continues at the next one. Of a store, such as /var/lib/containers/storage, it completes all layers that are not in use; the
    /// exit status is 1 if some remain.
    Flatten(FlattenArgs),
    /// Write all data of mounts to disk, as `sync -f` does on other filesystems.
    ///
    /// The kernel does not pass `syncfs` and `sync` to FUSE servers; they report success without effect.
    Sync(SyncArgs),
    /// Manage pools: limits of tenants for processors, memory and disks.
    ///
    /// A pool is a tenant's share of the host. One service serves all mounts of a pool, in control groups of the pool. If the service crashes, its
    /// supervisor starts another one with all mounts intact. A mount is in a pool by the option `pool=NAME`, or because one of its layers is below a
    /// `--storage` directory of the pool.
    Pool(PoolArgs),
    /// Show counts and times of requests since the mount.
    Stats(StatsArgs),
    /// Show current rates of requests.
    Top(TopArgs),
    /// Change a mount's weight: its share of the service's data cache.
    Weight(WeightArgs),
    /// Export metrics of services and pools for Prometheus, in the OpenMetrics format.
    Metrics(MetricsArgs),
    /// Share the kernel's page cache among control groups by weight.
    ///
    /// A signal ends the command, and then all limits are as before.
    Balance(BalanceArgs),
    /// Run a command in a container on a Vellum mount, by crun or runc.
    ///
    /// At the end it removes the container, its mount and its changes. Unpacked layers stay, and `--upper` keeps the changes. It needs root, of the host
    /// or of a user namespace. Most options are those of podman-run(1). With `--pool` the container's programs use the preload library if it is
    /// installed.
    Run(Box<RunArgs>),
    /// Show the containers of `vellum run`: name, first process, age and state.
    ///
    /// The state `no manager` means that the `vellum run` of the container was killed.
    Ps(PsArgs),
    /// End containers whose `vellum run` was killed, and remove their mounts and directories.
    Rm(RmArgs),
    /// Manage stores on zoned devices, files and disks.
    ///
    /// A store has named objects and a tree of files on a zoned block device, or on a file or disk that is used like one. Checkpoints get zones of
    /// their own.
    Zoned(ZonedArgs),
    /// Save the memory and files of a container of `vellum run`, podman or containerd, by CRIU and runc.
    ///
    /// It needs criu(8) 4.0 or later. The container then ends, unless `--leave-running` is given. If a checkpoint fails, the container continues.
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
    /// What others mount by who cannot do it themselves.
    #[command(name = vellum_pool::mount::HELPER, hide = true)]
    MountForAnother {
        /// Where, for lists of processes; all that counts is said on standard input.
        mountpoint: Option<OsString>,
    },
    /// Print a completion script for a shell.
    ///
    /// `make install` installs those of bash, zsh and fish.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the version.
    Version,
    /// Compare Vellum with other filesystems on this machine (`vellum bench --help`).
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
}

/// A shell's completion script. Commands that only Vellum itself starts are left out.
#[must_use]
pub fn completions(shell: Shell) -> String {
    let whole = Cli::command();
    let mut shown = clap::Command::new("vellum");
    for one in whole.get_subcommands().filter(|one| !one.is_hide_set()) {
        shown = shown.subcommand(one.clone());
    }
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown, "vellum", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Arguments of `vellum umount`.
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Detach the mount from the tree now, and end it when no program uses it any more.
    #[arg(short, long)]
    pub lazy: bool,
    /// Mount points.
    #[arg(value_name = "MOUNTPOINT", required = true)]
    pub paths: Vec<PathBuf>,
}

/// Arguments of `vellum inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// A mount, or any path in one. A symbolic link at its end is not followed.
    pub path: PathBuf,
}

/// Arguments of `vellum doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
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
    /// Mount points [default: all that are visible].
    pub mountpoint: Vec<PathBuf>,
}

/// Arguments of `vellum top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Only mounts in this pool.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Seconds between two samples.
    #[arg(long, short, default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// End after this many samples.
    #[arg(long, short = 'n', value_name = "NUMBER")]
    pub times: Option<u64>,
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

/// Arguments of `vellum weight`.
#[derive(Args, Debug)]
pub struct WeightArgs {
    /// The mount point, or any path in the mount.
    pub mountpoint: PathBuf,
    /// From 1 to 10000. A new mount has the pool's `--mount-weight`, otherwise 100.
    #[arg(value_name = "NUMBER")]
    pub weight: String,
}

/// Arguments of `vellum metrics`.
#[derive(Args, Debug)]
pub struct MetricsArgs {
    /// Serve HTTP at /metrics: 127.0.0.1:PORT, [::1]:PORT or unix:PATH [default: print once].
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
}

/// Arguments of `vellum bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Arguments of vellum-bench.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Which cluster is meant by `ceph:PATH`.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// The cluster's configuration file for ceph:PATH [default: /etc/ceph/ceph.conf].
    #[arg(long, value_name = "FILE")]
    pub ceph_conf: Option<PathBuf>,
    /// The Ceph client's name, e.g. tenant for client.tenant [default: admin].
    #[arg(long, value_name = "NAME")]
    pub ceph_id: Option<String>,
    /// The filesystem's name in the cluster [default: the cluster's default].
    #[arg(long, value_name = "NAME")]
    pub ceph_fs: Option<String>,
}

impl From<ClusterArgs> for Cluster {
    fn from(ClusterArgs { ceph_conf, ceph_id, ceph_fs }: ClusterArgs) -> Self {
        Self { conf: ceph_conf, id: ceph_id, filesystem: ceph_fs }
    }
}

/// Arguments of `vellum flatten`.
#[derive(Args, Debug)]
pub struct FlattenArgs {
    /// A lower layer; the first one is on top. May be repeated [default: the layers that the upper layer records, if it is on this host].
    #[arg(long, value_name = "DIR")]
    pub lower: Vec<PathBuf>,
    /// The work directory, on the filesystem of the upper layer [default: a temporary one beside it].
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Which cluster layers called ceph:PATH are on.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// An upper layer without a mount; or an engine's store (podman's graphroot), for all of its layers that are not in use.
    pub upper: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::{Cli, completions};
    use crate::help::text;
    use crate::options::argv::SUBCOMMANDS;
    use clap::CommandFactory;
    use clap_complete::Shell;

    #[test]
    fn help_names_every_command() {
        let help = text();
        let section = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
        let words: Vec<&str> =
            section.lines().flat_map(|line| line.trim_start().split("  ").next()).collect();
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name);
        let missing: Vec<&str> = shown.filter(|name| !words.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?} are not in {words:?}");
    }

    #[test]
    fn shells_complete_commands_and_options_for_people() {
        for (shell, word) in
            [(Shell::Bash, "--cpuset-cpus"), (Shell::Zsh, "balance"), (Shell::Fish, "restore")]
        {
            let text = completions(shell);
            assert!(text.contains(word) && !text.contains("internal-"), "{shell}: {text}");
        }
    }

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
