//! What a figure needs of a report.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Results {
    machine: Machine,
    rounds: usize,
    scale: f64,
    tasks: Vec<Task>,
}

#[derive(Debug, Deserialize)]
struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    filesystem: String,
    date: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Task {
    pub(super) name: String,
    results: Vec<Subject>,
}

#[derive(Debug, Deserialize)]
struct Subject {
    subject: String,
    seconds: Option<f64>,
    ratio: Option<f64>,
}

/// What can be drawn on a logarithmic axis.
fn drawable(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite() && *value > 0.0)
}

impl Results {
    pub(super) fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.name == name)
    }

    /// Whether a subject has been measured in one of some tasks.
    pub(super) fn has_subject(&self, name: &str, mut tasks: impl Iterator<Item = &'static str>) -> bool {
        tasks.any(|task| self.task(task).is_some_and(|task| task.seconds(name).is_some()))
    }

    /// Machine and method, in a line.
    pub(super) fn conditions(&self) -> String {
        let Machine { cpu, cores, kernel, filesystem, date } = &self.machine;
        let scale = if self.scale == 1.0 { String::new() } else { format!(", sizes x {}", self.scale) };
        let rounds = self.rounds;
        format!(
            "{cpu}, {cores} cores, Linux {kernel}, {filesystem}, {date}; medians of {rounds} interleaved rounds{scale}"
        )
    }
}

impl Task {
    /// The median time, in seconds.
    pub(super) fn seconds(&self, subject: &str) -> Option<f64> {
        drawable(self.results.iter().find(|result| result.subject == subject)?.seconds)
    }

    /// The median ratio to kernel overlayfs.
    pub(super) fn ratio(&self, subject: &str) -> Option<f64> {
        drawable(self.results.iter().find(|result| result.subject == subject)?.ratio)
    }
}
