//! The tasks, as data: what they need, what they do untimed, what is timed.

mod blocks;
mod groups;
mod large;
mod memory;
mod names;
mod private;
mod rocksdb;
pub(crate) mod shares;
mod small;
mod sources;
mod tenants;
mod work;

use crate::failure::Result;
use crate::testbed::{Lower, Testbed};
use crate::workload::worker::Workers;
pub use groups::{group, group_named, named};
use std::path::{Path, PathBuf};

/// Where a step of a task happens.
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// The root of the mounted tree, the first of them.
    pub root: &'a Path,
    /// The upper layer.
    pub upper: &'a Path,
    /// The roots of all mounts: several where a task is on clones.
    pub roots: &'a [PathBuf],
    /// Their upper layers.
    pub uppers: &'a [PathBuf],
    /// Processes that live from the preparation to the end.
    pub workers: &'a Workers,
    /// The place around it.
    pub testbed: &'a Testbed,
}

/// A step of a task.
pub type Step = fn(&Env<'_>) -> Result<()>;

/// What a task is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Time.
    Time,
    /// Resident memory of the service after the caches were dropped.
    Resident,
    /// How far mounts' parts of the service's cache are off their ideal ones.
    Shares,
    /// How far mounts' parts of what the service has fetched are off their ideal ones.
    Misses,
}

/// The service's cache of a task, which all its mounts read through in one pool.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// How many bytes it holds.
    pub bytes: fn(&Testbed) -> u64,
    /// What each mount weighs.
    pub weights: &'static [u16],
    /// How much of the cache each should have at the end, in relation to the others.
    pub ideal: &'static [u16],
}

/// A task.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does, with sizes at scale 1.
    pub title: &'static str,
    /// The state of caches when the clock starts.
    pub state: &'static str,
    /// What the lower layer holds.
    pub lower: Lower,
    /// Whether it changes what was in the lower layer.
    pub alters: bool,
    /// The only directory that it changes, empty at first, where it is not the whole tree. The host has a new one there.
    pub only: Option<&'static str>,
    /// Needs root, to drop caches.
    pub drops_caches: bool,
    /// Left out unless it is asked for by name.
    pub long: bool,
    /// Whether it is of interest how much space the upper layer takes afterwards.
    pub space: bool,
    /// What it is judged by.
    pub metric: Metric,
    /// How many operations one pass is, for values per operation.
    pub operations: fn(&Testbed) -> usize,
    /// How often it is done within one measurement.
    pub passes: u32,
    /// How many mounts over the same lower layer it is on.
    pub clones: fn(&Testbed) -> usize,
    /// Whether each mount is a tenant's, who has processors of his own where there are enough.
    pub tenants: bool,
    /// The cache that its mounts share; None: layers are read as they are.
    pub cache: Option<Cache>,
    /// Whether Vellum's library can be in the processes that do it: it knows one pool, and so one mount of those of a task.
    pub library: bool,
    /// Cores below which it is left out of its group.
    pub cores: usize,
    /// What is missing on this machine to do it at all, if anything.
    pub needs: fn() -> Option<String>,
    /// Before the clock starts, after mounting.
    pub prepare: Step,
    /// What is timed.
    pub run: Step,
}

impl Task {
    /// Does all passes of one measurement.
    pub fn run_passes(&self, env: &Env<'_>) -> Result<()> {
        (0..self.passes).try_for_each(|_| (self.run)(env))
    }

    /// Why it cannot be done here, if so.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        if self.drops_caches && !rustix::process::geteuid().is_root() {
            return Some("dropping caches needs root".into());
        }
        (self.needs)()
    }
}

/// A task on a tree of small files, with everything else as it mostly is.
const SMALL: Task = Task {
    name: "",
    title: "",
    state: "",
    lower: Lower::Tree,
    alters: false,
    only: None,
    drops_caches: false,
    long: false,
    space: false,
    metric: Metric::Time,
    operations: |testbed| testbed.tree.files.len(),
    passes: 1,
    clones: |_| 1,
    tenants: false,
    cache: None,
    library: true,
    cores: 1,
    needs: || None,
    prepare: small::warm,
    run: |_| Ok(()),
};

const WARM: &str = "warm: every file was read through the mount";
const WARM_NAMES: &str = "warm: every name was looked up through the mount";
const WARM_LOWER: &str = "warm: the lower file is in the page cache of its filesystem, not in the mounts'";
const COLD: &str = "cold: fresh mount, kernel's caches dropped";

/// All tasks, in the order in which they are run.
pub const TASKS: &[Task] = &[
    Task {
        name: "open-read",
        title: "open, read, close of 4,000 files",
        state: WARM,
        passes: 5,
        run: small::open_read_close,
        ..SMALL
    },
    Task {
        name: "grep",
        title: "grep -r over 4,000 files",
        state: WARM,
        passes: 3,
        run: small::grep,
        ..SMALL
    },
    Task {
        name: "lstat",
        title: "lstat of 4,000 files",
        state: WARM_NAMES,
        passes: 10,
        prepare: small::lstat_all,
        run: small::lstat_all,
        ..SMALL
    },
    Task {
        name: "find-cold",
        title: "first find -type f -size +1",
        state: COLD,
        drops_caches: true,
        prepare: small::cold,
        run: small::find,
        ..SMALL
    },
    Task {
        name: "untar",
        title: "untar 4,000 files",
        state: COLD,
        lower: Lower::Empty,
        drops_caches: true,
        prepare: small::cold_archive,
        run: small::untar,
        alters: true,
        ..SMALL
    },
    Task {
        name: "untar-warm",
        title: "untar 4,000 files",
        state: "warm: the archive is in the page cache",
        lower: Lower::Empty,
        prepare: small::read_archive,
        run: small::untar,
        alters: true,
        ..SMALL
    },
    Task {
        name: "rm-upper",
        title: "rm -rf of 4,000 upper files",
        state: "warm: they were just written through the mount, and synced",
        lower: Lower::Empty,
        alters: true,
        prepare: small::untar_and_sync,
        run: small::remove,
        ..SMALL
    },
    Task {
        name: "rm-lower",
        title: "rm -rf of 4,000 lower files",
        state: WARM_NAMES,
        alters: true,
        prepare: small::lstat_all,
        run: small::remove,
        ..SMALL
    },
    Task {
        name: "mv-lower",
        title: "mv of a lower directory of 4,000 files",
        state: WARM_NAMES,
        alters: true,
        prepare: small::lstat_all,
        run: small::rename,
        ..SMALL
    },
    Task {
        name: "chmod-lower",
        title: "chmod -R of 4,000 lower files",
        state: WARM_NAMES,
        alters: true,
        prepare: small::lstat_all,
        run: small::change_mode,
        ..SMALL
    },
    Task {
        name: "read-cold",
        title: "512 MiB read in 1 MiB",
        state: COLD,
        drops_caches: true,
        prepare: small::cold,
        run: large::read,
        ..LARGE
    },
    Task {
        name: "random-read",
        title: "4 KiB random read, 131,072 times in 512 MiB",
        state: "warm: the file was read through the mount",
        operations: |_| large::RANDOM_READS,
        prepare: large::read,
        run: large::random_read,
        ..LARGE
    },
    Task {
        name: "write-fsync",
        title: "512 MiB written in 1 MiB, fsync",
        state: "a new file, nothing dirty",
        lower: Lower::Empty,
        alters: true,
        prepare: large::settle,
        run: large::write_fsync,
        ..LARGE
    },
    Task {
        name: "rewrite-byte",
        title: "one byte rewritten 20,000 times",
        state: "warm: an upper file of 4 KiB",
        lower: Lower::Empty,
        alters: true,
        operations: |testbed| testbed.scaled(large::REWRITES),
        prepare: large::make_small_file,
        run: large::rewrite_byte,
        ..LARGE
    },
    Task {
        name: "append",
        title: "30,000 appends of 4 KiB, one fsync",
        state: "a new file, nothing dirty",
        lower: Lower::Empty,
        alters: true,
        operations: |testbed| testbed.scaled(large::APPENDS),
        prepare: large::settle,
        run: large::append,
        ..LARGE
    },
    Task {
        name: "append-fsync",
        title: "300 x (4 KiB append + fsync)",
        state: "a new file, nothing dirty",
        lower: Lower::Empty,
        alters: true,
        operations: |testbed| testbed.scaled(large::SYNCED_APPENDS),
        prepare: large::settle,
        run: large::append_fsync,
        ..LARGE
    },
    Task {
        name: "mmap-read",
        title: "512 MiB read through a new mapping",
        state: "warm: the file was read through the mount",
        operations: |testbed| usize::try_from(testbed.large_bytes() / 4096).unwrap_or(usize::MAX),
        passes: 3,
        prepare: large::map_read,
        run: large::map_read,
        ..LARGE
    },
    Task {
        name: "forget-million",
        title: "memory of the service after 1,000,000 files were looked up and forgotten",
        state: COLD,
        lower: Lower::Million,
        drops_caches: true,
        long: true,
        metric: Metric::Resident,
        operations: |testbed| testbed.million().0 * testbed.million().1,
        prepare: small::cold,
        run: memory::look_up_all,
        ..SMALL
    },
    Task {
        name: "block-first-1m",
        title: "first byte written to a lower file of 1 MiB",
        lower: Lower::Sized(1),
        run: blocks::first,
        ..BLOCKS
    },
    Task {
        name: "block-first-16m",
        title: "first byte written to a lower file of 16 MiB",
        lower: Lower::Sized(16),
        run: blocks::first,
        ..BLOCKS
    },
    Task {
        name: "block-first-256m",
        title: "first byte written to a lower file of 256 MiB",
        lower: Lower::Sized(256),
        run: blocks::first,
        ..BLOCKS
    },
    Task {
        name: "block-first-1g",
        title: "first byte written to a lower file of 1 GiB",
        lower: Lower::Sized(1024),
        run: blocks::first,
        ..BLOCKS
    },
    Task {
        name: "block-first-10g",
        title: "first byte written to a lower file of 10 GiB",
        lower: Lower::Sized(10240),
        run: blocks::first,
        ..BLOCKS
    },
    Task {
        name: "block-commit-10g",
        title: "the same of 10 GiB, and fsync",
        lower: Lower::Sized(10240),
        run: blocks::first_synced,
        ..BLOCKS
    },
    Task {
        name: "block-same",
        title: "20,000 further bytes to the same block of 512 MiB, fsync",
        operations: |testbed| testbed.scaled(blocks::SAME),
        prepare: blocks::copied_up,
        run: blocks::same,
        ..BLOCKS
    },
    Task {
        name: "block-others",
        title: "a byte each to 2,000 other blocks of 512 MiB, fsync",
        operations: |testbed| testbed.scaled(blocks::OTHERS),
        prepare: blocks::copied_up,
        run: blocks::others,
        ..BLOCKS
    },
    Task {
        name: "block-stride",
        title: "a byte into every block of 512 MiB, fsync",
        state: COLD,
        drops_caches: true,
        prepare: small::cold,
        run: blocks::stride,
        ..BLOCKS
    },
    Task {
        name: "block-stride-warm",
        title: "a byte into every block of 512 MiB, fsync",
        state: "warm: the lower file is in the page cache",
        prepare: blocks::warm_lower,
        run: blocks::stride,
        ..BLOCKS
    },
    Task {
        name: "block-read-lower",
        title: "512 MiB read in 1 MiB, one block of them in the upper",
        state: COLD,
        drops_caches: true,
        prepare: blocks::one_and_cold,
        run: large::read,
        ..BLOCKS
    },
    Task {
        name: "block-read-half",
        title: "512 MiB read in 1 MiB, the first half in the upper",
        state: COLD,
        drops_caches: true,
        prepare: blocks::half_and_cold,
        run: large::read,
        ..BLOCKS
    },
    Task {
        name: "block-random-410",
        title: "random writes of 410 bytes, 1 % of 1 GiB, fsync",
        lower: Lower::Sized(1024),
        run: blocks::random_410,
        ..BLOCKS
    },
    Task {
        name: "block-random-4k",
        title: "random writes of 4 KiB, 1 % of 1 GiB, fsync",
        lower: Lower::Sized(1024),
        run: blocks::random_4k,
        ..BLOCKS
    },
    Task {
        name: "block-random-41k",
        title: "random writes of 40 KiB, 1 % of 1 GiB, fsync",
        lower: Lower::Sized(1024),
        run: blocks::random_41k,
        ..BLOCKS
    },
    Task {
        name: "block-random-410k",
        title: "random writes of 400 KiB, 1 % of 1 GiB, fsync",
        lower: Lower::Sized(1024),
        run: blocks::random_410k,
        ..BLOCKS
    },
    sources::DRBL_1,
    sources::DRBL_2,
    sources::DRBL_4,
    sources::DRBL_8,
    sources::DRBL_16,
    sources::DWOL_1,
    sources::DWOL_2,
    sources::DWOL_4,
    sources::DWOL_8,
    sources::DWOL_16,
    sources::SMALL_READ_1,
    sources::SMALL_READ_2,
    names::CREATE_1,
    names::CREATE_2,
    names::CREATE_4,
    names::STAT_1,
    names::STAT_2,
    names::STAT_4,
    names::UNLINK_1,
    names::UNLINK_2,
    names::UNLINK_4,
    sources::OLTP,
    sources::FILESERVER,
    sources::WEBSERVER,
    tenants::ALONE,
    tenants::RANDOM,
    tenants::WEB,
    tenants::PROCESSOR,
    tenants::OUT_2,
    tenants::OUT_4,
    tenants::UP_2,
    tenants::UP_4,
    shares::FOUR,
    shares::EQUAL,
    shares::ONE_FILE,
    shares::IDLE,
    shares::THROUGHPUT_EQUAL,
    shares::THROUGHPUT_FOUR,
    shares::MISSES,
    sources::APPEND,
    sources::APPEND_8,
    sources::SHARED_READ,
    sources::START_UP_1,
    sources::START_UP_16,
    sources::START_UP_64,
    sources::START_UP_256,
    rocksdb::PUT_1,
    rocksdb::PUT_2,
    rocksdb::PUT_4,
    rocksdb::GET_1,
    rocksdb::GET_2,
    rocksdb::GET_4,
    rocksdb::PUT_8,
    rocksdb::GET_8,
    private::OPEN,
    private::STAT,
    private::READ,
    private::WRITE,
    private::CREATE,
    work::DPKG,
    work::DPKG_SYNC,
    work::UPGRADE,
    work::COPY,
    work::TAR,
    work::TAR_STATIC,
    work::REMOVE,
    work::REMOVE_LOWER,
    work::GIT,
    work::PIP,
    work::NPM,
    work::MAKE,
    work::PYTHON,
    work::NODE,
    work::SQLITE,
    work::GREP,
    work::DU,
];

/// What the names of tasks begin with whose threads have nothing in common but the service.
pub(crate) const PRIVATE: &str = "private-";

/// A task on blocks of a large file.
const BLOCKS: Task = Task {
    state: "the lower file is not in the page cache of the mount",
    long: true,
    alters: true,
    space: true,
    operations: |_| 1,
    prepare: large::settle,
    ..LARGE
};

/// A task on a large file.
const LARGE: Task = Task {
    lower: Lower::Large,
    operations: |testbed| usize::try_from(testbed.large_bytes() >> 20).unwrap_or(usize::MAX),
    ..SMALL
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{Contender, Kind};
    use crate::mounts::Mounts;

    #[test]
    fn tasks_have_unique_names_and_say_what_they_are() {
        for task in TASKS {
            assert_eq!(TASKS.iter().filter(|other| other.name == task.name).count(), 1, "{}", task.name);
            assert!(!task.title.is_empty() && !task.state.is_empty() && task.passes > 0, "{}", task.name);
        }
    }

    #[test]
    fn the_library_is_in_tasks_on_one_mount() {
        let testbed = Testbed::new(&std::env::temp_dir(), None, 1.0).unwrap();
        for task in TASKS.iter().filter(|task| task.library) {
            assert_eq!((task.clones)(&testbed), 1, "{}", task.name);
        }
        let takes_part = |name| Kind::VellumLibrary.takes_part(named(name).unwrap());
        assert!(["s1-oltp", "untar", "private-create", "s2-rocksdb-put-1"].into_iter().all(takes_part));
        assert!(!["s2-append", "s2-start-up-1", "s2-rocksdb-get-4"].into_iter().any(takes_part));
        let shares =
            |kind: Kind| TASKS.iter().filter(|task| kind.takes_part(task) && task.cache.is_some()).count();
        assert_eq!((shares(Kind::VellumShares), shares(Kind::VellumCached), shares(Kind::Host)), (7, 0, 0));
        assert!(!Kind::VellumShares.takes_part(named("grep").unwrap()));
    }

    /// Every task that is for one does its work on a plain directory, at a small scale. Those in a Debian tree take minutes to prepare; they are
    /// run on every filesystem by a case of their own.
    #[test]
    fn tasks_run_on_a_directory() {
        let testbed = Testbed::new(&std::env::temp_dir(), None, 0.005).unwrap();
        let host = Contender::find(Kind::Host, &Vec::new()).unwrap();
        let small =
            |task: &&Task| !task.drops_caches && task.lower != Lower::Debian && task.lacks().is_none();
        for task in TASKS.iter().filter(small).filter(|task| host.kind.takes_part(task)) {
            let mounts = Mounts::mount(&host, &testbed, task).unwrap();
            assert_eq!(mounts.roots().len(), (task.clones)(&testbed));
            let mut client = mounts.client(&testbed, task).unwrap();
            let sample = client.run().unwrap();
            client.end().unwrap();
            assert!(sample.seconds > 0.0 && sample.service_switches.is_none(), "{}: {sample:?}", task.name);
            assert!((task.operations)(&testbed) > 0);
            mounts.unmount().unwrap();
        }
    }
}
