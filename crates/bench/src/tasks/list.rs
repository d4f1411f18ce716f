//! All tasks.

use super::blocks::{self, BLOCKS};
use super::large::{self, LARGE};
use super::small::{self, SMALL};
use super::task::{COLD, Metric, Task, WARM, WARM_NAMES};
use super::{names, private, rocksdb, shares, sources, tenants, work};
use crate::testbed::Lower;

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
        prepare: large::flush_dirty_pages,
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
        prepare: large::flush_dirty_pages,
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
        prepare: large::flush_dirty_pages,
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
        run: small::look_up_all,
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
        prepare: blocks::write_first_half,
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
    sources::SHARED_READ_WARM,
    sources::START_UP_1,
    sources::START_UP_16,
    sources::START_UP_64,
    sources::START_UP_256,
    sources::START_UP_WARM_1,
    sources::START_UP_WARM_16,
    sources::START_UP_WARM_64,
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
