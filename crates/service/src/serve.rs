//! From a configuration to a served mount, and to its end.

use crate::config::{Config, Profile};
use crate::daemon::Pending;
use crate::explain::Explain;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::layers::{self, Layers};
use crate::sandbox;
use crate::serving::{mount_at, report, session_options, settle};
use crate::{mountpoint, watcher};
use std::sync::Arc;
use vellum_fuse::{Session, SessionHandle};
use vellum_sys::HeldSignals;
use vellum_vfs::Filesystem;

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
    watched: Option<Arc<watcher::Watched>>,
    /// What has been given up, and what that needs to be held.
    _entered: sandbox::Entered,
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
    let watched = watcher::start_if_needed(config, &mountpoint, &signals)?.map(Arc::new);
    let open = layers::open(config, &mountpoint)?;
    let roots = open.roots()?;
    let mut layers = open.into_branches()?;
    let locks = std::mem::take(&mut layers.locks);
    let plan = sandbox::Plan {
        mode: config.sandbox,
        roots: Some(roots),
        passthrough: config.profile == Profile::Passthrough,
        writable: config.writable(),
        keep_awake: config.keep_awake,
    };
    let options = session_options(config, &layers);
    let report = report(config, &mountpoint, &layers, &options);
    let tree = build(config, layers)?;
    let mounted = mount_at(config, &mountpoint)?;
    let instance = Arc::new(Instance::new(tree, report));
    let session = Session::new(Arc::clone(&instance), mounted, options).map_err(|e| {
        // The mount would be dead otherwise.
        if let Err(stays) = vellum_fuse::unmount(&mountpoint, true) {
            tracing::error!("{stays}");
        }
        Failure::system(format!("mount point {}: {e}", mountpoint.display()))
    })?;
    // Before the first thread is started: each has the privileges of the one that started it.
    let entered = sandbox::enter(&plan);
    instance.confined_by(entered.parts.clone());
    drop(plan);
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
    let asking = watched.clone();
    let ending = std::thread::Builder::new()
        .name("vellum-signals".into())
        .spawn(move || end_on(&signals, &handle, asking.as_deref()));
    if let Err(e) = ending {
        tracing::warn!("signals will not unmount: {e}");
    }
    Ok(Running { session, locks, watched, _entered: entered })
}

/// Ends the mount at the first signal; the process at the second.
fn end_on(signals: &HeldSignals, session: &SessionHandle, watched: Option<&watcher::Watched>) {
    let mut before = false;
    while let Ok(signal) = signals.wait() {
        if before {
            tracing::warn!(signal, "ending at once; who uses the mount gets errors");
            std::process::exit(1);
        }
        before = true;
        tracing::info!(signal, "unmounting");
        let outcome = match watcher::unmount(watched, session, false) {
            Err(e) => {
                // From the tree now; those who are in it are served until they leave.
                tracing::info!("{e}; unmounting when nobody uses it any more");
                watcher::unmount(watched, session, true)
            }
            done => done,
        };
        if let Err(e) = outcome {
            tracing::warn!("cannot unmount: {e}");
        }
    }
}
