//! `vellum mount`, and the mount program.

use crate::cli::{Cli, Command};
use crate::log;
use crate::options::argv::{self, Classic};
use crate::options::{BadInput, Request};
use clap::Parser;
use rustix::mount::MountFlags;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use vellum_engine::{Pool, Store};
use vellum_service::daemon::{Pending, Side, detach, own_ipc};
use vellum_service::pool::{Asked, Joined};
use vellum_service::sandbox::Mode;
use vellum_service::{Failure, mountpoint, serve, tree};

/// Mounts; returns when the mount is ready, or in the foreground when it is gone.
pub fn run(mut request: Request) -> Result<(), Failure> {
    if request.remount {
        return remount(&request);
    }
    request.config.sandbox = Mode::from_environment()?;
    // Who stays in the foreground, or has a process watch over the service, wants a service of its own.
    if !request.foreground
        && !request.config.auto_unmount
        && let Some(pool) = pool_of(&request)?
        && join(&pool, &request)?
    {
        return Ok(());
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

/// What a command line asks for that mounts something.
pub fn understood(arguments: Vec<OsString>) -> Result<Request, Failure> {
    let bad = |bad: BadInput| Failure::input(bad.to_string());
    let other = || Failure::input("a command line that mounts nothing");
    if argv::is_subcommand(&arguments) {
        let Ok(Cli { command: Command::Mount(arguments) }) = Cli::try_parse_from(arguments) else {
            return Err(other());
        };
        return arguments.request().map_err(bad);
    }
    match argv::parse(&arguments).map_err(bad)? {
        Classic::Mount(request) => Ok(*request),
        _ => Err(other()),
    }
}

/// Has the pool's service serve the mount. False: a process of the mount's own must.
fn join(pool: &Pool, request: &Request) -> Result<bool, Failure> {
    let start = || start(pool);
    let prepare = |layers: &[PathBuf]| pool.prepare(layers);
    let service = vellum_service::pool::Pool { socket: pool.socket(), start: &start, prepare: &prepare };
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match service.join(&Asked { config: &request.config, arguments: &arguments })? {
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
fn enter_pool(request: &Request) -> Result<(), Failure> {
    let Some(pool) = pool_of(request)? else { return Ok(()) };
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
        (MountFlags::NOATIME, asked.atime != Some(true)),
    ] {
        flags.set(flag, wanted);
    }
    rustix::mount::mount_remount(&point, flags, c"")
        .map_err(|e| Failure::system(format!("option remount: {shown}: {e}; only root may change a mount")))
}
