//! From what was asked for to an exit status.

use super::host_mounts::HostMounts;
use super::placement::{self, Placement};
use super::preload::Preload;
use super::process::{self, Plan, ProcessOptions};
use super::remote_upper::ZonedUpper;
use super::restore::Resume;
use super::runtime::{self, Bundle, Runtime};
use super::settings::{Image, Settings};
use super::signals::Signals;
use super::spec::Container;
use super::state::{self, SavedUpper, State, StateDir};
use super::stdio::own_device;
use super::union::{self, Union};
use super::user::{User, UserDatabase};
use super::volume::Volume;
use crate::image::{ResolvedImage, Source};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use vellum_pool::Pool;
use vellum_pool::PoolName;
use vellum_pool::Store;
use vellum_pool::UidRange;
use vellum_service::config::{Cache, Config, LayerWriters, WritebackConfig};
use vellum_service::pool::session_path;
use vellum_service::{Failure, LayerSource};

/// What is to run, and where.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program that mounts: `vellum` itself.
    pub vellum: PathBuf,
    /// What the root is made of.
    pub image: Source,
    /// What runs.
    pub asked: ProcessOptions,
    /// What it sees of the host.
    pub volumes: Vec<Volume>,
    /// The pool that it is in; none: the one that claims its layers, if any.
    pub pool: Option<PoolName>,
    /// Its weight among the mounts of the service; none: the pool's.
    pub weight: Option<u16>,
    /// Whether its layers are read through the service's cache, and who may change them.
    pub cache: Option<LayerWriters>,
    /// An upper layer that is kept.
    pub upper: Option<LayerSource>,
    /// What goes to an upper layer on CephFS is written behind, so far; none: before it is answered.
    pub write_behind: Option<WritebackConfig>,
    pub name: Option<String>,
    /// Whether the command has a terminal; none: as standard input and output are.
    pub terminal: Option<bool>,
    /// Whether its root cannot be written.
    pub read_only: bool,
    /// The name of its host; none: its own name.
    pub hostname: Option<String>,
    /// Whether it has the host's network, or none.
    pub host_network: bool,
    /// The runtime; none: one that is found.
    pub runtime: Option<PathBuf>,
    /// Where layers and containers are kept; none: where this user's are.
    pub state: Option<PathBuf>,
    /// Whether its processes may gain privileges by executing programs.
    pub new_privileges: bool,
}

/// How a container has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerExit {
    /// Its exit status, or that of podman when it was not started.
    pub status: u8,
    /// What is to be said when it was not started; the runtime has said why.
    pub said: Option<String>,
}

/// Files of a container's own, which it sees in `/etc`.
pub const RUN_FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];
/// What CRIU is told about it.
const CRIU_FILE: &str = "criu.conf";

/// The longest name of a host that the kernel takes.
const HOSTNAME_MAX: usize = 64;

/// Runs it to its end. Afterwards nothing is mounted, and nothing is left but unpacked layers, and an upper layer that was to be kept.
pub fn run(request: &Request) -> Result<ContainerExit, Failure> {
    // What can be wrong with what was asked for comes first, before anything is made.
    let id = state::id(request.name.as_deref())?;
    let hostname = hostname(request, &id)?;
    let runtime = Runtime::find(request.runtime.as_deref())?;
    let terminal = terminal(request.terminal)?;
    let here = match &request.image {
        Source::Tree(_) | Source::Layout(..) => Some(ResolvedImage::resolve(&request.image)?),
        Source::Far(_) | Source::FarLayout(_) => None,
    };
    let pool = request.pool.as_ref().map(|name| Pool::open(&Store::of_user()?, name)).transpose()?;
    let mut keep = request.upper.as_ref().map(saved_upper).transpose()?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::input(
            "only root can run containers, of the host or of a user namespace; try podman unshare vellum run ...",
        ));
    }
    let signals = Signals::watch()?;
    let state = State::open(request.state.as_deref())?;
    state.sweep();
    let pool = claimed(pool, &request.image, keep.as_ref(), &state)?;
    let usual = pool.as_ref().map(|pool| pool.settings().cluster()).unwrap_or_default();
    let source = request.image.resolve_with(&usual)?;
    if let Some(SavedUpper::Far(layer)) = &mut keep {
        *layer = layer.resolve_with(&usual)?;
    }
    let image = here.map_or_else(|| ResolvedImage::resolve(&source), Ok)?;
    let mut own = vec!["container=vellum".to_owned(), format!("HOSTNAME={hostname}")];
    if terminal {
        own.push("TERM=xterm".to_owned());
    }
    let plan = process::plan(&image.defaults(), &request.asked, &own, |name| std::env::var(name).ok())?;
    let Some(lowers) = image.lowers(&state.layers(), &|| signals.pending().is_some())? else {
        return Ok(ContainerExit { status: interrupted(&signals), said: None });
    };
    let place = state.place(&id)?;
    let (image, signals) = (source.into(), &signals);
    Start { request, image, runtime, plan, hostname, terminal, keep, pool, signals, resume: None }
        .run_to_end(place, lowers)
}

/// Whether the command gets a terminal: it is shown in ours, so there has to be one.
fn terminal(asked: Option<bool>) -> Result<bool, Failure> {
    let (input, output) = (rustix::termios::isatty(io::stdin()), rustix::termios::isatty(io::stdout()));
    match asked {
        Some(true) if !input => {
            Err(Failure::input("option --tty: standard input is no terminal; leave the option out"))
        }
        Some(asked) => Ok(asked),
        None => Ok(input && output),
    }
}

/// As a shell sees a command that a signal has ended.
pub(super) fn interrupted(signals: &Signals) -> u8 {
    let signal = signals.pending().and_then(|signal| u8::try_from(signal).ok());
    128_u8.saturating_add(signal.unwrap_or(0))
}

fn hostname(request: &Request, id: &str) -> Result<String, Failure> {
    let Some(name) = &request.hostname else {
        let uname = rustix::system::uname();
        let host = uname.nodename().to_str().ok().filter(|_| request.host_network);
        return Ok(host.unwrap_or(id).to_owned());
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !name.is_empty() && name.len() <= HOSTNAME_MAX && name.chars().all(plain) {
        return Ok(name.clone());
    }
    Err(Failure::input(format!(
        "option --hostname {name}: give up to {HOSTNAME_MAX} of a-z, A-Z, 0-9, _, - and ."
    )))
}

/// The pool, or else the one that will claim the layers of this host, where something is on CephFS: the pool may say on which cluster.
fn claimed(
    pool: Option<Pool>,
    image: &Source,
    keep: Option<&SavedUpper>,
    state: &State,
) -> Result<Option<Pool>, Failure> {
    let far =
        matches!(image, Source::Far(_) | Source::FarLayout(_)) || matches!(keep, Some(SavedUpper::Far(_)));
    let store = match Store::of_user() {
        Ok(store) if pool.is_none() && far => store,
        _ => return Ok(pool),
    };
    // As far as they are there: what is not belongs to whom the directory belongs that it is made in.
    let mut layers = match keep {
        Some(SavedUpper::Here(upper)) => vec![upper.clone()],
        Some(SavedUpper::Far(_) | SavedUpper::Stored(_)) => Vec::new(),
        None => vec![state.containers(), state.directory().to_owned()],
    };
    match image {
        Source::Tree(dir) => layers.push(dir.clone()),
        Source::Layout(..) | Source::FarLayout(_) => {
            layers.extend([state.layers().directory(), state.directory()].map(Path::to_owned))
        }
        Source::Far(_) => {}
    }
    store.of_layers(&layers)?.map(|(name, settings)| Pool::with(&store, name, settings)).transpose()
}

/// Where it is to be; on CephFS, as far as was said.
fn saved_upper(upper: &LayerSource) -> Result<SavedUpper, Failure> {
    let upper = match upper {
        LayerSource::Ceph(layer) => return Ok(SavedUpper::Far(layer.clone())),
        LayerSource::Zoned(layer) => {
            let (upper, work) = layer.upper("option --upper")?;
            return Ok(SavedUpper::Stored(Box::new(ZonedUpper { upper, work })));
        }
        local => local.directory().unwrap_or(Path::new("")),
    };
    let shown = upper.display();
    let failed =
        |e| Failure::input(format!("option --upper {shown}")).because(e).remedy("make the directory first");
    let path = upper.canonicalize().map_err(failed)?;
    if !path.is_dir() || path.file_name().is_none() {
        return Err(Failure::input(format!("option --upper {shown}: give a directory other than /")));
    }
    Ok(SavedUpper::Here(path))
}

/// The socket of the pool's service that is for the library which containers have preloaded. It is shown to the container as
/// `/.vellum/socket`, which the variable `VELLUM_SOCKET` names there, when a file is at it.
fn pool_socket(pool: Option<&Pool>) -> Option<PathBuf> {
    pool.map(|pool| session_path(pool.socket()))
}

/// Everything that is known before the container's directory is there.
pub(super) struct Start<'a> {
    pub(super) request: &'a Request,
    pub(super) image: Image,
    pub(super) runtime: Runtime,
    pub(super) plan: Plan,
    pub(super) hostname: String,
    pub(super) terminal: bool,
    pub(super) keep: Option<SavedUpper>,
    pub(super) pool: Option<Pool>,
    pub(super) signals: &'a Signals,
    /// The checkpoint that it goes on from.
    pub(super) resume: Option<&'a Resume<'a>>,
}

impl Start<'_> {
    /// Runs it, and takes its directory away.
    pub(super) fn run_to_end(
        self,
        place: StateDir,
        lowers: Vec<LayerSource>,
    ) -> Result<ContainerExit, Failure> {
        let signals = self.signals;
        let ended = self.go(&place, lowers);
        if let Err(why) = place.discard() {
            // It has ended as it has ended.
            tracing::warn!("{why}");
        }
        Ok(ended?.unwrap_or_else(|| ContainerExit { status: interrupted(signals), said: None }))
    }

    /// None: a signal came before it was started.
    fn go(
        mut self,
        place: &StateDir,
        mut lowers: Vec<LayerSource>,
    ) -> Result<Option<ContainerExit>, Failure> {
        place.make(&self.runtime, self.keep.as_ref())?;
        let made = |path: &Path, e: io::Error| Failure::at(path, e);
        if lowers.is_empty() {
            // An image without layers.
            let empty = place.path("empty");
            fs::create_dir(&empty).map_err(|e| made(&empty, e))?;
            lowers.push(empty.into());
        }
        let ((upper, work), merged) = (place.layers(), place.merged());
        if let Some(resume) = self.resume {
            resume.upper(&place.upper())?;
        } else if let (None, Some(top)) = (&self.keep, lowers.first()) {
            union::copy_root_attributes(&place.upper(), top)?;
        }
        let here = upper.clone();
        let layers: Vec<&Path> =
            std::iter::once(&here).chain(&lowers).filter_map(LayerSource::directory).collect();
        self.claim(&layers)?;
        let pool = self.pool.as_ref();
        if let Some(resume) = self.resume {
            resume.check_pool(pool)?;
        }
        let ids = pool.map_or(Ok(None), Pool::ids)?;
        if let Some(ids) = ids {
            place.open_to(ids)?;
        }
        let union = Union { lowers: &lowers, upper, work, merged: &merged };
        let Request { vellum, weight, cache, write_behind, .. } = self.request;
        let cache = cache.map(|sharing| Cache { sharing, bytes: Cache::USUAL });
        union.mount(
            vellum,
            pool.map(Pool::name),
            ids,
            Config { weight: *weight, cache, write_behind: *write_behind, ..Config::default() },
        )?;
        let placement = placement::place(pool, &placement::name(place.state(), place.id()), &self.runtime)?;
        if let Some(group) = &placement.group {
            place.note_group(group)?;
        }
        let shown = self.configure(place, &placement, ids, &lowers)?;
        if let (true, Some(pool)) = (placement.enter, pool) {
            pool.enter(&layers)?;
        }
        self.start(place, &placement, &shown)
    }

    /// The pool that claims the layers, as it does for any mount.
    fn claim(&mut self, layers: &[&Path]) -> Result<(), Failure> {
        // Who has no place for pools has none.
        if let (None, Ok(store)) = (&self.pool, Store::of_user()) {
            let claiming = store.of_layers(layers)?;
            self.pool = claiming.map(|(name, settings)| Pool::with(&store, name, settings)).transpose()?;
        }
        Ok(())
    }

    /// Writes what the runtime reads. What has to be shown to it.
    fn configure(
        &self,
        place: &StateDir,
        placement: &Placement,
        ids: Option<UidRange>,
        lowers: &[LayerSource],
    ) -> Result<HostMounts, Failure> {
        let user = match self.resume {
            Some(resume) => resume.settings().user.clone(),
            None => {
                let known = UserDatabase::in_tree(&place.merged());
                known
                    .resolve(&self.plan.user)
                    .map_err(|why| Failure::input(format!("option --user: {why}")))?
            }
        };
        if let Some(ids) = ids {
            user.within(ids.count()).map_err(|id| {
                let user = &self.plan.user;
                Failure::input(format!(
                    "option --user {user}: id {id} is not among the {} of the pool's uid-range {ids}; take another, or a longer range",
                    ids.count()
                ))
            })?;
        }
        let mut plan = self.plan.clone();
        plan.default_env("HOME", user.home.as_deref().unwrap_or("/"));
        let socket = pool_socket(self.pool.as_ref());
        let preload = match self.resume {
            Some(resume) => resume.preload(place, socket)?,
            None => Preload::find(&self.request.vellum, socket.as_deref())?,
        };
        let files = match self.resume {
            Some(resume) => resume.files(place)?,
            None => files(place, &self.hostname, self.request.host_network)?,
        };
        if let Some(ids) = ids {
            for (path, _) in &files {
                // The container's own, as they are without ids of its own.
                std::os::unix::fs::chown(path, Some(ids.start()), Some(ids.start()))
                    .map_err(|e| Failure::at(path, e))?;
            }
        }
        let criu = place.path(CRIU_FILE);
        fs::write(&criu, crate::criu::configuration(true)).map_err(|e| Failure::at(&criu, e))?;
        self.settings(&plan, &user, ids, lowers, &preload).write(place.dir())?;
        let mut volumes = self.request.volumes.clone();
        let (mut shown, mut preload) = (HostMounts::default(), preload);
        if self.resume.is_some() && ids.is_some() {
            volumes.iter_mut().try_for_each(|volume| shown.show(place.dir(), &mut volume.from))?;
            preload.socket.iter_mut().try_for_each(|socket| shown.show(place.dir(), socket))?;
        }
        let hook = self.resume.filter(|_| !self.request.host_network).map(|_| self.request.vellum.as_path());
        let container = Container {
            plan: &plan,
            user: &user,
            terminal: self.terminal,
            no_new_privileges: !self.request.new_privileges,
            hostname: &self.hostname,
            host_network: self.request.host_network,
            read_only: self.request.read_only,
            volumes: &volumes,
            files: &files,
            preload: &preload,
            cgroup: placement.group.as_deref(),
            rootless: !vellum_pool::privilege::is_host_root(),
            ids,
            criu: &criu,
            loopback: hook,
        };
        let path = place.path("config.json");
        let failed = |e: &dyn std::error::Error| Failure::system(format!("{}", path.display())).because(e);
        let spec = container.spec().map_err(|e| failed(&e))?;
        let text = serde_json::to_vec_pretty(&spec).map_err(|e| failed(&e))?;
        fs::write(&path, text).map_err(|e| failed(&e))?;
        Ok(shown)
    }

    /// What it is started with, for a checkpoint.
    fn settings(
        &self,
        plan: &Plan,
        user: &User,
        ids: Option<UidRange>,
        lowers: &[LayerSource],
        preload: &Preload,
    ) -> Settings {
        let request = self.request;
        Settings {
            image: self.image.clone(),
            lowers: lowers.iter().filter_map(|lower| lower.directory().map(Path::to_owned)).collect(),
            plan: plan.clone(),
            user: user.clone(),
            volumes: request.volumes.clone(),
            pool: self.pool.as_ref().map(|pool| pool.name().to_string()),
            ids: ids.map(|ids| ids.to_string()),
            weight: request.weight,
            cache: request.cache,
            hostname: self.hostname.clone(),
            terminal: self.terminal,
            read_only: request.read_only,
            host_network: request.host_network,
            new_privileges: request.new_privileges,
            library: preload.library.is_some(),
            socket: preload.socket.is_some(),
        }
    }

    fn start(
        &self,
        place: &StateDir,
        placement: &Placement,
        shown: &HostMounts,
    ) -> Result<Option<ContainerExit>, Failure> {
        let (log, state) = (place.path("runtime.log"), place.runtime_state());
        let bundle = Bundle { id: place.id(), dir: &place.path("."), state: &state, log: &log, shown };
        let groups = placement.group.is_some();
        // What reads from a terminal has to be in its foreground.
        let at_keyboard = self.terminal || rustix::termios::isatty(io::stdin());
        let images = self.resume.map(|resume| resume.images(place)).transpose()?;
        let images = images.as_ref().map(super::restore::Images::borrowed);
        let mut command =
            self.runtime.run(&self.request.vellum, &bundle, images.as_ref(), groups, at_keyboard);
        if let Some(device) = own_device(io::stdin()) {
            command.stdin(device);
        }
        if let Some(device) = own_device(io::stdout()) {
            command.stdout(device);
        }
        if let Some(device) = own_device(io::stderr()) {
            command.stderr(device);
        }
        if self.signals.pending().is_some() {
            return Ok(None);
        }
        let program = self.runtime.program().display();
        let failed = |e: io::Error| Failure::system(format!("{program}")).because(e);
        let mut child = command.spawn().map_err(failed)?;
        self.signals.pass_to(child.id(), at_keyboard);
        let status = runtime::status(child.wait().map_err(failed)?);
        // A runtime that has failed says so; otherwise the status is the container's.
        let refusal = if status == 0 { None } else { runtime::refusal(&log) };
        Ok(Some(match refusal {
            Some(status) => {
                let why = self.resume.and_then(|resume| resume.failure(place));
                let said = why.unwrap_or_else(|| format!("{program} has not started the container"));
                ContainerExit { status, said: Some(said) }
            }
            None => ContainerExit { status, said: None },
        }))
    }
}

/// What programs expect in `/etc` that is about the container and not about its image.
fn files(
    place: &StateDir,
    hostname: &str,
    host_network: bool,
) -> Result<Vec<(PathBuf, &'static str)>, Failure> {
    let own = || format!("127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost {hostname}\n");
    let [of_name, of_hosts, of_resolver] = RUN_FILES;
    let mut texts = vec![("/etc/hostname", of_name, format!("{hostname}\n"))];
    if host_network {
        // The host's names are those of its network; without a file there is nothing to resolve with.
        texts.push(("/etc/hosts", of_hosts, fs::read_to_string("/etc/hosts").unwrap_or_else(|_| own())));
        let resolver = fs::read_to_string("/etc/resolv.conf");
        texts.extend(resolver.ok().map(|text| ("/etc/resolv.conf", of_resolver, text)));
    } else {
        texts.push(("/etc/hosts", of_hosts, own()));
    }
    let mut files = Vec::new();
    for (to, name, text) in texts {
        let path = place.path(name);
        fs::write(&path, text).map_err(|e| Failure::at(&path, e))?;
        let readable = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
        fs::set_permissions(&path, readable).map_err(|e| Failure::at(&path, e))?;
        files.push((path, to));
    }
    Ok(files)
}
