//! A task: what it does, its figure, and its numbers.

use super::html::Html;
use super::results::{Results, Task};
use super::{figure, kinds, naming, tables};

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
        tables::write(html, task, results.denominator(task));
        kinds::write(html, task);
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

    #[test]
    fn costs_stand_in_a_table_of_their_own() {
        let open = section(0);
        let (times, costs) = open.split_once("What it costs").unwrap();
        has(times, &["95 %", "<td class=\"n\">1.010 to 1.070</td>", "aria-label=\"Times: open-read\""]);
        has(costs, &["System calls", "4.00 + 1.50", "Page faults", "0.25 + &lt;0.01", "Locked", ">12.0<"]);
        has(costs, &["Shared", "Kernel threads", "4.00 ms", "charged", "1.5 MiB + 3.0 MiB", "<details>"]);
        let (table, _) = costs.split_once("<details>").unwrap();
        assert!(!table.contains("tag ") && table.matches("<tr>").count() == 8, "{table}");
        // Where nothing of that was counted, no column says so.
        for word in
            ["95 %", "System calls", "Page faults", "Locked", "Shared", "Kernel", "charged", "<details"]
        {
            assert!(!section(1).contains(word), "{word}");
        }
        has(&section(2), &["overlayfs-xfs", "bar kernel"]);
    }
}
