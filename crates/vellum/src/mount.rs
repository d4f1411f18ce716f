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
use vellum_service::config::{AccessTimes, Config, Profile};
use vellum_service::daemon::{Pending, Side, close_callers, detach, own_ipc};
use vellum_service::pool::{Asked, Joined, serve_alone};
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
    let own = pool.as_ref().map_or(Ok(None), |pool| shown_as_the_pools(pool, &mut request))?;
    // Who stays in the foreground, or has a process watch over the service, wants a service of its own.
    if !request.foreground
        && !request.config.auto_unmount
        && let Some(pool) = &pool
        && join(pool, &request, own.clone())?
    {
        return Ok(());
    }
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(more) = own {
        arguments = with_options(arguments, more);
    }
    if request.foreground {
        return service(&request, arguments, pool.as_ref(), None);
    }
    match detach()? {
        Side::Parent(outcome) => outcome,
        Side::Child(pending) => {
            let ended = service(&request, arguments, pool.as_ref(), Some(&pending));
            if let Err(failure) = &ended {
                pending.failed(failure);
            }
            // The parent has reported what had to be reported; nobody sees this process's status.
            std::process::exit(i32::from(ended.is_err()));
        }
    }
}

fn service(
    request: &Request,
    arguments: Vec<OsString>,
    pool: Option<&Pool>,
    pending: Option<&Pending>,
) -> Result<(), Failure> {
    // Before any thread is started, and before any memory is filled that the tenant has to pay for.
    log::start(request)?;
    enter_pool(request, pool)?;
    serve_alone(&Asked { config: &request.config, arguments: &arguments }, parse, pending)
}

/// Reads a command line again.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Config, Failure> {
    Ok(understood(arguments)?.config)
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

/// Has the mount show owners as ids of its pool, unless the request says how it shows them. The options that say so, for others who
/// read the command line, maybe when the pool's settings are no longer the same.
fn shown_as_the_pools(pool: &Pool, request: &mut Request) -> Result<Option<String>, Failure> {
    let config = &mut request.config;
    if !config.uid_map.is_identity() || !config.gid_map.is_identity() {
        return Ok(None);
    }
    let Some(range) = pool.ids()? else { return Ok(None) };
    let map = IdMap::parse(&range.mapping())
        .map_err(|why| Failure::system(format!("pool {}: uid-range {range}: {why}", pool.name())))?;
    (config.uid_map, config.gid_map) = (map.clone(), map);
    Ok(Some(range.mount_options()))
}

/// A command line that mounts something, with more options.
fn with_options(mut arguments: Vec<OsString>, options: String) -> Vec<OsString> {
    let at = if argv::is_subcommand(&arguments) { 2 } else { 1 };
    let at = at.min(arguments.len());
    arguments.splice(at..at, ["-o".into(), options.into()]);
    arguments
}

/// Has the pool's service serve the mount; `more`: options that the command line lacks. False: a process of the mount's own must.
fn join(pool: &Pool, request: &Request, more: Option<String>) -> Result<bool, Failure> {
    let start = || start(pool);
    let prepare = |layers: &[PathBuf]| pool.prepare(layers);
    let service = vellum_service::pool::Pool { socket: pool.socket(), start: &start, prepare: &prepare };
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(more) = more {
        arguments = with_options(arguments, more);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_added_to_every_form_of_command_line() {
        for line in [
            "vellum -o lowerdir=/a /m",
            "vellum overlay /m -o lowerdir=/a",
            "vellum /m -olowerdir=/a -s",
            "mount.fuse.vellum mount /m -o lowerdir=/a",
            "vellum mount --lower /a /m",
            "vellum mount -o lowerdir=/a -- source /m",
        ] {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let before = understood(arguments.clone()).unwrap();
            let options = "uidmapping=0:5:9,gidmapping=0:5:9".to_owned();
            let after = understood(with_options(arguments, options)).unwrap();
            let mut wanted = before;
            let map = IdMap::parse("0:5:9").unwrap();
            (wanted.config.uid_map, wanted.config.gid_map) = (map.clone(), map);
            assert_eq!(after, wanted, "{line}");
        }
    }
}
