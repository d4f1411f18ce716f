//! The subcommands' arguments.

#[cfg(feature = "containers")]
mod container;
mod mount;
mod pool;

#[cfg(feature = "containers")]
pub use container::{
    CacheArg, CephWriteArg, CheckpointArgs, CheckpointsArgs, CheckpointsCommand, ContainerCommand,
    NetworkArg, PsArgs, RestoreArgs, RmArgs, RunArgs,
};
pub use mount::MountArgs;
pub use pool::{PoolArgs, PoolCommand, PoolSettings};

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::{OsStr, OsString};
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
    /// It also shows the upper layer's contents, the kernel's features and the sandbox. Only root and the
    /// user who mounted may ask, and only outside of containers with their own processes.
    Inspect(InspectArgs),
    /// Check this host: kernel, FUSE, control groups, user namespaces, container engines, stores, mounts.
    ///
    /// It prints one line for each, with a remedy. The exit status is 1 when there is a problem.
    Doctor(DoctorArgs),
    /// Complete the partial files of an upper layer, or of an engine's store.
    ///
    /// The layer then needs no other layer for its files' contents. Run it before another program reads the
    /// layers. The layer must not be mounted. An interrupted run continues at the next one. Of a store, such
    /// as /var/lib/containers/storage, it completes all layers that are not in use; the exit status is 1 if
    /// some remain.
    Flatten(FlattenArgs),
    /// Write all data of mounts to disk, as `sync -f` does on other filesystems.
    ///
    /// The kernel does not pass `syncfs` and `sync` to FUSE servers; they report success without effect.
    Sync(SyncArgs),
    /// Manage pools: limits of tenants for processors, memory and disks.
    ///
    /// A pool is a tenant's share of the host. One service serves all mounts of a pool, in control groups of
    /// the pool. If the service crashes, its supervisor starts another one with all mounts intact. A mount is
    /// in a pool by the option `pool=NAME`, or because one of its layers is below a `--storage` directory of
    /// the pool.
    Pool(PoolArgs),
    /// Show counts and times of requests since the mount.
    Stats(StatsArgs),
    /// Show current rates of requests.
    Top(TopArgs),
    /// Change a mount's weight: its share of the service's data cache.
    Weight(WeightArgs),
    /// Export metrics of services and pools for Prometheus, in the OpenMetrics format.
    #[cfg(feature = "metrics")]
    Metrics(MetricsArgs),
    /// Containers, and what is done with them.
    #[cfg(feature = "containers")]
    #[command(flatten)]
    Container(ContainerCommand),
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

/// Commands of the feature `containers`.
const CONTAINER_COMMANDS: &[&str] =
    &["balance", "run", "ps", "rm", "zoned", "checkpoint", "restore", "checkpoints"];

/// Whether a command is not part of this build.
#[must_use]
pub fn is_left_out(name: &str) -> bool {
    !cfg!(feature = "metrics") && name == "metrics"
        || !cfg!(feature = "containers") && CONTAINER_COMMANDS.contains(&name)
}

/// Whether a word names a command.
#[must_use]
pub fn is_command(word: &OsStr) -> bool {
    let command = Cli::command();
    let mut commands = command.get_subcommands();
    word == "help"
        || word.to_str().is_some_and(is_left_out)
        || commands.any(|one| word == one.get_name() || one.get_all_aliases().any(|name| word == name))
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
#[cfg(feature = "metrics")]
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
}
