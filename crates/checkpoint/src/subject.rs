//! Containers of which checkpoints are taken, and whoever runs them: `vellum run` here, podman in `podman`.

use super::freezer::Freezer;
use super::library::Library;
use super::object::ObjectWriter;
use super::record::ContainerEngine;
use super::upper_view::UpperView;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use vellum_container::Lowers;
use vellum_container::{ContainerProcess, Kind, LIBRARY, RUN_FILES, Runtime, Settings, State};
use vellum_service::Failure;

/// Where CRIU writes its logs, in the container's directory.
const WORK: &str = "criu";
/// What it is told about one dump.
const CONFIGURATION: &str = "dump.conf";

/// A container that runs.
pub(crate) trait Subject {
    /// Its name, for people.
    fn name(&self) -> &str;

    /// Its name for its runtime.
    fn id(&self) -> &str;

    fn runtime(&self) -> &Runtime;

    /// Where its runtime keeps what it knows.
    fn runtime_state(&self) -> PathBuf;

    /// Where its tree is mounted.
    fn merged(&self) -> PathBuf;

    /// Its upper layer, a directory.
    fn upper(&self) -> PathBuf;

    /// Whether the upper layer is in a store on a zoned device or on CephFS, and shown as a directory.
    fn has_upper_view(&self) -> bool {
        false
    }

    /// A directory where something may be made for a moment.
    fn scratch(&self) -> PathBuf;

    /// A directory where CRIU writes its logs.
    fn work(&self) -> Result<PathBuf, Failure>;

    /// A file that holds this for a moment.
    fn configure(&self, text: &str) -> Result<PathBuf, Failure>;

    /// Whether it has the host's network.
    fn host_network(&self) -> bool;

    /// The library that its programs have loaded.
    fn library(&self) -> Option<&Library>;

    /// The right to take a checkpoint of it, until this is dropped.
    fn lock(&self) -> Result<File, Failure>;

    /// Err: why its memory is not read ahead.
    fn can_be_read_ahead(&self) -> Result<(), &'static str> {
        Err("it is none of vellum run")
    }

    /// What it takes for it to go on. It runs meanwhile, for this may take long.
    fn describe(&self) -> Result<ContainerEngine, Failure>;

    /// From now on whoever runs it leaves it as it is.
    fn hold(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// It stands still: takes what belongs to it beside its layer and its memory.
    fn final_pass(&mut self, writer: &mut ObjectWriter) -> Result<(), Failure>;

    /// Whoever runs it may have it again. It goes on, or is about to be ended.
    fn release(&mut self, _: &mut ObjectWriter) -> Result<(), Failure> {
        Ok(())
    }

    /// Has whoever runs it kill its processes. None: the runtime is to do it.
    fn kill(&self) -> Option<&dyn Fn() -> Result<(), Failure>> {
        None
    }

    /// It was killed, and may end.
    fn ended(&self) {}
}

/// A container of `vellum run`.
#[derive(Debug)]
pub(super) struct RunContainer {
    running: ContainerProcess,
    settings: Settings,
    library: Option<Library>,
    /// Its upper layer, if that is no directory of this host.
    shown: Option<UpperView>,
}

impl RunContainer {
    /// The one of this name, if it can be kept. `vellum`: that program.
    pub(super) fn find(vellum: &Path, state: Option<&Path>, container: &str) -> Result<Self, Failure> {
        let running = State::open(state)?.running(container)?;
        let settings = running.settings()?;
        let refused = |why: &str| Err(Failure::input(format!("container {container}: {why}")));
        if running.runtime().kind() == Kind::Crun {
            return refused("crun runs it, which takes no checkpoints; start it with --runtime runc");
        }
        let freezer = || Freezer::from_runtime_state(&running.runtime_state(), running.id());
        let library = match settings.library.then(freezer) {
            None => None,
            Some(None) => {
                return refused(
                    "its programs have libvellum.so loaded, and runc does not say which ones they are",
                );
            }
            Some(Some(freezer)) => match Library::of_process(freezer.init()) {
                Ok(library) => Some(library),
                Err(why) => {
                    return refused(&format!(
                        "{why}; start it anew, or with VELLUM_LIBRARY= in the environment"
                    ));
                }
            },
        };
        let scratch = running.path(".");
        let shown = match (running.stored(), running.remote_upper()) {
            (Some(layer), _) => Some(UpperView::stored(&layer, &scratch)?),
            (None, Some(layer)) => Some(UpperView::remote(vellum, &layer, &scratch)?),
            (None, None) => None,
        };
        Ok(Self { running, settings, library, shown })
    }
}

impl Subject for RunContainer {
    fn name(&self) -> &str {
        self.running.id()
    }

    fn id(&self) -> &str {
        self.running.id()
    }

    fn runtime(&self) -> &Runtime {
        self.running.runtime()
    }

    fn runtime_state(&self) -> PathBuf {
        self.running.runtime_state()
    }

    fn merged(&self) -> PathBuf {
        self.running.merged()
    }

    fn upper(&self) -> PathBuf {
        self.shown.as_ref().map_or_else(|| self.running.upper(), |shown| shown.path().to_owned())
    }

    fn has_upper_view(&self) -> bool {
        self.shown.is_some()
    }

    fn scratch(&self) -> PathBuf {
        self.running.path(".")
    }

    fn work(&self) -> Result<PathBuf, Failure> {
        let work = self.running.path(WORK);
        fs::create_dir_all(&work).map_err(|e| Failure::at(&work, e))?;
        Ok(work)
    }

    fn configure(&self, text: &str) -> Result<PathBuf, Failure> {
        let file = self.running.path(WORK).join(CONFIGURATION);
        fs::write(&file, text).map_err(|e| Failure::at(&file, e))?;
        Ok(file)
    }

    fn host_network(&self) -> bool {
        self.settings.host_network
    }

    fn library(&self) -> Option<&Library> {
        self.library.as_ref()
    }

    fn lock(&self) -> Result<File, Failure> {
        self.running.lock()
    }

    fn can_be_read_ahead(&self) -> Result<(), &'static str> {
        self.library.as_ref().map_or(Ok(()), |_| Err("its programs have libvellum.so loaded"))
    }

    fn describe(&self) -> Result<ContainerEngine, Failure> {
        let settings = &self.settings;
        Ok(ContainerEngine::Run {
            lowers: Lowers::from_image(&settings.image, &settings.lowers)?,
            settings: Box::new(settings.clone()),
        })
    }

    /// What the container has in `/etc` that is not in its layers.
    fn final_pass(&mut self, writer: &mut ObjectWriter) -> Result<(), Failure> {
        RUN_FILES.into_iter().try_for_each(|name| writer.file(name, &self.running.path(name)))
    }

    /// The very library that its programs have, for another one would not do.
    fn release(&mut self, writer: &mut ObjectWriter) -> Result<(), Failure> {
        self.library.as_ref().map_or(Ok(()), |library| writer.file(LIBRARY, &library.path()))
    }
}
