//! Runs tasks on subjects, round by round, so that what disturbs the machine disturbs all of them alike.

use crate::contender::{Contender, Kind};
use crate::counts::{Counters, Counts};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::mounts::Mounts;
use crate::resource_meter::Sample;
use crate::service::Service;
use crate::tasks::{Metric, Task, shares};
use crate::testbed::{self, Testbed};
use crate::testbeds::Testbeds;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// How long a service's memory must stay the same to count as what it is at rest.
const REST: Duration = Duration::from_secs(2);
/// How long to wait for that.
const REST_PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take to have everything there again after a measurement that was given up: a cluster is asked to forget clients.
const READY: Duration = Duration::from_secs(120);

/// What is to be compared, and how.
#[derive(Debug)]
pub struct Plan {
    pub tasks: Vec<&'static Task>,
    /// The filesystems that can be had.
    pub subjects: Vec<Contender>,
    /// How often each task is timed on each subject.
    pub rounds: usize,
    /// A subject that a task has taken longer than this on, mounting included, is not timed with it again.
    pub patience: Option<Duration>,
    /// How long one measurement may take, mounting and unmounting included, before it is given up.
    pub limit: Duration,
    /// Whether requests, system calls and memory are counted, in one more round.
    pub counts: bool,
}

impl Plan {
    fn subjects_of(&self, task: &Task) -> Vec<&Contender> {
        self.subjects.iter().filter(|subject| subject.kind.applies_to(task)).collect()
    }

    /// Where each of them has its layers.
    fn places<'a>(&self, testbeds: &'a Testbeds, task: &Task) -> Result<Vec<&'a Testbed>> {
        self.subjects_of(task).iter().map(|subject| testbeds.get(subject.kind)).collect()
    }
}

/// How a subject did in a task.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which subject.
    pub kind: Kind,
    /// What was measured, by round; None where it failed or did not come to it.
    pub samples: Vec<Option<Sample>>,
    /// What was counted, where anything could be.
    pub counts: Counts,
    /// Why it was given up.
    pub failure: Option<String>,
    /// How long all of it has taken so far.
    pub spent: Duration,
}

impl Outcome {
    /// Whether it is timed once more: it has not failed, and has not taken too long.
    fn needs_repetition(&self, patience: Option<Duration>) -> bool {
        self.failure.is_none() && patience.is_none_or(|patience| self.spent <= patience)
    }

    /// Whether it should have been measured and could not be.
    #[must_use]
    pub fn has_failed(&self, task: &Task) -> bool {
        self.failure.is_some() && (!self.kind.is_in_kernel() || task.metric == Metric::Time)
    }

    /// The samples that there are.
    pub fn measured(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().flatten()
    }
}

#[derive(Clone, Debug)]
pub struct TaskOutcome {
    pub task: &'static Task,
    /// Operations in one pass.
    pub operations: usize,
    /// By subject, in the plan's order.
    pub outcomes: Vec<Outcome>,
}

/// Runs the plan; hands each task's outcome to `each` as soon as it is there. Ends early, without an error, when the
/// user asks: look at [`interrupt::is_requested`].
pub fn compare(
    plan: &Plan,
    testbeds: &Testbeds,
    mut each: impl FnMut(&TaskOutcome),
) -> Result<Vec<TaskOutcome>> {
    let counters = plan.counts.then(|| Counters::detect(testbeds.main().top())).filter(Counters::any);
    let rounds = plan.rounds + usize::from(counters.is_some());
    let steps: usize = plan.tasks.iter().map(|task| plan.subjects_of(task).len() * rounds).sum();
    let progress = ProgressBar::new(steps as u64);
    progress.set_style(style());
    let mut all = Vec::new();
    for task in &plan.tasks {
        let outcome = run_task(plan, testbeds, task, counters.as_ref(), &progress)?;
        progress.suspend(|| each(&outcome));
        all.push(outcome);
        let places = plan.places(testbeds, task)?;
        places.iter().try_for_each(|testbed| ready(testbed))?;
        interrupt::with_timeout(plan.limit, || places.iter().try_for_each(|testbed| testbed.clear()))?;
        if interrupt::is_requested() {
            break;
        }
    }
    progress.finish_and_clear();
    Ok(all)
}

/// How progress is shown.
pub(crate) fn style() -> ProgressStyle {
    ProgressStyle::with_template("{elapsed_precise} {wide_bar} {pos}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn run_task(
    plan: &Plan,
    testbeds: &Testbeds,
    task: &'static Task,
    counters: Option<&Counters>,
    progress: &ProgressBar,
) -> Result<TaskOutcome> {
    let empty = |subject: &Contender| Outcome {
        kind: subject.kind,
        samples: Vec::new(),
        counts: Counts::default(),
        failure: None,
        spent: Duration::ZERO,
    };
    let subjects = plan.subjects_of(task);
    let mut outcomes: Vec<Outcome> = subjects.iter().map(|subject| empty(subject)).collect();
    // Made before the first clock starts, for all alike.
    let places = plan.places(testbeds, task)?;
    interrupt::with_timeout(plan.limit, || {
        places.iter().try_for_each(|testbed| testbed.lower(task.lower).map(drop))
    })?;
    for round in 0..plan.rounds {
        // Each round begins with another subject, so that nobody is always first, and every second one goes the other way round, so that
        // nobody always comes after the same one.
        for turn in 0..subjects.len() {
            let step = if round % 2 == 0 { turn } else { subjects.len() - turn };
            let at = (step + round) % subjects.len();
            let (Some(subject), Some(outcome), Some(testbed)) =
                (subjects.get(at), outcomes.get_mut(at), places.get(at))
            else {
                continue;
            };
            progress.set_message(format!("{} on {}, round {}", task.name, subject.kind.name(), round + 1));
            let sample = if outcome.needs_repetition(plan.patience) && !interrupt::is_requested() {
                let start = Instant::now();
                let sample = ready(testbed).and_then(|()| {
                    interrupt::with_timeout(plan.limit, || {
                        Mounts::during(subject, testbed, task, |mounts| measure(task, testbed, mounts))
                    })
                });
                outcome.spent += start.elapsed();
                unless_interrupted(sample, &mut outcome.failure)
            } else {
                None
            };
            outcome.samples.push(sample);
            progress.inc(1);
        }
    }
    if let Some(counters) = counters {
        for ((subject, outcome), testbed) in subjects.iter().zip(&mut outcomes).zip(&places) {
            progress.set_message(format!("{} on {}, counting", task.name, subject.kind.name()));
            if outcome.needs_repetition(plan.patience) && !interrupt::is_requested() {
                let counts = ready(testbed).and_then(|()| {
                    interrupt::with_timeout(plan.limit, || counters.count(task, subject, testbed))
                });
                outcome.counts = unless_interrupted(counts, &mut outcome.failure).unwrap_or_default();
            }
            progress.inc(1);
        }
    }
    Ok(TaskOutcome { task, operations: (task.operations)(testbeds.main()), outcomes })
}

/// Mends what was taken away with a measurement that was given up. That is not the next one's time.
fn ready(testbed: &Testbed) -> Result<()> {
    interrupt::with_timeout(READY, || testbed.restore_remote())
}

/// What was found. A failure is kept in `failure`, unless it is that the user wants to stop.
fn unless_interrupted<T>(found: Result<T>, failure: &mut Option<String>) -> Option<T> {
    found
        .map_err(|error| {
            if !interrupt::is_requested() {
                *failure = Some(error.to_string());
            }
        })
        .ok()
}

fn measure(task: &Task, testbed: &Testbed, mounts: &Mounts) -> Result<Sample> {
    let services = mounts.services();
    let first = services.first().copied();
    if task.metric == Metric::Resident && first.is_none() {
        return Err(Failure::new("no service whose memory could be measured"));
    }
    let mut client = mounts.client(testbed, task)?;
    let mut sample = client.run()?;
    if let (Metric::Shares | Metric::Misses, Some(cache)) = (task.metric, &task.cache) {
        sample.off_share = Some(shares::share_error(mounts.roots(), cache.ideal, task.metric)?);
    }
    client.end()?;
    if task.space {
        rustix::fs::sync();
        sample.upper_bytes = Some(mounts.uppers().iter().map(|upper| testbed::space(upper)).sum());
    }
    match (task.metric, first) {
        (Metric::Resident, Some(service)) => {
            testbed::drop_caches()?;
            Ok(Sample {
                resident_peak_bytes: sample.resident_bytes,
                resident_bytes: Some(stable_memory(service)?),
                ..sample
            })
        }
        _ => Ok(sample),
    }
}

/// The resident memory of a service once it does not change any more.
fn stable_memory(service: Service) -> Result<u64> {
    let gone = || Failure::new("the service has ended");
    let start = Instant::now();
    let mut since = start;
    let mut last = service.resident().ok_or_else(gone)?;
    while since.elapsed() < REST && start.elapsed() < REST_PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
        interrupt::check()?;
        let now = service.resident().ok_or_else(gone)?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_subject_is_timed_once() {
        let outcome = |seconds: u64| Outcome {
            kind: Kind::Overlay,
            samples: Vec::new(),
            counts: Counts::default(),
            failure: None,
            spent: Duration::from_secs(seconds),
        };
        let patience = Some(Duration::from_secs(5));
        assert!(
            outcome(0).needs_repetition(patience)
                && outcome(5).needs_repetition(patience)
                && outcome(600).needs_repetition(None)
        );
        assert!(!outcome(6).needs_repetition(patience));
        let failed = Outcome { failure: Some("gone".to_owned()), ..outcome(0) };
        assert!(!failed.needs_repetition(patience) && !failed.needs_repetition(None));
    }
}
