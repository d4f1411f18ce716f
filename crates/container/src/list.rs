//! Containers as somebody else sees them, and the end of those that nobody else ends.

use super::container_process::has_runtime_state;
use super::settings::Settings;
use super::state::{State, StateDir, discard_all, plain_name};
use super::union::SERVICE_WAIT;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};
use vellum_pool::locked_dir::LockedDir;
use vellum_service::Failure;

/// How long a `vellum run` may take to end after its container.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// How long a container may be locked by who only looks at it.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Serialize)]
pub struct ContainerEntry {
    pub name: String,
    /// Who sees to it.
    pub state: Manager,
    /// Its first process, by the number that it has here; none: nothing runs.
    pub pid: Option<u32>,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// What runs in it, as far as it is known.
    pub command: Option<String>,
}

/// Who sees to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Manager {
    /// Its `vellum run` or `vellum restore`.
    #[serde(rename = "running")]
    Alive,
    /// Nobody: that was killed.
    #[serde(rename = "no manager")]
    Gone,
}

impl Manager {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Alive => "running",
            Self::Gone => "no manager",
        }
    }
}

/// The containers that are there. `state`: the directory for containers that was asked for.
pub fn list(state: Option<&Path>) -> Result<Vec<ContainerEntry>, Failure> {
    let Some(state) = State::open_existing(state)? else { return Ok(Vec::new()) };
    let containers = state.containers();
    let failed = |e| Failure::at(&containers, e);
    let mut all = Vec::new();
    for entry in fs::read_dir(&containers).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Without a directory of its run it has just begun, or is about to be gone.
        let Some(dir) = run_of(&entry.path()) else { continue };
        let has_owner = LockedDir::has_owner(&entry.path()).map_err(|e| Failure::at(&entry.path(), e))?;
        let manager = if has_owner { Manager::Alive } else { Manager::Gone };
        all.extend(listed(&entry.file_name().to_string_lossy(), &dir, manager));
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// None: it has ended meanwhile.
fn listed(name: &str, dir: &Path, state: Manager) -> Option<ContainerEntry> {
    let created = dir.metadata().and_then(|meta| meta.created().or_else(|_| meta.modified())).ok()?;
    let known = StateDir::runtime_state_of(dir);
    let runtime = StateDir::runtime_of(dir).filter(|_| has_runtime_state(&known.join(name)));
    Some(ContainerEntry {
        name: name.to_owned(),
        state,
        pid: runtime.and_then(|runtime| runtime.first_process(name, &known)),
        created: created.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        command: Settings::read(dir).ok().flatten().map(|settings| settings.command()),
    })
}

/// The directory of the one run that a container's directory has.
fn run_of(path: &Path) -> Option<PathBuf> {
    Some(fs::read_dir(path).ok()?.next()?.ok()?.path())
}

/// Ends a container whose `vellum run` was killed, and takes away what is left of it. `force`: also one whose `vellum run` lives.
pub fn remove(state: Option<&Path>, name: &str, force: bool) -> Result<(), Failure> {
    let id = plain_name("container", name)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::input(format!(
            "only root can end containers, of the host or of a user namespace; try podman unshare vellum rm {id}"
        )));
    }
    let path =
        State::open_existing(state)?.map(|state| state.containers().join(id)).filter(|path| path.is_dir());
    let path = path.ok_or_else(|| {
        Failure::input(format!("container {id}: there is none of this name; vellum ps shows which there are"))
    })?;
    let owned = || LockedDir::adopt(&path).map_err(|e| Failure::at(&path, e));
    let begin = Instant::now();
    // A command that only looks has the lock for a moment.
    while begin.elapsed() < LOOK {
        if let Some(left) = owned()? {
            return discard_all(left, id, SERVICE_WAIT);
        }
        std::thread::sleep(PAUSE);
    }
    if !force {
        return Err(Failure::input(format!(
            "container {id}: it is running, and its vellum run takes it away when it ends; give --force to end it"
        )));
    }
    let begin = Instant::now();
    let mut dir = run_of(&path);
    while dir.as_ref().is_none_or(|dir| dir.is_dir()) && path.is_dir() {
        if let Some(left) = owned()? {
            return discard_all(left, id, SERVICE_WAIT);
        }
        // It is just being made.
        dir = dir.or_else(|| run_of(&path));
        // Again and again: it may be about to start.
        if let Some(dir) = &dir
            && let Some(runtime) = StateDir::runtime_of(dir)
        {
            runtime.kill(id, &StateDir::runtime_state_of(dir));
        }
        if begin.elapsed() > PATIENCE {
            return Err(Failure::system(format!(
                "container {id}: it was killed, and its vellum run has not ended; end that, too"
            )));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::runtime::Runtime;
    use super::*;

    #[test]
    fn leftover_containers_are_listed_and_removed() {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: needs root, as vellum rm does");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        assert_eq!(list(Some(&path)).unwrap_err().exit_status(), 2);
        assert!(!path.exists(), "a question has made something");
        let state = State::open(Some(&path)).unwrap();
        let runtime = Runtime::at(dir.path().join("crun"));
        for name in ["dead", "alive"] {
            state.place(name).unwrap().make(&runtime, None).unwrap();
        }
        let alive = state.place("alive").unwrap();
        alive.make(&runtime, None).unwrap();
        let seen = list(Some(&path)).unwrap();
        let seen: Vec<_> = seen.iter().map(|one| (one.name.as_str(), one.state, one.pid)).collect();
        assert_eq!(seen, [("alive", Manager::Alive, None), ("dead", Manager::Gone, None)]);
        for name in ["alive", "none", "../state"] {
            assert_eq!(remove(Some(&path), name, false).unwrap_err().exit_status(), 2, "{name}");
        }
        remove(Some(&path), "dead", false).unwrap();
        assert_eq!(list(Some(&path)).unwrap().len(), 1);
        assert!(alive.upper().is_dir());
    }
}
