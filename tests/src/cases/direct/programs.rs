//! Programs as they are, with the library, where it is given files: what they leave is what they leave on the host.

use super::Ground;
use crate::cases::library::{compile, compilers, library};
use crate::cases::monitoring::stats_of;
use crate::cases::pool::PoolMount;
use crate::harness::outcome::{Outcome, Stop, ensure, ensure_eq, skip};
use crate::harness::{Cx, rng, shell};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What is done in the directory D: all kinds of writing programs.
const SCRIPT: &str = r#"
set -e; export LC_ALL=C HOME=$D TZ=UTC GIT_CONFIG_NOSYSTEM=1; umask 022; cd "$D"
tar -cf - -C /usr/share/perl5 . 2>/dev/null | (mkdir tree; tar -xf - -C tree)
cp -a tree copy; cp -r tree/Debian* plain 2>/dev/null || mkdir plain
find copy -type f -name '*.pm' | sort | head -200 | while read f; do sed -i s/use/USE/ "$f"; done
find copy -type f | sort | tail -100 | xargs -r rm
for i in $(seq 1 200); do echo "line $i" >> log; echo $i > "n$i"; done
for i in $(seq 1 2 200); do mv "n$i" "m$i"; done; ln m1 twin; ln -s m3 soft; echo more >> twin; cat soft > seven
seq 1 100000 | sort -rn > sorted; gzip -nk sorted; dd if=sorted of=part bs=1k count=20 skip=3 status=none
truncate -s 1000 sorted; printf xyz | dd of=sorted bs=1 seek=10 conv=notrunc status=none
python3 - <<'P'
import os, sqlite3, tempfile, subprocess, mmap, fcntl
for i in range(300):
    with open(f"p{i%40}", "ab" if i % 3 else "wb") as f: f.write(b"%d" % i * (i % 50))
    if i % 5 == 0:
        fd, name = tempfile.mkstemp(dir="."); os.write(fd, b"temp"); os.fsync(fd); os.close(fd); os.replace(name, f"t{i}"); os.chmod(f"t{i}", 0o640)
for i in range(0, 40, 2): os.unlink(f"p{i}")
db = sqlite3.connect("db"); db.execute("create table t(a, b)")
for i in range(50):
    db.execute("insert into t values(?, ?)", (i, "x" * i)); db.commit()
db.close()
with open("mapped", "w+b") as f:
    f.truncate(8192); m = mmap.mmap(f.fileno(), 8192); m[100:103] = b"abc"; m.flush(); f.seek(0, 2); f.write(b"end")
with open("locked", "w") as f:
    fcntl.flock(f, fcntl.LOCK_EX); f.write("mine"); f.flush()
    print(subprocess.run(["flock", "-n", "locked", "true"]).returncode)
P
mkdir repo; cd repo; git init -q .; cp -r ../plain/. . ; seq 1 500 > numbers; git add -A
git -c user.name=n -c user.email=e commit -qm one --date '2026-01-01T00:00:00Z'; sed -i 5d numbers
git -c user.name=n -c user.email=e commit -qam two --date '2026-01-02T00:00:00Z'; git gc -q; git fsck 2>&1; git status --short; cd ..
cat > a.c <<'C'
#include <stdio.h>
int main(void) { puts("compiled"); return 0; }
C
gcc -o a.out a.c && ./a.out; rm a.out
sqlite3 db 'select count(*), sum(length(b)) from t; pragma integrity_check'
"#;

/// What is there afterwards: names, kinds, modes, sizes, links, contents; of what was unpacked also owners and times.
const LOOK: &str = "export LC_ALL=C; cd $D; find . -path ./repo/.git -prune -o -printf '%P %y %m %n %l\\n' | sort; \
                    find tree -printf '%P %U %G %T@\\n' | sort; \
                    find . -path ./repo/.git -prune -o -type f ! -name db -print0 | sort -z | xargs -0 sha256sum";

fn missing() -> Option<&'static str> {
    ["python3", "sqlite3", "gcc", "git", "flock"].into_iter().find(|program| !shell::have(program))
}

fn on(line: &str, dir: &Path) -> Command {
    let mut command = shell::bash(line);
    command.env("D", dir);
    command
}

/// Runs the script with the library; what it leaves must be what it leaves on the host.
fn same_as_on_the_host(cx: &Cx, ground: &Ground<'_>) -> Outcome {
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    let expected = shell::run(&mut on(SCRIPT, &plain))?;
    let new = ground.path("new");
    let library = library()?;
    let mut command = on(SCRIPT, &new);
    ground.preload(&mut command, &library);
    ensure_eq!(shell::run(&mut command)?, expected, "what the programs say");
    let left = shell::run(&mut on(LOOK, &plain))?;
    for with in [true, false] {
        let mut look = on(LOOK, &new);
        if with {
            ground.preload(&mut look, &library);
        }
        let found = shell::run(&mut look)?;
        let differs = found.lines().zip(left.lines()).find(|(found, left)| found != left);
        ensure!(found == left, "with the library: {with}; the first difference: {differs:?}");
    }
    Ok(())
}

pub(super) fn programs(cx: &Cx) -> Outcome {
    if let Some(missing) = missing() {
        return skip(format!("{missing} is missing: run make deps"));
    }
    let ground = Ground::new(cx, |_| Ok(()))?;
    same_as_on_the_host(cx, &ground)
}

/// Programs do as on the host, while the service is killed again and again.
pub(super) fn programs_and_kills(cx: &Cx) -> Outcome {
    if let Some(missing) = missing() {
        return skip(format!("{missing} is missing: run make deps"));
    }
    let ground = Ground::new(cx, |_| Ok(()))?;
    while_killed(&ground, || same_as_on_the_host(cx, &ground))
}

/// Does something while the service is killed again and again.
fn while_killed(ground: &Ground<'_>, act: impl FnOnce() -> Outcome) -> Outcome {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut kills = 0;
            while !stop.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(150));
                if ground.mount.service().is_ok_and(|service| kill_process(service, Signal::KILL).is_ok()) {
                    kills += 1;
                }
            }
            kills
        });
        let outcome = act();
        stop.store(true, Relaxed);
        let kills = killer.join().unwrap_or(0);
        outcome?;
        ensure!(kills > 10, "only {kills} kills");
        Ok(())
    })
}

/// Where a sync through the mount does nothing, it does nothing past it.
pub(super) fn volatile(cx: &Cx) -> Outcome {
    let [compiler, ..] = compilers()?[..] else { return skip("a compiler is missing") };
    let program = compile(cx, compiler, "filtered")?;
    for volatile in [true, false] {
        let options: &[&str] = if volatile { &["volatile"] } else { &[] };
        let ground = Ground::of(PoolMount::with(cx, |_| Ok(()), options)?)?;
        let mut command = Command::new(&program);
        ground.preload(&mut command, &library()?);
        let output = command.arg(ground.path("new")).arg("no-sync").output()?;
        ensure_eq!(output.status.success(), volatile, "a program that must not sync");
    }
    Ok(())
}

/// Writes and syncs past the mount, among everything else, for both libcs.
pub(super) fn writes(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    for compiler in compilers()? {
        let program = compile(cx, compiler, "writes")?;
        // Those first that must not have been given the files themselves before.
        [1, 0].into_iter().try_for_each(|kind| go_past(cx, &ground, &program, rng::seed() & !1 | kind))?;
    }
    many_files(&ground)
}

/// Files of which each is synced less often than would be worth a session, but all of them together more often. They are opened by a
/// shell without the library.
fn many_files(ground: &Ground<'_>) -> Outcome {
    if !shell::have("python3") {
        return skip("python3 is missing: run make deps");
    }
    let line = r#"
        cd "$D"; exec 3<>a 4<>b 5<>c 6<>d 7<>e 8<>f; export LD_PRELOAD="$LIBRARY"
        exec python3 -c 'import os
for turn in range(8):
    for fd in range(3, 9):
        os.write(fd, b"x"); os.fsync(fd)'"#;
    let mut command = on(line, &ground.path("new"));
    ground.preload(&mut command, &library()?);
    command.env_remove("LD_PRELOAD").env("LIBRARY", library()?);
    reports(&mut command, "pwrites and syncs past the mount")
}

/// Writes and syncs past the mount, while the service is killed again and again.
pub(super) fn writes_and_kills(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    let Some(compiler) = compilers()?.into_iter().next() else { return skip("no compiler") };
    let program = compile(cx, compiler, "writes")?;
    while_killed(&ground, || {
        [1, 0].into_iter().try_for_each(|kind| go_past(cx, &ground, &program, rng::seed() & !1 | kind))
    })
}

/// Runs the program by the number `seed`; if it is odd, files are opened through the mount.
fn go_past(cx: &Cx, ground: &Ground<'_>, program: &Path, seed: u64) -> Outcome {
    let dirs = [ground.path("new"), cx.dir.join("plain")].map(|dir| dir.join(format!("seed-{seed}")));
    dirs.iter().try_for_each(fs::create_dir_all)?;
    let mut command = Command::new(program);
    ground.preload(&mut command, &library()?);
    let command = command.args(&dirs).arg(seed.to_string());
    reports(command.env("VELLUM_RING", "on"), "pwrites and syncs past the mount")
}

/// Locks, positions and looks of descriptors that were handed out, for both libcs.
pub(super) fn sharing(cx: &Cx) -> Outcome {
    if !shell::have("flock") {
        return skip("flock is missing");
    }
    let programs: Vec<_> =
        compilers()?.into_iter().map(|compiler| compile(cx, compiler, "sharing")).collect::<Outcome<_>>()?;
    let ground = Ground::new(cx, |_| Ok(()))?;
    for program in programs {
        shell::run(Command::new(&program).arg(ground.path("new")))?;
        is_handed_out(&ground, &program)?;
    }
    Ok(())
}

/// Runs a program with the library: files are handed out to it.
fn is_handed_out(ground: &Ground<'_>, program: &Path) -> Outcome {
    let mut command = Command::new(program);
    ground.preload(&mut command, &library()?);
    reports(command.arg(ground.path("new")), "opens by the ring")
}

/// Runs a program with the library, which must report some of something at its end.
fn reports(command: &mut Command, what: &str) -> Outcome {
    let output = command.env("VELLUM_REPORT", "1").output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {} {report}", output.status);
    let line = report.lines().find_map(|line| line.strip_prefix(&format!("vellum: {what}: ")));
    ensure!(line.is_some_and(|line| !line.starts_with("0,")), "no {what}: {report}");
    Ok(())
}

/// A filter of system calls that the program inherits and that ends whoever makes one that it does not know.
pub(super) fn filtered(cx: &Cx) -> Outcome {
    let [compiler, ..] = compilers()?[..] else { return skip("a compiler is missing") };
    let program = compile(cx, compiler, "filtered")?;
    let ground = Ground::new(cx, |_| Ok(()))?;
    is_handed_out(&ground, &program)
}

/// In a user namespace the kernel shows ids as they are there, and so must a ring.
pub(super) fn user_namespaces(cx: &Cx) -> Outcome {
    const LINE: &str = r#"
        set -e
        unshare --user sleep 30 & sleeper=$!; trap 'kill $sleeper' EXIT
        until [ "$(readlink /proc/$sleeper/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do sleep 0.05; done
        for map in uid_map gid_map; do echo "0 100000 1000" > /proc/$sleeper/$map; done
        VELLUM_RING=on nsenter -t $sleeper -U -S 0 -G 0 env LD_PRELOAD="$LIBRARY" bash -c '
            cd "$D"; for n in $(seq 1 40); do echo $n > f$n; done; mkdir dir; echo x > dir/x; stat -c "%u %g" f* dir dir/x | sort -u'
    "#;
    let ground = Ground::new(cx, |_| Ok(()))?;
    let new = ground.path("new");
    std::os::unix::fs::chown(&new, Some(100_000), Some(100_000))?;
    let library = library()?;
    let mut command = on(LINE, &new);
    ground.preload(&mut command, &library);
    command.env("LIBRARY", &library).env_remove("LD_PRELOAD");
    // A container has the socket mounted where its programs reach it.
    let around =
        ground.socket.ancestors().nth(2).ok_or_else(|| Stop::Fail("the socket is nowhere".into()))?;
    fs::set_permissions(around, fs::Permissions::from_mode(0o711))?;
    let opens = || -> Outcome<u64> {
        Ok(stats_of(&ground.mount)?["figures"]["ring_opens"].as_u64().unwrap_or_default())
    };
    let before = opens()?;
    ensure_eq!(shell::run(&mut command)?, "0 0\n", "owner and group, as they are seen there");
    ensure!(opens()? >= before + 30, "files were not made over a ring");
    let seen = fs::metadata(new.join("dir/x"))?;
    ensure_eq!((seen.uid(), seen.gid()), (100_000, 100_000), "owner and group, as they are seen here");
    Ok(())
}
