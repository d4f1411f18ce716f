//! Containers of a pool with ids of its own.

use super::support::{PATIENCE, Runs, names};
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The ids of the pool.
const START: u32 = 300_000;
const COUNT: u32 = 65_536;

/// Root in a container of such a pool is nobody outside, and finds and leaves root's files inside; by either runtime.
pub(super) fn uid_range(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    // crun starts nothing beside controllers of version 2. In this case's own mount namespace.
    if Path::new("/sys/fs/cgroup/unified").is_dir() {
        shell::run(&mut shell::words("mount -t tmpfs tmpfs /sys/fs/cgroup/unified"))?;
    }
    let name = format!("test-ids-{}", UNIX_EPOCH.elapsed().doing("the time")?.as_nanos());
    let vellum = |arguments: &[&str]| -> Outcome<String> {
        let mut command = Command::new(&runs.program);
        shell::run(command.args(arguments).env("VELLUM_POOLS", cx.dir.join("pools")))
    };
    vellum(&["pool", "create", &name, "--uid-range", &format!("{START}:{COUNT}")])?;
    let ended = ["runc", "crun"].iter().try_for_each(|runtime| by(&runs, &name, runtime));
    // A service ends a moment after its mount.
    let begin = Instant::now();
    while let Err(stop) = vellum(&["pool", "delete", &name]) {
        if begin.elapsed() > PATIENCE {
            return ended.and(Err(stop));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ended
}

fn by(runs: &Runs<'_>, pool: &str, runtime: &str) -> Outcome {
    let null = fs::metadata("/dev/null")?.uid();
    let with = |more: &[&str]| -> Vec<String> {
        let always = ["--runtime", runtime, "--pool", pool];
        always.iter().chain(more).map(|&one| one.to_owned()).collect()
    };
    let run = |more: &[&str]| -> Outcome<String> {
        let all = with(more);
        runs.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let said = run(&["sh", "-c", "id -u; id -g; cat /proc/self/uid_map /proc/self/gid_map"])?;
    let (start, count) = (START.to_string(), COUNT.to_string());
    let wanted: Vec<&str> = vec!["0", "0", "0", &start, &count, "0", &start, &count];
    ensure_eq!(said.split_whitespace().collect::<Vec<_>>(), wanted, "{runtime}: ids");
    // What every container has is there.
    let line = "echo x > /dev/shm/x; cat /dev/null; ls /sys/class/net; stat -c %u /etc/hosts; test -w /etc/hosts; tty; stat -c %u /";
    ensure_eq!(run(&["sh", "-c", line])?, "lo\n0\nnot a tty\n0\n", "{runtime}: surroundings");
    ensure!(run(&["--network", "host", "ls", "/sys/class/net"])?.contains("lo\n"), "{runtime}: host network");
    owners(runs, runtime, &run)?;
    // A user that is not there is no reason for a runtime to fail.
    let absent = with(&["--user", "65536:0", "true"]);
    let mut command = runs.command(&absent.iter().map(String::as_str).collect::<Vec<_>>());
    shell::refused(command.env("VELLUM_LOG", "error"), "--user 65536:0")?;
    seen_from_outside(runs, runtime, &with)?;
    ensure_eq!(fs::metadata("/dev/null")?.uid(), null, "{runtime}: whose the host's null device is");
    Ok(())
}

/// Files have the owners inside that layers hold, and the other way round.
fn owners(runs: &Runs<'_>, runtime: &str, run: &dyn Fn(&[&str]) -> Outcome<String>) -> Outcome {
    let (upper, volume) = (runs.cx.dir.join(format!("upper-{runtime}")), runs.cx.dir.join("volume"));
    for dir in [&upper, &volume] {
        fs::create_dir_all(dir)?;
    }
    chown(&volume, Some(START), Some(START))?;
    chown(runs.image.join("srv/file"), Some(33), Some(34))?;
    let shown = volume.display();
    let line = "stat -c '%u %g' /srv/file /bin/sh; touch /srv/new /srv/given /volume/made; chown 33:34 /srv/given; rm /srv/file";
    let said =
        run(&["--upper", &upper.display().to_string(), "-v", &format!("{shown}:/volume"), "sh", "-c", line])?;
    ensure_eq!(said, "33 34\n0 0\n", "{runtime}: owners inside");
    for (path, owner) in [
        (upper.join("srv/new"), (0, 0)),
        (upper.join("srv/given"), (33, 34)),
        (upper.join("srv"), (0, 0)),
        (volume.join("made"), (START, START)),
    ] {
        let meta = fs::symlink_metadata(&path)?;
        ensure_eq!((meta.uid(), meta.gid()), owner, "{runtime}: {}", path.display());
    }
    // A user of the image may do there what is his to do.
    let line = "id -u; echo x > /srv/given && echo written; touch /srv/x 2>/dev/null || echo refused";
    let said = run(&["--upper", &upper.display().to_string(), "--user", "web", "sh", "-c", line])?;
    ensure_eq!(said, "33\nwritten\nrefused\n", "{runtime}: another user");
    Ok(fs::remove_file(volume.join("made"))?)
}

/// To the host its processes are those of the range, and nobody else's reach its tree.
fn seen_from_outside(runs: &Runs<'_>, runtime: &str, with: &dyn Fn(&[&str]) -> Vec<String>) -> Outcome {
    let seconds = format!("{}", 40_000_000 + std::process::id());
    let line = format!("echo ready; exec sleep {seconds}");
    let started = with(&["--name", "seen", "sh", "-c", &line]);
    let started = runs.start(&started.iter().map(String::as_str).collect::<Vec<_>>())?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = sleeping(&seconds)? {
            break status;
        }
        ensure!(begin.elapsed() < PATIENCE, "{runtime}: no process sleeps");
        std::thread::sleep(Duration::from_millis(10));
    };
    let start = START.to_string();
    for key in ["Uid:", "Gid:"] {
        let ids = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let all = ids.split_whitespace().collect::<Vec<_>>();
        ensure_eq!(all, [start.as_str(); 4], "{runtime}: {key} to the host");
    }
    let inside = runs.state.join("containers/seen");
    let root = inside.join(names(&inside)?.join("")).join("merged");
    ensure_eq!(fs::metadata(root.join("bin"))?.uid(), START, "{runtime}: who owns files to the host");
    let upper = root.with_file_name("private").join("upper");
    ensure!(upper.is_dir(), "{runtime}: no upper layer at {}", upper.display());
    for (id, path, reaches) in [(START, &root, true), (START + COUNT, &root, false), (START, &upper, false)] {
        let mut command = Command::new("setpriv");
        let id = id.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "stat"]).arg(path);
        let output = command.output()?;
        ensure_eq!(output.status.success(), reaches, "{runtime}: {id} and {}", path.display());
    }
    started.signal(Signal::KILL)?;
    drop(started);
    // The next one takes away what is left.
    runs.run(&["true"])?;
    Ok(())
}

/// `/proc/PID/status` of the process that sleeps so long.
fn sleeping(seconds: &str) -> Outcome<Option<String>> {
    for name in names(Path::new("/proc"))? {
        let line = fs::read(format!("/proc/{name}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if words.first().is_some_and(|program| program.ends_with(b"sleep"))
            && words.get(1).is_some_and(|word| *word == seconds.as_bytes())
        {
            return Ok(fs::read_to_string(format!("/proc/{name}/status")).ok());
        }
    }
    Ok(None)
}
