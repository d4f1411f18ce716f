//! A report in the form in which it is kept beside the documents: what pages and figures are made of, every sample's times included,
//! and no digit more than a measurement has.

use crate::failure::{Failure, Result, While};
use serde_json::{Map, Number, Value};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What a sample keeps: times, and what a page shows the middle of.
const OF_SAMPLES: [&str; 6] = [
    "seconds",
    "client_cpu_seconds",
    "service_cpu_seconds",
    "kernel_cpu_seconds",
    "resident_bytes",
    "upper_bytes",
];
/// Counts by kind, of which those below one in [`RARE`] operations are left out: a page calls them less than 0.01.
const BY_KIND: [&str; 3] = ["requests", "client_calls", "service_calls"];
const RARE: f64 = 100.0;
/// Digits of every number that is no integer.
const DIGITS: i32 = 4;
/// Files of one day and machine, at most.
const NAMES_MAX: u32 = 100;

/// Writes the report `from`, which `compare --json` has written, into the directory `to`, under a name that says when and where it was
/// measured, and returns that file. What is there is not overwritten.
///
/// # Errors
///
/// `from` cannot be read or is no report, or nothing can be written in `to`.
pub fn make(from: &Path, to: &Path) -> Result<PathBuf> {
    let bad = |why: &dyn std::fmt::Display| {
        let from = from.display();
        Failure::bad_input(format!(
            "{from}: {why}; give a file that `vellum-bench compare --json` has written"
        ))
    };
    let text = fs::read_to_string(from).map_err(|error| bad(&error))?;
    let mut report: Value = serde_json::from_str(&text).map_err(|error| bad(&error))?;
    let name =
        name(&report).ok_or_else(|| bad(&"it does not say when and on which machine it was measured"))?;
    compact(&mut report);
    let free = (1..NAMES_MAX).find_map(|number| {
        let number = if number == 1 { String::new() } else { format!("-{number}") };
        let path = to.join(format!("{name}{number}.json"));
        let file = fs::File::create_new(&path);
        match file {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
            file => Some(file.map(|file| (file, path))),
        }
    });
    let (mut file, path) = free
        .ok_or_else(|| Failure::new("too many files of this day and machine"))?
        .doing(|| format!("making a file in {}", to.display()))?;
    file.write_all(lines(&report).as_bytes()).doing(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// The date, two words of the processor's name, and the number of cores: `2026-01-31-amd-epyc-2`.
fn name(report: &Value) -> Option<String> {
    let machine = report.get("machine")?;
    let date: String = machine.get("date")?.as_str()?.chars().take(10).collect();
    let cpu = machine.get("cpu")?.as_str()?.to_ascii_lowercase();
    let words = cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() > 2);
    let mut parts: Vec<&str> = vec![&date];
    parts.extend(words.take(2));
    let cores = machine.get("cores")?.as_u64()?.to_string();
    parts.push(&cores);
    // Whatever a file claims, it names no other directory.
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    Some(parts.join("-").chars().filter(|c| plain(*c)).collect())
}

/// Leaves out what nobody reads, and what is not known, and rounds the rest.
fn compact(report: &mut Value) {
    for task in report.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten() {
        let count = |key: &str| task.get(key).and_then(Value::as_f64).unwrap_or(1.0);
        let operations = count("operations") * count("passes");
        for result in task.get_mut("results").and_then(Value::as_array_mut).into_iter().flatten() {
            for key in BY_KIND {
                if let Some(kinds) = result.get_mut(key).and_then(Value::as_object_mut) {
                    kinds.retain(|_, count| count.as_f64().is_some_and(|count| count * RARE >= operations));
                }
            }
            let samples = result.get_mut("samples").and_then(Value::as_array_mut);
            for sample in samples.into_iter().flatten().filter_map(Value::as_object_mut) {
                sample.retain(|key, _| OF_SAMPLES.contains(&key.as_str()));
            }
        }
    }
    tidy(report);
}

/// Rounds numbers, and leaves members out that are null: a reader takes them for what is not there.
fn tidy(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(tidy),
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(tidy);
        }
        Value::Number(number) if !number.is_u64() && !number.is_i64() => {
            if let Some(short) = number.as_f64().and_then(rounded) {
                *number = short;
            }
        }
        _ => {}
    }
}

fn rounded(number: f64) -> Option<Number> {
    if number == 0.0 {
        return Number::from_f64(0.0);
    }
    // By way of text, which has no digit that was not asked for.
    format!("{number:.*e}", (DIGITS - 1).max(0) as usize).parse().ok().and_then(Number::from_f64)
}

/// A line for each result of each task, so that what changes between two files can be seen.
fn lines(report: &Value) -> String {
    let mut head: Map<String, Value> = report.as_object().cloned().unwrap_or_default();
    let tasks = head.remove("tasks").unwrap_or_default();
    let tasks: Vec<String> = tasks.as_array().into_iter().flatten().map(task_lines).collect();
    let head = Value::Object(head).to_string();
    let head = head.strip_suffix('}').unwrap_or_default();
    format!("{head},\n\"tasks\":[\n{}\n]}}\n", tasks.join(",\n"))
}

fn task_lines(task: &Value) -> String {
    let mut head: Map<String, Value> = task.as_object().cloned().unwrap_or_default();
    let results = head.remove("results").unwrap_or_default();
    let results: Vec<String> = results.as_array().into_iter().flatten().map(Value::to_string).collect();
    let head = Value::Object(head).to_string();
    let head = head.strip_suffix('}').unwrap_or_default();
    format!("{head},\"results\":[\n{}]}}", results.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{SMALL, TableKind, make as make_table};

    #[test]
    fn an_archived_report_has_all_its_readers_need() {
        let dir = tempfile::tempdir().unwrap();
        let (json, kept) = (dir.path().join("r.json"), dir.path().join("kept"));
        fs::create_dir(&kept).unwrap();
        // All but the kind that is rare.
        fs::write(&json, SMALL.replace(", \"statx\": 0.2", "")).unwrap();
        let (first, second) = (make(&json, &kept).unwrap(), make(&json, &kept).unwrap());
        assert!(first != second && second.to_string_lossy().ends_with("-2.json"), "{second:?}");
        for of in [TableKind::Ratios, TableKind::Counts] {
            let table = |file| make_table(std::slice::from_ref(file), &[], of).unwrap();
            assert_eq!(table(&json), table(&first));
        }
    }

    #[test]
    fn compaction_rounds_numbers_and_drops_unread_fields() {
        let mut report: Value = serde_json::json!({"tasks": [{"operations": 1000, "passes": 2, "results": [{
            "seconds": 0.012_345_678, "ratio": null, "requests": {"LOOKUP": 20, "FLUSH": 19},
            "samples": [null, {"seconds": 12.345_678, "client_faults": 3.0, "upper_bytes": 123_456}]}]}]});
        compact(&mut report);
        let small = serde_json::json!({"tasks": [{"operations": 1000, "passes": 2, "results": [{
            "seconds": 0.012_35, "requests": {"LOOKUP": 20},
            "samples": [null, {"seconds": 12.35, "upper_bytes": 123_456}]}]}]});
        assert_eq!(report, small);
    }

    #[test]
    fn report_names_consist_of_date_and_machine() {
        let of = |cpu: &str, date: &str| {
            name(&serde_json::json!({"machine": {"cpu": cpu, "date": date, "cores": 2}})).unwrap()
        };
        assert_eq!(of("AMD EPYC 9B14 @ 2.6", "2026-01-31T12:00:00Z"), "2026-01-31-amd-epyc-2");
        assert_eq!(of("Intel(R) Xeon(R) CPU", "../../etc/"), "etc-intel-xeon-2");
        assert_eq!(name(&serde_json::json!({"machine": {"cpu": "x"}})), None);
    }
}
