//! Mounting, for all who mount: the command `vellum mount`, `vellum run`, and programs to come.
//!
//! A process with one thread mounts by itself ([`Mount::mount_in_process`]): the service begins as a copy of
//! it. Any other has the program `vellum` do that ([`Mount::mount_by_helper`]).

use crate::helper;
use crate::name::PoolName;
use crate::pool::Pool;
use crate::store::Store;
use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use vellum_service::Failure;
use vellum_service::config::{AccessTimes, Config, Profile};
use vellum_service::mounts::mountpoint;
use vellum_service::mounts::session_setup::propagate;
use vellum_service::pool::{FORMAT, FormatError, JoinOutcome, parse_text, serve_alone};
use vellum_service::process::daemon::{Side, StartupReport, close_callers, detach, own_ipc};
use vellum_service::sandbox::{Mode, can_pass_through};

/// The subcommand of `vellum` that does what [`Mount::mount_by_helper`] asks for.
pub const HELPER: &str = "internal-mount";

/// Longest question to a helper in bytes.
const ASKED_MAX: u64 = 32 << 20;

/// A mount that is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mount {
    /// What is mounted, and where.
    pub config: Config,
    /// The pool that is to serve it; none: the one that claims its layers, if any.
    pub pool: Option<PoolName>,
    /// The calling process serves the mount itself, until it is gone.
    pub foreground: bool,
}

/// A mount that a helper is to make.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HelperRequest {
    format: u32,
    config: Config,
    pool: Option<String>,
}

impl Mount {
    /// Mounts, and returns when the mount is ready, or in the foreground when it is gone. Call before any thread has been started; what
    /// the caller has open is closed, but for the standard descriptors. `program`: `vellum`, for the service of a pool. `log` is called
    /// in the process that serves, and starts its log.
    pub fn mount_in_process(
        mut self,
        program: &Path,
        log: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.config.check()?;
        self.allowed()?;
        close_callers();
        self.config.sandbox = Mode::from_environment()?;
        let pool = self.pool()?;
        if let Some(pool) = &pool {
            self.map_ids_to_pool(pool)?;
            self.config.reach_by(&pool.settings().cluster());
            self.config.weight = self.config.weight.or(pool.settings().mount_weight);
            if let Some((cache, most)) = self.config.cache.as_mut().zip(pool.settings().cache) {
                cache.bytes = cache.bytes.min(most.0);
            }
        }
        // Who stays in the foreground, or has a process watch over the service, wants a service of its own.
        if !self.foreground
            && !self.config.auto_unmount
            && let Some(pool) = &pool
            && self.join(pool, program)?
        {
            return Ok(());
        }
        if self.foreground {
            return self.serve(pool.as_ref(), log, None);
        }
        match detach()? {
            Side::Parent(outcome) => outcome,
            Side::Child(pending) => {
                let ended = self.serve(pool.as_ref(), log, Some(&pending));
                if let Err(failure) = &ended {
                    pending.failed(failure);
                }
                // The parent has reported what had to be reported; nobody sees this process's status.
                std::process::exit(i32::from(ended.is_err()));
            }
        }
    }

    /// Has `program`, which is `vellum`, mount, and returns when the mount is ready.
    pub fn mount_by_helper(&self, program: &Path) -> Result<(), Failure> {
        let pool = self.pool.as_ref().map(|pool| pool.as_str().to_owned());
        let asked = HelperRequest { format: FORMAT, config: self.config.clone(), pool };
        let text = serde_json::to_vec(&asked).map_err(|e| Failure::system("a mount").because(e))?;
        // The place is for people who look at lists of processes.
        helper::run(Command::new(program).arg(HELPER).arg(&self.config.mountpoint), &text)
    }

    /// What [`Self::mount_by_helper`] has asked this process for.
    pub fn from_request(from: impl Read) -> Result<Self, Failure> {
        let what = "what is to be mounted";
        let mut text = Vec::new();
        from.take(ASKED_MAX).read_to_end(&mut text).map_err(|e| Failure::system(what).because(e))?;
        let HelperRequest { config, pool, .. } = parse_text(&text).map_err(|why| match why {
            FormatError::Format(format) => Failure::system(format!(
                "{what}: said in format {format}, not {FORMAT}; use one version of vellum"
            )),
            FormatError::Unclear(e) => Failure::system(what).because(e),
        })?;
        let pool = pool.map(|name| name.parse()).transpose()?;
        Ok(Self { config, pool, foreground: false })
    }

    /// Refuses what this process may not ask for.
    fn allowed(&self) -> Result<(), Failure> {
        if self.config.allow_root && !rustix::process::geteuid().is_root() {
            return Err(Failure::input(
                "option allow_root: the kernel lets all users into a mount or only its own; write allow_other, or leave it out",
            ));
        }
        if self.config.profile == Profile::Passthrough && !can_pass_through() {
            return Err(Failure::input(
                "option profile=passthrough: the kernel takes files of layers from root of the host only (CAP_SYS_ADMIN); leave it out",
            ));
        }
        Ok(())
    }

    /// The pool that was asked for, or else the one that claims the layers; none: everything stays as it is.
    fn pool(&self) -> Result<Option<Pool>, Failure> {
        let store = Store::of_user();
        if let Some(name) = &self.pool {
            return Pool::open(&store?, name).map(Some);
        }
        // Who has no place for pools has none.
        let Ok(store) = store else { return Ok(None) };
        let claiming = store.of_layers(&self.config.directories())?;
        claiming.map(|(name, settings)| Pool::with(&store, name, settings)).transpose()
    }

    /// Shows owners as ids of the pool, unless what was asked for says how they are shown.
    fn map_ids_to_pool(&mut self, pool: &Pool) -> Result<(), Failure> {
        if !self.config.uid_map.is_identity() || !self.config.gid_map.is_identity() {
            return Ok(());
        }
        let Some(range) = pool.ids()? else { return Ok(()) };
        let shown = self.config.show_ids(&range.mapping());
        shown.map_err(|why| Failure::system(format!("pool {}: uid-range {range}: {why}", pool.name())))
    }

    /// Has the pool's service serve the mount. False: a process of the mount's own must.
    fn join(&self, pool: &Pool, program: &Path) -> Result<bool, Failure> {
        pool.require_reach(&self.config)?;
        let start = || start(pool, program);
        let prepare = |layers: &[&Path]| pool.prepare(layers);
        let service = vellum_service::pool::Pool { socket: pool.socket(), start: &start, prepare: &prepare };
        match service.join(&self.config)? {
            JoinOutcome::Served => Ok(true),
            JoinOutcome::Unfit(why) => {
                tracing::debug!(pool = %pool.name(), "served by a process of its own: {why}");
                Ok(false)
            }
        }
    }

    fn serve(
        &self,
        pool: Option<&Pool>,
        log: &dyn Fn() -> Result<(), Failure>,
        pending: Option<&StartupReport>,
    ) -> Result<(), Failure> {
        // Before any thread is started, and before any memory is filled that the tenant has to pay for.
        log()?;
        if let Some(pool) = pool {
            pool.enter(&self.config.directories())?;
            own_ipc();
            tracing::info!(pool = %pool.name(), "serving in a pool");
        }
        serve_alone(&self.config, pending)
    }
}

/// Starts the pool's service; returns when it can be reached.
fn start(pool: &Pool, program: &Path) -> Result<(), Failure> {
    let mut command = Command::new(program);
    helper::run(command.args(["pool", "serve", "--background", "--outcome", pool.name().as_str()]), b"")
}

/// Changes the flags of a mount that exists; its layers stay what they are.
pub fn remount(config: &Config) -> Result<(), Failure> {
    let point = mountpoint::resolve(&config.mountpoint)?;
    let shown = point.display();
    if mountpoint::top_mount(&point).is_none_or(|mount| !mount.fs_type.starts_with("fuse.")) {
        return Err(Failure::input(format!(
            "option remount: no mount of vellum at {shown}; leave remount out"
        )));
    }
    let asked = &config.flags;
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
        .and_then(|()| config.propagation.map_or(Ok(()), |propagation| propagate(&point, propagation)))
        .map_err(|e| {
            let failure = Failure::system(format!("option remount: {shown}"));
            failure.because(e).remedy("only root may change a mount")
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use vellum_service::LayerSource;

    #[test]
    fn a_helper_request_decodes_as_encoded() {
        let odd = LayerSource::named(OsString::from_vec(b"/l\xff".to_vec()));
        let mut config = Config { lowers: vec![odd], mountpoint: "/m".into(), ..Config::default() };
        config.show_ids("0:100000:65536").unwrap();
        let asked = HelperRequest { format: FORMAT, config: config.clone(), pool: Some("one".into()) };
        let text = serde_json::to_vec(&asked).unwrap();
        let wanted = Mount { config, pool: Some("one".parse().unwrap()), foreground: false };
        assert_eq!(Mount::from_request(text.as_slice()).unwrap(), wanted);
        let other = String::from_utf8(text).unwrap().replace(&format!("\"format\":{FORMAT}"), "\"format\":1");
        for (bad, word) in [(other.as_str(), "format 1"), ("", "EOF"), ("{}", "missing field `format`")] {
            let why = Mount::from_request(bad.as_bytes()).unwrap_err();
            assert!(why.to_string().contains(word), "{why}");
        }
    }
}
