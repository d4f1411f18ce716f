//! Real programs on files of which only some blocks are in the upper.

use crate::harness::outcome::{DuringContext, Outcome, ensure};
use crate::harness::{Cx, shell, skip};
use std::fs;
use std::path::Path;

/// Skips the case without a program that `make deps` installs.
fn need(program: &str) -> Outcome {
    if shell::have(program) { Ok(()) } else { skip(format!("{program} is missing: run make deps")) }
}

/// Runs lines of bash with `$A` and `$B` as directories.
fn bash(line: &str, a: &Path, b: &Path) -> Outcome<String> {
    shell::run(shell::bash(line).env("A", a).env("B", b))
}

fn is_partial(path: &Path) -> bool {
    let mut value = [0; 64];
    rustix::fs::lgetxattr(path, "trusted.vellum.p", value.as_mut_slice()).is_ok()
}

/// A database of a lower layer is changed through a mount with kill -9 of the writer and remounts; SQLite's own check finds
/// nothing, and the content is that of the same statements on an ordinary file.
pub(super) fn sqlite(cx: &Cx) -> Outcome {
    need("sqlite3")?;
    let layers = cx.layers("union", 1)?;
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    bash(
        "sqlite3 $A/db 'pragma journal_mode=wal; create table t(id integer primary key, v text, n int);
         create index i on t(n);
         with recursive c(x) as (select 1 union all select x+1 from c where x<60000)
         insert into t select x, hex(randomblob(40)), x%977 from c;' >/dev/null
         cp $A/db $B/db",
        layers.lower(),
        &plain,
    )?;
    let mut mount = cx.mount(&layers)?;
    for round in 0..6 {
        let statements = format!(
            "pragma busy_timeout=5000; begin; update t set v='round {round} '||id where n={}; delete from t where n={};
             insert into t(v,n) select 'new {round} '||id, {} from t where n={} limit 400; commit;
             pragma integrity_check; vacuum;",
            round * 31 + 5,
            round * 17 + 300,
            round + 2000,
            round * 7 + 11,
        );
        // The last rounds rewrite all of it.
        let statements = if round < 5 { statements.replace("vacuum;", "") } else { statements };
        for dir in [mount.root(), &plain] {
            let said = bash(&format!("sqlite3 $A/db \"{statements}\""), dir, dir)?;
            ensure!(said.contains("ok"), "round {round}, {}: {said}", dir.display());
        }
        if round == 0 {
            ensure!(is_partial(&layers.upper().join("db")), "the database was copied whole");
        }
        if round % 2 == 1 {
            mount.crash()?;
        } else {
            mount.remount()?;
        }
        let sums: Vec<String> = [mount.root(), &plain]
            .iter()
            .map(|dir| {
                bash(
                    "sqlite3 $A/db 'pragma integrity_check; select id,v,n from t order by id' | md5sum",
                    dir,
                    dir,
                )
            })
            .collect::<Outcome<_>>()?;
        ensure!(sums[0] == sums[1], "round {round}: the contents differ");
    }
    mount.unmount()
}

/// A cluster in a lower layer: pgbench runs on it through the mount, the server is killed and recovers, and its own
/// checks of every page and index find nothing.
pub(super) fn postgresql(cx: &Cx) -> Outcome {
    let bin = bash("ls -d /usr/lib/postgresql/*/bin | tail -1", &cx.dir, &cx.dir).unwrap_or_default();
    let bin = bin.trim().to_owned();
    if bin.is_empty() {
        return skip("postgresql is missing: run make deps");
    }
    let layers = cx.layers("union", 1)?;
    shell::run(shell::words("chmod -R a+rx").arg(&cx.dir))?;
    // Both profiles run at the same time.
    let sockets = cx.dir.join("s");
    bash("install -d -o postgres -m 700 $A", &sockets, &sockets)?;
    let sockets = sockets.display().to_string();
    let as_user = |line: &str, dir: &Path| {
        let line = line.replace("PG/", &format!("{bin}/")).replace("SOCKETS", &sockets);
        let line = format!("cd /; runuser -u postgres -- bash -euo pipefail -c '{line}'");
        bash(&line, dir, dir)
    };
    bash("install -d -o postgres -m 700 $A/pg", layers.lower(), layers.lower())?;
    let control = "PG/pg_ctl -s -w -D $A/pg -l $A/pg/log -o \"-k SOCKETS -p 54329 -c listen_addresses= -c shared_buffers=16MB\"";
    as_user("PG/initdb -k -D $A/pg -A trust >/dev/null", layers.lower())?;
    as_user(
        &format!(
            "{control} start; PG/pgbench -q -p 54329 -h SOCKETS -i -s 4 postgres >/dev/null 2>&1; {control} stop"
        ),
        layers.lower(),
    )?;
    let mut mount = cx.mount(&layers)?;
    let partial = || {
        bash(
            "getfattr -R -h -n trusted.vellum.p $A/pg 2>/dev/null | grep -c '^# file' || true",
            layers.upper(),
            layers.upper(),
        )
    };
    as_user(
        &format!("{control} start; PG/pgbench -p 54329 -h SOCKETS -T 4 -c 4 postgres >/dev/null 2>&1"),
        mount.root(),
    )
    .doing("pgbench")?;
    let files: u32 = partial()?.trim().parse().unwrap_or(0);
    ensure!(files > 0, "no file of the cluster is partial");
    // The server dies, recovers, and its cluster is checked.
    as_user(&format!("{control} -m immediate stop; {control} start; PG/pgbench -p 54329 -h SOCKETS -T 2 -c 2 postgres >/dev/null 2>&1; {control} stop"), mount.root())
        .doing("recovery")?;
    mount.remount()?;
    as_user("PG/pg_checksums --check -D $A/pg >/dev/null", mount.root()).doing("pg_checksums")?;
    let query = "select sum(bbalance) = (select sum(abalance) from pgbench_accounts) \
                 and sum(bbalance) = (select sum(tbalance) from pgbench_tellers) from pgbench_branches";
    let said = as_user(
        &format!("{control} start; PG/psql -p 54329 -h SOCKETS -At -c \"{query}\" postgres; {control} stop"),
        mount.root(),
    )?;
    ensure!(said.trim() == "t", "the balances do not add up: {said}");
    mount.unmount()
}

/// An image is written to through the mount by qemu's own tool, which then finds nothing wrong with it.
pub(super) fn qemu_img(cx: &Cx) -> Outcome {
    need("qemu-img")?;
    let layers = cx.layers("union", 1)?;
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    bash(
        "qemu-img create -q -f qcow2 $A/image 64M
         for at in 0 1M 5M 33M; do qemu-io -f qcow2 -c \"write -P 17 $at 700k\" $A/image >/dev/null; done
         cp $A/image $B/image",
        layers.lower(),
        &plain,
    )?;
    let mut mount = cx.mount(&layers)?;
    for dir in [mount.root(), &plain] {
        bash(
            "qemu-io -f qcow2 -c 'write -P 33 512k 3k' -c 'write -z 5M 64k' -c 'write -P 9 40M 200k' -c 'discard 1M 128k' -c flush $A/image >/dev/null
             qemu-img snapshot -c one $A/image
             qemu-io -f qcow2 -c 'write -P 77 2M 999k' $A/image >/dev/null",
            dir,
            dir,
        )?;
    }
    ensure!(is_partial(&layers.upper().join("image")), "the image was copied whole");
    mount.crash()?;
    bash(
        "qemu-img check -q $A/image; qemu-img compare -q $A/image $B/image
         qemu-img snapshot -a one $A/image; qemu-img snapshot -a one $B/image; qemu-img compare -q $A/image $B/image",
        mount.root(),
        &plain,
    )?;
    mount.unmount()
}

/// git packs a repository of a lower layer anew; rsync changes a large file in place.
pub(super) fn git_and_rsync(cx: &Cx) -> Outcome {
    need("git")?;
    need("rsync")?;
    let layers = cx.layers("union", 1)?;
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    bash(
        "mkdir $A/repo; cd $A/repo; git init -q; git config user.email a@b; git config user.name n
         for i in $(seq 40); do head -c 60000 /dev/urandom > f$i; git add f$i; git commit -qm $i; done; git repack -adq
         head -c 6000000 /dev/urandom > $A/large; cp $A/large $B/new
         printf changed | dd of=$B/new bs=1 seek=3000000 conv=notrunc status=none; printf end >> $B/new",
        layers.lower(),
        &plain,
    )?;
    let mut mount = cx.mount(&layers)?;
    bash(
        "cd $A/repo; for i in $(seq 5); do echo $i >> f$i; git commit -qam more$i; done; git repack -adqf; git fsck --full
         rsync --inplace --no-whole-file $B/new $A/large; cmp $B/new $A/large",
        mount.root(),
        &plain,
    )?;
    ensure!(is_partial(&layers.upper().join("large")), "rsync's target was copied whole");
    mount.crash()?;
    bash("cd $A/repo; git fsck --full; cmp $B/new $A/large", mount.root(), &plain)?;
    mount.unmount()
}
