//! A container of somebody else that runs: `vellum run`, in another process.

use super::runtime::Runtime;
use super::settings::Settings;
use super::state::{State, StateDir, plain_name};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_pool::locked_dir::LockedDir;
use vellum_service::Failure;
use vellum_service::layers::ceph::CephLayer;
use vellum_service::layers::zoned::ZonedLayer;

/// Held by who takes a checkpoint.
const LOCK: &str = "checkpoint.lock";

/// How long it is waited for one that is about to start.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// One that runs.
#[derive(Clone, Debug)]
pub struct ContainerProcess {
    id: String,
    dir: PathBuf,
    runtime: Runtime,
}

impl State {
    pub fn running(&self, id: &str) -> Result<ContainerProcess, Failure> {
        let path = self.containers().join(plain_name("container", id)?);
        // Who can have it finds a dead one, or none.
        let owner_lives = path.is_dir() && matches!(LockedDir::adopt(&path), Ok(None));
        if !owner_lives {
            return Err(Failure::input(format!(
                "container {id}: none of this name is running; {}",
                self.others()
            )));
        }
        vellum_sys::wait_for(PATIENCE, PAUSE, || started(&path, id)).ok_or_else(|| {
            Failure::input(format!("container {id}: it has not started yet; try again in a moment"))
        })
    }

    /// Which ones are running, in a sentence.
    fn others(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(self.containers()).into_iter().flatten().flatten() {
            if matches!(LockedDir::adopt(&entry.path()), Ok(None)) {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        let state = self.containers();
        let state = state.parent().unwrap_or(Path::new("/")).display();
        if names.is_empty() {
            format!("none is running in {state}; give --state DIR as vellum run was given it")
        } else {
            format!("in {state} there is {}", names.join(", "))
        }
    }
}

/// A container in a directory that its runtime has started.
fn started(path: &Path, id: &str) -> Option<ContainerProcess> {
    let dir = fs::read_dir(path).ok()?.next()?.ok()?.path();
    let running = ContainerProcess { id: id.to_owned(), runtime: StateDir::runtime_of(&dir)?, dir };
    has_runtime_state(&running.runtime_state().join(id)).then_some(running)
}

/// Whether a runtime has written down that there is a container, where it keeps what it knows of it.
pub(super) fn has_runtime_state(known: &Path) -> bool {
    // Of runc, and of crun.
    ["state.json", "status"].iter().any(|name| known.join(name).exists())
}

impl ContainerProcess {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What runs it.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// A path in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Where its tree is mounted.
    pub fn merged(&self) -> PathBuf {
        self.path(super::spec::ROOT)
    }

    /// Its upper layer.
    pub fn upper(&self) -> PathBuf {
        StateDir::upper_of(&self.dir)
    }

    /// Its upper layer, if that is in a store on a zoned device.
    pub fn stored(&self) -> Option<ZonedLayer> {
        StateDir::stored_of(&self.dir)
    }

    /// Its upper layer, if that is on CephFS.
    pub fn remote_upper(&self) -> Option<CephLayer> {
        StateDir::remote_upper_of(&self.dir)
    }

    /// Where its runtime keeps what it knows.
    pub fn runtime_state(&self) -> PathBuf {
        StateDir::runtime_state_of(&self.dir)
    }

    /// What it was started with.
    pub fn settings(&self) -> Result<Settings, Failure> {
        Settings::read(&self.dir)?.ok_or_else(|| {
            let id = &self.id;
            Failure::input(format!("container {id}: an older version of vellum has started it, or paths of its image or volumes are not UTF-8; start it anew, with others"))
        })
    }

    /// The right to take a checkpoint of it, until this is dropped.
    pub fn lock(&self) -> Result<File, Failure> {
        let path = self.path(LOCK);
        let failed = |e: std::io::Error| Failure::at(&path, e);
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(Failure::input(format!(
                "container {}: somebody is taking a checkpoint of it; wait until that is done",
                self.id
            ))),
            locked => locked.map(|()| file).map_err(|e| failed(e.into())),
        }
    }
}
