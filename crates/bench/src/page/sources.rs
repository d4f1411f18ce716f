//! What the sources of the experiments report, each on its own machine.

use super::results::Results;

/// A task, or what the names of several begin with, and the source's result in a few words.
const SOURCES: &[(&str, &str)] = &[
    ("block-first-10g", "TranslayFS: 0.4 ms at 10 GB, overlayfs 51 s"),
    ("block-same", "TranslayFS: 4 to 7\u{a0}% slower than overlayfs"),
    ("block-others", "TranslayFS: 30 to 37\u{a0}% slower than overlayfs"),
    ("block-stride", "TranslayFS: 36\u{a0}% faster than overlayfs"),
    ("block-read-lower", "TranslayFS: 0.5\u{a0}% slower than overlayfs"),
    ("block-read-half", "TranslayFS: 3.9\u{a0}% slower than overlayfs"),
    ("block-random-410", "TranslayFS: faster than overlayfs"),
    ("block-random-4k", "TranslayFS: faster than overlayfs"),
    ("s1-drbl", "Enhanced OverlayFS: 75\u{a0}% of the host at 64 processes"),
    ("s1-dwol", "Enhanced OverlayFS: 75\u{a0}% of the host at 64 processes"),
    ("s1-oltp", "Enhanced OverlayFS: 88\u{a0}% of the host"),
    ("s2-start-up", "Danaus: start of 1 to 256 Lighttpd clones 2.3 to 14.2 times faster than unionfs-fuse"),
    (
        "s2-isolation",
        "Danaus: a file server beside random I/O loses 0 to 16\u{a0}%; in the kernel 7.4 to 16.5 times",
    ),
    ("s2-scale-out", "Danaus: 1.7 times faster than FUSE (1 pool), 2.3 than the kernel (8 pools)"),
    ("s2-rocksdb-put", "Danaus: 5.9 times faster than FUSE at 32 pools, 16.2 than the kernel"),
    ("s2-rocksdb-get", "Danaus: 1.4 times faster than FUSE at 32 pools, 2.2 than the kernel"),
    ("s2-append", "Danaus: 32 clones, up to 46\u{a0}% shorter"),
    ("s2-shared-read", "Danaus: memory of one copy"),
    ("s3-shares-four", "Weight-aware page cache: 2.2\u{a0}% off the ideal shares instead of 24.0\u{a0}%"),
    ("s3-throughput-four", "Weight-aware page cache: 5.8\u{a0}% of the throughput lost"),
];

/// An experiment of a source on what Vellum does not do yet.
#[derive(Debug)]
pub(super) struct Planned {
    /// What the names of its tasks will begin with.
    tasks: &'static str,
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) result: &'static str,
}

const PLANNED: &[Planned] = &[Planned {
    tasks: "s5-",
    name: "Checkpoint isolation",
    title: "a container writes while others are checkpointed",
    result: "Checkpoint isolation on ZNS: latency and bandwidth as without a checkpoint; on a SATA SSD latency up to 50 times",
}];

/// What is not there yet, as long as there is no result of it.
pub(super) fn planned(results: &Results) -> impl Iterator<Item = &'static Planned> {
    let is_there = |planned: &&Planned| results.tasks.iter().any(|task| task.name.starts_with(planned.tasks));
    PLANNED.iter().filter(move |planned| !is_there(planned))
}

/// The result of the source that a task repeats; None: it repeats none.
pub(super) fn source_of(task: &str) -> Option<&'static str> {
    let is_of =
        |name: &str| task.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    SOURCES.iter().find(|(name, _)| is_of(name)).map(|(_, result)| *result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{SMALL, results};
    use crate::tasks;

    #[test]
    fn sources_are_of_tasks_that_there_are() {
        for (name, result) in SOURCES {
            assert!(tasks::TASKS.iter().any(|task| source_of(task.name) == Some(result)), "{name}");
        }
        assert!(source_of("s1-drbl-16").is_some() && source_of("block-random-41k").is_none());
        assert_eq!(source_of("block-stride"), Some("TranslayFS: 36\u{a0}% faster than overlayfs"));
        assert_eq!(source_of("open-read"), None);
    }

    #[test]
    fn what_has_a_result_is_there() {
        let names = |text: &str| {
            let results = results::of(&[text]).unwrap();
            planned(&results).map(|planned| planned.name).collect::<Vec<_>>()
        };
        assert_eq!(names(SMALL), ["Checkpoint isolation"]);
        assert!(names(&SMALL.replace("block-same", "s5-writes")).is_empty());
    }
}
