//! Tables of Markdown, for documents, of what `compare --json` has written.

mod merged_reports;

use crate::failure::{Failure, Result};
use crate::numbers::{NONE, bytes, count, time};
use merged_reports::{Results, Subject, Task};
use std::path::PathBuf;

#[cfg(test)]
pub(crate) const SMALL: &str = include_str!("small.json");

/// Which numbers are in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TableKind {
    /// The time of the filesystem that all others are divided by, their ratios, and the bars.
    #[default]
    Ratios,
    /// Of one operation: requests, then system calls of client and service; last the memory that both were charged with.
    Counts,
}

/// A table of the results in the JSON files `from`, of tasks with names that begin with one of `names`; of all if there are none. Tasks of
/// later files replace those of earlier ones on the same kind of filesystem.
///
/// # Errors
///
/// A file cannot be read or is no report, or no task is left.
pub fn make(from: &[PathBuf], names: &[String], of: TableKind) -> Result<String> {
    let results = Results::read(from)?;
    let is_wanted = |task: &&Task| names.is_empty() || names.iter().any(|name| task.name.starts_with(name));
    let tasks: Vec<&Task> = results.tasks.iter().filter(is_wanted).collect();
    if tasks.is_empty() {
        return Err(Failure::bad_input(format!(
            "no task begins with {}; `vellum-bench compare --list` names them",
            names.join(" or ")
        )));
    }
    let all = results.runs.iter().flat_map(|run| &run.subjects).map(|note| note.name.as_str());
    let mut subjects: Vec<&str> = Vec::new();
    for subject in all {
        if !subjects.contains(&subject) && tasks.iter().any(|task| find_subject(task, subject).is_some()) {
            subjects.push(subject);
        }
    }
    Ok(match of {
        TableKind::Ratios => ratios(&results, &tasks, &subjects),
        TableKind::Counts => counts(&results, &tasks, &subjects),
    })
}

fn find_subject<'a>(task: &'a Task, subject: &str) -> Option<&'a Subject> {
    task.results.iter().find(|result| result.subject == subject && result.seconds.is_some())
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().map(|cell| cell_text(&cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// What would end a cell, and spaces that no editor shows, are left out.
fn cell_text(text: &str) -> String {
    text.replace('|', "/").replace('\u{a0}', " ").replace('\u{2013}', "-")
}

fn ratios(results: &Results, tasks: &[&Task], subjects: &[&str]) -> String {
    let denominator = tasks.iter().find_map(|task| results.denominator(task));
    let others: Vec<&str> = subjects.iter().copied().filter(|name| Some(*name) != denominator).collect();
    let has_bars = tasks.iter().flat_map(|task| &task.results).any(|result| result.bar.is_some());
    let bars = || has_bars.then(|| "bar".to_owned());
    let names = ["experiment", denominator.unwrap_or(NONE)].into_iter().chain(others.iter().copied());
    let mut table = row(names.map(str::to_owned).chain(bars()));
    let lines = others.iter().map(|_| "---:").chain(has_bars.then_some("---"));
    table += &row(["---", "---:"].into_iter().chain(lines).map(str::to_owned));
    for task in tasks {
        let seconds = denominator.and_then(|name| find_subject(task, name)).and_then(|result| result.seconds);
        let first = [results.full_name(task), seconds.map_or(NONE.to_owned(), time)];
        let ratios = others.iter().map(|name| find_subject(task, name).map_or(NONE.to_owned(), ratio));
        let bars = has_bars.then(|| bars_of(task));
        table += &row(first.into_iter().chain(ratios).chain(bars));
    }
    table
}

/// A ratio with two digits that say something, and whether it is noisy.
fn ratio(result: &Subject) -> String {
    let Some(ratio) = result.ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0) else {
        return NONE.to_owned();
    };
    let digits = match ratio {
        r if r >= 9.95 => 0,
        r if r >= 0.0995 => 2,
        r => (1.0 - r.log10().floor()).clamp(0.0, 8.0) as usize,
    };
    format!("{ratio:.digits$}{}", if result.is_noisy() { " n" } else { "" })
}

/// The bars of a task, each once: what it is, and who meets it.
fn bars_of(task: &Task) -> String {
    let mut bars: Vec<(String, Vec<String>)> = Vec::new();
    for result in &task.results {
        let Some(bar) = &result.bar else { continue };
        let met = result.bar_met.map_or("not judged", |met| if met { "met" } else { "not met" });
        let said = format!("{} {met}", result.subject.trim_start_matches("vellum-"));
        let limit = bar.unit.limit(bar.at_most);
        match bars.iter_mut().find(|(known, _)| *known == limit) {
            Some((_, all)) => all.push(said),
            None => bars.push((limit, vec![said])),
        }
    }
    let said: Vec<String> = bars.into_iter().map(|(bar, all)| format!("{bar}: {}", all.join(", "))).collect();
    if said.is_empty() { NONE.to_owned() } else { said.join("; ") }
}

fn counts(results: &Results, tasks: &[&Task], subjects: &[&str]) -> String {
    let names = std::iter::once("experiment").chain(subjects.iter().copied());
    let mut table = row(names.map(str::to_owned));
    table += &row(std::iter::repeat_n("---".to_owned(), subjects.len() + 1));
    for task in tasks {
        let of = |name: &&str| find_subject(task, name).map_or(NONE.to_owned(), counted);
        table += &row(std::iter::once(results.full_name(task)).chain(subjects.iter().map(of)));
    }
    table
}

fn counted(result: &Subject) -> String {
    let of = |value: Option<f64>| value.map_or(NONE.to_owned(), count);
    let charged = |side: Option<f64>| side.map_or(NONE.to_owned(), bytes);
    let memory = result.charged.as_ref();
    format!(
        "{}; {} + {}; {} + {}",
        of(result.requests_per_operation),
        of(result.client_calls_per_operation),
        of(result.service_calls_per_operation),
        charged(memory.and_then(|memory| memory.client_bytes)),
        charged(memory.and_then(|memory| memory.service_bytes)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_table(text: &str, names: &[&str], of: TableKind) -> Result<String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.json");
        std::fs::write(&file, text).unwrap();
        make(&[file], &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), of)
    }

    #[test]
    fn every_row_has_every_column() {
        for of in [TableKind::Ratios, TableKind::Counts] {
            let table = make_table(SMALL, &[], of).unwrap();
            let columns: Vec<usize> = table.lines().map(|line| line.split('|').count()).collect();
            assert!(
                columns.len() > 3 && columns.iter().all(|count| Some(count) == columns.first()),
                "{table}"
            );
            assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
        }
    }

    #[test]
    fn tasks_are_chosen_by_how_their_names_begin() {
        let table = make_table(SMALL, &["open-"], TableKind::Ratios).unwrap();
        assert!(table.contains("| open-read |") && !table.contains("block-"), "{table}");
        let error = make_table(SMALL, &["nothing"], TableKind::Ratios).unwrap_err();
        assert!(error.bad_input && error.to_string().contains("--list"), "{error}");
    }

    #[test]
    fn a_name_cannot_end_its_cell() {
        let table = make_table(&SMALL.replace("open-read", "a|b"), &[], TableKind::Ratios).unwrap();
        assert!(table.contains("| a/b |"), "{table}");
    }
}
