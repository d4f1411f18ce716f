//! What is printed: a line as each case ends, the names at the end, and one closing line.

use super::times::Forecast;
use super::{Line, Verdict};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Most lines of a log that are shown when its case has failed.
const TAIL: usize = 60;

/// All results so far.
pub(crate) struct Report {
    lines: Vec<Line>,
    times: Vec<(String, Duration)>,
    forecast: Forecast,
}

impl Report {
    pub(crate) fn new(forecast: Forecast) -> Self {
        Self { lines: Vec::new(), times: Vec::new(), forecast }
    }

    /// Takes the results of one case and prints a line about it.
    pub(crate) fn add(&mut self, name: &str, lines: Vec<Line>, took: Duration, log: &Path) {
        let (passed, failed, skipped) = count(&lines);
        let word = match (failed, passed) {
            (0, 0) => "skipped",
            (0, _) => "passed",
            _ => "FAILED",
        };
        let parts = if lines.len() > 1 {
            format!("  ({passed} passed, {failed} failed, {skipped} skipped inside)")
        } else {
            String::new()
        };
        let left = self.forecast.end(name);
        println!("{word:8} {:7.1} s  {name}{parts}  [{left}]", took.as_secs_f64());
        for line in &lines {
            match &line.result {
                Verdict::Failed(why) => println!("    FAILED {}: {why}", line.name),
                Verdict::Skipped(why) if lines.len() <= 40 => println!("    SKIPPED {}: {why}", line.name),
                _ => {}
            }
        }
        if failed > 0 {
            let text = std::fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let all: Vec<&str> = text.lines().collect();
            println!("    --- end of {}", log.display());
            for line in &all[all.len().saturating_sub(TAIL)..] {
                println!("    | {line}");
            }
        }
        self.times.push((name.to_owned(), took));
        self.lines.extend(lines);
    }

    /// Prints the names, the times and the closing line.
    pub(crate) fn close(mut self, took: Duration, logs: &Path) -> ExitCode {
        println!("\nLongest:");
        self.times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        for (name, took) in self.times.iter().take(12) {
            println!("  {:7.1} s  {name}", took.as_secs_f64());
        }
        println!("  {:7.1} s  everything", took.as_secs_f64());
        println!("\nTests:");
        for line in &self.lines {
            match &line.result {
                Verdict::Passed => println!("  passed   {}", line.name),
                Verdict::Failed(why) => println!("  FAILED   {}: {why}", line.name),
                Verdict::Skipped(why) => println!("  skipped  {}: {why}", line.name),
            }
        }
        let (passed, failed, skipped) = count(&self.lines);
        println!("Logs: {}\n", logs.display());
        super::times::write(&self.times, logs);
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn count(lines: &[Line]) -> (usize, usize, usize) {
    let of = |wanted: fn(&Verdict) -> bool| lines.iter().filter(|line| wanted(&line.result)).count();
    (
        of(|result| *result == Verdict::Passed),
        of(|result| matches!(result, Verdict::Failed(_))),
        of(|result| matches!(result, Verdict::Skipped(_))),
    )
}
