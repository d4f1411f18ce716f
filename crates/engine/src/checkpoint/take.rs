//! Taking a checkpoint.
//!
//! What takes long is done before the container stands still (the layer's bytes) or after it goes on (waiting for the disk). While it stands
//! still, CRIU writes its memory, and beside that the layer's copy is made what the layer is.

use super::criu::{self, Criu};
use super::making::{Making, Sizes};
use super::pace::Pace;
use super::pause::{Guarded, said};
use super::place::Checkpoints;
use super::record::Record;
use super::subject::{Own, Subject};
use crate::podman::Podman;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use vellum_service::Failure;
use vellum_service::instance::durable;

/// What a container's name begins with that is podman's.
const PODMAN: &str = "podman:";
/// How often it is tried to have the library go away.
const TURNS: usize = 5;
/// What CRIU calls the log of a dump.
const LOG: &str = "dump.log";

/// A checkpoint that is wanted.
#[derive(Clone, Debug)]
pub struct Take {
    /// The program `vellum`.
    pub vellum: PathBuf,
    /// The container's name; `podman:` and a name or an id: one of podman.
    pub container: String,
    /// The directory of checkpoints, or `zoned:` and a device with a store.
    pub to: PathBuf,
    /// The checkpoint's name; none: the container's.
    pub name: Option<String>,
    /// Whether the container goes on.
    pub leave_running: bool,
    /// How it is written beside others; none: as is usual where it is written.
    pub pace: Option<Pace>,
    /// Where layers and containers are kept, and what is needed for a moment; none: where this user's are.
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
    let criu = Criu::find();
    let mut subject: Box<dyn Subject> = match asked.container.strip_prefix(PODMAN) {
        Some(name) => {
            Box::new(Podman::find(&criu.clone()?)?.container(&asked.vellum, asked.state.as_deref(), name)?)
        }
        None => Box::new(Own::find(asked.state.as_deref(), &asked.container)?),
    };
    let criu = criu?;
    let store = Checkpoints::make("--to", &asked.to)?;
    let lock = subject.lock()?;
    let container = subject.name().to_owned();
    let name = asked.name.as_deref().unwrap_or(&container);
    let made = store.begin(name, &subject.upper(), &subject.beside(), asked.pace)?;
    let mut work = Work { asked, subject: &mut *subject, criu: &criu, lock: &lock };
    match work.go(made) {
        Ok(taken) => Ok(taken),
        Err(why) => Err(why.of(format!("container {container}: no checkpoint, and it goes on"))),
    }
}

struct Work<'a> {
    asked: &'a Take,
    subject: &'a mut dyn Subject,
    criu: &'a Criu,
    lock: &'a File,
}

impl Work<'_> {
    fn go(&mut self, mut made: Box<dyn Making>) -> Result<Taken, Failure> {
        let state = self.subject.runtime_state();
        let running = (self.subject.runtime(), state.as_path(), self.subject.id());
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
            guarded.end(self.subject.kill())?;
            self.subject.ended();
        }
        guarded.done();
        Ok(Taken { path, record })
    }

    /// Fills a checkpoint. Afterwards the container goes on, or stands still if it is to end.
    fn fill(&mut self, made: &mut dyn Making, guarded: &mut Guarded) -> Result<Record, Failure> {
        let of = self.subject.describe()?;
        let merged = self.subject.merged();
        durable::flush(&merged)?;
        let ahead = made.ahead()?;
        let work = self.subject.work()?;
        self.subject.hold()?;
        let begin = self.stop(guarded)?;
        durable::flush(&merged)?;
        let dump = self.dump(guarded, made.images(), &work)?;
        // The dump has to end before the container goes on, whatever became of the copy.
        let still = made.still();
        let beside = self.subject.still(made);
        let output = dump.wait_with_output();
        let still = still?;
        self.dumped(&output.map_err(|e| Failure::at(&work, e))?, &work)?;
        beside?;
        if self.asked.leave_running {
            guarded.resume()?;
        }
        let pause = begin.elapsed();
        tracing::info!(?ahead, ?still, ?pause, "the container has stood still");
        self.subject.release(made)?;
        let Sizes { images, upper } = made.sizes()?;
        let record = Record {
            vellum: env!("CARGO_PKG_VERSION").to_owned(),
            criu: self.criu.version().to_owned(),
            container: self.subject.name().to_owned(),
            taken: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            pause_us: u64::try_from(pause.as_micros()).unwrap_or(u64::MAX),
            image_bytes: images,
            upper_bytes: upper,
            upper_objects: still.objects,
            left_running: self.asked.leave_running,
            of,
        };
        made.settle(&record)?;
        Ok(record)
    }

    /// Has it stand still, with nothing of the library's in it: since when.
    fn stop(&self, guarded: &mut Guarded) -> Result<Instant, Failure> {
        let has_library = self.subject.has_library();
        for _ in 0..TURNS {
            if has_library {
                guarded.leave(&self.asked.vellum)?;
            }
            let begin = Instant::now();
            guarded.pause()?;
            if !has_library || !guarded.is_back() {
                return Ok(begin);
            }
            // A program that has just begun.
            guarded.resume()?;
        }
        Err(Failure::system("libvellum.so comes back again and again, by programs that begin"))
    }

    /// Has CRIU begin to write images. The container stands still before, meanwhile and afterwards.
    fn dump(&self, guarded: &Guarded, images: &Path, work: &Path) -> Result<Child, Failure> {
        let failed = |e: io::Error| Failure::at(self.subject.runtime().program(), e);
        let mut command = guarded.call().map_err(failed)?;
        command.env("PATH", self.criu.path()).arg("checkpoint").arg("--image-path").arg(images);
        let keeps_out = guarded.has_connections();
        // Not in the file that the bundle may name: what is said there of packets CRIU does not survive.
        command.env(criu::CONFIGURATION, self.subject.configure(&criu::configuration(keeps_out))?);
        command.arg("--work-path").arg(work).args(criu::ALWAYS).arg("--leave-running");
        if !self.subject.host_network() {
            command.args(criu::OWN_NETWORK);
        }
        command.arg(self.subject.id()).spawn().map_err(failed)
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
