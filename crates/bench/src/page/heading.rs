//! What has to be known before any number: the machine, the moment, what was compared, what is missing.

use super::html::Html;
use super::results::{Results, Run};
use super::summary::PEERS;
use super::verdict::tag;

/// Writes the heading.
pub(super) fn write(html: &mut Html, results: &Results) {
    html.element("header", &[], |html| {
        html.words("h1", &[], "Vellum beside other filesystems");
        html.words(
            "p",
            &[("class", "lead")],
            "The same tasks on each filesystem in turn, round by round on one machine, and beside them what the \
             sources of the experiments report of theirs.",
        );
        // Of several runs the conditions would stand in the way of the table: they follow it.
        if let [(_, run, _)] = results.used_runs()[..] {
            conditions(html, run);
            notices(html, run);
        }
        html.words("p", &[("class", "muted")], &how_to_read(results));
    });
}

/// Writes the conditions of each of several runs.
pub(super) fn write_runs(html: &mut Html, results: &Results) {
    let runs = results.used_runs();
    if runs.len() < 2 {
        return;
    }
    for (number, run, tasks) in &runs {
        let plural = if *tasks == 1 { "" } else { "s" };
        html.words("h2", &[("class", "run")], &format!("Run {}: {tasks} task{plural}", number + 1));
        conditions(html, run);
        notices(html, run);
    }
}

fn conditions(html: &mut Html, run: &Run) {
    let machine = &run.machine;
    html.element("dl", &[], |html| {
        let cores = if machine.cores == 1 { "core" } else { "cores" };
        fact(
            html,
            "Machine",
            &format!("{}, {} {cores}, {} MiB", machine.cpu, machine.cores, machine.memory_mib),
        );
        fact(html, "Kernel", &format!("Linux {}", machine.kernel));
        fact(html, "Filesystem", &machine.filesystem);
        fact(html, "Date", &moment(&machine.date));
        fact(html, "Rounds", &run.rounds.to_string());
        fact(html, "Scale", &run.scale.to_string());
        let subjects: Vec<String> = run.subjects.iter().map(subject).collect();
        if !subjects.is_empty() {
            fact(html, "Compared", &subjects.join(", "));
        }
    });
}

/// A time of ISO 8601 as people write it; anything else as it is.
fn moment(date: &str) -> String {
    match date.strip_suffix('Z').and_then(|rest| rest.split_once('T')) {
        Some((day, time)) => format!("{day} {time} UTC"),
        None => date.to_owned(),
    }
}

fn subject(note: &super::results::Note) -> String {
    let more: Vec<&str> = [&note.version, &note.options].into_iter().flatten().map(String::as_str).collect();
    if more.is_empty() { note.name.clone() } else { format!("{} ({})", note.name, more.join("; ")) }
}

fn fact(html: &mut Html, name: &str, value: &str) {
    html.element("div", &[], |html| {
        html.words("dt", &[], name);
        html.words("dd", &[], value);
    });
}

/// What takes away from the numbers.
fn notices(html: &mut Html, run: &Run) {
    let mut notice = |class: &str, word: &str, why: &str| {
        html.element("p", &[("class", "notice")], |html| {
            tag(html, class, word);
            html.text(" ");
            html.text(why);
        });
    };
    if run.interrupted {
        notice(
            "bad",
            "interrupted",
            "The run was ended before it was through: tasks and rounds are missing.",
        );
    }
    if run.is_noisy() {
        let load = run.machine.load_before;
        notice("warn", "noisy", &format!("The load average was {load:.2} before the start."));
    }
    if run.scale != 1.0 {
        let scale = run.scale;
        notice("warn", &format!("scale {scale}"), "Counts and sizes are not those that the bars are for.");
    }
    for missing in &run.missing {
        notice("warn", "missing", &format!("{}: {}", missing.name, missing.why));
    }
    for peer in PEERS {
        let named = run.subjects.iter().any(|note| note.name == *peer);
        if !named && !run.missing.iter().any(|missing| missing.name == *peer) {
            notice("warn", "missing", &format!("{peer}: this run was not to compare it."));
        }
    }
}

fn how_to_read(results: &Results) -> String {
    let ratios = match results.denominators().as_slice() {
        [] => "There are no ratios, as neither overlayfs nor host took part.".to_owned(),
        all => {
            let all = all.join(" or ");
            format!(
                "A ratio is the time divided by the time of {all} in the same round, the median of all rounds: \
                 below 1 is faster than {all}. In brackets is where it lies with a probability of 95\u{a0}%, or its \
                 range, from the smallest to the largest, where the rounds are too few."
            )
        }
    };
    format!(
        "{ratios} A result is called noisy when half the range of its times is more than a quarter of the median, or \
         its ratios vary too much to be believed."
    )
}
