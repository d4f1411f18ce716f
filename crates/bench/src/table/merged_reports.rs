//! What a table needs of reports, and how several of them become one.

use crate::failure::{Failure, Result};
use crate::report::SCHEMA_VERSION;
use crate::targets::Unit;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::Path;

/// Above this a measurement is noise: half the range of times, as a part of the median.
const SPREAD_MAX: f64 = 0.25;
/// Rounds from which on the ratios of a run can be judged noisy.
const ROUNDS_MIN: usize = 3;

/// A file that `compare --json` has written.
#[derive(Debug, Deserialize)]
struct Report {
    schema_version: u32,
    #[serde(flatten)]
    run: Run,
    tasks: Vec<Task>,
}

/// The circumstances of measurements.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Run {
    pub(super) machine: Machine,
    pub(super) denominator: Option<String>,
    #[serde(default)]
    pub(super) subjects: Vec<Note>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Machine {
    pub(super) filesystem: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Note {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) results: Vec<Subject>,
    /// The number of the run that it is of.
    #[serde(skip)]
    pub(super) run: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct Subject {
    pub(super) subject: String,
    pub(super) seconds: Option<f64>,
    pub(super) spread: Option<f64>,
    pub(super) ratio: Option<f64>,
    /// What the run itself said of its ratios; older files do not.
    #[serde(default)]
    noisy: bool,
    pub(super) requests_per_operation: Option<f64>,
    pub(super) client_calls_per_operation: Option<f64>,
    pub(super) service_calls_per_operation: Option<f64>,
    pub(super) charged: Option<MemoryCharge>,
    pub(super) bar: Option<Bar>,
    pub(super) bar_met: Option<bool>,
    #[serde(default)]
    samples: Vec<Option<IgnoredAny>>,
}

/// Memory that was charged to the control groups of the two sides, what they have in the page cache included.
#[derive(Debug, Deserialize)]
pub(super) struct MemoryCharge {
    pub(super) client_bytes: Option<f64>,
    pub(super) service_bytes: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Bar {
    pub(super) at_most: f64,
    pub(super) unit: Unit,
}

/// All that a table may show.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) runs: Vec<Run>,
    pub(super) tasks: Vec<Task>,
}

impl Results {
    /// Reads files; a task of a later one replaces that of the same name in an earlier one, where it stands, if both were
    /// done on the same filesystem. Otherwise it comes after it.
    pub(super) fn read<P: AsRef<Path>>(files: &[P]) -> Result<Self> {
        let mut all = Self::default();
        for file in files {
            let file = file.as_ref();
            let bad = |why: &dyn std::fmt::Display| {
                let file = file.display();
                Failure::bad_input(format!(
                    "{file}: {why}; give files that `vellum-bench compare --json` has written"
                ))
            };
            let text = std::fs::read_to_string(file).map_err(|error| bad(&error))?;
            let report: Report = serde_json::from_str(&text).map_err(|error| bad(&error))?;
            if report.schema_version != SCHEMA_VERSION {
                let found = report.schema_version;
                return Err(bad(&format!("schema version {found}, this program knows {SCHEMA_VERSION}")));
            }
            all.add(report);
        }
        if all.tasks.is_empty() {
            return Err(Failure::bad_input(
                "no task has results; let `vellum-bench compare` come to the end of one",
            ));
        }
        Ok(all)
    }

    fn add(&mut self, report: Report) {
        let run = self.runs.len();
        self.runs.push(report.run);
        for mut task in report.tasks {
            task.run = run;
            let filesystem = self.filesystem(&task);
            let is_same = |known: &Task| known.name == task.name && self.filesystem(known) == filesystem;
            if let Some(place) = self.tasks.iter().position(is_same) {
                self.tasks.splice(place..=place, [task]);
            } else {
                let namesake = self.tasks.iter().rposition(|known| known.name == task.name);
                self.tasks.insert(namesake.map_or(self.tasks.len(), |place| place + 1), task);
            }
        }
    }

    /// What the times of a task are divided by.
    pub(super) fn denominator(&self, task: &Task) -> Option<&str> {
        self.runs.get(task.run)?.denominator.as_deref()
    }

    /// The kind of filesystem that a task was done on.
    pub(super) fn filesystem(&self, task: &Task) -> Option<&str> {
        Some(self.runs.get(task.run)?.machine.filesystem.as_str())
    }

    /// The name of a task, with the filesystem if it was done on several.
    pub(super) fn full_name(&self, task: &Task) -> String {
        let several = self.tasks.iter().filter(|other| other.name == task.name).count() > 1;
        match self.filesystem(task).filter(|_| several) {
            Some(filesystem) => format!("{} on {filesystem}", task.name),
            None => task.name.clone(),
        }
    }
}

impl Subject {
    pub(super) fn is_noisy(&self) -> bool {
        // Of fewer rounds a run calls everything noisy, which the number of rounds in the heading says too.
        let judged = self.noisy && self.samples.len() >= ROUNDS_MIN;
        judged || self.spread.is_some_and(|spread| spread > SPREAD_MAX)
    }
}

#[cfg(test)]
pub(super) fn read_texts(texts: &[&str]) -> Result<Results> {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..texts.len()).map(|number| dir.path().join(format!("{number}.json"))).collect();
    for (file, text) in files.iter().zip(texts) {
        std::fs::write(file, text).unwrap();
    }
    Results::read(&files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::SMALL;

    #[test]
    fn later_tasks_replace_earlier_ones_in_place() {
        let later = SMALL
            .replace("block-same", "new")
            .replace("0.0125", "0.0777")
            .replace("\"cpu\": \"", "\"cpu\": \"B ");
        let merged = read_texts(&[SMALL, &later]).unwrap();
        let names: Vec<&str> = merged.tasks.iter().map(|task| task.name.as_str()).collect();
        let alone = read_texts(&[SMALL]).unwrap();
        assert_eq!(names.len(), alone.tasks.len() + 1);
        assert_eq!(names.first().copied(), Some("open-read"));
        assert_eq!(names.last().copied(), Some("new"));
        let open = merged.tasks.first().unwrap();
        let cached = open.results.iter().find(|result| result.subject == "vellum-cached").unwrap();
        assert_eq!((open.run, cached.seconds), (1, Some(0.0777)));
        assert_eq!(merged.tasks.iter().find(|task| task.name == "block-same").unwrap().run, 0);
    }

    #[test]
    fn tasks_of_different_filesystems_are_adjacent() {
        let xfs = SMALL.replace("\"ext4\"", "\"xfs\"");
        let again = xfs.replace("0.0125", "0.0777");
        let merged = read_texts(&[SMALL, &xfs, &again]).unwrap();
        let alone = read_texts(&[SMALL]).unwrap();
        assert_eq!(merged.tasks.len(), 2 * alone.tasks.len());
        for (pair, task) in merged.tasks.chunks(2).zip(&alone.tasks) {
            assert!(pair.iter().all(|one| one.name == task.name));
            assert_eq!(pair.iter().map(|one| one.run).collect::<Vec<_>>(), [0, 2], "{}", task.name);
        }
        let open = merged.tasks.get(1).unwrap();
        assert_eq!(merged.filesystem(open), Some("xfs"));
        assert!(open.results.iter().any(|result| result.seconds == Some(0.0777)));
    }

    #[test]
    fn every_bar_that_a_run_writes_is_read() {
        for bar in crate::targets::TARGETS {
            let text = serde_json::to_string(bar).unwrap();
            let read: Bar = serde_json::from_str(&text).unwrap();
            assert_eq!((read.at_most, read.unit), (bar.at_most, bar.unit));
        }
    }

    #[test]
    fn a_malformed_report_is_refused() {
        let version = SMALL.replace("\"schema_version\": 1", "\"schema_version\": 9");
        let empty = r#"{"schema_version":1,"machine":{"cpu":"","cores":1,"memory_mib":1,"kernel":"","filesystem":"",
            "date":"","load_before":0},"rounds":1,"scale":1,"denominator":null,"tasks":[]}"#;
        for text in ["", "{}", "[1]", "nothing", &version, empty] {
            let error = read_texts(&[text]).unwrap_err();
            assert!(error.bad_input && !error.to_string().contains('\n'), "{text}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(Results::read(&[dir.path().join("missing")]).unwrap_err().bad_input);
        assert!(read_texts(&[SMALL, ""]).unwrap_err().to_string().contains("1.json"));
    }

    #[test]
    fn results_are_noisy_by_spread_or_by_their_flag() {
        let noisy = |text: &str| {
            let results = read_texts(&[text]).unwrap();
            results.tasks.iter().flat_map(|task| &task.results).filter(|result| result.is_noisy()).count()
        };
        assert_eq!(noisy(SMALL), 2);
        assert_eq!(noisy(&SMALL.replacen("\"requests\": null", "\"noisy\": true", 1)), 3);
    }

    #[test]
    fn task_names_include_the_filesystem() {
        let on = |filesystem: &str| {
            SMALL.replace("\"filesystem\": \"ext4\"", &format!("\"filesystem\": \"{filesystem}\""))
        };
        let texts = [SMALL, &on("xfs"), &on("<i>"), &on("")].map(str::to_owned);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let several = read_texts(&texts).unwrap();
        let of = |number: usize| several.tasks.get(number).unwrap();
        assert_eq!(
            [0, 1, 2].map(|number| several.full_name(of(number))),
            ["open-read on ext4", "open-read on xfs", "open-read on <i>"]
        );
        let alone = read_texts(&[SMALL]).unwrap();
        let first = alone.tasks.first().unwrap();
        assert_eq!(alone.full_name(first), "open-read");
    }
}
