//! `vellum mount`, and the mount program.

use crate::log;
use crate::options::Request;
use rustix::mount::MountFlags;
use std::path::PathBuf;
use std::process::Stdio;
use vellum_engine::{Pool, Store};
use vellum_service::config::{AccessTimes, Config, Profile};
use vellum_service::daemon::{Pending, Side, close_callers, detach, own_ipc};
use vellum_service::pool::{Joined, serve_alone};
use vellum_service::sandbox::{Mode, can_pass_through};
use vellum_service::serving::propagate;
use vellum_service::{Failure, mountpoint};
use vellum_vfs::IdMap;

/// Mounts; returns when the mount is ready, or in the foreground when it is gone.
pub fn run(mut request: Request) -> Result<(), Failure> {
    if request.remount {
        return remount(&request);
    }
    if request.config.allow_root && !rustix::process::geteuid().is_root() {
        return Err(Failure::input(
            "option allow_root: the kernel lets all users into a mount or only its own; write allow_other, or leave it out",
        ));
    }
    if request.config.profile == Profile::Passthrough && !can_pass_through() {
        return Err(Failure::input(
            "option profile=passthrough: the kernel takes files of layers from root of the host only (CAP_SYS_ADMIN); leave it out",
        ));
    }
    close_callers();
    request.config.sandbox = Mode::from_environment()?;
    let pool = pool_of(&request)?;
    if let Some(pool) = &pool {
        show_as_the_pools(pool, &mut request.config)?;
    }
    // Who stays in the foreground, or has a process watch over the service, wants a service of its own.
    if !request.foreground
        && !request.config.auto_unmount
        && let Some(pool) = &pool
        && join(pool, &request.config)?
    {
        return Ok(());
    }
    if request.foreground {
        return service(&request, pool.as_ref(), None);
    }
    match detach()? {
        Side::Parent(outcome) => outcome,
        Side::Child(pending) => {
            let ended = service(&request, pool.as_ref(), Some(&pending));
            if let Err(failure) = &ended {
                pending.failed(failure);
            }
            // The parent has reported what had to be reported; nobody sees this process's status.
            std::process::exit(i32::from(ended.is_err()));
        }
    }
}

fn service(request: &Request, pool: Option<&Pool>, pending: Option<&Pending>) -> Result<(), Failure> {
    // Before any thread is started, and before any memory is filled that the tenant has to pay for.
    log::start(request)?;
    enter_pool(request, pool)?;
    serve_alone(&request.config, pending)
}

/// Has the mount show owners as ids of its pool, unless what was asked for says how it shows them.
fn show_as_the_pools(pool: &Pool, config: &mut Config) -> Result<(), Failure> {
    if !config.uid_map.is_identity() || !config.gid_map.is_identity() {
        return Ok(());
    }
    let Some(range) = pool.ids()? else { return Ok(()) };
    let map = IdMap::parse(&range.mapping())
        .map_err(|why| Failure::system(format!("pool {}: uid-range {range}: {why}", pool.name())))?;
    (config.uid_map, config.gid_map) = (map.clone(), map);
    Ok(())
}

/// Has the pool's service serve the mount. False: a process of the mount's own must.
fn join(pool: &Pool, config: &Config) -> Result<bool, Failure> {
    let start = || start(pool);
    let prepare = |layers: &[PathBuf]| pool.prepare(layers);
    let service = vellum_service::pool::Pool { socket: pool.socket(), start: &start, prepare: &prepare };
    match service.join(config)? {
        Joined::Served => Ok(true),
        Joined::Unfit(why) => {
            tracing::debug!(pool = %pool.name(), "served by a process of its own: {why}");
            Ok(false)
        }
    }
}

/// Starts the pool's service; returns when it can be reached.
fn start(pool: &Pool) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::system(format!("cannot start the pool's service: {e}"));
    let mut command = std::process::Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["pool", "serve", "--background", pool.name().as_str()]);
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("vellum: ").to_owned();
    Err(if output.status.code() == Some(2) { Failure::input(said) } else { Failure::system(said) })
}

/// The pool that was asked for, or else the one that claims the layers; none: everything stays as it is.
fn pool_of(request: &Request) -> Result<Option<Pool>, Failure> {
    let config = &request.config;
    let layers: Vec<&PathBuf> = config.upper.iter().chain(&config.lowers).collect();
    let store = Store::of_user();
    let name = match &request.pool {
        Some(name) => Some(name.to_string_lossy().parse()?),
        // Who has no place for pools has none.
        None => store.as_ref().map_or(Ok(None), |store| store.of_layers(&layers))?,
    };
    name.map(|name| Pool::open(&store?, &name)).transpose()
}

/// Enters the pool that the mount is for.
fn enter_pool(request: &Request, pool: Option<&Pool>) -> Result<(), Failure> {
    let Some(pool) = pool else { return Ok(()) };
    let config = &request.config;
    let layers: Vec<&PathBuf> = config.upper.iter().chain(&config.lowers).collect();
    pool.enter(&layers)?;
    own_ipc();
    tracing::info!(pool = %pool.name(), "serving in a pool");
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
        (MountFlags::NOATIME, asked.access_times == AccessTimes::Never),
        (MountFlags::STRICTATIME, asked.access_times == AccessTimes::Always),
    ] {
        flags.set(flag, wanted);
    }
    rustix::mount::mount_remount(&point, flags, c"")
        .and_then(|()| {
            request.config.propagation.map_or(Ok(()), |propagation| propagate(&point, propagation))
        })
        .map_err(|e| Failure::system(format!("option remount: {shown}: {e}; only root may change a mount")))
}
