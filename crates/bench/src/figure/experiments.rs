//! What the figures show.

use super::bars::Group;

/// A figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Of {
    /// Experiments on blocks of a large file.
    #[default]
    Blocks,
    /// Whole pieces of work in a Debian tree.
    Work,
    /// Small files and large ones, as people use them.
    Everyday,
    /// Experiments of Enhanced OverlayFS and of Danaus.
    Sources,
    /// How often a block is written in the end: of what `store --json` has written.
    Amplification,
    /// Checkpoints beside others: of what `isolation --json` has written.
    Isolation,
}

impl Of {
    /// What stands above it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Blocks => "Writing to a large file of a lower layer",
            Self::Work => "Whole pieces of work in a Debian tree",
            Self::Everyday => "Everyday work",
            Self::Sources => "Experiments of two published systems",
            // Drawn by themselves.
            Self::Amplification | Self::Isolation => "",
        }
    }

    /// Its bars.
    pub(super) fn groups(self) -> &'static [Group] {
        match self {
            Self::Blocks => BLOCKS,
            Self::Work => WORK,
            Self::Everyday => EVERYDAY,
            Self::Sources => SOURCES,
            Self::Amplification | Self::Isolation => &[],
        }
    }

    /// Which tasks to run where there is nothing to draw.
    pub(super) fn nothing(self) -> &'static str {
        match self {
            Self::Blocks => {
                "it has no result of block-first-1m to block-first-10g: run `compare --tasks blocks`"
            }
            Self::Work => "it has no result of whole pieces of work: run `compare --tasks work`",
            Self::Everyday => "it has no result of everyday work: run `compare`",
            Self::Sources => "it has no result of the sources' experiments: run `compare --tasks s1,s2`",
            Self::Amplification => "it has no numbers over time: run `store --json`",
            Self::Isolation => "it has no rows: run `isolation --json`",
        }
    }

    /// Whether a subject belongs into it: what users choose among are unions, but the bar of Enhanced OverlayFS is the host.
    pub(super) fn shows(self, subject: &str) -> bool {
        self == Self::Sources || subject != "host"
    }
}

const BLOCKS: &[Group] = &[Group {
    title: "",
    rows: &[
        ("block-same", "second write, same block"),
        ("block-others", "second write, other blocks"),
        ("block-stride", "one byte into every block, cold"),
        ("block-stride-warm", "one byte into every block, warm"),
        ("block-read-lower", "read, one block written"),
        ("block-read-half", "read, half from each layer"),
        ("block-random-410", "1 % at random in 410 B"),
        ("block-random-4k", "1 % at random in 4 KiB"),
        ("block-random-41k", "1 % at random in 40 KiB"),
        ("block-random-410k", "1 % at random in 400 KiB"),
    ],
}];

const WORK: &[Group] = &[
    Group {
        title: "Installing",
        rows: &[
            ("work-dpkg", "dpkg, no fsync"),
            ("work-dpkg-fsync", "dpkg, fsync"),
            ("work-upgrade", "dpkg, upgrade"),
            ("work-pip", "pip install"),
            ("work-npm", "npm ci"),
        ],
    },
    Group {
        title: "Files",
        rows: &[
            ("work-tar", "tar -x"),
            ("work-tar-static", "tar -x, static program"),
            ("work-cp", "cp -a"),
            ("work-rm", "rm -rf, upper files"),
            ("work-rm-lower", "rm -rf, lower files"),
            ("work-grep", "grep -r"),
            ("work-du", "du"),
        ],
    },
    Group {
        title: "Programs",
        rows: &[
            ("work-git", "git clone and checkouts"),
            ("work-make", "make of a C project"),
            ("work-python", "python3 starts"),
            ("work-node", "node starts"),
            ("work-sqlite", "sqlite, small transactions"),
        ],
    },
];

const EVERYDAY: &[Group] = &[Group {
    title: "",
    rows: &[
        ("open-read", "open, read, close of files"),
        ("grep", "grep -r"),
        ("untar", "untar, cold"),
        ("rm-lower", "rm -rf of lower files"),
        ("mv-lower", "mv of a lower directory"),
        ("chmod-lower", "chmod -R of lower files"),
        ("append-fsync", "append of 4 KiB, fsync"),
        ("random-read", "random reads of 4 KiB"),
    ],
}];

const SOURCES: &[Group] = &[
    Group {
        title: "Enhanced OverlayFS (Han, 2023)",
        rows: &[
            ("s1-drbl-2", "2 processes read a block"),
            ("s1-dwol-2", "2 processes overwrite one"),
            ("s1-oltp", "Filebench's oltp"),
        ],
    },
    Group {
        title: "Danaus (Kappes and Anastasiadis, 2021)",
        rows: &[
            ("s2-fileserver", "Filebench's fileserver"),
            ("s2-webserver", "Filebench's webserver"),
            ("s2-rocksdb-put-2", "RocksDB puts, 2 tenants"),
            ("s2-rocksdb-get-2", "RocksDB gets, 2 tenants"),
            ("s2-append", "32 clones append to a file"),
            ("s2-shared-read", "32 clones read a file"),
            ("s2-start-up-64", "64 clones start a web server"),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks;
    use clap::ValueEnum;

    #[test]
    fn figures_are_of_tasks_that_there_are() {
        for of in Of::value_variants() {
            for (task, _) in of.groups().iter().flat_map(|group| group.rows) {
                assert!(tasks::named(task).is_some(), "{task}");
            }
        }
    }
}
