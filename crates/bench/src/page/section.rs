//! A task: what it does, its figure, and its numbers.

use super::html::Html;
use super::numbers::{NONE, bytes, count, percent, range, ratio, time};
use super::results::{Results, Subject, Task};
use super::summary::{SCROLL, head};
use super::verdict::{Verdict, limit, tag, tags};
use super::{figure, naming};

/// Which columns there is something for.
#[derive(Clone, Copy)]
struct Columns {
    memory: bool,
    upper: bool,
    bars: bool,
}

/// Writes the section of a task.
pub(super) fn write(html: &mut Html, results: &Results, number: usize, task: &Task) {
    html.element("section", &[("id", &naming::anchor(results, number, task))], |html| {
        html.element("h2", &[], |html| {
            html.text(&task.name);
            naming::mark(html, results, task);
        });
        html.words("p", &[], &format!("{} ({})", task.title, task.state));
        html.words("p", &[("class", "muted")], &extent(results, task));
        figure::write(html, results, task);
        numbers(html, task, results.denominator(task));
    });
}

/// How much is done in one measurement, and in which run where there are several.
fn extent(results: &Results, task: &Task) -> String {
    let plural = |number: u64, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
    let operations = plural(task.operations as u64, "operation");
    let passes = match task.passes {
        0 | 1 => String::new(),
        many => format!(", {many} passes in a measurement"),
    };
    let run = match results.used_runs().len() {
        0 | 1 => String::new(),
        _ => format!(", run {}", task.run + 1),
    };
    format!("{operations} in a pass{passes}{run}")
}

fn numbers(html: &mut Html, task: &Task, denominator: Option<&str>) {
    let columns = Columns {
        memory: task.is_of_memory(),
        upper: task.results.iter().any(|result| result.middle(|sample| sample.upper_bytes).is_some()),
        bars: task.results.iter().any(|result| result.bar.is_some()),
    };
    html.element("div", SCROLL, |html| {
        html.element("table", &[], |html| {
            html.element("thead", &[], |html| {
                html.element("tr", &[], |html| heads(html, columns, denominator));
            });
            html.element("tbody", &[], |html| {
                for result in &task.results {
                    html.element("tr", &[], |html| row(html, columns, result));
                }
            });
        });
    });
}

fn heads(html: &mut Html, columns: Columns, denominator: Option<&str>) {
    let divided =
        denominator.map_or("nothing to divide by".to_owned(), |name| format!("time ÷ time of {name}"));
    head(html, "", "Filesystem", "");
    if columns.memory {
        head(html, "n", "Memory", "resident, service");
    }
    head(html, "n", "Time", "median of a pass");
    head(html, "n", "Spread", "± of the median");
    head(html, "n", "Ratio", &divided);
    head(html, "n", "Range", "of the ratio");
    head(html, "n", "Requests", "per operation");
    head(html, "n", "Switches", "per operation, client + service");
    head(html, "n", "Client", "processor time");
    head(html, "n", "Service", "processor time");
    if columns.upper {
        head(html, "n", "Upper", "space taken");
    }
    if columns.bars {
        head(html, "", "Bar", "at most; × overlayfs");
    }
}

fn row(html: &mut Html, columns: Columns, result: &Subject) {
    html.element("th", &[("scope", "row")], |html| {
        html.text(&result.subject);
        tags(html, result);
        for peer in &result.behind {
            tag(html, "warn", &format!("behind {peer}"));
        }
        if let Some(failure) = &result.failure {
            let then = if result.seconds.is_some() { "then failed: " } else { "" };
            html.words("small", &[], &format!("{then}{failure}"));
        }
    });
    let or_none = |value: Option<String>| value.unwrap_or_else(|| NONE.to_owned());
    let mut cell = |value: Option<String>| html.words("td", &[("class", "n")], &or_none(value));
    if columns.memory {
        cell(result.resident_bytes.map(bytes));
    }
    cell(result.seconds.map(time));
    cell(result.spread.map(percent));
    cell(result.ratio.map(ratio));
    cell(result.ratio_range.map(range));
    cell(result.requests_per_operation.map(count));
    cell(switches(result));
    cell(result.middle(|sample| sample.client_cpu_seconds).map(time));
    cell(result.middle(|sample| sample.service_cpu_seconds).map(time));
    if columns.upper {
        cell(result.middle(|sample| sample.upper_bytes).map(bytes));
    }
    if columns.bars {
        html.element("td", &[("class", "verdict")], |html| match &result.bar {
            Some(bar) => {
                Verdict::of(result).write(html);
                html.words("small", &[], &limit(bar));
            }
            None => html.text(NONE),
        });
    }
}

fn switches(result: &Subject) -> Option<String> {
    let client = count(result.client_switches_per_operation?);
    Some(match result.service_switches_per_operation {
        Some(service) => format!("{client}\u{a0}+\u{a0}{}", count(service)),
        None => client,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{SMALL, results};

    fn section(number: usize) -> String {
        let results = results::of(&[SMALL]).unwrap();
        let mut html = Html::default();
        write(&mut html, &results, number, results.tasks.get(number).unwrap());
        html.finish().replace('\u{a0}', " ")
    }

    fn has(text: &str, words: &[&str]) {
        words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
    }

    #[test]
    fn numbers_stand_in_the_table() {
        let open = section(0);
        has(&open, &["id=\"task-open-read\"", "time ÷ time of overlayfs", "100 operations in a pass"]);
        has(
            &open,
            &["<td class=\"n\">34.80 ms</td>", "<td class=\"n\">4 %</td>", "2.784 to 3.016", "0.50 + 1.25"],
        );
        has(&open, &["unionfs-fuse <span class=\"tag warn\">noisy</span>", "20.00 ms", "not met"]);
        assert!(!open.contains("space taken") && !open.contains("resident"));
    }

    #[test]
    fn columns_are_there_for_what_was_measured() {
        has(&section(1), &["space taken", "8 KiB", "the service ended: exit status: 1"]);
        has(&section(3), &["resident, service", "28.0 MiB", "50 MiB"]);
        has(&section(4), &["then failed: then &lt;/p&gt; ended"]);
        assert!(!section(4).contains("Bar"));
    }
}
