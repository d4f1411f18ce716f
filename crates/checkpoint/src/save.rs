//! Taking a checkpoint.
//!
//! What takes long is done before the container stands still (the layer's bytes) or after it goes on (waiting for the disk). While it stands
//! still, CRIU writes its memory, and beside that the layer's copy is made what the layer is.

use super::cpu_priority::LowPriority;
use super::freezer::Freezer;
use super::layer_walk::Upper;
use super::library::Library;
use super::location::Checkpoints;
use super::memory::{self, AHEAD, FirstPass};
use super::object::{ObjectWriter, Sizes, WriteOptions};
use super::options::CheckpointOptions;
use super::pause::{PausableContainer, last_line};
use super::record::Record;
use super::stream;
use super::subject::{RunContainer, Subject};
use super::tmpfs;
use crate::containerd::Containerd;
use crate::podman::{AT_A_SOCKET, Gate, GateWaiter, Podman, ScratchDir};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use vellum_container::criu::{self, Criu};
use vellum_service::Failure;
use vellum_service::instance::sync;

/// What a container's name begins with that is podman's.
const PODMAN: &str = "podman:";
/// How often it is tried to have the library go away.
const TURNS: usize = 5;
/// And one that is containerd's.
const CONTAINERD: &str = "containerd:";
/// So many bytes of a layer, and it is read once more before the container stands still.
const MUCH: u64 = 32 << 20;
/// What CRIU calls the log of a dump.
const LOG: &str = "dump.log";

/// A checkpoint that is wanted.
#[derive(Clone, Debug)]
pub struct Take {
    /// The program `vellum`.
    pub vellum: PathBuf,
    /// The container's name; `podman:` and a name or an id: one of podman; `containerd:` and `ID` or `NAMESPACE/ID`: one of containerd.
    pub container: String,
    /// The directory of checkpoints, or `zoned:` and a device with a store. None: standard output, as a stream.
    pub to: Option<PathBuf>,
    /// The checkpoint's name; none: the container's.
    pub name: Option<String>,
    /// Whether the container goes on.
    pub leave_running: bool,
    /// How it is written.
    pub manner: CheckpointOptions,
    /// Where layers and containers are kept, and what is needed for a moment; none: where this user's are.
    pub state: Option<PathBuf>,
}

/// A checkpoint that was taken.
#[derive(Clone, Debug)]
pub struct TakeOutcome {
    pub path: PathBuf,
    /// What it says of itself.
    pub record: Record,
}

/// Takes a checkpoint. Whatever happens, the directory has it whole or not at all, and unless it was taken the container goes on.
pub fn take(asked: &Take) -> Result<TakeOutcome, Failure> {
    if !vellum_pool::privilege::is_host_root() {
        return Err(Failure::input(
            "only root of the host can take checkpoints: CRIU reads memory of all processes",
        ));
    }
    asked.manner.memory.check()?;
    let criu = Criu::find();
    let mut subject: Box<dyn Subject> = match asked.container.strip_prefix(PODMAN) {
        Some(name) => {
            Box::new(Podman::find(&criu.clone()?)?.container(&asked.vellum, asked.state.as_deref(), name)?)
        }
        None if asked.container.starts_with(CONTAINERD) => {
            let name = asked.container.trim_start_matches(CONTAINERD);
            Box::new(Containerd::find(&criu.clone()?)?.container(asked.state.as_deref(), name)?)
        }
        None => Box::new(RunContainer::find(&asked.vellum, asked.state.as_deref(), &asked.container)?),
    };
    memory::check_precopy(asked.manner.memory, &*subject)?;
    let criu = criu?;
    let store = asked.to.as_ref().map(|to| Checkpoints::make("--to", to)).transpose()?;
    let lock = subject.lock()?;
    let container = subject.name().to_owned();
    let name = asked.name.as_deref().unwrap_or(&container);
    let (path, beside) = (subject.upper(), subject.scratch());
    let upper = Upper { path: &path, tells: subject.has_upper_view() };
    let writer = match &store {
        Some(store) => store.begin(name, upper, &beside, &asked.manner)?,
        None => {
            let how = WriteOptions { compress: asked.manner.compress, ..WriteOptions::default() };
            ObjectWriter::begin(stream::begin_upper()?, how, upper, &beside)?
        }
    };
    let mut work = Work { asked, subject: &mut *subject, criu: &criu, lock: &lock };
    match work.go(writer) {
        Ok(taken) => Ok(taken),
        Err(why) => {
            Err(why
                .context(format!("container {container}: checkpoint failed; the container is still running")))
        }
    }
}

struct Work<'a> {
    asked: &'a Take,
    subject: &'a mut dyn Subject,
    criu: &'a Criu,
    lock: &'a File,
}

impl Work<'_> {
    fn go(&mut self, mut writer: ObjectWriter) -> Result<TakeOutcome, Failure> {
        let state = self.subject.runtime_state();
        let running = (self.subject.runtime(), state.as_path(), self.subject.id());
        let guarded = PausableContainer::start(&self.asked.vellum, running, writer.unfinished(), self.lock);
        // The guard is not to wait for others if it is needed.
        let _polite = LowPriority::begin();
        let filled = guarded.and_then(|mut guarded| Ok((self.fill(&mut writer, &mut guarded)?, guarded)));
        let (record, mut guarded) = filled?;
        let path = writer.finish()?;
        if !self.asked.leave_running {
            guarded.end(self.subject.kill())?;
            self.subject.ended();
        }
        guarded.done();
        Ok(TakeOutcome { path, record })
    }

    /// Fills a checkpoint. Afterwards the container goes on, or stands still if it is to end.
    fn fill(
        &mut self,
        writer: &mut ObjectWriter,
        guarded: &mut PausableContainer,
    ) -> Result<Record, Failure> {
        let of = self.subject.describe()?;
        if let Some(freezer) = Freezer::from_runtime_state(&self.subject.runtime_state(), self.subject.id()) {
            tmpfs::warn(self.subject.name(), freezer.init());
        }
        let merged = self.subject.merged();
        // One that writes all the time is never done with it; what comes later is taken by the second pass.
        sync::flush_ahead(&merged)?;
        let ahead = writer.first_pass()?;
        if ahead.bytes >= MUCH {
            // What had just been changed then would be taken again while it stands still.
            writer.wait_for_space();
            writer.first_pass()?;
        }
        let work = self.subject.work()?;
        let pause_ahead = self.memory_ahead(writer, guarded, &work)?;
        self.subject.hold()?;
        let dump = Dump::ready(self, guarded, writer.images(), (&work, pause_ahead.is_some()))?;
        let begin = self.stop(guarded)?;
        if self.subject.has_upper_view() {
            // What is noted of partial files' blocks is another one's to believe only when it is durable.
            sync::sync(&merged)?;
        } else {
            sync::flush(&merged)?;
        }
        let dump = dump.begin(guarded.has_connections())?;
        // The dump has to end before the container goes on, whatever became of the copy.
        let still = writer.final_pass();
        let beside = self.subject.final_pass(writer);
        let output = dump.end();
        let still = still?;
        self.dumped(&output.map_err(|e| Failure::at(&work, e))?, &work)?;
        beside?;
        if self.asked.leave_running {
            guarded.resume()?;
        }
        let pause = begin.elapsed();
        tracing::info!(?ahead, ?still, ?pause_ahead, ?pause, "the container was paused");
        self.subject.release(writer)?;
        let Sizes { images, upper, stored, parents } = writer.sizes()?;
        let record = Record {
            vellum: env!("CARGO_PKG_VERSION").to_owned(),
            criu: self.criu.version().to_owned(),
            container: self.subject.name().to_owned(),
            taken: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            pause_us: micros(pause),
            pause_ahead_us: pause_ahead.map(micros),
            image_bytes: images,
            upper_bytes: upper,
            upper_objects: still.objects,
            left_running: self.asked.leave_running,
            stored_bytes: Some(stored),
            parents,
            of,
        };
        writer.sync(&record)?;
        Ok(record)
    }

    /// Reads its memory while it goes on, where that pays: how long it has stood still for that.
    fn memory_ahead(
        &self,
        writer: &mut ObjectWriter,
        guarded: &PausableContainer,
        work: &Path,
    ) -> Result<Option<Duration>, Failure> {
        let how = self.asked.manner.memory;
        let ahead = FirstPass { how, criu: self.criu, guarded, images: writer.images(), work };
        if self.subject.can_be_read_ahead().is_err() || !ahead.is_needed() {
            return Ok(None);
        }
        let paused = ahead.make()?;
        writer.wait_for_space();
        Ok(paused)
    }

    /// Has it stand still, with nothing of the library's in it: since when.
    fn stop(&self, guarded: &mut PausableContainer) -> Result<Instant, Failure> {
        let library = self.subject.library().map(Library::place);
        for _ in 0..TURNS {
            if let Some(place) = library {
                guarded.detach_library(&self.asked.vellum, place)?;
            }
            let begin = Instant::now();
            guarded.pause()?;
            if library.is_none() || !guarded.is_library_back() {
                return Ok(begin);
            }
            // A program that has just begun.
            guarded.resume()?;
        }
        Err(Failure::system("new programs keep loading libvellum.so, and the checkpoint was not saved"))
    }

    fn dumped(&self, output: &Output, work: &Path) -> Result<(), Failure> {
        if output.status.success() {
            return Ok(());
        }
        let log = work.join(LOG);
        let why = criu::explain(&log).unwrap_or_else(|| last_line(&output.stderr));
        Err(Failure::system(why).remedy(format!("{} says more", log.display())))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A runtime that has called CRIU, which waits at a gate until the container stands still: to start both takes a fifth of the pause.
struct Dump {
    runtime: Option<Child>,
    waiting: Option<GateWaiter>,
    /// What CRIU is told beside what the runtime tells it.
    configuration: PathBuf,
    #[expect(dead_code, reason = "the socket is there as long as somebody waits")]
    gate: Gate,
    #[expect(dead_code, reason = "the gate is in it")]
    beside: ScratchDir,
}

impl Dump {
    /// Has the runtime call CRIU. The container goes on.
    ///
    /// `first_pass`: a first pass has read its memory.
    fn ready(
        work: &Work<'_>,
        guarded: &PausableContainer,
        images: &Path,
        (logs, ahead): (&Path, bool),
    ) -> Result<Self, Failure> {
        let subject = &*work.subject;
        let beside = ScratchDir::new(work.asked.state.as_deref())?;
        let failed = |e: io::Error| Failure::at(beside.path(), e);
        // Who waits is not to wait for the guard, which waits for him, when this process is killed.
        let gate = Gate::new(beside.path(), beside.path()).map_err(failed)?;
        let criu = work.criu;
        gate.script(&work.asked.vellum, criu::CRIU, AT_A_SOCKET, criu.program()).map_err(failed)?;
        let configuration = subject.configure(&criu::configuration(true))?;
        let failed = |e: io::Error| Failure::at(subject.runtime().program(), e);
        let mut command = guarded.call().map_err(failed)?;
        command
            .env("PATH", criu.path_behind(beside.path()))
            .arg("checkpoint")
            .arg("--image-path")
            .arg(images);
        // Not in the file that the bundle may name: what is said there of packets CRIU does not survive.
        command.env(criu::CONFIGURATION, &configuration);
        command.arg("--work-path").arg(logs).args(criu::ALWAYS).arg("--leave-running");
        if !subject.host_network() {
            command.args(criu::OWN_NETWORK);
        }
        if ahead {
            command.args(["--parent-path", AHEAD]);
        }
        let mut runtime = command.arg(subject.id()).spawn().map_err(failed)?;
        let waiting = match gate.wait(&mut runtime) {
            Ok(waiting) => waiting,
            Err(e) => {
                let _ = runtime.wait();
                return Err(failed(e));
            }
        };
        Ok(Self { runtime: Some(runtime), waiting, configuration, gate, beside })
    }

    /// Has CRIU dump the container, which stands still.
    fn begin(mut self, has_connections: bool) -> Result<Self, Failure> {
        // Otherwise the runtime has ended, and says why.
        if let Some(waiting) = self.waiting.take() {
            let text = criu::configuration(has_connections);
            let failed = |e: io::Error| Failure::at(&self.configuration, e);
            std::fs::write(&self.configuration, text).map_err(failed)?;
            let arguments = waiting.arguments.clone();
            waiting.go(&[], &arguments).map_err(failed)?;
        } else if let Some(status) =
            self.runtime.as_mut().and_then(|runtime| runtime.try_wait().ok().flatten())
            && status.success()
        {
            return Err(Failure::system("the runtime has called CRIU in a way that is not known, too early"));
        }
        Ok(self)
    }

    /// Waits for its end: what the runtime says.
    fn end(mut self) -> io::Result<Output> {
        match self.runtime.take() {
            Some(runtime) => runtime.wait_with_output(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        // Turned away, CRIU has done nothing, and the runtime ends.
        self.waiting = None;
        let _ = self.runtime.take().map(Child::wait_with_output);
    }
}
