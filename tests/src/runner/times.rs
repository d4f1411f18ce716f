//! How long a run takes: what each case took before, and what is left of all of them.

use crate::cases::Turn;
use crate::harness::source_root;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A line for each case, `SECONDS NAME`: of a machine with two processors.
const USUAL: &str = "tests/times";
/// The file of the last run on this machine, beside its logs.
const HERE: &str = "times";
/// Seconds of a case that has never been timed.
const UNKNOWN: f64 = 5.0;
/// A machine is as fast as it was, until this many seconds of work show something else.
const PROOF: f64 = 60.0;

/// What is left of a run.
pub(crate) struct Forecast {
    begin: Instant,
    /// Seconds of each case that has not ended. One that runs beside others counts for its share.
    left: BTreeMap<String, f64>,
    /// Seconds that the cases which have ended were expected to take.
    past: f64,
    /// Number of cases.
    count: usize,
}

impl Forecast {
    pub(crate) fn new(jobs: impl Iterator<Item = (String, Turn)>, width: usize, logs: &Path) -> Self {
        let mut times = read(&source_root().join(USUAL));
        times.extend(read(&logs.join(HERE)));
        let left: BTreeMap<String, f64> = jobs
            .map(|(name, turn)| {
                let seconds = times.get(&name).copied().unwrap_or(UNKNOWN);
                let share = if turn == Turn::Alone { 1.0 } else { 1.0 / width as f64 };
                (name, seconds * share)
            })
            .collect();
        Self { begin: Instant::now(), count: left.len(), left, past: 0.0 }
    }

    /// The time of all that is left, for a person.
    pub(crate) fn all(&self) -> String {
        let speed = if self.past < PROOF { 1.0 } else { self.begin.elapsed().as_secs_f64() / self.past };
        let seconds = (self.left.values().sum::<f64>() * speed).max(0.0);
        if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
    }

    /// Notes the end of a case, and answers how far the run is.
    pub(crate) fn end(&mut self, name: &str) -> String {
        self.past += self.left.remove(name).unwrap_or_default();
        format!("{} of {}, about {} left", self.count - self.left.len(), self.count, self.all())
    }
}

fn read(path: &Path) -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let (seconds, name) = line.split_once(' ')?;
        Some((name.to_owned(), seconds.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Remembers what cases took. One that was not run keeps its former time.
pub(crate) fn write(times: &[(String, Duration)], logs: &Path) {
    let path = logs.join(HERE);
    let mut all = read(&path);
    all.extend(times.iter().map(|(name, took)| (name.clone(), took.as_secs_f64())));
    let text: String = all.iter().map(|(name, seconds)| format!("{seconds:.1} {name}\n")).collect();
    // The next run forecasts a little worse.
    let _ = std::fs::write(path, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_counts_parallel_cases_by_their_share() {
        let logs = tempfile::tempdir().unwrap();
        let times = [("t/alone", 100), ("t/one", 40), ("t/two", 60)];
        let times = times.map(|(name, seconds)| (name.to_owned(), Duration::from_secs(seconds)));
        write(&times, logs.path());
        let turns = [Turn::Alone, Turn::Together, Turn::Aside];
        let jobs = times.iter().map(|(name, _)| name.clone()).zip(turns);
        let mut forecast = Forecast::new(jobs, 2, logs.path());
        assert_eq!(forecast.all(), "2 min");
        assert_eq!(forecast.end("t/two"), "1 of 3, about 2 min left");
        forecast.begin -= Duration::from_secs(260);
        // 130 s of work took 260 s.
        assert_eq!(forecast.end("t/alone"), "2 of 3, about 40 s left");
    }
}
