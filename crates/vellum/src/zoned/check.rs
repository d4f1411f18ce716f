//! `vellum zoned check`: everything is read and compared with its checksum.

use super::args::LookArgs;
use super::device;
use crate::options::quote;
use crate::{inspect::size, json};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Write;
use vellum_service::Failure;
use vellum_zoned::device::Access;

#[derive(Serialize)]
struct Report {
    clean: bool,
    objects: u64,
    bytes: u64,
    damaged_objects: Vec<DamageReport>,
    problems: Vec<String>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct DamageReport {
    name: String,
    why: String,
}

/// Checks; says what was found. A failure when that is not that all is well.
pub(super) fn run(arguments: &LookArgs) -> Result<String, Failure> {
    let path = arguments.device.display();
    let (found, store) = device::store(&arguments.device, Access::Read)?;
    let block = u64::from(found.device.geometry().block_size);
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    let checked = store.check_watched(&mut |done, all| {
        bar.set_length(all * block);
        bar.set_position(done * block);
    });
    bar.finish_and_clear();
    let checked = checked.map_err(|e| Failure::system(format!("{path}: cannot be checked")).because(e))?;
    let damaged = |(name, why): &(Vec<u8>, String)| DamageReport { name: quote(name), why: why.clone() };
    let report = Report {
        clean: checked.is_clean(),
        objects: checked.objects,
        bytes: checked.blocks * block,
        damaged_objects: checked.unreadable.iter().map(damaged).collect(),
        problems: checked.problems,
        notes: checked.notes,
    };
    let text = if arguments.json { json::pretty(&report)? } else { text(&report) };
    if report.clean {
        return Ok(text);
    }
    print!("{text}");
    let line = format!("{path}: not everything is intact, as reported above");
    Err(Failure::system(line)
        .remedy("opening the store to write mends copies of metadata; objects have to be written anew"))
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for damaged in &report.damaged_objects {
        let _ = writeln!(text, "object {}: {}", damaged.name, damaged.why);
    }
    for problem in &report.problems {
        let _ = writeln!(text, "{problem}");
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let result = match report.damaged_objects.len() {
        0 => "all whole".to_owned(),
        damaged => format!("{damaged} damaged"),
    };
    let _ = writeln!(text, "{} objects, {} read: {result}", report.objects, size(report.bytes));
    text
}
