//! The table that says it all: what the source found, what the best peer does here, what Vellum does, and its bar.

use super::html::Html;
use super::naming;
use super::numbers::{NONE, bytes, range, ratio, time};
use super::results::{Results, Subject, Task};
use super::sources::{Planned, planned, source_of};
use super::table::{head, heads, scrolled};
use super::verdict::{Verdict, limit, tags};
use crate::contender::Kind;

/// Other filesystems for the same purpose, without the kernel's.
pub(super) const PEERS: &[&str] = &["fuse-overlayfs", "fuse-overlayfs-2", "unionfs-fuse"];

/// Writes the table.
pub(super) fn write(html: &mut Html, results: &Results) {
    let divided = match results.denominators().as_slice() {
        [] => "time".to_owned(),
        all => format!("time ÷ time of {}", all.join(" or ")),
    };
    scrolled(html, "summary", "Summary", |html| {
        heads(html, |html| {
            head(html, "", "Experiment", "");
            head(html, "", "Source\u{2019}s result", "on its own machine");
            head(html, "n", "Best peer here", &divided);
            head(html, "n", "Vellum here", &divided);
            head(html, "n", "Bar", "at most; × overlayfs");
            head(html, "", "Met", "");
        });
        html.element("tbody", &[], |html| {
            for (number, task) in results.tasks.iter().enumerate() {
                row(html, results, number, task);
            }
            planned(results).for_each(|planned| not_yet(html, planned));
        });
    });
}

/// The row of what Vellum does not do yet.
fn not_yet(html: &mut Html, planned: &Planned) {
    html.element("tr", &[("class", "planned")], |html| {
        html.element("th", &[("scope", "row")], |html| {
            html.text(planned.name);
            html.words("small", &[], planned.title);
        });
        html.words("td", &[("class", "source")], planned.result);
        html.words("td", &[("class", "n")], NONE);
        html.words("td", &[("class", "n muted")], "not there yet");
        html.words("td", &[("class", "n")], NONE);
        html.words("td", &[("class", "verdict muted")], NONE);
    });
}

fn row(html: &mut Html, results: &Results, number: usize, task: &Task) {
    let peer = best(task, |name| Kind::named(name).is_some_and(|kind| PEERS.contains(&kind.union().name())));
    let vellum: Vec<&Subject> = task.results.iter().filter(|result| is_vellum(&result.subject)).collect();
    let own = best(task, is_vellum).or(vellum.first().copied());
    // With runs of several denominators every ratio says which is its own.
    let denominator = results.denominator(task).filter(|_| results.denominators().len() > 1);
    html.element("tr", &[], |html| {
        html.element("th", &[("scope", "row")], |html| {
            let address = format!("#{}", naming::anchor(results, number, task));
            html.words("a", &[("href", &address)], &task.name);
            naming::mark(html, results, task);
            html.words("small", &[], &task.title);
        });
        html.words("td", &[("class", "source")], source_of(&task.name).unwrap_or(NONE));
        for result in [peer, own] {
            html.element("td", &[("class", "n")], |html| value(html, task, result, denominator));
        }
        let barred =
            own.filter(|own| own.bar.is_some()).or(vellum.iter().copied().find(|one| one.bar.is_some()));
        let bar = barred.and_then(|barred| barred.bar.as_ref());
        html.words("td", &[("class", "n")], &bar.map_or(NONE.to_owned(), limit));
        html.element("td", &[("class", "verdict")], |html| {
            match barred {
                Some(barred) => verdict(html, own, barred, &vellum),
                None => html.words("span", &[("class", "muted")], NONE),
            };
        });
    });
}

/// The verdict of the profile that is shown; the other one is named where it fares otherwise, and so is one that alone
/// has a bar.
fn verdict(html: &mut Html, own: Option<&Subject>, barred: &Subject, vellum: &[&Subject]) {
    let found = Verdict::of(barred);
    found.write(html);
    if own.is_none_or(|own| own.subject != barred.subject) {
        html.words("small", &[], &format!("by {}", profile(barred)));
    }
    for other in vellum.iter().filter(|other| other.subject != barred.subject) {
        let others = Verdict::of(other);
        if others != found && others != Verdict::NoBar {
            // One that has a bar of its own is not judged by that of the row.
            let of = other
                .bar
                .as_ref()
                .map(limit)
                .filter(|own| barred.bar.as_ref().map(limit).as_ref() != Some(own));
            let of = of.map_or(String::new(), |own| format!(" ({own})"));
            html.words("small", &[], &format!("{}: {}{of}", profile(other), others.word()));
        }
    }
}

/// The profile of a subject of Vellum.
fn profile(result: &Subject) -> &str {
    result.subject.strip_prefix("vellum-").unwrap_or(&result.subject)
}

fn is_vellum(name: &str) -> bool {
    Kind::named(name).is_some_and(Kind::is_vellum)
}

/// The best of some subjects: the smallest ratio, or what the task is judged by where there are none.
fn best(task: &Task, of: impl Fn(&str) -> bool) -> Option<&Subject> {
    let all = || task.results.iter().filter(|result| of(&result.subject));
    let smallest = |value: fn(&Subject) -> Option<f64>| {
        let valued = all().filter_map(|result| Some((result, value(result)?)));
        valued.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(result, _)| result)
    };
    if task.is_of_memory() {
        return smallest(|result| result.resident_bytes);
    }
    smallest(|result| result.ratio).or_else(|| smallest(|result| result.seconds))
}

fn value(html: &mut Html, task: &Task, result: Option<&Subject>, denominator: Option<&str>) {
    let Some(result) = result else { return html.text(NONE) };
    let memory = result.resident_bytes.filter(|_| task.is_of_memory()).map(bytes);
    let main = memory.clone().or_else(|| result.ratio.map(ratio)).or_else(|| result.seconds.map(time));
    html.words("b", &[], main.as_deref().unwrap_or(NONE));
    let interval = result.ratio_confidence.map(range);
    let interval = interval.or_else(|| result.ratio_range.map(|all| format!("range\u{a0}{}", range(all))));
    if let Some(interval) = interval.filter(|_| memory.is_none()) {
        html.text(" ");
        html.words("span", &[("class", "muted")], &format!("({interval})"));
    }
    let mut note = result.subject.clone();
    if let Some(seconds) = result.seconds {
        let what = if memory.is_some() { " in " } else { ", " };
        note.push_str(&format!("{what}{}", time(seconds)));
    }
    if let Some(denominator) = denominator.filter(|_| memory.is_none()) {
        note.push_str(&format!(", ÷ {denominator}"));
    }
    html.element("small", &[], |html| {
        html.text(&note);
        // Beside the name, where they do not push a number out of its column.
        tags(html, result);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{SMALL, results};

    fn rows(texts: &[&str]) -> Vec<String> {
        let results = results::of(texts).unwrap();
        let mut html = Html::default();
        write(&mut html, &results);
        html.finish().replace('\u{a0}', " ").split("<tr>").skip(2).map(str::to_owned).collect()
    }

    fn has(row: &str, words: &[&str]) {
        words.iter().for_each(|word| assert!(row.contains(word), "{word}: {row}"));
    }

    #[test]
    fn rows_name_source_peer_vellum_and_bar() {
        let rows = rows(&[SMALL]);
        has(
            &rows[0],
            &["<b>2.900</b>", "fuse-overlayfs, 34.80 ms", "vellum-cached, 12.50 ms", "1 ×", "✗ not met"],
        );
        has(
            &rows[1],
            &[
                "TranslayFS: 4 to 7 %",
                "<b>90.0</b>",
                "<b>0.800</b>",
                "(range 0.560 to 1.040)",
                "noisy",
                "✓ met",
            ],
        );
        has(&rows[1], &["<small>passthrough: not met"]);
        has(&rows[2], &["overlayfs 51 s", "1 ms", "500.0 µs", "met"]);
        has(&rows[3], &["520 MiB", "28.0 MiB", "50 MiB", "met"]);
        has(&rows[0], &["<b>1.042</b> <span class=\"muted\">(1.010 to 1.070)</span>"]);
        has(&rows[4], &["&lt;script&gt;alert(1)", "href=\"#task_4\"", "failed", NONE]);
    }

    #[test]
    fn a_bar_of_one_profile_is_judged_by_that_one() {
        let text = SMALL.replacen(
            "\"bar\": {\"task\": \"open-read\"",
            "\"bar\": null, \"other\": {\"task\": \"open-read\"",
            1,
        );
        has(&rows(&[&text])[0], &["vellum-cached, 12.50 ms", "not met", "by passthrough"]);
    }

    #[test]
    fn what_is_not_there_yet_ends_the_table() {
        let rows = rows(&[SMALL]);
        assert_eq!(rows.len(), 5);
        let all = rows.last().unwrap();
        has(all, &["Checkpoint isolation", "up to 50 times", "not there yet"]);
    }

    #[test]
    fn heads_name_the_denominator() {
        let of = |text: &str| {
            let mut html = Html::default();
            write(&mut html, &results::of(&[SMALL, text]).unwrap());
            html.finish()
        };
        has(&of(SMALL), &["<small>time ÷ time of overlayfs</small>"]);
        let other = SMALL
            .replace("\"denominator\": \"overlayfs\"", "\"denominator\": \"host\"")
            .replace("open-read", "x");
        has(&of(&other), &["time ÷ time of host or overlayfs", "ms, ÷ host", "ms, ÷ overlayfs"]);
    }
}
