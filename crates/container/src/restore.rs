//! A container that goes on from a checkpoint: it is started as any other, with the settings and the upper layer of the old one, and by the
//! runtime's `restore`.

use super::preload::{LIBRARY, Preload};
use super::run::{ContainerExit, RUN_FILES, Request, Start, interrupted};
use super::runtime::{self, Kind, Runtime, in_path};
use super::settings::Settings;
use super::signals::Signals;
use super::state::{self, State, StateDir};
use crate::criu::{ALWAYS, Criu, OWN_NETWORK, explain};
use crate::identity::Lowers;
use crate::image::Source;
use std::ffi::OsString;
use std::fmt::Debug;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use vellum_pool::Pool;
use vellum_pool::PoolName;
use vellum_pool::Store;
use vellum_service::Failure;

/// Where CRIU writes its log, in the container's directory, and what it calls it.
const WORK: &str = "criu";
const LOG: &str = "restore.log";
/// What runc writes of a container that it has restored.
const RUNC_STATE: &str = "state.json";
/// What is shown where the pool's service had a socket for programs, in a pool without.
const NO_SOCKET: &str = "no-socket";

/// A container that is to go on.
#[derive(Clone, Debug)]
pub struct Restore {
    /// The program `vellum`.
    pub vellum: PathBuf,
    /// The pool that it is in from now on; none: the one that it was in.
    pub pool: Option<PoolName>,
    /// Its name; none: the one that it had.
    pub name: Option<String>,
    /// Where its image is now; none: where it was.
    pub image: Option<Source>,
    /// The runtime; none: runc.
    pub runtime: Option<PathBuf>,
    /// Where layers and containers are kept; none: where this user's are.
    pub state: Option<PathBuf>,
}

/// A saved container, as a checkpoint has it.
pub trait SavedContainer: Debug {
    /// Where it is, for people.
    fn display(&self) -> String;

    /// Fills an empty directory with the upper layer.
    fn upper(&self, to: &Path) -> Result<(), Failure>;

    /// What a file of this name held, if it was there.
    fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Failure>;

    /// Why CRIU could not read from that directory.
    fn read_failure(&self) -> Option<String>;

    /// A directory that CRIU reads from. `scratch`: a directory where something may be made for a moment.
    /// When `restored` is there and nobody reads any more, none will.
    fn images(&self, scratch: &Path, restored: &Path) -> Result<PathBuf, Failure>;
}

/// What a container resumes from.
#[derive(Debug)]
pub(super) struct Resume<'a> {
    saved: &'a dyn SavedContainer,
    lowers: Lowers,
    settings: Settings,
    criu: Criu,
}

/// What the runtime is told about images.
pub(super) struct Images {
    dir: PathBuf,
    work: PathBuf,
    options: Vec<&'static str>,
    path: OsString,
}

impl Images {
    pub(super) fn borrowed(&self) -> runtime::Images<'_> {
        runtime::Images { dir: &self.dir, work: &self.work, options: &self.options, path: &self.path }
    }
}

/// Has a container of `vellum run` go on, to its end. Afterwards nothing is left of it but the checkpoint.
/// `container`: the name that it had.
pub fn restore(
    asked: &Restore,
    container: &str,
    saved: &dyn SavedContainer,
    lowers: Lowers,
    settings: Settings,
) -> Result<ContainerExit, Failure> {
    let shown = saved.display();
    let id = state::id(Some(asked.name.as_deref().unwrap_or(container)))?;
    let runtime = runc(asked.runtime.as_deref())?;
    let resume = Resume { criu: Criu::find()?, saved, lowers, settings };
    let settings = resume.settings();
    let at_terminal = rustix::termios::isatty(io::stdin()) && rustix::termios::isatty(io::stdout());
    if settings.terminal && !at_terminal {
        return Err(Failure::input(format!(
            "checkpoint {shown}: the container has a terminal, and here is none; call vellum restore in one"
        )));
    }
    if let Some(gone) = settings.volumes.iter().find(|volume| !volume.exists()) {
        return Err(Failure::input(format!(
            "checkpoint {shown}: the container sees {}, which is not there; make it first",
            gone.source().display()
        )));
    }
    let named = settings.pool.as_deref().map(str::parse::<PoolName>).transpose()?;
    let pool = asked.pool.clone().or(named);
    let pool = pool.map(|name| Pool::open(&Store::of_user()?, &name)).transpose()?;
    if let Some(pool) = &pool {
        resume.check_pool(Some(pool))?;
    }
    let usual = pool.as_ref().map(|pool| pool.settings().cluster()).unwrap_or_default();
    let image = asked.image.clone().unwrap_or_else(|| resume.lowers.source());
    let image = image.resolve_with(&usual).map_err(|why| why.context(format!("checkpoint {shown}")))?;
    let request = resume.request(asked, image.clone());
    let signals = Signals::watch()?;
    let state = State::open(asked.state.as_deref())?;
    state.sweep();
    let lowers = resume.lowers.layers(&image, &state.layers(), &|| signals.pending().is_some());
    let Some(lowers) = lowers.map_err(|why| why.context(format!("checkpoint {shown}")))? else {
        return Ok(ContainerExit { status: interrupted(&signals), said: None });
    };
    let place = state.place(&id)?;
    let start = Start {
        request: &request,
        image: image.into(),
        runtime,
        plan: settings.plan.clone(),
        hostname: settings.hostname.clone(),
        terminal: settings.terminal,
        keep: None,
        pool,
        signals: &signals,
        resume: Some(&resume),
    };
    start.run_to_end(place, lowers)
}

/// The runtime that restores: runc, unless another one is named.
fn runc(asked: Option<&Path>) -> Result<Runtime, Failure> {
    if let Some(asked) = asked {
        let runtime = Runtime::find(Some(asked))?;
        if runtime.kind() == Kind::Crun {
            return Err(Failure::input(format!(
                "option --runtime {}: crun restores no checkpoints; leave the option out for runc",
                asked.display()
            )));
        }
        return Ok(runtime);
    }
    in_path(Path::new("runc"))
        .map(Runtime::at)
        .ok_or_else(|| Failure::input("no runc in PATH, which restores containers; apt-get install runc"))
}

impl Resume<'_> {
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Refuses a pool in which its ids would be others, for its files and its processes have them.
    pub(super) fn check_pool(&self, pool: Option<&Pool>) -> Result<(), Failure> {
        let ids = pool.map_or(Ok(None), Pool::ids)?.map(|ids| ids.to_string());
        let had = &self.settings.ids;
        if ids == *had {
            return Ok(());
        }
        let name = pool.map_or_else(|| "no pool".to_owned(), |pool| format!("pool {}", pool.name()));
        let has =
            ids.map_or_else(|| "it has no uid-range".to_owned(), |ids| format!("it has the uid-range {ids}"));
        let (had, remedy) = match had {
            Some(had) => (
                format!("with {had}"),
                format!("give --pool with one that has it: vellum pool create --uid-range {had}"),
            ),
            None => ("without".to_owned(), "take another pool".to_owned()),
        };
        Err(Failure::input(format!("{name}: {has}, and the container was made {had}")).remedy(remedy))
    }

    /// As the container was asked for.
    fn request(&self, asked: &Restore, image: Source) -> Request {
        let settings = self.settings();
        Request {
            vellum: asked.vellum.clone(),
            image,
            asked: super::ProcessOptions::default(),
            volumes: settings.volumes.clone(),
            pool: asked.pool.clone(),
            weight: settings.weight,
            cache: settings.cache,
            write_behind: None,
            upper: None,
            name: asked.name.clone(),
            terminal: Some(settings.terminal),
            read_only: settings.read_only,
            hostname: Some(settings.hostname.clone()),
            host_network: settings.host_network,
            runtime: asked.runtime.clone(),
            state: asked.state.clone(),
            new_privileges: settings.new_privileges,
        }
    }

    /// Fills an upper layer, an empty directory, with what the container had.
    pub(super) fn upper(&self, upper: &Path) -> Result<(), Failure> {
        self.saved.upper(upper)
    }

    /// The files that the container sees in `/etc`, as they were.
    pub(super) fn files(&self, place: &StateDir) -> Result<Vec<(PathBuf, &'static str)>, Failure> {
        let mut files = Vec::new();
        for (name, to) in RUN_FILES.into_iter().zip(["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"]) {
            let path = place.path(name);
            if let Some(text) = self.saved.file(name)? {
                fs::write(&path, text).map_err(|e| Failure::at(&path, e))?;
                files.push((path, to));
            }
        }
        Ok(files)
    }

    /// What is shown at `/.vellum`: as many mounts as there were.
    pub(super) fn preload(&self, place: &StateDir, socket: Option<PathBuf>) -> Result<Preload, Failure> {
        let library = self.library(place)?;
        if !self.settings().socket {
            return Ok(Preload::restored(library, None));
        }
        let socket = match socket.filter(|socket| socket.exists()) {
            Some(socket) => socket,
            None => {
                let path = place.path(NO_SOCKET);
                fs::write(&path, "").map_err(|e| Failure::at(&path, e))?;
                path
            }
        };
        Ok(Preload::restored(library, Some(socket)))
    }

    /// The library that its programs have loaded, as it was.
    fn library(&self, place: &StateDir) -> Result<Option<PathBuf>, Failure> {
        if !self.settings().library {
            return Ok(None);
        }
        let shown = self.saved.display();
        let none = || {
            Failure::input(format!(
                "checkpoint {shown}: its programs have {LIBRARY} loaded, which is missing in it"
            ))
        };
        let path = place.path(LIBRARY);
        let bytes = self.saved.file(LIBRARY)?.ok_or_else(none)?;
        fs::write(&path, bytes).map_err(|e| Failure::at(&path, e))?;
        let readable = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(&path, readable).map_err(|e| Failure::at(&path, e))?;
        Ok(Some(path))
    }

    /// What the runtime is told about images.
    pub(super) fn images(&self, place: &StateDir) -> Result<Images, Failure> {
        let work = place.path(WORK);
        fs::create_dir(&work).map_err(|e| Failure::at(&work, e))?;
        let mut options = ALWAYS.to_vec();
        if !self.settings().host_network {
            options.extend(OWN_NETWORK);
        }
        let restored = place.runtime_state().join(place.id()).join(RUNC_STATE);
        let dir = self.saved.images(&place.path("."), &restored)?;
        Ok(Images { dir, work, options, path: self.criu.path() })
    }

    /// Why it does not go on, as CRIU has it.
    pub(super) fn failure(&self, place: &StateDir) -> Option<String> {
        let why = self.saved.read_failure().or_else(|| explain(&place.path(WORK).join(LOG)))?;
        Some(format!("checkpoint {}: cannot be restored: {why}", self.saved.display()))
    }
}
