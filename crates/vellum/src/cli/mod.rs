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
    /// Check this host: kernel, FUSE, control groups, user namespaces, container engines, stores, mounts. One line each, with a
    /// remedy. The exit status is 1 when there is a problem.
    Doctor(DoctorArgs),
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
    /// Show the containers of `vellum run`, also those whose `vellum run` was killed.
    Ps(PsArgs),
    /// End a container whose `vellum run` was killed, and take its mount and its directory away.
    Rm(RmArgs),
    /// The store on zoned devices, and on files and disks that are used in their manner: images of checkpoints have zones of their own.
    Zoned(ZonedArgs),
    /// Keep what a container of `vellum run` or of podman is at this moment, its memory and its files, by CRIU and runc.
    Checkpoint(CheckpointArgs),
    /// Have a container go on from a checkpoint, in the foreground as `vellum run`.
    Restore(RestoreArgs),
    /// Checkpoints that are kept in a directory.
    Checkpoints(CheckpointsArgs),
    /// Gives control groups their limits back when the process that balances them has been killed.
    #[command(name = vellum_engine::balance::GUARD, hide = true)]
    BalanceGuard {
        /// The group whose children share.
        parent: PathBuf,
    },
    /// What sees to it that a container goes on whose checkpoint is interrupted.
    #[command(name = vellum_engine::checkpoint::pause::GUARD, hide = true)]
    Guard {
        /// The runtime, where it keeps what it knows, the container, and what is removed.
        #[arg(num_args = 4)]
        arguments: Vec<OsString>,
    },
    /// What has the library go away from a container's programs.
    #[command(name = vellum_engine::checkpoint::library::LEAVES, hide = true)]
    Leave {
        /// The container's control group.
        group: PathBuf,
        /// Its first process.
        init: u32,
        /// Where they see the library.
        place: PathBuf,
    },
    /// What shows an upper layer on CephFS to a checkpoint.
    #[command(name = vellum_engine::checkpoint::upper_view::SHOWS, hide = true)]
    Show {
        /// The layer.
        layer: OsString,
    },
    /// A hook by which a restored container has its own loopback interface.
    #[command(name = vellum_engine::checkpoint::loopback::HOOK, hide = true)]
    Loopback,
    /// A program that runs where another one is in a third one's place.
    #[command(name = vellum_engine::podman::APART, hide = true)]
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
    #[command(name = vellum_engine::podman::GATE, hide = true)]
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
    #[command(name = vellum_engine::mount::HELPER, hide = true)]
    MountForAnother {
        /// Where, for lists of processes; all that counts is said on standard input.
        mountpoint: Option<OsString>,
    },
    /// Print what a shell needs to complete this command; `make install` installs that of bash, zsh and fish.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the version.
    Version,
    /// Compare Vellum with other filesystems on this machine: `vellum bench compare`, and more (`vellum bench --help`).
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
}

/// What a shell needs to complete commands and their options. What only Vellum itself starts is left out.
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

/// Arguments of `vellum bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// What vellum-bench takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Which cluster is meant by `ceph:PATH`.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// The configuration of the cluster that ceph:PATH is on; otherwise /etc/ceph/ceph.conf.
    #[arg(long, value_name = "FILE")]
    pub ceph_conf: Option<PathBuf>,
    /// As which client it is reached; otherwise client.admin.
    #[arg(long, value_name = "NAME")]
    pub ceph_id: Option<String>,
    /// The filesystem's name there; otherwise the default one.
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
    /// A layer below it; the first one is on top. May be repeated. Without it: the layers that the upper records, if it is on this host.
    #[arg(long, value_name = "DIR")]
    pub lower: Vec<PathBuf>,
    /// A directory for unfinished work, on the filesystem of the upper. Without it: one is made beside the upper.
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Which cluster layers called ceph:PATH are on.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The upper layer, which nothing may be mounted with; or the directory in which an engine keeps its layers (podman's graphroot), for all that are not in use.
    pub upper: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::{Cli, completions};
    use crate::help::HELP;
    use crate::options::argv::SUBCOMMANDS;
    use clap::CommandFactory;
    use clap_complete::Shell;

    #[test]
    fn help_names_every_command() {
        let section = HELP.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
        let words: Vec<&str> = section
            .lines()
            .flat_map(|line| line.trim_start().split("  ").next().unwrap_or_default().split(", "))
            .collect();
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
