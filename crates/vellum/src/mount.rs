//! `vellum mount`, and the mount program; and what mounts for others.

use crate::log;
use crate::options::Request;
use std::path::PathBuf;
use vellum_pool::{Mount, helper, mount};
use vellum_service::Failure;

/// Mounts; returns when the mount is ready, or in the foreground when it is gone.
pub fn run(request: &Request) -> Result<(), Failure> {
    if request.remount {
        return mount::remount(&request.config);
    }
    let pool = request.pool.as_ref().map(|name| name.to_string_lossy().parse()).transpose()?;
    let mount = Mount { config: request.config.clone(), pool, foreground: request.foreground };
    mount.mount_in_process(&program()?, &|| log::start(request))
}

/// Mounts what is asked for on standard input, and says on standard output how that went.
pub fn run_for_another() -> Result<(), Failure> {
    let mounted = Mount::from_request(std::io::stdin())
        .and_then(|mount| mount.mount_in_process(&program()?, &|| log::start(&Request::default())));
    helper::report(&mounted)
}

fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::system("cannot find this program").because(e))
}
