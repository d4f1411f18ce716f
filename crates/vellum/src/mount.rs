//! `vellum mount`, and the mount program.

use crate::log;
use crate::options::Request;
use rustix::mount::MountFlags;
use std::path::PathBuf;
use vellum_engine::{Pool, Store};
use vellum_service::daemon::{Pending, Side, detach, own_ipc};
use vellum_service::{Failure, mountpoint, serve, tree};

/// Mounts; returns when the mount is ready, or in the foreground when it is gone.
pub fn run(request: Request) -> Result<(), Failure> {
    if request.remount {
        return remount(&request);
    }
    if request.foreground {
        return service(&request, None);
    }
    match detach()? {
        Side::Parent(outcome) => outcome,
        Side::Child(pending) => {
            // The parent has reported what had to be reported; nobody sees this process's status.
            let ended = service(&request, Some(pending));
            std::process::exit(i32::from(ended.is_err()));
        }
    }
}

fn service(request: &Request, pending: Option<Pending>) -> Result<(), Failure> {
    // Before any thread is started, and before any memory is filled that the tenant has to pay for.
    if let Err(failure) = log::start(request).and_then(|()| enter_pool(request)) {
        if let Some(pending) = pending {
            pending.failed(&failure);
        }
        return Err(failure);
    }
    serve::run(&request.config, pending, tree::build)
}

/// Enters the pool that was asked for, or else the one that claims the layers; none: everything stays as it is.
fn enter_pool(request: &Request) -> Result<(), Failure> {
    let config = &request.config;
    let layers: Vec<&PathBuf> = config.upper.iter().chain(&config.lowers).collect();
    let store = Store::of_user();
    let name = match &request.pool {
        Some(name) => Some(name.to_string_lossy().parse()?),
        // Who has no place for pools has none.
        None => store.as_ref().map_or(Ok(None), |store| store.of_layers(&layers))?,
    };
    let Some(name) = name else { return Ok(()) };
    let pool = Pool::open(&store?, &name)?;
    pool.enter(&layers)?;
    own_ipc();
    tracing::info!(pool = %name, "serving in a pool");
    Ok(())
}

/// Changes the flags of a mount that exists; its layers stay what they are.
fn remount(request: &Request) -> Result<(), Failure> {
    let point = mountpoint::resolve(&request.config.mountpoint)?;
    let shown = point.display();
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let top = mountpoint::mounts(&table).filter(|mount| mount.point == point).last();
    if top.is_none_or(|mount| !mount.fs_type.starts_with(b"fuse.")) {
        return Err(Failure::input(format!(
            "option remount: no mount of vellum at {shown}; leave remount out"
        )));
    }
    let asked = &request.config.flags;
    let mut flags = MountFlags::BIND;
    for (flag, wanted) in [
        (MountFlags::RDONLY, asked.read_only),
        (MountFlags::NODEV, asked.dev != Some(true)),
        (MountFlags::NOSUID, asked.suid == Some(false)),
        (MountFlags::NOEXEC, asked.exec == Some(false)),
        (MountFlags::NOATIME, asked.atime != Some(true)),
    ] {
        flags.set(flag, wanted);
    }
    rustix::mount::mount_remount(&point, flags, c"")
        .map_err(|e| Failure::system(format!("option remount: {shown}: {e}; only root may change a mount")))
}
