//! What tasks are called, in words and in addresses: of one that was done on several filesystems there are several.

use super::html::Html;
use super::results::{Results, Task};
use super::verdict::tag;

/// The filesystem that a task was done on, where its name alone does not say which one is meant.
pub(super) fn filesystem<'a>(results: &'a Results, task: &Task) -> Option<&'a str> {
    let several = results.tasks.iter().filter(|other| other.name == task.name).count() > 1;
    results.filesystem(task).filter(|_| several)
}

/// The name in words.
pub(super) fn full(results: &Results, task: &Task) -> String {
    match filesystem(results, task) {
        Some(filesystem) => format!("{} on {filesystem}", task.name),
        None => task.name.clone(),
    }
}

/// What stands beside the name: the filesystem in a frame, where it has to be said.
pub(super) fn mark(html: &mut Html, results: &Results, task: &Task) {
    if let Some(filesystem) = filesystem(results, task) {
        tag(html, "muted", filesystem);
    }
}

/// Where the page shows the task with a number; names that could be anything are not for addresses.
pub(super) fn anchor(results: &Results, number: usize, task: &Task) -> String {
    let plain = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let name = Some(task.name.as_str()).filter(plain);
    match (name, filesystem(results, task)) {
        (Some(name), None) => format!("task-{name}"),
        // No name has an underscore, so that nothing else is called that.
        (Some(name), Some(filesystem)) if plain(&filesystem) => format!("task-{name}_{filesystem}"),
        _ => format!("task_{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{SMALL, results};
    use std::collections::BTreeSet;

    #[test]
    fn names_say_which_filesystem_is_meant() {
        let on = |filesystem: &str| {
            SMALL.replace("\"filesystem\": \"ext4\"", &format!("\"filesystem\": \"{filesystem}\""))
        };
        let texts = [SMALL, &on("xfs"), &on("<i>"), &on("")].map(str::to_owned);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let several = results::of(&texts).unwrap();
        let of = |number: usize| several.tasks.get(number).unwrap();
        assert_eq!(
            [0, 1, 2].map(|number| full(&several, of(number))),
            ["open-read on ext4", "open-read on xfs", "open-read on <i>"]
        );
        let anchors: Vec<String> =
            several.tasks.iter().enumerate().map(|(number, task)| anchor(&several, number, task)).collect();
        assert_eq!(anchors[..4], ["task-open-read_ext4", "task-open-read_xfs", "task_2", "task_3"]);
        assert_eq!(anchors.iter().collect::<BTreeSet<_>>().len(), several.tasks.len());
        let page = crate::page::page(&several);
        assert!(page.contains("&lt;i&gt;") && !page.contains("<i>"));
        let alone = results::of(&[SMALL]).unwrap();
        let first = alone.tasks.first().unwrap();
        assert_eq!(
            (full(&alone, first), anchor(&alone, 0, first)),
            ("open-read".into(), "task-open-read".into())
        );
    }
}
