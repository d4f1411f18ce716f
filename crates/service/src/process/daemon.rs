//! From a command that a person or an engine waits for to a process of its own.
//!
//! The caller waits for two things: the command's exit, and the end of its stderr. Both must come when the mount is
//! ready, and not before.

use crate::failure::Failure;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use vellum_sys::{Fork, fork};

/// First byte of the child's word to its parent.
const READY: u8 = b'+';
/// First byte of the word of a child that failed; the [`Failure`] follows.
const FAILED: u8 = b'-';

/// Longest word that a child passes to its parent, in bytes.
const WORD_MAX: usize = 64 * 1024;

/// In which process [`detach`] has returned.
#[derive(Debug)]
pub enum Side {
    /// The one that was called: the child's outcome.
    Parent(Result<(), Failure>),
    /// The child, which goes on.
    Child(StartupReport),
}

/// A process whose parent waits for a word. Dropped without one, the parent reports that the service died.
#[derive(Debug)]
pub struct StartupReport(OwnedFd);

/// Starts a child in a session of its own, and in the parent waits until it is ready or has failed. Call before any
/// thread has been started.
pub fn detach() -> Result<Side, Failure> {
    let failed = |e: Errno| Failure::system("cannot start the service process").because(e);
    let (mine, childs) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    match fork().map_err(failed)? {
        Fork::Parent(_) => {
            drop(childs);
            Ok(Side::Parent(Word(mine).outcome()))
        }
        Fork::Child => {
            drop(mine);
            rustix::process::setsid().map_err(failed)?;
            Ok(Side::Child(StartupReport(childs)))
        }
    }
}

/// The other end of a [`StartupReport`].
#[derive(Debug)]
pub(crate) struct Word(OwnedFd);

/// For a child that has the same descriptors: the word must have been said when it is asked for.
pub(crate) fn word() -> Result<(Word, StartupReport), Failure> {
    let failed = |e: Errno| Failure::system("cannot start the service process").because(e);
    let (mine, childs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(failed)?;
    Ok((Word(mine), StartupReport(childs)))
}

/// Closes what the caller had open but the standard descriptors: a pipe of its would never end, a filesystem could not be unmounted.
/// Call before anything has been opened.
pub fn close_callers() {
    vellum_sys::close_all_but(&BTreeSet::new());
}

/// Leaves the System V objects and message queues of everybody else, where that is permitted. Call before any thread has been
/// started.
pub fn own_ipc() {
    if let Err(e) = vellum_sys::unshare_ipc() {
        tracing::debug!("the IPC namespace stays: {e}");
    }
}

impl Word {
    /// Has this process signalled when something is said.
    pub(crate) fn signal_on_data(&self, signal: i32) -> Result<(), Errno> {
        vellum_sys::signal_on_data(&self.0, signal)
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes what has been said and is nothing but a wake-up.
    pub(crate) fn drain(&self) {
        while matches!(read(&self.0, &mut [0; 64]), Ok(1..) | Err(Errno::INTR)) {}
    }

    /// What the other side has said.
    pub(crate) fn outcome(&self) -> Result<(), Failure> {
        let mut word = Vec::new();
        let mut part = [0; 512];
        // The good word is one byte; the pipe is held open longer, by the service.
        while word.len() < WORD_MAX && word.first() != Some(&READY) {
            match read(&self.0, &mut part) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(len) => word.extend_from_slice(part.get(..len).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(Failure::system("cannot hear from the service process").because(e)),
            }
        }
        match word.split_first() {
            Some((&READY, _)) => Ok(()),
            Some((&FAILED, why)) => Err(serde_json::from_slice(why)
                .unwrap_or_else(|e| Failure::system("cannot hear from the service process").because(e))),
            _ => Err(Failure::system("the service process died before the mount was ready")),
        }
    }
}

impl StartupReport {
    /// The mount is ready: leaves the caller's directory and terminal, and lets the parent return.
    pub fn ready(&self) -> Result<(), Failure> {
        let failed = |e: Errno| Failure::system("cannot leave the terminal").because(e);
        rustix::process::chdir("/").map_err(failed)?;
        let null =
            rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        rustix::stdio::dup2_stdin(&null).map_err(failed)?;
        rustix::stdio::dup2_stdout(&null).map_err(failed)?;
        rustix::stdio::dup2_stderr(&null).map_err(failed)?;
        drop(null);
        self.say(READY, b"");
        Ok(())
    }

    /// The mount did not come to be: the parent says why.
    pub fn failed(&self, why: &Failure) {
        // Half of it could not be read.
        let word = serde_json::to_vec(why).ok().filter(|word| word.len() < WORD_MAX);
        self.say(FAILED, &word.unwrap_or_default());
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// This end of the pipe, by a descriptor of its own.
    pub(crate) fn try_clone(&self) -> Result<Self, Failure> {
        let copy = self.0.try_clone();
        copy.map(Self).map_err(|e| Failure::system("a second descriptor of a pipe").because(e))
    }

    /// Wakes the other side.
    pub(crate) fn wake(&self) {
        self.say(READY, b"");
    }

    fn say(&self, kind: u8, what: &[u8]) {
        let mut word = vec![kind];
        word.extend_from_slice(what);
        // A parent that is gone needs no word.
        let mut rest = word.as_slice();
        while let Ok(len @ 1..) = retry_on_intr(|| write(&self.0, rest)) {
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}
