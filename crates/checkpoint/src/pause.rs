//! A container that stands still, and goes on whatever happens to the command that has stopped it.
//!
//! A *guard*, a process of its own, reads from a pipe. The command holds its other end, and so does every runtime that it starts; when all
//! of them are gone and the command has not said that all is well, the guard lets the container go on and removes what was left. So a dump
//! that is under way comes to its end before: CRIU, killed in the middle, would leave code of its own running in the container.

use super::freezer::Freezer;
use super::library;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use vellum_container::Runtime;
use vellum_pool::locked_dir::LockedDir;
use vellum_service::Failure;
use vellum_sys::remove_tree;

/// The subcommand of `vellum` that is a guard.
pub const GUARD: &str = "internal-thaw";
/// What the command says when nothing is left to be done,
const DONE: &[u8; 4] = b"done";
/// and when it is about to end the container, whose processes are held for that.
const ENDS: &[u8; 4] = b"ends";

/// How long a guard waits until a dead command has lost its lock, and how often it looks.
const DYING: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// A container that can be stopped, and whose guard is there. If it stands still when this is dropped, it goes on.
#[derive(Debug)]
pub(crate) struct PausableContainer {
    runtime: Runtime,
    state: PathBuf,
    id: String,
    /// None: only the runtime can stop it.
    freezer: Option<Freezer>,
    pipe: PipeWriter,
    guard: Child,
    /// It may stand still.
    still: bool,
}

impl PausableContainer {
    /// Starts the guard. `lock` is held until it ends; `unfinished` is removed when the command is killed.
    pub(crate) fn start(
        vellum: &Path,
        running: (&Runtime, &Path, &str),
        unfinished: &Path,
        lock: &File,
    ) -> Result<Self, Failure> {
        let failed = |e: io::Error| Failure::system("no process to watch over the container").because(e);
        let (runtime, state, id) = running;
        let (from, pipe) = io::pipe().map_err(failed)?;
        let mut command = Command::new(vellum);
        command.arg(GUARD).arg(runtime.program()).arg(state).arg(id).arg(unfinished);
        // Away from the keyboard's signals.
        command.process_group(0).current_dir("/");
        command.stdin(from).stdout(lock.try_clone().map_err(failed)?).stderr(Stdio::null());
        let guard = command.spawn().map_err(failed)?;
        Ok(Self {
            runtime: runtime.clone(),
            state: state.to_owned(),
            id: id.to_owned(),
            freezer: Freezer::from_runtime_state(state, id),
            pipe,
            guard,
            still: false,
        })
    }

    /// A call of the runtime, which the guard waits for.
    pub(crate) fn call(&self) -> io::Result<Command> {
        let mut command = self.call_of(self.runtime.program())?;
        command.arg("--root").arg(&self.state);
        Ok(command)
    }

    /// A call of a program, which the guard waits for.
    pub(crate) fn call_of(&self, program: &Path) -> io::Result<Command> {
        let mut command = Command::new(program);
        command.process_group(0).stdin(self.pipe.try_clone()?).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(command)
    }

    /// What stops it, if the runtime says that.
    pub(crate) fn freezer(&self) -> Option<&Freezer> {
        self.freezer.as_ref()
    }

    /// Has the runtime do one thing with the container.
    fn have(&self, arguments: &[&str]) -> Result<(), Failure> {
        let what = arguments.first().copied().unwrap_or_default();
        let program = self.runtime.program().display();
        let failed = |e: io::Error| Failure::system(format!("{program} {what}")).because(e);
        let output = self.call().and_then(|mut command| command.args(arguments).output()).map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::system(format!("{program} {what}: {}", last_line(&output.stderr))))
    }

    /// Stops all processes of the container.
    pub(crate) fn pause(&mut self) -> Result<(), Failure> {
        // Even if it fails, some may stand still.
        self.still = true;
        match self.freezer.as_ref().map(Freezer::stop) {
            Some(Ok(())) => Ok(()),
            other => {
                tracing::debug!(?other, "the runtime has to stop the container");
                self.have(&["pause", &self.id])
            }
        }
    }

    /// Lets the container go on.
    pub(crate) fn resume(&mut self) -> Result<(), Failure> {
        self.thaw()?;
        self.still = false;
        Ok(())
    }

    fn thaw(&self) -> Result<(), Failure> {
        match self.freezer.as_ref().map(Freezer::thaw) {
            Some(Ok(())) => Ok(()),
            _ => self.have(&["resume", &self.id]),
        }
    }

    /// Has the library go away from its programs, which see it at `place`.
    pub(crate) fn detach_library(&self, vellum: &Path, place: &Path) -> Result<(), Failure> {
        let failed = |e: io::Error| Failure::at(vellum, e);
        let freezer = self
            .freezer
            .as_ref()
            .ok_or_else(|| Failure::system("the runtime does not say which processes are the container's"))?;
        let mut command = Command::new(vellum);
        command.arg(library::LEAVES).arg(freezer.group()).arg(freezer.init().to_string()).arg(place);
        command.process_group(0).current_dir("/").stdin(self.pipe.try_clone().map_err(failed)?);
        let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let said = last_line(&output.stderr);
        Err(Failure::system(said.strip_prefix("vellum: ").unwrap_or(&said)))
    }

    /// Whether the library has come back meanwhile. The container stands still.
    pub(crate) fn is_library_back(&self) -> bool {
        self.freezer.as_ref().is_none_or(|freezer| library::is_mapped(freezer.group()))
    }

    /// Whether a process of the container, which stands still, may have a TCP connection.
    pub(crate) fn has_connections(&self) -> bool {
        self.freezer.as_ref().is_none_or(Freezer::has_connections)
    }

    /// Ends the container where it stands. `by`: whoever runs it has its processes killed; none: the runtime does it.
    ///
    /// A runtime that is to kill lets the container go on, and often kills its first process only, whose end is the others' too: they would run until then, and
    /// change what the checkpoint has already, or answer somebody.
    pub(crate) fn end(&mut self, by: Option<&dyn Fn() -> Result<(), Failure>>) -> Result<(), Failure> {
        if let Some(freezer) = &self.freezer {
            // It lets them go should we be killed.
            let _ = self.pipe.write_all(ENDS);
            freezer.hold();
        }
        let killed = match by {
            Some(kill) => kill(),
            None => self.have(&["kill", "--all", &self.id, "KILL"]),
        };
        if killed.is_err()
            && let Some(freezer) = &self.freezer
        {
            freezer.release();
        }
        killed?;
        self.still = false;
        // What was killed while it stood still ends when it goes on. It may have been let go on already, or be gone.
        let _ = self.thaw();
        Ok(())
    }

    /// All is well: the guard may end.
    pub(crate) fn done(mut self) {
        let _ = self.pipe.write_all(DONE);
        let _ = self.guard.wait();
    }
}

impl Drop for PausableContainer {
    fn drop(&mut self) {
        if self.still
            && let Err(why) = self.thaw()
        {
            // The guard tries it as well.
            tracing::debug!("{why}");
        }
    }
}

/// What a runtime says on standard error, in short.
pub(crate) fn last_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    // As its log has it: time="…" level=error msg="…".
    let message = line.split_once("msg=").map_or(line, |(_, message)| message);
    message.trim().trim_matches('"').to_owned()
}

/// What a guard does.
pub fn guard(runtime: &Path, state: &Path, id: &OsStr, unfinished: &Path) {
    let (mut word, mut ends) = ([0; DONE.len()], false);
    while io::stdin().read_exact(&mut word).is_ok() {
        if word == *DONE {
            return;
        }
        ends |= word == *ENDS;
    }
    if ends && let Some(freezer) = Freezer::from_runtime_state(state, id.to_str().unwrap_or_default()) {
        freezer.release();
    }
    let mut command = Command::new(runtime);
    command.arg("--root").arg(state).arg("resume").arg(id);
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    remove_unfinished(unfinished);
}

/// Removes what a dead command has begun, as soon as it has lost its lock.
fn remove_unfinished(unfinished: &Path) {
    // The kernel closes a dead command's files one after the other: the lock later than the pipe, and later than a mount of images.
    let end = Instant::now() + DYING;
    while unfinished.exists() && Instant::now() < end {
        match LockedDir::adopt(unfinished) {
            Ok(Some(dead)) => return drop(remove_tree(dead.path())),
            _ => thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lock of a command that was killed goes a moment after its pipe.
    #[test]
    fn a_guard_waits_for_the_end_of_a_dying_command() {
        let dir = tempfile::tempdir().unwrap();
        let owned = LockedDir::make(&dir.path().join("unfinished")).unwrap().unwrap();
        let path = owned.path().to_owned();
        let dying = thread::spawn(move || {
            thread::sleep(10 * LOOK);
            drop(owned);
        });
        remove_unfinished(&path);
        assert!(!path.exists());
        dying.join().unwrap();
    }

    #[test]
    fn a_runtime_is_quoted_in_short() {
        let line = b"time=\"2026\" level=error msg=\"container not running\"\n\n";
        assert_eq!(last_line(line), "container not running");
        assert_eq!(last_line(b""), "it failed");
        assert_eq!(last_line(b"a\nb\n"), "b");
    }
}
