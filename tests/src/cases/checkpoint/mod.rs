//! `vellum checkpoint` and `vellum restore`: containers that stand still for a moment, end, and go on elsewhere.

mod compression;
mod containerd;
mod ids;
mod library;
mod mounted_store;
mod pace;
mod podman;
mod precopy;
mod programs;
mod stream;
pub(super) mod support;
mod zoned;

use super::Case;
use crate::harness::disk::Disk;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Profile, shell};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};
use support::{Scene, eventually};

pub(super) const CASES: &[Case] = &[
    Case::once("checkpoint/counter", 120, counter),
    Case::once("checkpoint/python", 120, python),
    Case::once("checkpoint/redis", 120, redis),
    Case::once("checkpoint/postgresql", 240, programs::postgresql),
    Case::once("checkpoint/web", 120, programs::web),
    Case::once("checkpoint/memory-ahead", 120, precopy::memory),
    Case::once("checkpoint/interrupted", 300, interrupted),
    Case::once("checkpoint/refused", 120, refused),
    Case::once("checkpoint/uid-range", 120, ids::uid_range),
    Case::once("checkpoint/zoned", 120, zoned::counter),
    Case::once("checkpoint/zoned-python", 120, zoned::python),
    Case::once("checkpoint/zoned-redis", 120, zoned::redis),
    Case::once("checkpoint/zoned-postgresql", 400, programs::zoned_postgresql),
    Case::once("checkpoint/zoned-interrupted", 400, zoned::interrupted),
    Case::once("checkpoint/zoned-full", 120, zoned::full),
    Case::once("checkpoint/zoned-refused", 120, zoned::refused),
    Case::once("checkpoint/zoned-mounted", 120, mounted_store::mounted),
    Case::once("checkpoint/zoned-uppers", 120, mounted_store::uppers),
    Case::once("checkpoint/zoned-mounted-interrupted", 400, mounted_store::interrupted),
    Case::once("checkpoint/library", 120, library::library),
    Case::once("checkpoint/library-interrupted", 300, library::interrupted),
    Case::once("checkpoint/containerd", 600, containerd::of_debian_12),
    Case::once("checkpoint/zstd", 120, compression::directory_zstd),
    Case::once("checkpoint/increments", 120, compression::directory_increments),
    Case::once("checkpoint/packed-interrupted", 300, compression::interrupted),
    Case::once("checkpoint/paced", 120, pace::paced),
    Case::once("checkpoint/paced-interrupted", 300, pace::interrupted),
    Case::once("checkpoint/stream", 120, stream::moves),
    Case::once("checkpoint/stream-interrupted", 300, stream::interrupted),
    Case::once("checkpoint/zoned-zstd", 120, compression::zstd),
    Case::once("checkpoint/zoned-increments", 120, compression::zoned_increments),
    Case::of(Profile::Cached, "checkpoint/podman-4.3", 600, podman::of_debian_12),
    Case::of(Profile::Passthrough, "checkpoint/podman-5.4", 600, podman::of_debian_13),
];

/// Counts in memory, in a file and in what it says. Containers that run side by side have different names, for their control groups do.
pub(super) const COUNTER: &str =
    "trap 'exit 3' TERM; i=0; while :; do i=$((i+1)); echo $i >> /srv/count; echo $i; sleep 0.05; done";

/// Lists, is left running, ends, goes on, also in another pool, with its memory and its file of one moment.
fn counter(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?;
    let first = scene.start(&["--name", "count", "sh", "-c", COUNTER])?;
    first.says_more()?;
    // What CRIU does not keep is said.
    let in_memory = "for p in $(pgrep -f '[i]=0; while'); do f=/proc/$p/root/dev/shm/list
      [ -e /proc/$p/root/srv/count ] && touch $f && setfacl -m u:1000:rw $f && exit; done; exit 1";
    shell::run(&mut shell::bash(in_memory))?;
    let output = scene.taking("count", Path::new(&scene.to())).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.contains("/dev/shm/list; CRIU keeps none"), "{said}");
    first.says_more()?;
    scene.checkpoint(&["count", "--name", "last"])?;
    ensure_eq!(first.ends()?, 137, "the container that has ended");
    let listed = scene.vellum(&["checkpoints", "list", "--json", &scene.to()])?;
    let listed: serde_json::Value = serde_json::from_str(&listed).doing("the list")?;
    let names: Vec<_> = listed.as_array().into_iter().flatten().map(|one| one["name"].clone()).collect();
    ensure_eq!(names, ["count", "last"], "names in {listed}");
    ensure!(listed[1]["record"]["left_running"] == false, "{listed}");
    let shown = scene.vellum(&["checkpoints", "show", &scene.to(), "last"])?;
    ensure!(shown.contains("while :") && shown.contains("CRIU"), "{shown}");
    // In a pool, which it was not in.
    let pool = format!("test-ck-{}", UNIX_EPOCH.elapsed().doing("the time")?.as_nanos());
    scene.vellum(&["pool", "create", &pool])?;
    let ended = (|| {
        let second = scene.restore("last", &["--pool", &pool])?;
        second.says_more()?;
        let group = shell::run(&mut shell::bash("cat /proc/$(pgrep -f '[i]=0; while' -o)/cgroup"))?;
        ensure!(group.contains(&format!("/vellum/{pool}/")), "{group} is not in the pool");
        // What it counts in memory, and what it has written, go on without a gap.
        let written = fs::read_to_string(scene.merged("count")?.join("srv/count"))?;
        let numbers: Vec<u32> = written.lines().filter_map(|line| line.parse().ok()).collect();
        // One before each of the checkpoints, and one since.
        ensure!(numbers.len() >= 3, "{written}");
        ensure!(numbers.iter().enumerate().all(|(at, number)| *number == at as u32 + 1), "{written}");
        // A restored one can be kept again, by the service of this pool or its successor.
        scene.vellum(&["pool", "restart", &pool])?;
        scene.checkpoint(&["count", "--name", "again"])?;
        ensure_eq!(second.ends()?, 137, "the restored container");
        Ok(())
    })();
    eventually("the pool goes", || Ok(scene.vellum(&["pool", "delete", &pool]).is_ok()))?;
    ended?;
    scene.vellum(&["checkpoints", "delete", &scene.to(), "count", "last", "again"])?;
    ensure_eq!(fs::read_dir(scene.to())?.count(), 0, "what is left");
    scene.check_no_leftovers()
}

/// Files without names, shared memory, sockets and a file of which most is in the layer below, over an end and a new beginning.
fn python(cx: &Cx) -> Outcome {
    restores_python(&Scene::with_host_programs(cx)?)
}

fn restores_python(scene: &Scene<'_>) -> Outcome {
    fs::write(scene.image().join("srv/prog.py"), include_str!("prog.py"))?;
    fs::write(scene.image().join("srv/big"), vec![7; 4 << 20])?;
    let first = scene.start(&["--name", "py", "-v", "/usr:/usr:ro", "python3", "/srv/prog.py"])?;
    first.says_more()?;
    scene.checkpoint(&["py"])?;
    first.ends()?;
    let second = scene.restore("py", &[])?;
    second.says_more()?;
    ensure!(fs::read(scene.merged("py")?.join("srv/big"))?.len() == 4 << 20, "the partial file");
    let big = scene.upper("py")?.join("srv/big");
    let is_partial = rustix::fs::lgetxattr(&big, "trusted.vellum.p", &mut [0_u8; 0]).is_ok();
    ensure!(is_partial, "{} is not partial", big.display());
    second.signal(Signal::TERM)?;
    second.ends()?;
    scene.check_no_leftovers()
}

/// Redis with data, while it is written to: all of them are there afterwards, and it takes more.
fn redis(cx: &Cx) -> Outcome {
    restores_redis(&Scene::with_host_programs(cx)?)
}

fn restores_redis(scene: &Scene<'_>) -> Outcome {
    shell::run(Command::new(crate::harness::source_root().join("scripts/apt")).arg("redis-tools"))?;
    std::os::unix::fs::symlink("/usr/bin/redis-check-rdb", scene.image().join("srv/redis-server"))?;
    let server = [
        "/srv/redis-server",
        "--port",
        "0",
        "--unixsocket",
        "/srv/redis.sock",
        "--save",
        "",
        "--enable-debug-command",
        "yes",
    ];
    let start = ["--name", "redis", "-v", "/usr:/usr:ro"];
    let first = scene.start(&[&start[..], &server[..]].concat())?;
    let ask = |words: &str| -> Outcome<String> {
        let socket = scene.merged("redis")?.join("srv/redis.sock");
        let said = shell::run(&mut shell::bash(&format!("redis-cli -s '{}' {words}", socket.display())))?;
        Ok(said.trim().to_owned())
    };
    eventually("Redis answers", || Ok(ask("ping").is_ok_and(|said| said == "PONG")))?;
    ask("debug populate 20000 key 1000")?;
    scene.checkpoint(&["redis", "--leave-running"])?;
    ensure_eq!(ask("dbsize")?, "20000", "keys of the one that goes on");
    ask("set more 1")?;
    scene.checkpoint(&["redis"])?;
    first.ends()?;
    let second = scene.restore("redis", &[])?;
    eventually("Redis answers again", || Ok(ask("ping").is_ok_and(|said| said == "PONG")))?;
    ensure_eq!(ask("dbsize")?, "20001", "keys");
    ask("set still 2")?;
    ensure_eq!(ask("get still")?, "2", "what it takes");
    second.signal(Signal::TERM)?;
    second.ends()?;
    scene.check_no_leftovers()
}

/// Killed at any moment, or out of space: the container goes on, and the older checkpoint is as it was.
fn interrupted(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?;
    let counter = scene.start(&["--name", "cut-off", "sh", "-c", COUNTER])?;
    counter.says_more()?;
    scene.checkpoint(&["cut-off", "--leave-running"])?;
    let before = fs::read(scene.checkpoint_dir("cut-off").join("checkpoint.json"))?;
    for millis in [5, 40, 80, 120, 160, 240] {
        let mut command = scene.taking("cut-off", Path::new(&scene.to()));
        let mut child = command.spawn()?;
        std::thread::sleep(Duration::from_millis(millis));
        child.kill()?;
        let whole = child.wait()?.success();
        counter.says_more()?;
        let after = fs::read(scene.checkpoint_dir("cut-off").join("checkpoint.json"))?;
        serde_json::from_slice::<serde_json::Value>(&after).doing("the record")?;
        ensure!(
            whole || after == before || scene.checkpoint_dir("cut-off").join("object").exists(),
            "after {millis} ms"
        );
    }
    scene.leaves_nothing_unfinished("cut-off", &[])?;
    let restored = scene.restore("cut-off", &["--name", "cut-off-second"])?;
    restored.says_more()?;
    drop(restored);
    // A restoration that is killed, with what runc may leave mounted then.
    let killed = scene.restore("cut-off", &["--name", "cut-off-third"])?;
    killed.says_more()?;
    let known = scene.merged("cut-off-third")?.with_file_name("runtime").join("cut-off-third");
    let left = known.join("criu-root");
    // What runc does not know of a container yet it cannot take away.
    eventually("runc is done", || Ok(known.join("state.json").exists() && !left.exists()))?;
    killed.signal(Signal::KILL)?;
    killed.ends()?;
    fs::create_dir_all(&left)?;
    rustix::mount::mount_bind(scene.image(), &left)?;
    let state = scene.state();
    let image = scene.image().display().to_string();
    let other = ["run", "--state", &state, "--image", &image, "true"];
    eventually("what was killed is taken away", || {
        Ok(scene.vellum(&other).is_ok() && scene.merged("cut-off-third").is_err())
    })?;
    // A full disk.
    let disk = Disk::ext4(&cx.dir, "small")?;
    let to = disk.at().join("checkpoints");
    scene.checkpoint_to(&to, &["cut-off", "--leave-running"])?;
    let before = fs::read(to.join("cut-off/checkpoint.json"))?;
    let fill = disk.at().join("fill");
    let mut file = fs::File::create(&fill)?;
    while file.write_all(&[1; 4096]).is_ok() {}
    drop(file);
    let output = scene.taking("cut-off", &to).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "a full disk: {}", String::from_utf8_lossy(&output.stdout));
    ensure!(said.contains("pace") && said.lines().count() == 1, "a full disk: {said}");
    counter.says_more()?;
    ensure_eq!(fs::read(to.join("cut-off/checkpoint.json"))?, before, "the older one");
    ensure_eq!(fs::read_dir(&to)?.count(), 1, "what is in the directory");
    drop(counter);
    drop(disk);
    Ok(())
}

/// What cannot be is refused in one line, and changes nothing.
fn refused(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?;
    let take = |arguments: &[&str]| {
        let mut command = scene.command(&["checkpoint", "--state", &scene.state()]);
        command.args(arguments);
        command
    };
    shell::refused(&mut take(&["nobody", "--to", &scene.to()]), "nobody")?;
    let counter = scene.start(&["--name", "unkept", "sh", "-c", COUNTER])?;
    counter.says_more()?;
    shell::refused(&mut take(&["nobody", "--to", &scene.to()]), "unkept")?;
    let open = cx.dir.join("open");
    fs::create_dir(&open)?;
    shell::run(Command::new("chmod").arg("777").arg(&open))?;
    shell::refused(&mut take(&["unkept", "--to", &open.display().to_string()]), "chmod o-w")?;
    shell::refused(take(&["unkept", "--to", &scene.to()]).env("PATH", cx.dir.join("missing")), "criu")?;
    let old = cx.dir.join("old");
    fs::create_dir(&old)?;
    fs::write(old.join("criu"), "#!/bin/sh\necho Version: 3.17.1\n")?;
    shell::run(Command::new("chmod").arg("755").arg(old.join("criu")))?;
    let path = format!("{}:{}", old.display(), std::env::var("PATH").unwrap_or_default());
    shell::refused(take(&["unkept", "--to", &scene.to()]).env("PATH", path), "3.17.1")?;
    counter.says_more()?;
    scene.checkpoint(&["unkept"])?;
    counter.ends()?;
    // Layers that have changed.
    let file = scene.image().join("srv/file");
    let time = fs::metadata(&file)?.modified()?;
    fs::write(&file, "other words\n")?;
    let path = scene.checkpoint_dir("unkept").display().to_string();
    shell::refused(&mut scene.command(&["restore", &path, "--state", &scene.state()]), "has changed")?;
    fs::write(&file, "of the image\n")?;
    fs::File::options().write(true).open(&file)?.set_modified(time)?;
    let restored = scene.restore("unkept", &[])?;
    restored.says_more()?;
    drop(restored);
    shell::refused(&mut scene.command(&["checkpoints", "show", &scene.to(), "none"]), "none")?;
    Ok(())
}
