//! Threads that read or write while somebody else goes on: one for each zone that an image is written to, some for one that is read.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// A thread that does one job after the other. It ends when this is dropped, and is waited for.
#[derive(Debug)]
pub(super) struct WorkerThread<Job, Done> {
    /// None only while it is dropped.
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl<Job: Send + 'static, Done: Send + 'static> WorkerThread<Job, Done> {
    /// A thread that does jobs by `act`. None: no thread can be started.
    pub(super) fn new(mut act: impl FnMut(Job) -> Done + Send + 'static) -> Option<Self> {
        let (jobs, to_do) = channel::<Job>();
        let (tell, done) = channel();
        let body = move || {
            for job in to_do {
                if tell.send(act(job)).is_err() {
                    break;
                }
            }
        };
        let thread = Builder::new().name("zoned-image".to_owned()).spawn(body).ok()?;
        Some(Self { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Hands a job over. It comes back if the thread has died.
    pub(super) fn submit(&self, job: Job) -> Result<(), Job> {
        match &self.jobs {
            Some(jobs) => jobs.send(job).map_err(|unsent| unsent.0),
            None => Err(job),
        }
    }

    /// Waits for the next job that was given, in their order. None: the thread has died.
    pub(super) fn take(&self) -> Option<Done> {
        self.done.recv().ok()
    }
}

impl<Job, Done> Drop for WorkerThread<Job, Done> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
