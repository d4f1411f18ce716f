//! The experiments of two published systems, with [`crate::workload`]s that are written anew: Enhanced OverlayFS (Han,
//! 2023), whose subject is what a union adds to every operation of many processes at once, and Danaus (Kappes and
//! Anastasiadis, Middleware 2021), whose subject is many containers of one image.

use super::small::SMALL;
use super::task::{Env, Step, Task, WARM_LOWER};
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::testbed::{LARGE_NAME, Lower, Testbed};
use crate::workload::job::Job;
use crate::workload::worker::Workers;
use crate::workload::{disk, fxmark, personality, server};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;
/// Operations of each worker of FxMark's loops at scale 1.
const LOOPS: usize = 400_000;
/// Clones that append to, or read, the same lower file.
const CLONES: usize = 32;
/// That file, in MiB at scale 1.
const SHARED_MIB: u32 = 1024;

/// A task of the sources: it makes its own files in an empty tree.
pub(super) const SOURCE: Task = Task {
    lower: Lower::Empty,
    alters: true,
    long: true,
    state: "warm: the files were just written through the mount, and synced",
    prepare: super::large::flush_dirty_pages,
    ..SMALL
};

/// One of FxMark's loops with N processes.
const fn fxmark<const N: usize>(name: &'static str, title: &'static str, prepare: Step) -> Task {
    Task {
        name,
        title,
        state: "warm: every process has written its file and has it open",
        operations: |testbed| N * testbed.scaled(LOOPS),
        // Up to four processes are of interest on any machine.
        cores: if N > 4 { N } else { 1 },
        prepare,
        run: together,
        ..SOURCE
    }
}

const fn drbl<const N: usize>(name: &'static str, title: &'static str) -> Task {
    fxmark::<N>(name, title, |env| start(env, fxmark::Kind::Drbl, N))
}

const fn dwol<const N: usize>(name: &'static str, title: &'static str) -> Task {
    fxmark::<N>(name, title, |env| start(env, fxmark::Kind::Dwol, N))
}

pub(super) const DRBL_1: Task =
    drbl::<1>("s1-drbl-1", "a process reads one 4 KiB block of its own file 400,000 times");
pub(super) const DRBL_2: Task =
    drbl::<2>("s1-drbl-2", "2 processes read one 4 KiB block of their own files 400,000 times each");
pub(super) const DRBL_4: Task =
    drbl::<4>("s1-drbl-4", "4 processes read one 4 KiB block of their own files 400,000 times each");
pub(super) const DRBL_8: Task =
    drbl::<8>("s1-drbl-8", "8 processes read one 4 KiB block of their own files 400,000 times each");
pub(super) const DRBL_16: Task =
    drbl::<16>("s1-drbl-16", "16 processes read one 4 KiB block of their own files 400,000 times each");
pub(super) const DWOL_1: Task =
    dwol::<1>("s1-dwol-1", "a process overwrites one 4 KiB block of its own file 400,000 times");
pub(super) const DWOL_2: Task =
    dwol::<2>("s1-dwol-2", "2 processes overwrite one 4 KiB block of their own files 400,000 times each");
pub(super) const DWOL_4: Task =
    dwol::<4>("s1-dwol-4", "4 processes overwrite one 4 KiB block of their own files 400,000 times each");
pub(super) const DWOL_8: Task =
    dwol::<8>("s1-dwol-8", "8 processes overwrite one 4 KiB block of their own files 400,000 times each");
pub(super) const DWOL_16: Task =
    dwol::<16>("s1-dwol-16", "16 processes overwrite one 4 KiB block of their own files 400,000 times each");

pub(super) const SMALL_READ_1: Task = fxmark::<1>(
    "s1-small-read-1",
    "a process reads 512 bytes at random from its own cached file of 64 MiB, 400,000 times",
    |env| start(env, fxmark::Kind::Small, 1),
);
pub(super) const SMALL_READ_2: Task = fxmark::<2>(
    "s1-small-read-2",
    "2 processes read 512 bytes at random from their own cached files of 64 MiB, 400,000 times each",
    |env| start(env, fxmark::Kind::Small, 2),
);

pub(super) const OLTP: Task = Task {
    name: "s1-oltp",
    title: "Filebench's oltp: 200 readers, 10 writers and a log writer, 10,000 reads and writes of 2 KiB",
    operations: |testbed| oltp(testbed).operations(),
    prepare: |env| disk::prepare(&oltp(env.testbed), env.root),
    run: |env| disk::run(&oltp(env.testbed), env.root),
    ..SOURCE
};

pub(super) const FILESERVER: Task = Task {
    name: "s2-fileserver",
    title: "Filebench's fileserver: 50 threads create, write, append, read, delete among 10,000 files",
    operations: |testbed| fileserver(testbed).operations(),
    prepare: |env| disk::prepare(&fileserver(env.testbed), env.root),
    run: |env| disk::run(&fileserver(env.testbed), env.root),
    ..SOURCE
};

pub(super) const WEBSERVER: Task = Task {
    name: "s2-webserver",
    title: "Filebench's webserver: 100 threads read among 1,000 files, and append to a log",
    operations: |testbed| webserver(testbed).operations(),
    prepare: |env| disk::prepare(&webserver(env.testbed), env.root),
    run: |env| disk::run(&webserver(env.testbed), env.root),
    ..SOURCE
};

/// Danaus's Fileappend: kernel overlayfs copies the file in every clone.
pub(super) const APPEND: Task = Task {
    name: "s2-append",
    title: "32 clones at once append 1 MiB each to their lower file of 1 GiB, fsync",
    state: WARM_LOWER,
    lower: Lower::Sized(SHARED_MIB),
    space: true,
    library: false,
    clones: |testbed| clones(testbed, CLONES),
    operations: |testbed| clones(testbed, CLONES),
    prepare: warm_lower,
    run: |env| in_all_clones(env.roots, append),
    ..SOURCE
};

/// Danaus's Fileappend with eight clones.
pub(super) const APPEND_8: Task = Task {
    name: "s2-append-8",
    title: "8 clones at once append 1 MiB each to their lower file of 1 GiB, fsync",
    clones: |testbed| clones(testbed, 8),
    operations: |testbed| clones(testbed, 8),
    ..APPEND
};

/// Danaus's Fileread: one copy in memory would do for all clones.
pub(super) const SHARED_READ: Task = Task {
    name: "s2-shared-read",
    title: "32 clones at once read their lower file of 1 GiB in 1 MiB",
    state: WARM_LOWER,
    lower: Lower::Sized(SHARED_MIB),
    alters: false,
    library: false,
    clones: |testbed| clones(testbed, CLONES),
    operations: |testbed| clones(testbed, CLONES),
    prepare: warm_lower,
    run: |env| in_all_clones(env.roots, read),
    ..SOURCE
};

/// Danaus's Fileread where the service's cache, too, has the file: of a layer on CephFS it has what a mount has read.
pub(super) const SHARED_READ_WARM: Task = Task {
    name: "s2-shared-read-warm",
    title: "32 clones at once read their lower file of 1 GiB in 1 MiB, warm",
    state: "as s2-shared-read, after one more clone has read it, which stays mounted",
    clones: |testbed| clones(testbed, CLONES) + 1,
    prepare: |env| {
        let (last, _) = last_of(env.roots)?;
        read(last)?;
        rustix::fs::sync();
        Ok(())
    },
    run: |env| in_all_clones(last_of(env.roots)?.1, read),
    ..SHARED_READ
};

/// Danaus's start of containers with N clones.
const fn start_up<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task {
        name,
        title,
        state: "fresh mounts, their lower layer in the page cache; a process waits in each, in chroot",
        lower: Lower::Server,
        // The server starts without variables, in another root directory.
        library: false,
        clones: |testbed| clones(testbed, N),
        operations: |testbed| clones(testbed, N),
        needs: server::missing_requirement,
        prepare: start_servers,
        run: until_all_answer,
        ..SOURCE
    }
}

pub(super) const START_UP_1: Task =
    start_up::<1>("s2-start-up-1", "lighttpd started in a clone, until it answers a request");
pub(super) const START_UP_16: Task =
    start_up::<16>("s2-start-up-16", "lighttpd started in 16 clones at once, until all answer a request");
pub(super) const START_UP_64: Task =
    start_up::<64>("s2-start-up-64", "lighttpd started in 64 clones at once, until all answer a request");
pub(super) const START_UP_256: Task =
    start_up::<256>("s2-start-up-256", "lighttpd started in 256 clones at once, until all answer a request");

/// A start of N clones after one before, in a clone of its own: what a service, ceph-fuse or the kernel keeps of an
/// image for all its clones is there.
const fn start_up_warm<const N: usize>(name: &'static str, title: &'static str) -> Task {
    Task {
        state: "as s2-start-up, after a start in one more clone of the image, which stays mounted",
        clones: |testbed| clones(testbed, N) + 1,
        prepare: start_once_before,
        run: until_all_answer,
        ..start_up::<N>(name, title)
    }
}

pub(super) const START_UP_WARM_1: Task =
    start_up_warm::<1>("s2-start-up-warm-1", "lighttpd started in a clone, warm, until it answers a request");
pub(super) const START_UP_WARM_16: Task = start_up_warm::<16>(
    "s2-start-up-warm-16",
    "lighttpd started in 16 clones at once, warm, until all answer a request",
);
pub(super) const START_UP_WARM_64: Task = start_up_warm::<64>(
    "s2-start-up-warm-64",
    "lighttpd started in 64 clones at once, warm, until all answer a request",
);

/// As many clones as published at scale 1 and above, and at least two of several.
fn clones(testbed: &Testbed, published: usize) -> usize {
    testbed.scaled(published).clamp(published.min(2), published)
}

/// Starts FxMark's processes; they wait.
fn start(env: &Env<'_>, kind: fxmark::Kind, count: usize) -> Result<()> {
    let operations = env.testbed.scaled(LOOPS);
    let job = |number| Job::FxMark { kind, path: fxmark::file(env.root, number), operations };
    env.workers.start((0..count).map(job))?;
    rustix::fs::sync();
    Ok(())
}

/// Lets the processes go, and waits for their end.
pub(super) fn together(env: &Env<'_>) -> Result<()> {
    env.workers.go()?;
    env.workers.wait()?;
    interrupt::check()
}

fn oltp(testbed: &Testbed) -> personality::Personality {
    personality::oltp(&|count| testbed.scaled(count))
}

pub(super) fn fileserver(testbed: &Testbed) -> personality::Personality {
    personality::fileserver(&|count| testbed.scaled(count))
}

fn webserver(testbed: &Testbed) -> personality::Personality {
    personality::webserver(&|count| testbed.scaled(count))
}

/// Reads the lower file where it lies, so that it is in the page cache of its filesystem.
fn warm_lower(env: &Env<'_>) -> Result<()> {
    read(&env.testbed.lower(Lower::Sized(SHARED_MIB))?)?;
    rustix::fs::sync();
    Ok(())
}

/// Does the same in every clone, all at once.
pub(super) fn in_all_clones(roots: &[PathBuf], what: impl Fn(&Path) -> Result<()> + Sync) -> Result<()> {
    let what = &what;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for root in roots {
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || what(root));
            threads.push(thread.doing(|| "starting a thread")?);
        }
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("a thread has panicked")))
        })
    })
}

fn append(root: &Path) -> Result<()> {
    let file = OpenOptions::new().append(true).open(root.join(LARGE_NAME));
    let mut file = file.doing(|| "opening the file to append to")?;
    file.write_all(&vec![0x5a; MIB]).doing(|| "appending")?;
    file.sync_all().doing(|| "fsync")
}

fn read(root: &Path) -> Result<()> {
    let mut file = File::open(root.join(LARGE_NAME)).doing(|| "opening the shared file")?;
    let mut buffer = vec![0; MIB];
    while file.read(&mut buffer).doing(|| "reading the shared file")? > 0 {
        interrupt::check()?;
    }
    Ok(())
}

/// Starts a process in every clone that will be its server.
fn start_servers(env: &Env<'_>) -> Result<()> {
    wait_in(env.roots, env.workers)?;
    rustix::fs::sync();
    Ok(())
}

/// The clone that is used before, and those that are timed.
fn last_of(roots: &[PathBuf]) -> Result<(&PathBuf, &[PathBuf])> {
    roots.split_last().ok_or_else(|| Failure::new("there are no clones"))
}

/// As [`start_servers`], in every clone but the last, after a server there has answered and was killed.
fn start_once_before(env: &Env<'_>) -> Result<()> {
    let (last, others) = last_of(env.roots)?;
    let before = Workers::default();
    wait_in(std::slice::from_ref(last), &before)?;
    all_answer(&before)?;
    drop(before);
    wait_in(others, env.workers)?;
    rustix::fs::sync();
    Ok(())
}

fn wait_in(roots: &[PathBuf], workers: &Workers) -> Result<()> {
    let ports = server::ports(roots.len())?;
    let job = |(root, port): (&PathBuf, u16)| Job::Serve { root: root.clone(), port };
    workers.start(roots.iter().zip(ports).map(job))
}

fn until_all_answer(env: &Env<'_>) -> Result<()> {
    all_answer(env.workers)
}

fn all_answer(workers: &Workers) -> Result<()> {
    workers.go()?;
    workers.each(|worker| match worker.job {
        Job::Serve { port, .. } => server::wait_answer(port, || worker.check_alive()),
        _ => Err(Failure::new("not a server")),
    })
}
