//! Checkpoints in the store of a zoned device, here in a file that is used like one.

use super::support::{Scene, eventually};
use super::{COUNTER, restores_python, restores_redis};
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Counts, with so much memory that CRIU takes a while.
pub(super) fn large_counter() -> String {
    format!("x=$(busybox head -c 40000000 /dev/zero | busybox tr '\\0' x); {COUNTER}")
}

/// In one line, as whoever has met it first says it: CRIU, or what writes to the store.
fn says_full(said: &str) -> bool {
    (said.contains("space is left") || said.contains("is full")) && said.lines().count() == 1
}

/// Free zones.
pub(super) fn zones(scene: &Scene<'_>) -> Outcome<u64> {
    let seen = scene.inspect()?;
    Ok(seen["store"]["free_zones"].as_u64().unwrap_or(0))
}

/// Lists, is left running, ends, goes on with its memory and its file of one moment; what is deleted has its zones emptied.
pub(super) fn counter(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?.in_a_store(256)?;
    let free = zones(&scene)?;
    let first = scene.start(&["--name", "zcount", "sh", "-c", COUNTER])?;
    first.says_more()?;
    scene.checkpoint(&["zcount", "--leave-running"])?;
    first.says_more()?;
    scene.checkpoint(&["zcount", "--name", "last"])?;
    ensure_eq!(first.ends()?, 137, "the container that has ended");
    let listed = scene.vellum(&["checkpoints", "list", "--json", &scene.to()])?;
    let listed: serde_json::Value = serde_json::from_str(&listed).doing("the list")?;
    let names: Vec<_> = listed.as_array().into_iter().flatten().map(|one| one["name"].clone()).collect();
    ensure_eq!(names, ["last", "zcount"], "names in {listed}");
    ensure!(listed[0]["record"]["left_running"] == false, "{listed}");
    let shown = scene.vellum(&["checkpoints", "show", &scene.to(), "last"])?;
    ensure!(shown.contains("while :") && shown.contains("CRIU"), "{shown}");
    ensure_eq!(scene.inspect()?["store"]["checkpoint_objects"], 2, "images in the store");
    let second = scene.restore("last", &[])?;
    second.says_more()?;
    let written = fs::read_to_string(scene.merged("zcount")?.join("srv/count"))?;
    let numbers: Vec<u32> = written.lines().filter_map(|line| line.parse().ok()).collect();
    ensure!(numbers.len() >= 3, "{written}");
    ensure!(numbers.iter().enumerate().all(|(at, number)| *number == at as u32 + 1), "{written}");
    // One that was restored does not keep the store.
    eventually("the store is free", || {
        let paced = ["zcount", "--name", "again", "--leave-running", "--pace", "100M"];
        Ok(scene.checkpoint(&paced).is_ok())
    })?;
    second.says_more()?;
    drop(second);
    scene.vellum(&["checkpoints", "delete", &scene.to(), "zcount", "last", "again"])?;
    ensure_eq!(zones(&scene)?, free, "free zones");
    scene.vellum(&["zoned", "check", scene.to().trim_start_matches("zoned:")])?;
    scene.check_no_leftovers()
}

pub(super) fn python(cx: &Cx) -> Outcome {
    restores_python(&Scene::with_host_programs(cx)?.in_a_store(512)?)
}

pub(super) fn redis(cx: &Cx) -> Outcome {
    restores_redis(&Scene::with_host_programs(cx)?.in_a_store(512)?)
}

/// Objects are; of the two copies of metadata one may be the older one after a kill, which the next command that writes mends.
pub(super) fn all_is_whole(scene: &Scene<'_>, device: &str) -> Outcome {
    let output = scene.command(&["zoned", "check", device]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(said.contains("read: all whole"), "{said}");
    Ok(())
}

/// Killed at any moment, or out of space: the container goes on, and the older checkpoint is as it was.
pub(super) fn interrupted(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?.in_a_store(256)?;
    let counter = scene.start(&["--name", "zcut-off", "sh", "-c", &large_counter()])?;
    counter.says_more()?;
    scene.checkpoint(&["zcut-off", "--leave-running"])?;
    let device = scene.to().trim_start_matches("zoned:").to_owned();
    let taken = || -> Outcome<serde_json::Value> {
        let listed = scene.vellum(&["checkpoints", "list", "--json", &scene.to()])?;
        let listed: serde_json::Value = serde_json::from_str(&listed).doing("the list")?;
        ensure_eq!(listed.as_array().map(Vec::len), Some(1), "checkpoints in {listed}");
        ensure!(listed[0]["record"].is_object(), "the record: {listed}");
        Ok(listed[0]["record"].clone())
    };
    let mut before = taken()?;
    for millis in [5, 20, 40, 60, 80, 100, 120, 160, 200, 240, 300, 400, 500] {
        let mut child = scene.taking("zcut-off", scene.to().as_ref()).spawn()?;
        std::thread::sleep(Duration::from_millis(millis));
        child.kill()?;
        let whole = child.wait()?.success();
        counter.says_more()?;
        let after = taken()?;
        ensure!(
            whole || after == before || after["pause_us"] != before["pause_us"],
            "after {millis} ms: {after}"
        );
        before = after;
        all_is_whole(&scene, &device)?;
    }
    let restored = scene.restore("zcut-off", &["--name", "zcut-second"])?;
    restored.says_more()?;
    drop(restored);
    // A full store. Data are refused before the last zones, which the store keeps for itself.
    let before = taken()?;
    let mut filled = 0;
    for part in [64_u64 << 20, 8 << 20, 4 << 20, 1 << 20, 64 << 10, 4096] {
        let fill = cx.dir.join("fill");
        fs::File::create(&fill)?.set_len(part)?;
        let put = |name: &str| {
            let fill = fill.display().to_string();
            scene
                .command(&["zoned", "put", &device, name, &fill])
                .output()
                .map(|output| output.status.success())
        };
        while put(&format!("fill-{filled}"))? {
            filled += 1;
        }
    }
    ensure!(filled > 0, "nothing could be put");
    let output = scene.taking("zcut-off", scene.to().as_ref()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "a full store: {}", String::from_utf8_lossy(&output.stdout));
    ensure!(says_full(&said), "a full store: {said}");
    counter.says_more()?;
    ensure_eq!(taken()?, before, "the older one");
    all_is_whole(&scene, &device)?;
    counter.signal(Signal::TERM)?;
    ensure_eq!(counter.ends()?, 3, "the container's end");
    scene.check_no_leftovers()
}

/// A store that becomes full while CRIU writes: the container goes on, and the older checkpoint of that name is as it was.
pub(super) fn full(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?.in_a_store(48)?;
    let device = scene.to().trim_start_matches("zoned:").to_owned();
    let small = scene.start(&["--name", "zsmall", "sh", "-c", COUNTER])?;
    small.says_more()?;
    scene.checkpoint(&["zsmall", "--name", "one"])?;
    small.ends()?;
    let free = zones(&scene)?;
    let large = scene.start(&["--name", "zlarge", "sh", "-c", &large_counter()])?;
    large.says_more()?;
    let to = scene.to();
    let output =
        scene.taking("zlarge", to.as_ref()).args(["--name", "one", "--compress", "none"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "a full store: {}", String::from_utf8_lossy(&output.stdout));
    ensure!(says_full(&said), "a full store: {said}");
    large.says_more()?;
    let shown = scene.vellum(&["checkpoints", "show", &to, "one"])?;
    ensure!(shown.contains("zsmall"), "{shown}");
    ensure_eq!(zones(&scene)?, free, "free zones");
    all_is_whole(&scene, &device)?;
    large.signal(Signal::TERM)?;
    ensure_eq!(large.ends()?, 3, "the container's end");
    let restored = scene.restore("one", &[])?;
    restored.says_more()?;
    drop(restored);
    scene.check_no_leftovers()
}

/// What cannot be is refused in one line, and changes nothing.
pub(super) fn refused(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?.in_a_store(256)?;
    let counter = scene.start(&["--name", "zunkept", "sh", "-c", COUNTER])?;
    counter.says_more()?;
    let take = |to: &str| {
        let mut command = scene.command(&["checkpoint", "--state", &scene.state(), "zunkept", "--to", to]);
        command.arg("--leave-running");
        command
    };
    shell::refused(&mut take("zoned:"), "zoned:DEVICE")?;
    shell::refused(
        &mut take(&format!("zoned:{}", cx.dir.join("missing").display())),
        "no such file or device",
    )?;
    shell::refused(take(&scene.to()).args(["--pace", "fast"]), "200M")?;
    let blank = cx.dir.join("blank");
    fs::File::create(&blank)?.set_len(64 << 20)?;
    shell::refused(&mut take(&format!("zoned:{}", blank.display())), "chmod o-rwx")?;
    fs::set_permissions(&blank, fs::Permissions::from_mode(0o600))?;
    shell::refused(&mut take(&format!("zoned:{}", blank.display())), "vellum zoned format")?;
    // Somebody has its store open who lets nobody in.
    let device = scene.to().trim_start_matches("zoned:").to_owned();
    let held = fs::File::open(&device)?;
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    shell::refused(&mut take(&scene.to()), "in use")?;
    drop(held);
    counter.says_more()?;
    shell::refused(&mut scene.command(&["checkpoints", "show", &scene.to(), "none"]), "none")?;
    shell::refused(&mut scene.command(&["checkpoints", "delete", &scene.to(), "none"]), "none")?;
    shell::refused(&mut scene.command(&["restore", &format!("{}/none", scene.to())]), "none")?;
    // What is no checkpoint.
    let junk = cx.dir.join("junk");
    fs::write(&junk, vec![7; 5000])?;
    let junk = junk.display().to_string();
    scene.vellum(&["zoned", "put", "--class", "checkpoint", &device, "checkpoint/junk", &junk])?;
    let listed = scene.vellum(&["checkpoints", "list", &scene.to()])?;
    ensure!(listed.contains("junk") && listed.contains("cannot be read"), "{listed}");
    shell::refused(&mut scene.command(&["restore", &format!("{}/junk", scene.to())]), "no checkpoint")?;
    drop(counter);
    scene.check_no_leftovers()
}
