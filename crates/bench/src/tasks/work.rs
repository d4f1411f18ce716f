//! Whole pieces of work, as people do them in a Debian tree: every program is the tree's own and has the tree as its root directory,
//! as in a container.
//!
//! `podman build` is not among them. A container engine makes its mounts by itself, one for each step, with a program that it is
//! configured with: it can be given neither a host's directory nor a pool with a library, and it removes layers while the clock runs.
//! What a build does in its tree (unpacking, installing, compiling) is here, step by step, the same on each filesystem.

use super::small::SMALL;
use super::task::{Env, Task};
use crate::failure::Result;
use crate::interrupt;
use crate::testbed::Lower;
use crate::workload::chroot::{Chroot, WORK};
use crate::workload::debian;
use crate::workload::job::Job;
use crate::workload::worker::Workers;

/// What the names of these tasks begin with.
pub(super) const PREFIX: &str = "work-";

/// A task that leaves all of the tree alone but [`WORK`].
const WORK_TASK: Task = Task {
    state: "a fresh mount; the lower layer and what is read are in the page cache",
    lower: Lower::Debian,
    alters: true,
    only: Some(WORK),
    long: true,
    operations: |_| 1,
    needs: debian::missing_requirement,
    ..SMALL
};

/// A task on as many files as the scale says.
const FILES: Task = Task { operations: |testbed| testbed.debian_files(), ..WORK_TASK };

pub(super) const DPKG: Task = Task {
    name: "work-dpkg",
    title: "dpkg --unpack of packages with 7,400 files, without fsync (--force-unsafe-io)",
    only: None,
    prepare: |env| ready(env, "dpkg --force-unsafe-io --force-depends --unpack $(cat /mnt/debs-new)"),
    run: go,
    ..FILES
};

pub(super) const DPKG_SYNC: Task = Task {
    name: "work-dpkg-fsync",
    title: "dpkg --unpack of packages with 1,700 files, with fsync",
    operations: |testbed| testbed.debian_files().div_ceil(4),
    prepare: |env| ready(env, "dpkg --force-depends --unpack $(cat /mnt/debs-sync)"),
    ..DPKG
};

pub(super) const UPGRADE: Task = Task {
    name: "work-upgrade",
    title: "dpkg -i of packages with 4,900 files over the same packages, without fsync",
    prepare: |env| {
        ready(env, "dpkg --force-unsafe-io --force-depends --force-confold -i $(cat /mnt/debs-again)")
    },
    ..DPKG
};

pub(super) const COPY: Task = Task {
    name: "work-cp",
    title: "cp -a of 7,500 files",
    prepare: |env| ready(env, "cp -a /srv/files copy"),
    run: go,
    ..FILES
};

pub(super) const TAR: Task = Task {
    name: "work-tar",
    title: "tar -x of 7,500 files, GNU tar",
    prepare: |env| ready(env, "tar -xf /mnt/files.tar"),
    ..COPY
};

pub(super) const TAR_STATIC: Task = Task {
    name: "work-tar-static",
    title: "tar -x of 7,500 files, a statically linked program (busybox)",
    prepare: |env| ready(env, "busybox tar -xf /mnt/files.tar"),
    ..COPY
};

pub(super) const REMOVE: Task = Task {
    name: "work-rm",
    title: "rm -rf of 7,500 files of the upper layer",
    state: "they were just written through the mount, and synced",
    prepare: |env| {
        first(env, "tar -xf /mnt/files.tar")?;
        ready(env, "rm -rf usr")
    },
    ..COPY
};

pub(super) const REMOVE_LOWER: Task = Task {
    name: "work-rm-lower",
    title: "rm -rf of 7,500 files of the lower layer",
    only: None,
    prepare: |env| ready(env, "rm -rf /srv/files"),
    ..COPY
};

pub(super) const GREP: Task = Task {
    name: "work-grep",
    title: "grep -r over 7,500 files",
    // 1: no line was found.
    prepare: |env| ready(env, "grep -r zzz-nowhere-zzz /srv/files || [ $? = 1 ]"),
    ..COPY
};

pub(super) const DU: Task = Task {
    name: "work-du",
    title: "du of 7,500 files and of /usr",
    prepare: |env| ready(env, "du -s /srv/files /usr"),
    ..COPY
};

pub(super) const GIT: Task = Task {
    name: "work-git",
    title: "git clone of a local repository of 3,700 files, checkout of two branches, status",
    prepare: |env| {
        ready(
            env,
            "git clone -q --no-local /mnt/repository clone; cd clone; git checkout -q second; \
             git checkout -q third; git status --short",
        )
    },
    ..COPY
};

pub(super) const PIP: Task = Task {
    name: "work-pip",
    title: "pip install of flask, requests, babel and pytz from local wheels",
    prepare: |env| {
        debian::check_available("wheels")?;
        ready(
            env,
            "pip install -q --no-cache-dir --no-index --find-links /media/wheels --target site flask requests babel pytz",
        )
    },
    run: go,
    ..WORK_TASK
};

pub(super) const NPM: Task = Task {
    name: "work-npm",
    title: "npm ci of express and eslint from a local cache",
    prepare: |env| {
        debian::check_available("npm")?;
        first(env, "cp -a /media/npm project")?;
        ready(env, "cd project; npm ci --offline --cache ./cache --no-audit --no-fund --logs-max=0")
    },
    ..PIP
};

pub(super) const MAKE: Task = Task {
    name: "work-make",
    title: "make of a C project of 56 files",
    operations: |testbed| testbed.debian_files() / 140 + 3,
    prepare: |env| {
        first(env, "cp -a /mnt/project project")?;
        ready(env, "cd project; make -s")
    },
    ..PIP
};

pub(super) const PYTHON: Task = Task {
    name: "work-python",
    title: "python3 started 20 times, with a dozen modules",
    operations: |_| 20,
    prepare: |env| {
        ready(
            env,
            "for i in $(seq 20); do python3 -c 'import argparse, asyncio, email, http.client, json, logging, sqlite3, \
             ssl, subprocess, tempfile, unittest, urllib.request'; done",
        )
    },
    ..PIP
};

pub(super) const NODE: Task = Task {
    name: "work-node",
    title: "node started 10 times: npm --version",
    operations: |_| 10,
    prepare: |env| ready(env, "for i in $(seq 10); do npm --version; done"),
    ..PIP
};

pub(super) const SQLITE: Task = Task {
    name: "work-sqlite",
    title: "sqlite3: 300 transactions of one row each, default settings",
    operations: |_| 300,
    prepare: |env| {
        first(env, "sqlite3 db 'create table t (id integer primary key, word text)'")?;
        ready(
            env,
            "for i in $(seq 300); do echo \"insert into t (word) values ('word $i');\"; done | sqlite3 db",
        )
    },
    ..PIP
};

/// A shell in the tree that does `script` at the word.
fn job(env: &Env<'_>, script: &str) -> Job {
    Job::Inside(Chroot {
        root: env.root.to_owned(),
        binds: vec![
            (debian::packages(), "media".to_owned()),
            (env.testbed.debian_inputs(), "mnt".to_owned()),
        ],
        script: format!("cd {WORK}; {script}"),
    })
}

/// Does something before the clock starts.
fn first(env: &Env<'_>, script: &str) -> Result<()> {
    let workers = Workers::default();
    workers.start(std::iter::once(job(env, script)))?;
    finish(&workers)
}

/// Has a shell wait for the word, everything else being on the disk.
fn ready(env: &Env<'_>, script: &str) -> Result<()> {
    env.workers.start(std::iter::once(job(env, script)))?;
    rustix::fs::sync();
    interrupt::check()
}

/// Gives the word, and waits for the end.
fn go(env: &Env<'_>) -> Result<()> {
    finish(env.workers)
}

fn finish(workers: &Workers) -> Result<()> {
    workers.go()?;
    workers.each(|worker| worker.finish().map(drop))?;
    interrupt::check()
}
