//! Danaus's experiments on tenants beside each other (Kappes and Anastasiadis, Middleware 2021): a file server beside a
//! neighbour on another mount, and several file servers, each on a mount of its own or all on one.
//!
//! As published, each tenant's processes run on processors of his own, where there are enough of them. Where a filesystem does its
//! work is its own affair: the kernel's threads and services run anywhere, and only a pool keeps a service where its tenant is.

use super::sources::{SOURCE, fileserver, in_all_clones};
use super::task::{Env, Step, Task};
use crate::failure::{Result, While};
use crate::interrupt;
use crate::tenant_cpus::{self, CpuAffinity};
use crate::workload::disk;
use crate::workload::job::Job;
use crate::workload::neighbour::Kind;
use std::fs;
use std::path::PathBuf;

/// A task whose mounts are tenants'.
pub(super) const TENANTS: Task = Task { tenants: true, ..SOURCE };

const ISOLATION: Task = Task {
    state: "warm: the files were just written through the mounts, and synced",
    library: false,
    clones: |_| 2,
    operations: |testbed| fileserver(testbed).operations(),
    run: serve_files,
    ..TENANTS
};

const fn with_neighbour(name: &'static str, title: &'static str, prepare: Step) -> Task {
    Task { name, title, prepare, ..ISOLATION }
}

pub(super) const ALONE: Task = with_neighbour(
    "s2-isolation-alone",
    "Filebench's fileserver on one of two mounts, the other one idle",
    |env| with_neighbours(env, &[]),
);
pub(super) const RANDOM: Task = with_neighbour(
    "s2-isolation-random",
    "the same, beside random reads and writes of 4 KiB on the other mount",
    |env| with_neighbours(env, &[Kind::RandomIo]),
);
pub(super) const WEB: Task =
    with_neighbour("s2-isolation-web", "the same, beside Filebench's webserver on the other mount", |env| {
        with_neighbours(env, &[Kind::Webserver])
    });
pub(super) const PROCESSOR: Task =
    with_neighbour("s2-isolation-cpu", "the same, beside a process that only computes", |env| {
        with_neighbours(env, &[Kind::Processor])
    });

/// N file servers, each on a mount of its own.
const fn scale_out<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task {
        name,
        title,
        clones: |_| N,
        operations: |testbed| N * fileserver(testbed).operations(),
        prepare: |env| {
            env.roots.iter().try_for_each(|root| disk::prepare(&fileserver(env.testbed), root))?;
            rustix::fs::sync();
            interrupt::check()
        },
        run: |env| all_serve(env, env.roots, true),
        ..ISOLATION
    }
}

/// N file servers, all on one mount, each in a directory of its own.
const fn scale_up<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task {
        name,
        title,
        clones: |_| 1,
        library: true,
        tenants: false,
        operations: |testbed| N * fileserver(testbed).operations(),
        prepare: |env| {
            for root in directories::<N>(env) {
                fs::create_dir(&root).doing(|| "making a directory")?;
                disk::prepare(&fileserver(env.testbed), &root)?;
            }
            rustix::fs::sync();
            interrupt::check()
        },
        run: |env| all_serve(env, &directories::<N>(env), false),
        ..ISOLATION
    }
}

pub(super) const OUT_2: Task =
    scale_out::<2>("s2-scale-out-2", "2 fileservers at once, each on a mount of its own");
pub(super) const OUT_4: Task =
    scale_out::<4>("s2-scale-out-4", "4 fileservers at once, each on a mount of its own");
pub(super) const UP_2: Task = scale_up::<2>("s2-scale-up-2", "2 fileservers at once on one mount");
pub(super) const UP_4: Task = scale_up::<4>("s2-scale-up-4", "4 fileservers at once on one mount");

/// A file server in each of `roots`; `tenants`: each of them on processors of its own, where there are enough.
fn all_serve(env: &Env<'_>, roots: &[PathBuf], tenants: bool) -> Result<()> {
    let server = fileserver(env.testbed);
    in_all_clones(roots, |root| {
        let number = roots.iter().position(|other| other == root).filter(|_| tenants);
        let _bound = number.map(|number| CpuAffinity::to_share(number, roots.len())).transpose()?;
        disk::run(&server, root)
    })
}

fn directories<const N: usize>(env: &Env<'_>) -> Vec<PathBuf> {
    (0..N).map(|number| env.root.join(format!("server{number}"))).collect()
}

/// Prepares the file server on the first mount, and lets the neighbours begin on the second.
fn with_neighbours(env: &Env<'_>, kinds: &[Kind]) -> Result<()> {
    disk::prepare(&fileserver(env.testbed), env.root)?;
    let root = env.roots.last().cloned().unwrap_or_default();
    let scale = env.testbed.scale();
    // The last tenant's.
    let cpus = tenant_cpus::share(env.roots.len().saturating_sub(1), env.roots.len()).unwrap_or_default();
    let job = |kind: &Kind| Job::Neighbour { kind: *kind, root: root.clone(), scale, cpus: cpus.clone() };
    env.workers.start(kinds.iter().map(job))?;
    rustix::fs::sync();
    env.workers.go()
}

/// The file server; the neighbours must be there to the end.
fn serve_files(env: &Env<'_>) -> Result<()> {
    let _bound = CpuAffinity::to_share(0, env.roots.len())?;
    disk::run(&fileserver(env.testbed), env.root)?;
    env.workers.each(|worker| worker.check_alive())
}
