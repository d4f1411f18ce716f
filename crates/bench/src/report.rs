//! The outcome as a table for people and as JSON for programs.

use crate::compare::{Outcome, TaskOutcome};
use crate::contender::{Contender, Kind};
use crate::machine::Machine;
use crate::memcg::MemoryCharge;
use crate::numbers::{count, time};
use crate::requests::Requests;
use crate::resource_meter::Sample;
use crate::statistics::{confidence, is_noisy, median, spread};
use crate::syscalls::Calls;
use crate::targets::{Target, Unit, target_for};
use crate::tasks::Metric;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The version of the JSON form. It changes when a reader would have to.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The machine and the moment.
    pub machine: Machine,
    /// Rounds of each task on each subject.
    pub rounds: usize,
    /// The factor of all sizes and counts.
    pub scale: f64,
    /// The subject that ratios are relative to.
    pub denominator: Option<&'static str>,
    pub subjects: Vec<SubjectNote>,
    /// Subjects that were asked for and could not be had.
    pub missing: Vec<MissingSubject>,
    /// Whether the run was ended before it was through.
    pub interrupted: bool,
    /// The load average of the last minute at the end, this run's own load included.
    pub load_after: f64,
    pub tasks: Vec<TaskReport>,
}

/// A subject that took part.
#[derive(Debug, Serialize)]
pub struct SubjectNote {
    pub name: &'static str,
    /// What its program says of its version.
    pub version: Option<String>,
    /// Extra mount options that it was given.
    pub options: Option<String>,
}

/// A subject that could not take part.
#[derive(Clone, Debug, Serialize)]
pub struct MissingSubject {
    pub name: &'static str,
    /// Why, and what to do about it.
    pub why: String,
}

#[derive(Debug, Serialize)]
pub struct TaskReport {
    pub name: &'static str,
    /// What it does.
    pub title: &'static str,
    /// The state of caches when the clock starts.
    pub state: &'static str,
    /// Operations in one pass.
    pub operations: usize,
    /// Passes in one measurement.
    pub passes: u32,
    pub results: Vec<SubjectReport>,
}

/// A subject in a task.
#[derive(Debug, Serialize)]
pub struct SubjectReport {
    pub subject: &'static str,
    /// The median time of a pass, in seconds.
    pub seconds: Option<f64>,
    /// Half the range of times as a part of the median.
    pub spread: Option<f64>,
    /// The median over rounds of time divided by the denominator's time in the same round.
    pub ratio: Option<f64>,
    /// The smallest and the largest of these ratios.
    pub ratio_range: Option<(f64, f64)>,
    /// Where the ratio lies with a probability of 95 %, of three rounds or more.
    pub ratio_confidence: Option<(f64, f64)>,
    /// Whether the ratios vary so much, or are so few, that their median says little.
    pub noisy: bool,
    /// The median of the service's resident memory at the end, in bytes.
    pub resident_bytes: Option<f64>,
    /// How far a mount's part of the service's cache was off its ideal one at the most, in all rounds, as a part of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub off_share: Option<f64>,
    /// Requests from the kernel to the service in all passes of one measurement, by kind.
    pub requests: Option<Requests>,
    pub requests_per_operation: Option<f64>,
    /// Context switches per operation in the client.
    pub client_switches_per_operation: Option<f64>,
    /// Context switches per operation in the service.
    pub service_switches_per_operation: Option<f64>,
    /// Page faults per operation in the client.
    pub client_faults_per_operation: Option<f64>,
    /// Page faults per operation in the service.
    pub service_faults_per_operation: Option<f64>,
    /// System calls of the client in all passes of one measurement, by name, without waiting.
    pub client_calls: Option<Calls>,
    /// System calls of the client per operation.
    pub client_calls_per_operation: Option<f64>,
    /// System calls of the service in all passes of one measurement, by name, without waiting.
    pub service_calls: Option<Calls>,
    /// System calls of the service per operation.
    pub service_calls_per_operation: Option<f64>,
    /// Memory that preparation and passes are charged with, page cache included.
    pub charged: Option<MemoryCharge>,
    /// Locked instructions of the service per operation, for tasks that are about that.
    pub locked_per_operation: Option<f64>,
    /// Writes of the service to cache lines that several of its threads write for several clients, per operation.
    pub shared_writes_per_operation: Option<f64>,
    /// Vellum's bar.
    pub bar: Option<Target>,
    /// Whether it is met.
    pub bar_met: Option<bool>,
    /// Peers that were faster (or smaller) in this run; only for Vellum.
    pub behind: Vec<&'static str>,
    /// Why it was given up.
    pub failure: Option<String>,
    /// Every sample, by round.
    pub samples: Vec<Option<Sample>>,
}

/// The subject that times are divided by: kernel overlayfs, or else the host's directory.
#[must_use]
pub fn denominator(subjects: &[Contender]) -> Option<Kind> {
    [Kind::Overlay, Kind::Host].into_iter().find(|kind| subjects.iter().any(|subject| subject.kind == *kind))
}

impl TaskReport {
    /// Sums a task up; `before`: those of the same run that came before it.
    #[must_use]
    pub fn summarize(done: &TaskOutcome, denominator: Option<Kind>, before: &[Self]) -> Self {
        let base = done.outcomes.iter().find(|outcome| Some(outcome.kind) == denominator);
        let mut results: Vec<SubjectReport> = done
            .outcomes
            .iter()
            .map(|outcome| {
                let other = target_for(done.task.name, outcome.kind).and_then(|bar| bar.unit.other_task());
                let other = before.iter().find(|task| Some(task.name) == other);
                let mut other = other.map(|task| task.results.as_slice()).unwrap_or_default().iter();
                let other = other.find(|other| other.subject == outcome.kind.name());
                let other = other.map(|other| other.samples.as_slice()).unwrap_or_default();
                SubjectReport::summarize(done, outcome, base, other)
            })
            .collect();
        let judged = |result: &SubjectReport| match done.task.metric {
            Metric::Time => result.seconds,
            Metric::Resident => result.resident_bytes,
            Metric::Shares | Metric::Misses => result.off_share,
        };
        let peers: Vec<(&'static str, f64)> = results
            .iter()
            .filter(|result| Kind::named(result.subject).is_some_and(Kind::is_peer))
            .filter_map(|result| Some((result.subject, judged(result)?)))
            .collect();
        for result in &mut results {
            if Kind::named(result.subject).is_some_and(Kind::is_vellum)
                && let Some(own) = judged(result)
            {
                result.behind =
                    peers.iter().filter(|(_, value)| *value < own).map(|(name, _)| *name).collect();
            }
        }
        Self {
            name: done.task.name,
            title: done.task.title,
            state: done.task.state,
            operations: done.operations,
            passes: done.task.passes,
            results,
        }
    }
}

impl SubjectReport {
    /// `other`: the samples of the same subject in the task that its bar is relative to.
    fn summarize(
        done: &TaskOutcome,
        outcome: &Outcome,
        base: Option<&Outcome>,
        other: &[Option<Sample>],
    ) -> Self {
        let all = |of: fn(&Sample) -> Option<f64>| {
            let values: Vec<f64> = outcome.measured().filter_map(of).collect();
            (!values.is_empty()).then_some(values)
        };
        let seconds = all(|sample| Some(sample.seconds));
        let ratios = ratios(outcome, base.map(|base| base.samples.as_slice()).unwrap_or_default());
        let ratio = (!ratios.is_empty()).then(|| median(&ratios));
        let resident_bytes =
            all(|sample| sample.resident_bytes.map(|bytes| bytes as f64)).map(|v| median(&v));
        // The worst round counts.
        let off_share = all(|sample| sample.off_share).map(|all| all.into_iter().fold(0.0, f64::max));
        let per_operation = |value: f64| value / done.operations.max(1) as f64;
        let counted = |counts: &Option<BTreeMap<String, u64>>| {
            let sum: u64 = counts.as_ref()?.values().sum();
            Some(per_operation(sum as f64 / f64::from(done.task.passes)))
        };
        let middle = |of: fn(&Sample) -> Option<f64>| all(of).map(|values| per_operation(median(&values)));
        let counts = &outcome.counts;
        let bar = target_for(done.task.name, outcome.kind);
        let judged = bar.and_then(|bar| match bar.unit {
            // A bar is relative to the subject that it names, and to no other.
            Unit::TimesOverlayfs | Unit::TimesHost | Unit::TimesFuseOverlayfs2 => {
                let base = done.outcomes.iter().find(|outcome| Some(outcome.kind) == bar.unit.base());
                middle_ratio(outcome, base.map(|base| base.samples.as_slice()).unwrap_or_default())
            }
            Unit::TimesAlone | Unit::TimesEqual => middle_ratio(outcome, other),
            Unit::PercentOffShare => off_share.map(|off| off * 100.0),
            Unit::Milliseconds => seconds.as_deref().map(|seconds| median(seconds) * 1e3),
            Unit::ResidentMib => resident_bytes.map(|bytes| bytes / f64::from(1 << 20)),
        });
        Self {
            subject: outcome.kind.name(),
            seconds: seconds.as_deref().map(median),
            spread: seconds.as_deref().map(spread),
            ratio,
            ratio_range: ratio.map(|_| range(&ratios)),
            ratio_confidence: confidence(&ratios),
            noisy: ratio.is_some() && is_noisy(&ratios),
            resident_bytes,
            off_share,
            requests: counts.requests.clone(),
            requests_per_operation: counted(&counts.requests),
            client_switches_per_operation: middle(|sample| Some(sample.client_switches)),
            service_switches_per_operation: middle(|sample| sample.service_switches),
            client_faults_per_operation: middle(|sample| Some(sample.client_faults)),
            service_faults_per_operation: middle(|sample| sample.service_faults),
            client_calls: counts.client_calls.clone(),
            client_calls_per_operation: counted(&counts.client_calls),
            service_calls: counts.service_calls.clone(),
            service_calls_per_operation: counted(&counts.service_calls),
            charged: counts.charged,
            locked_per_operation: counts.lines.map(|lines| lines.locked),
            shared_writes_per_operation: counts.lines.and_then(|lines| lines.shared_writes),
            bar: bar.copied(),
            bar_met: bar.and_then(|bar| judged.map(|value| value <= bar.at_most)),
            behind: Vec::new(),
            failure: outcome.failure.clone(),
            samples: outcome.samples.clone(),
        }
    }
}

fn middle_ratio(outcome: &Outcome, base: &[Option<Sample>]) -> Option<f64> {
    let ratios = ratios(outcome, base);
    (!ratios.is_empty()).then(|| median(&ratios))
}

/// Times as multiples of `base`'s, by rounds that both have.
fn ratios(outcome: &Outcome, base: &[Option<Sample>]) -> Vec<f64> {
    let both = outcome.samples.iter().zip(base);
    both.filter_map(|(own, base)| Some(own.as_ref()?.seconds / base.as_ref()?.seconds)).collect()
}

fn range(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)))
}

/// What stands above the tables.
#[must_use]
pub fn heading(report: &Report) -> String {
    let mut text = String::new();
    let machine = &report.machine;
    let _ = writeln!(
        text,
        "{}, {} cores, {} MiB, kernel {}, {}, {}",
        machine.cpu, machine.cores, machine.memory_mib, machine.kernel, machine.filesystem, machine.date
    );
    for missing in &report.missing {
        let _ = writeln!(text, "missing: {}: {}", missing.name, missing.why);
    }
    if machine.load_before > 0.5 {
        let _ = writeln!(text, "noisy: the load average was {:.2} before the start", machine.load_before);
    }
    if report.scale != 1.0 {
        let _ =
            writeln!(text, "scale {}: counts and sizes are not those that the bars are for", report.scale);
    }
    let rounds = report.rounds;
    let _ = match report.denominator {
        Some(name) => writeln!(
            text,
            "ratio: time / time of {name} in the same round, median of {rounds} (smallest to largest)"
        ),
        None => writeln!(text, "no ratios: neither overlayfs nor host takes part; {rounds} rounds"),
    };
    let _ = writeln!(
        text,
        "req/op, calls/op, sw/op: FUSE requests, system calls and context switches per operation, client + service; \
         charged: memory with the page cache, client + service"
    );
    text
}

#[must_use]
pub fn table(task: &TaskReport) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "\n{}: {} ({})", task.name, task.title, task.state);
    let _ = writeln!(
        text,
        "  {:<19}{:>11}{:>6}{:>9}{:>17}{:>8}{:>13}{:>13}{:>16}  bar",
        "", "time", "±", "ratio", "", "req/op", "calls/op", "sw/op", "charged"
    );
    for result in &task.results {
        let name = result.subject;
        let Some(seconds) = result.seconds else {
            let why = result.failure.as_deref().unwrap_or("not run");
            let _ = writeln!(text, "  {name:<19}  {why}");
            continue;
        };
        let percent = format!("{:.0}%", result.spread.unwrap_or(0.0) * 100.0);
        let ratio = result.ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
        let range =
            result.ratio_range.map_or(String::new(), |(low, high)| format!("({low:.2} to {high:.2})"));
        let requests = result.requests_per_operation.map_or("-".into(), count);
        let switches = sides(result.client_switches_per_operation, result.service_switches_per_operation);
        let calls = sides(result.client_calls_per_operation, result.service_calls_per_operation);
        let charged = result.charged.map_or("-".into(), |charged| {
            let mib = |bytes: u64| (bytes as f64 / f64::from(1 << 20)).round();
            format!("{}+{} MiB", mib(charged.client_bytes), mib(charged.service_bytes))
        });
        let _ = writeln!(
            text,
            "  {name:<19}{:>11}{percent:>6}{ratio:>9}{range:>17}{requests:>8}{calls:>13}{switches:>13}{charged:>16}  {}",
            time(seconds),
            verdict(result)
        );
        if let Some(failure) = &result.failure {
            let _ = writeln!(text, "  {:<19}  then failed: {failure}", "");
        }
    }
    text
}

/// A number of the client and one of the service.
fn sides(client: Option<f64>, service: Option<f64>) -> String {
    match (client, service) {
        (Some(client), Some(service)) => format!("{}+{}", count(client), count(service)),
        (Some(client), None) => count(client),
        (None, _) => "-".to_owned(),
    }
}

fn verdict(result: &SubjectReport) -> String {
    let mut text = match (result.bar, result.bar_met) {
        (Some(bar), Some(met)) => {
            format!("{} {}", bar.unit.limit(bar.at_most), if met { "met" } else { "NOT MET" })
        }
        _ => String::new(),
    };
    if let Some(off) = result.off_share {
        let _ = write!(text, " {:.3} % off", off * 100.0);
    }
    if let Some(peak) = result.samples.iter().flatten().find_map(|sample| sample.resident_peak_bytes) {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let now = mib(result.resident_bytes.unwrap_or(0.0));
        let _ = write!(text, " {now:.0} MiB, {:.0} before", mib(peak as f64));
    }
    let upper: Vec<f64> = result
        .samples
        .iter()
        .flatten()
        .filter_map(|sample| sample.upper_bytes.map(|bytes| bytes as f64))
        .collect();
    if !upper.is_empty() {
        let _ = write!(text, " upper {:.0} KiB", median(&upper) / 1024.0);
    }
    if let Some(locked) = result.locked_per_operation {
        let shared = result.shared_writes_per_operation.map_or("-".to_owned(), count);
        let _ = write!(text, " locked {}, shared {shared}", count(locked));
    }
    if result.noisy && result.samples.len() > 2 {
        text.push_str(" noisy");
    }
    let timed = result.samples.iter().flatten().count();
    if timed < result.samples.len() {
        let _ = write!(text, " {timed} of {} rounds", result.samples.len());
    }
    if !result.behind.is_empty() {
        let _ = write!(text, ", BEHIND {}", result.behind.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Counts;
    use crate::targets::ALONE;
    use crate::tasks;

    fn outcome(kind: Kind, seconds: &[f64]) -> Outcome {
        let sample = |s: &f64| Some(Sample { seconds: *s, ..Sample::default() });
        Outcome {
            kind,
            samples: seconds.iter().map(sample).collect(),
            counts: Counts::default(),
            failure: None,
            spent: std::time::Duration::ZERO,
        }
    }

    fn done(outcomes: Vec<Outcome>) -> TaskOutcome {
        TaskOutcome { task: tasks::named("grep").unwrap(), operations: 10, outcomes }
    }

    #[test]
    fn ratios_are_computed_per_round() {
        let done = done(vec![
            outcome(Kind::Overlay, &[1.0, 10.0, 2.0]),
            outcome(Kind::FuseOverlayfs, &[0.5, 1.0, 0.5]),
            outcome(Kind::VellumCached, &[1.0, 10.0, 4.0]),
            outcome(Kind::VellumPassthrough, &[2.0, 20.0, 4.0]),
        ]);
        let report = TaskReport::summarize(&done, Some(Kind::Overlay), &[]);
        let of = |kind: Kind| report.results.iter().find(|result| result.subject == kind.name()).unwrap();
        assert_eq!(of(Kind::VellumCached).ratio, Some(1.0));
        assert_eq!(of(Kind::VellumCached).bar_met, Some(true));
        assert_eq!(of(Kind::VellumPassthrough).bar_met, Some(false));
        assert_eq!(of(Kind::VellumCached).behind, ["fuse-overlayfs"]);
        assert!(of(Kind::FuseOverlayfs).behind.is_empty() && of(Kind::FuseOverlayfs).bar.is_none());
        let text = table(&report);
        assert!(text.contains("1 \u{d7} met") && text.contains("NOT MET") && text.contains("BEHIND"));
    }

    #[test]
    fn bars_are_not_judged_against_another_denominator() {
        let done = done(vec![outcome(Kind::Host, &[1.0]), outcome(Kind::VellumCached, &[0.5])]);
        let report = TaskReport::summarize(&done, Some(Kind::Host), &[]);
        assert_eq!(report.results[1].ratio, Some(0.5));
        assert_eq!(report.results[1].bar_met, None);
    }

    #[test]
    fn bars_of_the_hosts_speed_are_judged_by_the_host() {
        let outcomes = vec![
            outcome(Kind::Host, &[1.0, 2.0]),
            outcome(Kind::Overlay, &[9.0, 9.0]),
            outcome(Kind::VellumCached, &[1.2, 2.4]),
            outcome(Kind::VellumPassthrough, &[1.3, 2.6]),
        ];
        let task = tasks::named("s1-drbl-1").unwrap();
        let report =
            TaskReport::summarize(&TaskOutcome { task, operations: 1, outcomes }, Some(Kind::Overlay), &[]);
        assert_eq!(report.results[2].bar_met, Some(true));
        assert_eq!(report.results[3].bar_met, Some(false));
        assert!(table(&report).contains("1.25 \u{d7} host NOT MET"));
    }

    #[test]
    fn bars_of_the_library_are_judged_by_their_subject() {
        let outcomes = vec![
            outcome(Kind::Overlay, &[1.0, 1.0]),
            outcome(Kind::FuseOverlayfs2, &[10.0, 20.0]),
            outcome(Kind::VellumPassthrough, &[1.0, 1.0]),
            outcome(Kind::VellumLibrary, &[1.5, 3.0]),
        ];
        let task = tasks::named("s1-create-2").unwrap();
        let report =
            TaskReport::summarize(&TaskOutcome { task, operations: 1, outcomes }, Some(Kind::Overlay), &[]);
        assert!(report.results[2].bar.is_none() && report.results[3].bar_met == Some(true));
        assert!(table(&report).contains("0.2 \u{d7} fuse-overlayfs-2 met"));
        let outcomes = vec![outcome(Kind::Overlay, &[1.0]), outcome(Kind::VellumLibrary, &[0.1])];
        let report =
            TaskReport::summarize(&TaskOutcome { task, operations: 1, outcomes }, Some(Kind::Overlay), &[]);
        assert_eq!(report.results[1].bar_met, None);
    }

    #[test]
    fn a_tenant_with_neighbours_is_compared_with_itself_alone() {
        let run = |name, cached: &[f64], before: &[TaskReport]| {
            let outcomes = vec![outcome(Kind::Overlay, &[9.0, 9.0]), outcome(Kind::VellumCached, cached)];
            let task = tasks::named(name).unwrap();
            TaskReport::summarize(&TaskOutcome { task, operations: 1, outcomes }, Some(Kind::Overlay), before)
        };
        let alone = run(ALONE, &[1.0, 2.0], &[]);
        assert!(alone.results[1].bar.is_none());
        let before = [alone];
        assert_eq!(run("s2-isolation-web", &[1.04, 2.08], &before).results[1].bar_met, Some(true));
        let slow = run("s2-isolation-web", &[1.1, 2.2], &before);
        assert_eq!((slow.results[0].bar_met, slow.results[1].bar_met), (None, Some(false)));
        assert!(table(&slow).contains("1.05 \u{d7} alone NOT MET"));
        assert_eq!(run("s2-isolation-web", &[1.0, 1.0], &[]).results[1].bar_met, None);
    }

    #[test]
    fn shares_are_judged_by_their_distance_and_weights_by_equal_ones() {
        let mut off = outcome(Kind::VellumShares, &[1.0, 1.0]);
        off.samples
            .iter_mut()
            .flatten()
            .zip([0.004, 0.009])
            .for_each(|(sample, off)| sample.off_share = Some(off));
        let task = |name| tasks::named(name).unwrap();
        let of = |name, outcome, before: &[TaskReport]| {
            let done = TaskOutcome { task: task(name), operations: 1, outcomes: vec![outcome] };
            TaskReport::summarize(&done, None, before)
        };
        let shares = of("s3-shares-four", off.clone(), &[]);
        assert_eq!(shares.results[0].bar_met, Some(true));
        assert!(table(&shares).contains("1 % off met 0.900 % off"), "{}", table(&shares));
        off.samples[0].as_mut().unwrap().off_share = Some(0.011);
        assert_eq!(of("s3-shares-four", off, &[]).results[0].bar_met, Some(false));
        let timed = |name, seconds: &[f64], before: &[TaskReport]| {
            of(name, outcome(Kind::VellumShares, seconds), before)
        };
        let before = [timed("s3-throughput-equal", &[1.0, 2.0], &[])];
        let met = |seconds: &[f64]| timed("s3-throughput-four", seconds, &before).results[0].bar_met;
        assert_eq!((met(&[1.01, 2.02]), met(&[1.1, 2.2])), (Some(true), Some(false)));
    }

    #[test]
    fn a_round_that_failed_does_not_shift_the_others() {
        let mut broken = outcome(Kind::VellumCached, &[1.0, 4.0]);
        broken.samples[0] = None;
        let done = done(vec![outcome(Kind::Overlay, &[1.0, 2.0]), broken]);
        let report = TaskReport::summarize(&done, Some(Kind::Overlay), &[]);
        assert_eq!(report.results[1].ratio, Some(2.0));
    }
}
