//! The numbers of a task in two tables: what it takes in time, and what else it costs.

use super::html::Html;
use super::numbers::{NONE, bytes, count, percent, range, ratio, time};
use super::results::{Subject, Task};
use super::table::{head, heads, scrolled};
use super::verdict::{Verdict, limit, tag, tags};

/// A column; it is there when some result has something for it.
struct Column<'a> {
    name: &'a str,
    unit: &'a str,
    of: fn(&Subject) -> Option<String>,
}

/// What the numbers of the second table are, unless their column says otherwise.
const COSTS: &str = "per operation; client + service";
const CPU: &str = "processor time";

/// Writes both.
pub(super) fn write(html: &mut Html, task: &Task, denominator: Option<&str>) {
    let divided = denominator.map(|name| format!("time ÷ time of {name}")).unwrap_or_default();
    let mut times = vec![
        column("Time", "median of a pass", |result| result.seconds.map(time)),
        column("Spread", "± of the median", |result| result.spread.map(percent)),
        column("Ratio", &divided, |result| result.ratio.map(ratio)),
        column("95\u{a0}%", "interval of the ratio", |result| result.ratio_confidence.map(range)),
        column("Range", "of the ratio", |result| result.ratio_range.map(range)),
        column("Upper", "space taken", |result| result.middle(|sample| sample.upper_bytes).map(bytes)),
    ];
    if task.is_of_memory() {
        times.insert(0, column("Memory", "resident, service", |result| result.resident_bytes.map(bytes)));
    }
    let costs = [
        column("Requests", "", |result| result.requests_per_operation.map(count)),
        column("System calls", "", |result| {
            both(result.client_calls_per_operation, result.service_calls_per_operation, count)
        }),
        column("Switches", "", |result| {
            both(result.client_switches_per_operation, result.service_switches_per_operation, count)
        }),
        column("Page faults", "", |result| {
            both(result.client_faults_per_operation, result.service_faults_per_operation, count)
        }),
        column("Locked", "instructions", |result| result.locked_per_operation.map(count)),
        column("Shared", "lines written", |result| result.shared_writes_per_operation.map(count)),
        column("Client", CPU, |result| result.middle(|sample| sample.client_cpu_seconds).map(time)),
        column("Service", CPU, |result| result.middle(|sample| sample.service_cpu_seconds).map(time)),
        column("Kernel threads", CPU, |result| result.middle(|sample| sample.kernel_cpu_seconds).map(time)),
        column("Memory", "charged", |result| {
            let charged = result.charged.as_ref()?;
            both(charged.client_bytes, charged.service_bytes, bytes)
        }),
    ];
    table(html, ("Filesystem", ""), task, times, true);
    table(html, ("What it costs", COSTS), task, costs, false);
}

fn column<'a>(name: &'a str, unit: &'a str, of: fn(&Subject) -> Option<String>) -> Column<'a> {
    Column { name, unit, of }
}

/// What the client has of something, and the service, if there is one.
fn both(client: Option<f64>, service: Option<f64>, written: fn(f64) -> String) -> Option<String> {
    match (client, service) {
        (None, None) => None,
        (Some(client), None) => Some(written(client)),
        (client, Some(service)) => {
            let client = client.map_or(NONE.to_owned(), written);
            Some(format!("{client}\u{a0}+\u{a0}{}", written(service)))
        }
    }
}

/// A table; verdicts belong into one of them only.
fn table<'a>(
    html: &mut Html,
    (name, unit): (&str, &str),
    task: &Task,
    columns: impl IntoIterator<Item = Column<'a>>,
    verdicts: bool,
) {
    let used = |column: &Column<'_>| task.results.iter().any(|result| (column.of)(result).is_some());
    let columns: Vec<Column<'_>> = columns.into_iter().filter(used).collect();
    if columns.is_empty() && !verdicts {
        return;
    }
    let bars = verdicts && task.results.iter().any(|result| result.bar.is_some());
    let region = if verdicts { "Times" } else { name };
    scrolled(html, "", &format!("{region}: {}", task.name), |html| {
        heads(html, |html| {
            head(html, "", name, unit);
            columns.iter().for_each(|column| head(html, "n", column.name, column.unit));
            if bars {
                head(html, "", "Bar", "at most; × overlayfs");
            }
        });
        html.element("tbody", &[], |html| {
            for result in &task.results {
                html.element("tr", &[], |html| {
                    subject(html, result, verdicts);
                    for column in &columns {
                        let value = (column.of)(result);
                        html.words("td", &[("class", "n")], value.as_deref().unwrap_or(NONE));
                    }
                    if bars {
                        bar(html, result);
                    }
                });
            }
        });
    });
}

fn subject(html: &mut Html, result: &Subject, verdicts: bool) {
    html.element("th", &[("scope", "row")], |html| {
        html.text(&result.subject);
        if !verdicts {
            return;
        }
        tags(html, result);
        for peer in &result.behind {
            tag(html, "warn", &format!("behind {peer}"));
        }
        if let Some(failure) = &result.failure {
            let then = if result.seconds.is_some() { "then failed: " } else { "" };
            html.words("small", &[], &format!("{then}{failure}"));
        }
    });
}

fn bar(html: &mut Html, result: &Subject) {
    html.element("td", &[("class", "verdict")], |html| match &result.bar {
        Some(bar) => {
            Verdict::of(result).write(html);
            html.words("small", &[], &limit(bar));
        }
        None => html.text(NONE),
    });
}
