//! Pools of Vellum for the tenants of one run. They are deleted when this is dropped.

use crate::failure::{Failure, Result};
use crate::programs;
use crate::tenant_cpus;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

/// Names another directory for pools.
const VARIABLE: &str = "VELLUM_POOLS";
/// Where the sockets of pools are, below a directory for pools that was named.
const SOCKETS: &str = ".run";
/// How often a pool is tried to be deleted: its services end a moment after their mounts.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// The pools of a run.
#[derive(Debug)]
pub(crate) struct Pools {
    program: PathBuf,
    dir: PathBuf,
    names: Vec<String>,
}

impl Pools {
    /// One for each of `count` tenants, with processors of its own where there are enough; their files are made in `dir`. `far`: they may
    /// have layers on CephFS.
    pub(crate) fn make(program: &Path, dir: &Path, count: usize, far: bool) -> Result<Self> {
        let mut pools = Self { program: program.to_owned(), dir: dir.join("pools"), names: Vec::new() };
        for number in 0..count {
            // Groups are the host's, and process numbers are not unique there.
            let now = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
            let name = format!("bench-{now}-{number}");
            let mut command = pools.command("create", &name);
            if far {
                command.args(["--ceph", "on"]);
            }
            if let Some(cpus) = tenant_cpus::share(number, count) {
                command.arg("--cpuset-cpus").arg(tenant_cpus::list(&cpus));
            }
            programs::run(&mut command)?;
            pools.names.push(name);
        }
        Ok(pools)
    }

    /// Lets a mount program put its service into a tenant's pool.
    pub(crate) fn join(&self, number: usize, command: &mut Command, options: &mut String) {
        if let Some(name) = self.names.get(number) {
            options.push_str(",pool=");
            options.push_str(name);
            command.env(VARIABLE, &self.dir);
        }
    }

    /// The socket for programs of a tenant's pool. Fails where it is not there: the library would then do nothing, and not say so.
    pub(crate) fn socket(&self, number: usize) -> Result<PathBuf> {
        let name = self.names.get(number).ok_or_else(|| Failure::new("no such pool"))?;
        let socket = self.dir.join(SOCKETS).join(format!("{name}.session/socket"));
        if socket.exists() { Ok(socket) } else { Err(Failure::new("the pool has no socket for programs")) }
    }

    fn command(&self, verb: &str, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["pool", verb, name]).env(VARIABLE, &self.dir);
        command
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        for name in &self.names {
            let deleted = (0..TRIES).any(|_| {
                let done = self.command("delete", name).stderr(Stdio::null()).status();
                let deleted = done.is_ok_and(|status| status.success());
                if !deleted {
                    std::thread::sleep(PAUSE);
                }
                deleted
            });
            if !deleted {
                eprintln!("vellum-bench: the pool {name} is left behind");
            }
        }
    }
}
