//! Danaus's experiment on a key-value store, [`crate::workload::rocksdb`], in 1, 2 and 4 trees at once, each of them a clone of one
//! lower layer and a tenant's, who has processors of his own where there are enough, and a pool where the subject has pools. The source
//! has 1 to 32 pools of 2 cores and 8 GB, and does twice the puts and eight times the gets of scale 1.

use super::task::{COLD, Env, Task};
use super::tenants::TENANTS;
use crate::failure::Result;
use crate::interrupt;
use crate::tenant_cpus;
use crate::testbed::{self, Lower, Testbed};
use crate::workload::job::Job;
use crate::workload::rocksdb::{self, Work};

/// Puts into each tree at scale 1: 512 MiB.
const PUTS: usize = 4096;

/// N databases that are written. Its time is from the start of N programs to the end of the last.
const fn put<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task {
        name,
        title,
        state: "new databases, nothing dirty",
        clones: |_| N,
        library: N == 1,
        operations: |testbed| N * testbed.scaled(PUTS),
        needs: rocksdb::missing_requirement,
        prepare: |env| {
            start(env, puts(env.testbed))?;
            rustix::fs::sync();
            interrupt::check()
        },
        run: |env| together(env, puts(env.testbed)),
        ..TENANTS
    }
}

/// N clones of a database that are read, out of core at first.
const fn get<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task {
        name,
        title,
        state: COLD,
        lower: Lower::RocksDb,
        drops_caches: true,
        operations: |testbed| N * testbed.rocksdb_values(),
        prepare: |env| {
            start(env, gets(env.testbed))?;
            testbed::drop_caches()?;
            rocksdb::warm()
        },
        run: |env| together(env, gets(env.testbed)),
        ..put::<N>(name, title)
    }
}

pub(super) const PUT_1: Task =
    put::<1>("s2-rocksdb-put-1", "RocksDB: 4,096 random puts of 128 KiB into a new database");
pub(super) const PUT_2: Task = put::<2>(
    "s2-rocksdb-put-2",
    "RocksDB on 2 mounts at once: 4,096 random puts of 128 KiB each, into new databases",
);
pub(super) const PUT_4: Task = put::<4>(
    "s2-rocksdb-put-4",
    "RocksDB on 4 mounts at once: 4,096 random puts of 128 KiB each, into new databases",
);
pub(super) const GET_1: Task =
    get::<1>("s2-rocksdb-get-1", "RocksDB: 8,192 random gets of 128 KiB from a lower database of 1 GiB");
pub(super) const GET_2: Task = get::<2>(
    "s2-rocksdb-get-2",
    "RocksDB on 2 mounts at once: 8,192 random gets of 128 KiB each, from one lower database of 1 GiB",
);
pub(super) const GET_4: Task = get::<4>(
    "s2-rocksdb-get-4",
    "RocksDB on 4 mounts at once: 8,192 random gets of 128 KiB each, from one lower database of 1 GiB",
);

/// Clones that are no tenants': on CephFS in one pool.
const fn clones(task: Task) -> Task {
    Task { tenants: false, ..task }
}

pub(super) const PUT_8: Task = clones(put::<8>(
    "s2-rocksdb-put-8",
    "RocksDB on 8 clones at once: 4,096 random puts of 128 KiB each, into new databases",
));
pub(super) const GET_8: Task = clones(get::<8>(
    "s2-rocksdb-get-8",
    "RocksDB on 8 clones at once: 8,192 random gets of 128 KiB each, from one lower database of 1 GiB",
));

fn puts(testbed: &Testbed) -> Work {
    Work::Put(testbed.scaled(PUTS))
}

fn gets(testbed: &Testbed) -> Work {
    Work::Get(testbed.rocksdb_values())
}

/// Starts a process for each tree; they wait.
fn start(env: &Env<'_>, work: Work) -> Result<()> {
    let count = env.roots.len();
    let job = |(number, root): (usize, &std::path::PathBuf)| Job::RocksDb {
        root: root.clone(),
        number,
        work,
        cpus: tenant_cpus::share(number, count).unwrap_or_default(),
    };
    env.workers.start(env.roots.iter().enumerate().map(job))
}

fn together(env: &Env<'_>, work: Work) -> Result<()> {
    env.workers.go()?;
    env.workers.each(|worker| rocksdb::check_done(&worker.finish()?, work))?;
    interrupt::check()
}
