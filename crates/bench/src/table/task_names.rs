//! What tasks are called: a task that was measured on several filesystems appears once for each.

use super::merged_reports::{Results, Task};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{SMALL, merged_reports};

    #[test]
    fn names_say_which_filesystem_is_meant() {
        let on = |filesystem: &str| {
            SMALL.replace("\"filesystem\": \"ext4\"", &format!("\"filesystem\": \"{filesystem}\""))
        };
        let texts = [SMALL, &on("xfs"), &on("<i>"), &on("")].map(str::to_owned);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let several = merged_reports::read_texts(&texts).unwrap();
        let of = |number: usize| several.tasks.get(number).unwrap();
        assert_eq!(
            [0, 1, 2].map(|number| full(&several, of(number))),
            ["open-read on ext4", "open-read on xfs", "open-read on <i>"]
        );
        let alone = merged_reports::read_texts(&[SMALL]).unwrap();
        let first = alone.tasks.first().unwrap();
        assert_eq!(full(&alone, first), "open-read");
    }
}
