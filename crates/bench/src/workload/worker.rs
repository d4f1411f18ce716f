//! Processes that do a part of a task: they are there, with everything opened, before the clock starts, and begin
//! together at a word.
//!
//! A worker is this program again, under a subcommand that help does not show. It gets its job as a line of JSON on
//! stdin, answers `ready`, and begins when `go` comes.
//!
//! One worker does the whole task ([`crate::task_process`]); those of tasks that want several processes are its own.

use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::programs::last_words;
use crate::workload::job::{FAILED, GO, Job, READY, RESULT, SUBCOMMAND};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// How often the master looks whether the user wants to stop.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Variables that a process gets beside those of this one.
pub type Variables = Vec<(&'static str, OsString)>;

/// Whether there is something to read, or an end of it; false after [`LOOK`], or when a signal has come.
fn readable(from: &ChildStdout) -> Result<bool> {
    match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&LOOK)) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        ready => Ok(ready.doing(|| "listening to a worker")? > 0),
    }
}

/// A worker as its master sees it. It is killed when this is dropped.
#[derive(Debug)]
pub struct Worker {
    /// What it does.
    pub job: Job,
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one; it is not ready yet.
    fn start(job: Job, variables: &Variables) -> Result<Self> {
        let mut child = worker_command()?
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .doing(|| "starting a worker")?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("starting a worker: no pipes"));
        };
        let said = BufReader::new(output);
        let line = serde_json::to_string(&job).doing(|| "a job")?;
        // Kept first: from here on it is killed with the rest.
        let sent = writeln!(input, "{line}");
        child.stdin = Some(input);
        let worker = Self { job, child, said };
        sent.doing(|| "giving a worker its job")?;
        Ok(worker)
    }

    /// Starts one with some variables, and returns when it is ready.
    pub(crate) fn ready(job: Job, variables: &Variables) -> Result<Self> {
        let mut worker = Self::start(job, variables)?;
        worker.wait_ready()?;
        Ok(worker)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_ready(&mut self) -> Result<()> {
        self.listen(|line| (line == READY).then_some(()))
    }

    pub(crate) fn wait_result<T: DeserializeOwned>(&mut self) -> Result<T> {
        let text = self.listen(|line| line.strip_prefix(RESULT).map(str::to_owned))?;
        serde_json::from_str(&text).doing(|| "a worker's result")
    }

    /// Waits until it says what is waited for. When the user wants to stop, so shall it.
    fn listen<T>(&mut self, what: impl Fn(&str) -> Option<T>) -> Result<T> {
        let mut told = false;
        let mut line = String::new();
        loop {
            while self.said.buffer().is_empty() && !readable(self.said.get_ref())? {
                if interrupt::is_requested() && !std::mem::replace(&mut told, true) {
                    let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
                    // It may have ended meanwhile, which is seen next.
                    let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
                }
            }
            line.clear();
            if self.said.read_line(&mut line).doing(|| "listening to a worker")? == 0 {
                return Err(Failure::new("a worker has ended too early"));
            }
            let line = line.trim_end_matches('\n');
            if let Some(why) = line.strip_prefix(FAILED) {
                return Err(Failure::new(format!("worker: {why}")));
            }
            if let Some(found) = what(line) {
                return Ok(found);
            }
        }
    }

    /// Tells one that has said its result to end, and waits for that.
    pub(crate) fn end(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        self.wait()
    }

    /// Lets it begin.
    pub(crate) fn go(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().ok_or_else(|| Failure::new("a worker was let go twice"))?;
        writeln!(input, "{GO}").doing(|| "letting a worker go")
    }

    /// Waits for its end, which must be a good one.
    fn wait(&mut self) -> Result<()> {
        let status = self.child.wait().doing(|| "waiting for a worker")?;
        if status.success() { Ok(()) } else { Err(self.complaint(status)) }
    }

    /// Waits for its end, which must be a good one, and returns what it has said.
    pub fn finish(&mut self) -> Result<String> {
        let mut text = String::new();
        self.said.read_to_string(&mut text).doing(|| "listening to a worker")?;
        let status = self.child.wait().doing(|| "waiting for a worker")?;
        if status.success() { Ok(text) } else { Err(complaint(status, &text)) }
    }

    /// Fails when it has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait().doing(|| "looking for a worker")? {
            Some(status) => Err(self.complaint(status)),
            None => Ok(()),
        }
    }

    fn complaint(&mut self, status: ExitStatus) -> Failure {
        let mut text = String::new();
        let _ = self.said.read_to_string(&mut text);
        complaint(status, &text)
    }
}

/// Its own message, or the last one of the program that it has become.
fn complaint(status: ExitStatus, text: &str) -> Failure {
    let why = text.lines().find_map(|line| line.strip_prefix(FAILED)).or_else(|| last_words(text));
    Failure::new(format!("worker: {status}: {}", why.unwrap_or("no message")))
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The workers of a task, from its preparation to its end. Dropping them kills them.
#[derive(Debug, Default)]
pub struct Workers(RefCell<Vec<Worker>>);

impl Workers {
    /// Starts a worker for each job, and returns when all of them are ready.
    pub fn start(&self, jobs: impl Iterator<Item = Job>) -> Result<()> {
        // They have the variables of this process.
        let start = |job| Worker::start(job, &Variables::new());
        let mut workers = jobs.map(start).collect::<Result<Vec<_>>>()?;
        workers.iter_mut().try_for_each(Worker::wait_ready)?;
        self.0.borrow_mut().extend(workers);
        Ok(())
    }

    /// Lets all of them begin.
    pub fn go(&self) -> Result<()> {
        self.0.borrow_mut().iter_mut().try_for_each(Worker::go)
    }

    /// Waits for the end of all of them.
    pub fn wait(&self) -> Result<()> {
        std::mem::take(&mut *self.0.borrow_mut()).iter_mut().try_for_each(Worker::wait)
    }

    /// Does something with each.
    pub fn each(&self, what: impl FnMut(&mut Worker) -> Result<()>) -> Result<()> {
        self.0.borrow_mut().iter_mut().try_for_each(what)
    }
}

/// This program as a worker.
fn worker_command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().doing(|| "finding this program")?);
    if cfg!(test) {
        command.args(["--ignored", "--exact", "--nocapture", "worker_loop::tests::as_a_process"]);
    } else {
        command.arg(SUBCOMMAND);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::fxmark;

    #[test]
    fn workers_start_on_command_and_report_their_result() {
        let dir = tempfile::tempdir().unwrap();
        let job = |worker| Job::FxMark {
            kind: fxmark::Kind::Dwol,
            path: fxmark::file(dir.path(), worker),
            operations: 100,
        };
        let workers = Workers::default();
        workers.start([job(0), job(1)].into_iter()).unwrap();
        for worker in 0..2 {
            assert_eq!(std::fs::read(fxmark::file(dir.path(), worker)).unwrap(), [0x5a; fxmark::BLOCK]);
        }
        workers.go().unwrap();
        workers.wait().unwrap();
        for worker in 0..2 {
            assert_eq!(std::fs::read(fxmark::file(dir.path(), worker)).unwrap(), [0xa5; fxmark::BLOCK]);
        }
        let missing = dir.path().join("missing/x");
        let nowhere = Job::FxMark { kind: fxmark::Kind::Drbl, path: missing.clone(), operations: 1 };
        let failure = workers.start([nowhere].into_iter()).unwrap_err();
        assert!(failure.to_string().contains(&missing.display().to_string()), "{failure}");
    }
}
