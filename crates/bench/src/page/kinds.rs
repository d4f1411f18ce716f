//! Which requests and system calls there were: a reader who asks where the time goes finds it here, others need not see it.

use super::html::Html;
use super::numbers::{NONE, count};
use super::results::{Counts, Subject, Task};
use super::table::{head, heads, scrolled};
use std::collections::BTreeMap;

/// Something that was counted by kind.
type Group = (&'static str, fn(&Subject) -> Option<&Counts>);

const GROUPS: &[Group] = &[
    ("Requests to the service", |result| result.requests.as_ref()),
    ("System calls of the client", |result| result.client_calls.as_ref()),
    ("System calls of the service", |result| result.service_calls.as_ref()),
];

/// Writes what was counted of a task, if anything was.
pub(super) fn write(html: &mut Html, task: &Task) {
    let counted =
        |result: &&Subject| GROUPS.iter().any(|(_, of)| of(result).is_some_and(|all| !all.is_empty()));
    let subjects: Vec<&Subject> = task.results.iter().filter(counted).collect();
    if subjects.is_empty() {
        return;
    }
    let name = "Requests and system calls by kind";
    html.element("details", &[], |html| {
        html.words("summary", &[], name);
        scrolled(html, "kinds", &format!("{name}: {}", task.name), |html| {
            heads(html, |html| {
                head(html, "", "Per operation", "");
                subjects.iter().for_each(|result| head(html, "n", &result.subject, ""));
            });
            GROUPS.iter().for_each(|group| body(html, task, &subjects, group));
        });
    });
}

fn body(html: &mut Html, task: &Task, subjects: &[&Subject], (title, of): &Group) {
    // The most frequent first.
    let mut kinds: BTreeMap<&str, f64> = BTreeMap::new();
    for (kind, number) in subjects.iter().filter_map(|result| of(result)).flatten() {
        let most = kinds.entry(kind).or_default();
        *most = most.max(*number);
    }
    let mut kinds: Vec<(&str, f64)> = kinds.into_iter().collect();
    kinds.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    if kinds.is_empty() {
        return;
    }
    let operations = task.operations.max(1) as f64 * f64::from(task.passes.max(1));
    html.element("tbody", &[], |html| {
        html.element("tr", &[("class", "group")], |html| {
            let columns = (subjects.len() + 1).to_string();
            html.words("th", &[("scope", "rowgroup"), ("colspan", &columns)], title);
        });
        for (kind, _) in kinds {
            html.element("tr", &[], |html| {
                html.words("th", &[("scope", "row")], kind);
                for result in subjects {
                    let number = of(result).and_then(|all| all.get(kind)).map(|all| count(all / operations));
                    html.words("td", &[("class", "n")], number.as_deref().unwrap_or(NONE));
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{SMALL, results};

    fn kinds(number: usize) -> String {
        let results = results::of(&[SMALL]).unwrap();
        let mut html = Html::default();
        write(&mut html, results.tasks.get(number).unwrap());
        html.finish()
    }

    #[test]
    fn the_most_frequent_stand_first() {
        let open = kinds(0);
        let at = |word: &str| open.find(word).unwrap_or_else(|| panic!("{word}: {open}"));
        assert!(at("Requests to the service") < at(">LOOKUP<") && at(">LOOKUP<") < at("&lt;i&gt;OPEN"));
        assert!(at("System calls of the client") < at(">openat<") && at(">openat<") < at(">read<"));
        // 250 in 100 operations of one pass.
        assert!(
            open.contains("<td class=\"n\">2.50</td>") && open.contains("<td class=\"n\">&lt;0.01</td>"),
            "{open}"
        );
        assert!(open.starts_with("<details><summary>") && !open.contains(">overlayfs-xfs<"));
    }

    #[test]
    fn what_nobody_counted_is_not_there() {
        assert_eq!(kinds(1), "");
    }
}
