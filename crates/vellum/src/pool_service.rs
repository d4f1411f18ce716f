//! `vellum pool serve`: the service of a pool, and its supervisor.

use crate::log;
use std::path::{Path, PathBuf};
use vellum_pool::{Pool, PoolName, Store};
use vellum_service::Failure;
use vellum_service::mounts::session_setup::prepare_process;
use vellum_service::pool::{PoolServer, SupervisorOptions, listen, supervise};
use vellum_service::process::daemon::{Side, StartupReport, close_callers, detach, own_ipc};
use vellum_service::sandbox::Mode;

/// Serves until nothing is mounted in the pool any more; in the foreground, until it is told to end.
pub(crate) fn run(
    store: &Store,
    name: &PoolName,
    background: bool,
    inherit: Option<&str>,
) -> Result<(), Failure> {
    let socket = store.socket(name);
    if let Some(heritage) = inherit {
        // Before anything else is opened.
        let inherited = PoolServer::inherit(heritage, &socket)?;
        let pool = prepare(store, name, background)?;
        return serve(inherited, &pool, background);
    }
    close_callers();
    if !background {
        return begin(store, name, &socket, None);
    }
    match detach()? {
        Side::Parent(outcome) => outcome,
        // The parent says what is to be said; nobody sees this process's status.
        Side::Child(pending) => {
            std::process::exit(i32::from(begin(store, name, &socket, Some(pending)).is_err()))
        }
    }
}

fn begin(
    store: &Store,
    name: &PoolName,
    socket: &Path,
    pending: Option<StartupReport>,
) -> Result<(), Failure> {
    let background = pending.is_some();
    let listens = |pool| listen(socket).map(|supervised| supervised.map(|supervised| (pool, supervised)));
    match prepare(store, name, background).and_then(listens) {
        Ok(Some((pool, supervised))) => {
            pending.as_ref().map_or(Ok(()), StartupReport::ready)?;
            drop(pending);
            serve(supervised, &pool, background)
        }
        // Another was faster, which is as good.
        Ok(None) if background => pending.as_ref().map_or(Ok(()), StartupReport::ready),
        Ok(None) => {
            Err(Failure::input(format!("pool {name}: it has a service; vellum pool restart replaces it")))
        }
        Err(failure) => {
            if let Some(pending) = pending {
                pending.failed(&failure);
            }
            Err(failure)
        }
    }
}

/// Makes this process one of the pool, before it starts a thread or fills memory that the tenant has to pay for.
fn prepare(store: &Store, name: &PoolName, background: bool) -> Result<Pool, Failure> {
    let pool = Pool::open(store, name)?;
    pool.enter::<PathBuf>(&[])?;
    own_ipc();
    prepare_process();
    log::start_service(!background)?;
    Ok(pool)
}

fn serve(supervised: PoolServer, pool: &Pool, background: bool) -> Result<(), Failure> {
    let signals = PoolServer::hold()?;
    let program = std::env::current_exe();
    let program = program.map_err(|e| Failure::system("cannot tell where this program is").because(e))?;
    let arguments = |heritage: &str| {
        let always = ["pool", "serve", pool.name().as_str(), "--inherit", heritage];
        always.into_iter().chain(background.then_some("--background")).map(str::to_owned).collect()
    };
    let sandbox = Mode::from_environment()?;
    let ceph = pool.settings().ceph;
    let manner =
        SupervisorOptions { stay: !background, sandbox, ceph, program: &program, arguments: &arguments };
    supervise(supervised, &manner, &signals)
}
