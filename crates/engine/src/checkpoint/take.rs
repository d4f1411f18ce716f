//! Taking a checkpoint.
//!
//! What takes long is done before the container stands still (the layer's bytes) or after it goes on (waiting for the disk). While it stands
//! still, CRIU writes its memory, and beside that the layer's copy is made what the layer is.

use super::criu::{self, Criu};
use super::identity::Lowers;
use super::making::{Making, Sizes};
use super::pace::Pace;
use super::pause::{Guarded, said};
use super::place::Checkpoints;
use super::record::Record;
use crate::container::{Kind, RUN_FILES, Running, Settings, State};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use vellum_service::Failure;
use vellum_service::instance::durable;

/// Where CRIU writes its logs, in the container's directory.
const WORK: &str = "criu";
/// What CRIU calls the log of a dump.
const LOG: &str = "dump.log";

/// A checkpoint that is wanted.
#[derive(Clone, Debug)]
pub struct Take {
    /// The program `vellum`.
    pub vellum: PathBuf,
    /// The container's name.
    pub container: String,
    /// The directory of checkpoints, or `zoned:` and a device with a store.
    pub to: PathBuf,
    /// The checkpoint's name; none: the container's.
    pub name: Option<String>,
    /// Whether the container goes on.
    pub leave_running: bool,
    /// How it is written beside others; none: as is usual where it is written.
    pub pace: Option<Pace>,
    /// Where layers and containers are kept; none: where this user's are.
    pub state: Option<PathBuf>,
}

/// A checkpoint that was taken.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Where it is.
    pub path: PathBuf,
    /// What it says of itself.
    pub record: Record,
}

/// Takes a checkpoint. Whatever happens, the directory has it whole or not at all, and unless it was taken the container goes on.
pub fn take(asked: &Take) -> Result<Taken, Failure> {
    if !crate::privilege::is_host_root() {
        return Err(Failure::input(
            "only root of the host can take checkpoints: CRIU reads memory of all processes",
        ));
    }
    let running = State::open(asked.state.as_deref())?.running(&asked.container)?;
    let container = &asked.container;
    let refused = |why: &str| Err(Failure::input(format!("container {container}: {why}")));
    let settings = running.settings()?;
    if running.runtime().kind() == Kind::Crun {
        return refused("crun runs it, which takes no checkpoints; start it with --runtime runc");
    }
    if settings.library {
        return refused(
            "its programs have libvellum.so loaded, whose memory and sockets are shared with the service; start it with VELLUM_LIBRARY= in the environment",
        );
    }
    if settings.ids.is_some() {
        return refused(
            "its pool has a uid-range, and checkpoints of containers with ids of their own are not made yet",
        );
    }
    let criu = Criu::find()?;
    let store = Checkpoints::make("--to", &asked.to)?;
    let lock = running.lock()?;
    let name = asked.name.as_deref().unwrap_or(container);
    let made = store.begin(name, &running.upper(), &running.path("."), asked.pace)?;
    let work = Work { asked, running: &running, settings: &settings, criu: &criu, lock: &lock };
    match work.go(made) {
        Ok(taken) => Ok(taken),
        Err(why) => Err(why.of(format!("container {container}: no checkpoint, and it goes on"))),
    }
}

struct Work<'a> {
    asked: &'a Take,
    running: &'a Running,
    settings: &'a Settings,
    criu: &'a Criu,
    lock: &'a File,
}

impl Work<'_> {
    fn go(&self, mut made: Box<dyn Making>) -> Result<Taken, Failure> {
        let state = self.running.runtime_state();
        let running = (self.running.runtime(), state.as_path(), self.running.id());
        let guarded = Guarded::start(&self.asked.vellum, running, made.unfinished(), self.lock);
        let filled = guarded.and_then(|mut guarded| Ok((self.fill(&mut *made, &mut guarded)?, guarded)));
        let (record, mut guarded) = match filled {
            Ok(filled) => filled,
            Err(why) => {
                made.discard();
                return Err(why);
            }
        };
        let path = made.finish()?;
        if !self.asked.leave_running {
            guarded.end()?;
        }
        guarded.done();
        Ok(Taken { path, record })
    }

    /// Fills a checkpoint. Afterwards the container goes on, or stands still if it is to end.
    fn fill(&self, made: &mut dyn Making, guarded: &mut Guarded<'_>) -> Result<Record, Failure> {
        let settings = self.settings;
        let lowers = Lowers::of(&settings.image, &settings.lowers)?;
        let merged = self.running.merged();
        durable::flush(&merged)?;
        let ahead = made.ahead()?;
        let work = self.running.path(WORK);
        fs::create_dir_all(&work).map_err(|e| Failure::at(&work, e))?;
        let begin = Instant::now();
        guarded.pause()?;
        durable::flush(&merged)?;
        let dump = self.dump(guarded, made.images(), &work, settings.host_network)?;
        // The dump has to end before the container goes on, whatever became of the copy.
        let still = made.still();
        let output = dump.wait_with_output();
        let still = still?;
        self.dumped(&output.map_err(|e| Failure::at(&work, e))?, &work)?;
        // What the container has in `/etc` that is not in its layers.
        RUN_FILES.into_iter().try_for_each(|name| made.file(name, &self.running.path(name)))?;
        if self.asked.leave_running {
            guarded.resume()?;
        }
        let pause = begin.elapsed();
        tracing::info!(?ahead, ?still, ?pause, "the container has stood still");
        let Sizes { images, upper } = made.sizes()?;
        let record = Record {
            format: Record::FORMAT,
            vellum: env!("CARGO_PKG_VERSION").to_owned(),
            criu: self.criu.version().to_owned(),
            container: self.running.id().to_owned(),
            taken: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            pause_us: u64::try_from(pause.as_micros()).unwrap_or(u64::MAX),
            image_bytes: images,
            upper_bytes: upper,
            upper_objects: still.objects,
            left_running: self.asked.leave_running,
            lowers,
            settings: settings.clone(),
        };
        made.settle(&record)?;
        Ok(record)
    }

    /// Has CRIU begin to write images. The container stands still before, meanwhile and afterwards.
    fn dump(
        &self,
        guarded: &Guarded<'_>,
        images: &Path,
        work: &Path,
        host_network: bool,
    ) -> Result<Child, Failure> {
        let failed = |e: io::Error| Failure::at(self.running.runtime().program(), e);
        let mut command = guarded.call().map_err(failed)?;
        command.env("PATH", self.criu.path()).arg("checkpoint").arg("--image-path").arg(images);
        command.arg("--work-path").arg(work).args(criu::ALWAYS).arg("--leave-running");
        if !host_network {
            command.args(criu::OWN_NETWORK);
        }
        command.arg(self.running.id()).spawn().map_err(failed)
    }

    fn dumped(&self, output: &Output, work: &Path) -> Result<(), Failure> {
        if output.status.success() {
            return Ok(());
        }
        let log = work.join(LOG);
        let why = criu::explain(&log).unwrap_or_else(|| said(&output.stderr));
        Err(Failure::system(why).remedy(format!("{} says more", log.display())))
    }
}
