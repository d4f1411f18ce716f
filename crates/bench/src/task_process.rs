//! The process in which a task is prepared and done, on every filesystem alike: what the task's own process has loaded, a library
//! say, is part of what is compared.
//!
//! It is a [worker](crate::workload::worker), this program again. It takes the time by itself, so that neither its start nor the
//! way of a word from process to process is in it.

use crate::failure::{Failure, Result};
use crate::resource_meter::{Meter, Sample};
use crate::service::Service;
use crate::tasks::{self, Env};
use crate::testbed::Testbed;
use crate::workload::job::{Job, Part};
use crate::workload::worker::{Variables, Worker, Workers};

/// Prepares the task in this process, and lets `perform` have all passes done.
pub(crate) fn play<T>(part: &Part, perform: impl FnOnce(&dyn Fn() -> Result<()>) -> Result<T>) -> Result<T> {
    let nothing = |what: &str| Failure::new(format!("there is no {what}"));
    let task = tasks::named(&part.task).ok_or_else(|| nothing("such task"))?;
    let (top, scale) = &part.place;
    let testbed = Testbed::of_other_process(top, *scale);
    let workers = Workers::default();
    let env = Env {
        root: part.roots.first().ok_or_else(|| nothing("mount"))?,
        upper: part.uppers.first().ok_or_else(|| nothing("upper layer"))?,
        roots: &part.roots,
        uppers: &part.uppers,
        workers: &workers,
        testbed: &testbed,
    };
    (task.prepare)(&env)?;
    perform(&|| task.run_passes(&env))
}

/// Has all passes done, and measures them where they are to be measured.
pub(crate) fn measure(part: &Part, passes: &dyn Fn() -> Result<()>) -> Result<Sample> {
    let Some(services) = &part.services else {
        return passes().map(|()| Sample::default());
    };
    let number = tasks::named(&part.task).map_or(1, |task| task.passes);
    let services: Vec<Service> = services.iter().map(|pid| Service { pid: *pid }).collect();
    let meter = Meter::start(&services)?;
    passes()?;
    meter.end(number)
}

/// A client that has prepared its task. It is killed when this is dropped.
#[derive(Debug)]
pub struct Client(Worker);

impl Client {
    /// Starts one with some variables, and returns when all is prepared.
    pub(crate) fn start(part: Part, variables: &Variables) -> Result<Self> {
        Worker::ready(Job::Task(part), variables).map(Self)
    }

    /// Lets it do the task, and returns what it has measured. It is still there afterwards, with what it has started.
    pub fn run(&mut self) -> Result<Sample> {
        self.0.go()?;
        self.0.wait_result()
    }

    /// Ends it after that, and with it everything that it has started.
    pub fn end(mut self) -> Result<()> {
        self.0.end()
    }
}
