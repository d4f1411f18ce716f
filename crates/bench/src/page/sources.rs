//! What the sources of the experiments report, each on its own machine.

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
    ("s2-append", "Danaus: 32 clones, up to 46\u{a0}% shorter"),
    ("s2-shared-read", "Danaus: memory of one copy"),
];

/// The result of the source that a task repeats; None: it repeats none.
pub(super) fn source_of(task: &str) -> Option<&'static str> {
    let is_of =
        |name: &str| task.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    SOURCES.iter().find(|(name, _)| is_of(name)).map(|(_, result)| *result)
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
