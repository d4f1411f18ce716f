//! From a configuration to a served mount, and to its end.

use crate::config::{Config, Profile};
use crate::daemon::Pending;
use crate::explain::{Explain, InstanceReport};
use crate::failure::Failure;
use crate::instance::Instance;
use crate::layers::{self, Layers};
use crate::{mountpoint, watcher};
use std::path::Path;
use std::sync::Arc;
use vellum_fuse::{MountError, MountOptions, Session, SessionHandle, SessionOptions, Workers};
use vellum_sys::HeldSignals;
use vellum_vfs::{Errno, Filesystem};

/// Descriptors that the service would like to be allowed: handles of layers are cached.
const DESCRIPTORS_WANTED: u64 = 1 << 20;

/// Standing with the kernel's out-of-memory killer (-1000 to 1000): a tree that dies takes all its users with it.
const OOM_SCORE: &str = "-500";

/// Type of overlayfs in statfs(2).
const OVERLAYFS: u64 = 0x794c_7630;

// Signal numbers as on every architecture of Linux that we build for.
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// Mounts the tree that `build` makes of the layers that `config` names, and serves it until the mount is gone.
/// `pending`: the parent that waits for the mount to be ready; without one, the process stays what it is.
pub fn run<F: Filesystem + Explain>(
    config: &Config,
    pending: Option<Pending>,
    build: impl FnOnce(&Config, Layers) -> Result<F, Failure>,
) -> Result<(), Failure> {
    let started = start(config, build);
    match (started, pending) {
        (Ok(running), Some(pending)) => {
            if let Err(failure) = pending.ready() {
                tracing::error!("{failure}");
            }
            running.wait()
        }
        (Ok(running), None) => running.wait(),
        (Err(failure), pending) => {
            if let Some(pending) = pending {
                pending.failed(&failure);
            }
            Err(failure)
        }
    }
}

/// A mount that is being served.
struct Running {
    session: std::thread::JoinHandle<vellum_vfs::Result<()>>,
    /// The right to write to the upper, held to the end.
    locks: Vec<crate::lock::DirLock>,
    watched: Option<watcher::Watched>,
}

impl Running {
    fn wait(self) -> Result<(), Failure> {
        let ended = self.session.join();
        drop(self.watched);
        drop(self.locks);
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(Failure::system(format!("serving the mount: {e}"))),
            Err(_) => Err(Failure::system("serving the mount: the session's thread has panicked")),
        }
    }
}

fn start<F: Filesystem + Explain>(
    config: &Config,
    build: impl FnOnce(&Config, Layers) -> Result<F, Failure>,
) -> Result<Running, Failure> {
    let signals = HeldSignals::hold(&[SIGHUP, SIGINT, SIGTERM])
        .map_err(|e| Failure::system(format!("cannot hold signals: {e}")))?;
    settle();
    let mountpoint = mountpoint::resolve(&config.mountpoint)?;
    let watched = config.auto_unmount.then(|| watcher::start(&mountpoint, &signals)).transpose()?;
    let mut layers = layers::open(config, &mountpoint)?;
    let locks = std::mem::take(&mut layers.locks);
    let options = session_options(config, &layers);
    let report = report(config, &mountpoint, &layers, &options);
    let tree = build(config, layers)?;
    let (instance, session) = mount(config, &mountpoint, tree, report, options)?;
    let tending = session.handle();
    instance.served_by(session.handle());
    let (handle, session) =
        session.spawn().map_err(|e| Failure::system(format!("serving the mount: {e}")))?;
    if let Some(rate) = config.background_fill
        && let Err(e) = crate::tend::start(&instance, tending, rate)
    {
        tracing::warn!("partial files stay partial: {e}");
    }
    drop(instance);
    let ending =
        std::thread::Builder::new().name("vellum-signals".into()).spawn(move || end_on(&signals, &handle));
    if let Err(e) = ending {
        tracing::warn!("signals will not unmount: {e}");
    }
    Ok(Running { session, locks, watched })
}

/// Makes the process fit to serve. What is not permitted is left as it is.
fn settle() {
    vellum_sys::clear_umask();
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

fn session_options(config: &Config, layers: &Layers) -> SessionOptions {
    let mut options = SessionOptions {
        profile: match config.profile {
            Profile::Cached => vellum_fuse::Profile::Cached,
            Profile::Passthrough => vellum_fuse::Profile::Passthrough,
        },
        posix_acl: !config.no_acl,
        writeback: config.writable(),
        ..SessionOptions::default()
    };
    if let Some(workers) = config.workers {
        options.workers = Workers { max: workers.get(), ..Workers::default() };
    }
    options.workers.keep_awake = config.keep_awake;
    let upper = layers.upper.as_ref().map(|(upper, _)| upper);
    let on_overlay =
        |branch: &Arc<dyn vellum_vfs::Branch>| branch.statfs().is_ok_and(|fs| fs.fstype == OVERLAYFS);
    if upper.into_iter().chain(&layers.lowers).any(on_overlay) {
        options.max_stack_depth = 2;
    }
    options
}

fn report(config: &Config, mountpoint: &Path, layers: &Layers, options: &SessionOptions) -> InstanceReport {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let upper = layers.upper.is_some().then(|| layers.paths.first().map(|path| text(path))).flatten();
    InstanceReport {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        mountpoint: text(mountpoint),
        profile: config.profile.name().into(),
        read_only: !config.writable(),
        volatile: config.volatile,
        upper,
        work: layers.work_path.as_deref().map(text),
        layer_count: layers.paths.len(),
        workers: options.workers.max,
        layers: layers.paths.iter().map(|path| text(path)).collect(),
        ..InstanceReport::default()
    }
}

/// An instance and the session that serves it.
type Serving<F> = (Arc<Instance<F>>, Session<Instance<F>>);

fn mount<F: Filesystem + Explain>(
    config: &Config,
    mountpoint: &Path,
    tree: F,
    report: InstanceReport,
    options: SessionOptions,
) -> Result<Serving<F>, Failure> {
    let root = rustix::process::geteuid().is_root();
    let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
    let flags = &config.flags;
    let mount_options = MountOptions {
        source: config.source.as_deref().map_or_else(|| "vellum".into(), text),
        subtype: config.subtype.as_deref().map_or_else(|| "vellum".into(), text),
        allow_other: config.allow_other.unwrap_or(root),
        default_permissions: true,
        read_only: flags.read_only,
        dev: flags.dev.unwrap_or(false),
        suid: flags.suid.unwrap_or(root),
        exec: flags.exec.unwrap_or(true),
        noatime: !flags.atime.unwrap_or(false),
        sync: flags.sync,
        dirsync: flags.dirsync,
        labels: labels(config),
        max_read: config.max_read.filter(|bytes| *bytes != 0),
        ..MountOptions::default()
    };
    let mounted =
        vellum_fuse::mount(mountpoint, &mount_options).map_err(|e| mount_failure(mountpoint, &e))?;
    let instance = Arc::new(Instance::new(tree, report));
    let session = Session::new(Arc::clone(&instance), mounted, options).map_err(|e| {
        // The mount would be dead otherwise.
        if let Err(stays) = vellum_fuse::unmount(mountpoint, true) {
            tracing::error!("{stays}");
        }
        Failure::system(format!("mount point {}: {e}", mountpoint.display()))
    })?;
    Ok((instance, session))
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
        MountError::Device(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Failure::system(
            "/dev/fuse is missing; load the module fuse, or give the device to this container",
        ),
        MountError::Device(Errno::ACCESS | Errno::PERM) => {
            Failure::system("/dev/fuse: permission denied; make it accessible to this user")
        }
        MountError::Helper(said) if said.starts_with("No such file") => Failure::system(format!(
            "mount point {shown}: ordinary users need fusermount3 to mount; install the package fuse3"
        )),
        MountError::Helper(said) => Failure::system(format!("mount point {shown}: fusermount3: {said}")),
        other => Failure::system(format!("mount point {other}")),
    }
}

/// Ends the mount at the first signal; the process at the second.
fn end_on(signals: &HeldSignals, session: &SessionHandle) {
    let mut before = false;
    while let Ok(signal) = signals.wait() {
        if before {
            tracing::warn!(signal, "ending at once; who uses the mount gets errors");
            std::process::exit(1);
        }
        before = true;
        tracing::info!(signal, "unmounting");
        let outcome = match session.unmount(false) {
            Err(e) => {
                // From the tree now; those who are in it are served until they leave.
                tracing::info!("{e}; unmounting when nobody uses it any more");
                session.unmount(true)
            }
            done => done,
        };
        if let Err(e) = outcome {
            tracing::warn!("cannot unmount: {e}");
        }
    }
}
