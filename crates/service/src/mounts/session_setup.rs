//! What serving a mount takes, in whatever process: the mount itself, and what is agreed on with the kernel and told of it.

use crate::config::{AccessTimes, Config, Propagation};
use crate::failure::Failure;
use crate::instance::inspect::InstanceReport;
use crate::layers::Layers;
use rustix::mount::MountPropagationFlags;
use std::path::Path;
use std::sync::Arc;
use vellum_fuse::{FuseMount, MountError, MountOptions, SessionOptions, Workers};
use vellum_vfs::Errno;

/// Descriptors that the service would like to be allowed: handles of layers are cached.
const DESCRIPTORS_WANTED: u64 = 1 << 20;

/// Most workers of a mount with layers on a cluster, as long as all wait for it. Each has 1 MiB for the longest request.
const WORKERS_MOST: usize = 32;
/// Requests beside those that somebody waits for (reading ahead, writing back) that the kernel has under way at most in such a mount; others
/// wait in the kernel, also those about other layers.
const BACKGROUND_FAR: u16 = 1024;

/// Standing with the kernel's out-of-memory killer (-1000 to 1000): a tree that dies takes all its users with it.
const OOM_SCORE: &str = "-500";

/// Type of overlayfs in statfs(2).
const OVERLAYFS: u64 = 0x794c_7630;

/// Makes the process fit to serve. What is not permitted is left as it is.
pub fn prepare_process() {
    vellum_sys::clear_umask();
    vellum_sys::reset_signals();
    vellum_sys::lift_limits();
    vellum_sys::ignore_leases();
    if let Err(e) = vellum_sys::raise_descriptor_limit(DESCRIPTORS_WANTED) {
        tracing::debug!("the limit of descriptors stays: {e}");
    }
    if let Err(e) = vellum_sys::become_io_flusher() {
        tracing::debug!("memory reclaim may wait for this process: {e}");
    }
    if let Err(e) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        tracing::debug!("the out-of-memory score stays: {e}");
    }
}

pub(crate) fn session_options(config: &Config, layers: &Layers) -> SessionOptions {
    let mut options = SessionOptions {
        profile: config.profile,
        posix_acl: !config.no_acl,
        writeback: config.writable() && !config.write_through,
        // The kernel names no caller any more then: he must be asked for.
        allow_idmap: vellum_sys::ids_of_thread(std::process::id()).is_some(),
        slow_xattr: Some(crate::instance::SYNC),
        ..SessionOptions::default()
    };
    if config.ceph_layers().next().is_some() {
        // A cluster that does not answer holds whoever asks it, and the others are to be answered.
        options.workers.most = WORKERS_MOST;
        options.max_background = BACKGROUND_FAR;
    }
    if let Some(workers) = config.workers {
        options.workers = Workers { max: workers.get(), most: 0, ..Workers::default() };
    }
    let upper = layers.upper.as_ref().map(|(upper, _)| upper);
    // Where it is no directory of this host, a cluster would be asked for it.
    let on_overlay = |branch: &Arc<dyn vellum_vfs::Branch>| {
        branch.directory().is_some() && branch.statfs().is_ok_and(|fs| fs.fstype == OVERLAYFS)
    };
    if upper.into_iter().chain(&layers.lowers).any(on_overlay) {
        options.max_stack_depth = 2;
    }
    options
}

pub(crate) fn report(config: &Config, layers: &Layers, options: &SessionOptions) -> InstanceReport {
    let (upper, work) =
        layers.upper.as_ref().map(|(upper, work)| (upper.describe(), work.describe())).unzip();
    let lowers = layers.lowers.iter().map(|layer| layer.describe());
    let all: Vec<String> = upper.iter().cloned().chain(lowers).collect();
    InstanceReport {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        mountpoint: config.mountpoint.to_string_lossy().into_owned(),
        profile: config.profile.to_string(),
        read_only: !config.writable(),
        volatile: config.volatile,
        upper,
        work,
        layer_count: all.len(),
        workers: options.workers.max,
        layers: all,
        ..InstanceReport::default()
    }
}

/// Mounts a fresh connection at `mountpoint`.
pub fn mount_at(config: &Config, mountpoint: &Path) -> Result<FuseMount, Failure> {
    let mounted = vellum_fuse::mount(mountpoint, &mount_options(config));
    let mounted = mounted.map_err(|e| mount_failure(mountpoint, &e))?;
    if let Some(propagation) = config.propagation
        && let Err(error) = propagate(mountpoint, propagation)
    {
        // What the helper has mounted for an ordinary user is as the host has it.
        tracing::debug!(%error, ?propagation, "the mount is seen elsewhere as its parent is");
    }
    Ok(mounted)
}

/// Says what others see of mounts below the mount at `mountpoint`.
pub fn propagate(mountpoint: &Path, propagation: Propagation) -> rustix::io::Result<()> {
    let flags = match propagation {
        Propagation::Private => MountPropagationFlags::PRIVATE,
        Propagation::Shared => MountPropagationFlags::SHARED,
        // In a parent that is not shared this is as private: there is nothing to hear of.
        Propagation::Slave => MountPropagationFlags::DOWNSTREAM,
        Propagation::Unbindable => MountPropagationFlags::UNBINDABLE,
    };
    rustix::mount::mount_change(mountpoint, flags)
}

fn mount_options(config: &Config) -> MountOptions {
    let root = rustix::process::geteuid().is_root();
    let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
    let flags = &config.flags;
    MountOptions {
        source: config.source.as_deref().map_or_else(|| "vellum".into(), text),
        subtype: config.subtype.as_deref().map_or_else(|| "vellum".into(), text),
        allow_other: config.allow_other.unwrap_or(root) && !config.allow_root,
        default_permissions: true,
        read_only: flags.read_only,
        dev: flags.dev.unwrap_or(false),
        suid: flags.suid.unwrap_or(root),
        exec: flags.exec.unwrap_or(true),
        noatime: flags.access_times == AccessTimes::Never,
        strictatime: flags.access_times == AccessTimes::Always,
        sync: flags.sync,
        dirsync: flags.dirsync,
        labels: labels(config),
        max_read: config.max_read.filter(|bytes| *bytes != 0),
        ..MountOptions::default()
    }
}

/// Labels are for SELinux; engines pass them whether the kernel has it or not.
fn labels(config: &Config) -> Vec<(String, String)> {
    if !Path::new("/sys/fs/selinux/enforce").exists() {
        return Vec::new();
    }
    config.labels.iter().map(|(name, label)| (name.clone(), label.to_string_lossy().into_owned())).collect()
}

fn mount_failure(mountpoint: &Path, e: &MountError) -> Failure {
    let shown = mountpoint.display();
    match e {
        MountError::Option(name) => {
            Failure::input(format!("option {name}: the kernel cannot take this value"))
        }
        MountError::Mountpoint(..) => Failure::input(format!("mount point {e}")),
        MountError::Device(Errno::NOTTY) => Failure::system(
            "/dev/fuse is another device; make the right one: rm /dev/fuse; mknod -m 666 /dev/fuse c 10 229",
        ),
        MountError::Device(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Failure::system(
            "/dev/fuse is missing; load the module fuse, or give the device to this container",
        ),
        MountError::Device(Errno::ACCESS | Errno::PERM) => {
            Failure::system("/dev/fuse: permission denied; make it accessible to this user")
        }
        MountError::Helper(said) if said.starts_with("No such file") => Failure::system(format!(
            "mount point {shown}: ordinary users need fusermount3 to mount; install the package fuse3"
        )),
        MountError::Helper(said) if said.starts_with("Permission denied") => Failure::system(format!(
            "mount point {shown}: fusermount3 may not be run; make it executable for this user (and set-user-ID root)"
        )),
        MountError::Helper(said) => Failure::system(format!("mount point {shown}: fusermount3: {said}")),
        other => Failure::system(format!("mount point {other}")),
    }
}
