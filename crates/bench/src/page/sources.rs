//! What the sources of the experiments report, each on its own machine.

/// Task, and the source's result in a few words.
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
    ("s2-append", "Danaus: 32 clones, up to 46\u{a0}% shorter"),
    ("s2-shared-read", "Danaus: memory of one copy"),
];

/// The result of the source that a task repeats; None: it repeats none.
pub(super) fn source_of(task: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(name, _)| *name == task).map(|(_, result)| *result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks;

    #[test]
    fn sources_of_blocks_are_of_tasks_that_there_are() {
        for (name, _) in SOURCES.iter().filter(|(name, _)| name.starts_with("block-")) {
            assert!(tasks::named(name).is_some(), "{name}");
        }
        assert_eq!(source_of("block-stride"), Some("TranslayFS: 36\u{a0}% faster than overlayfs"));
        assert_eq!(source_of("open-read"), None);
    }
}
