//! What the filesystems look like in every figure.

/// What a subject looks like.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) subject: &'static str,
    /// Distinguishable without red and green; the kernel's, the peers' and Vellum's are those of the page.
    pub(super) colour: &'static str,
    /// Its name in the legend.
    pub(super) title: &'static str,
}

const fn look(subject: &'static str, colour: &'static str, title: &'static str) -> Look {
    Look { subject, colour, title }
}

/// All that are drawn, in the order of their bars.
pub(super) const LOOKS: &[Look] = &[
    look("host", "#d0d4d8", "the host, no union"),
    look("overlayfs", "#9aa1a9", "kernel overlayfs"),
    look("overlayfs-xfs", "#5f6872", "kernel overlayfs on XFS"),
    look("fuse-overlayfs", "#c3a36b", "fuse-overlayfs 1.10"),
    look("fuse-overlayfs-2", "#8f6a34", "fuse-overlayfs 2.0"),
    look("unionfs-fuse", "#a48aa6", "unionfs-fuse"),
    look("vellum-cached", "#2f74a8", "Vellum cached"),
    look("vellum-passthrough", "#7fb5de", "Vellum passthrough"),
    look("vellum-library", "#17928f", "Vellum library"),
    look("vellum-cached-pools", "#1f4f73", "Vellum cached, pools"),
    look("vellum-passthrough-pools", "#b4d5ee", "Vellum passthrough, pools"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_the_page() {
        let sheet = include_str!("../page/style.css");
        for (subject, name) in [
            ("overlayfs", "kernel"),
            ("fuse-overlayfs", "peer"),
            ("unionfs-fuse", "other"),
            ("vellum-cached", "own"),
            ("vellum-passthrough", "own-2"),
            ("vellum-library", "own-3"),
        ] {
            let look = LOOKS.iter().find(|look| look.subject == subject).unwrap();
            assert!(sheet.contains(&format!("--{name}: {};", look.colour)), "{subject}");
        }
    }
}
