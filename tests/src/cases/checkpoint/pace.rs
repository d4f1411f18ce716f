//! Checkpoints in a directory that are written at a pace.

use super::compression::{chain_of, sizes, start};
use super::support::{Scene, eventually, is_guarded};
use super::zoned::large_counter;
use crate::harness::Cx;
use crate::harness::disk::Disk;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes per second, as the command has it.
const RATE: (u64, &str) = (40 << 20, "40M");

/// One object with and without a pace, at the rate and not sooner, on a disk and in memory; chains as without a pace.
pub(super) fn paced(cx: &Cx) -> Outcome {
    let scene = Scene::with_host_programs(cx)?;
    let first = start(&scene, "paced")?;
    let take = |at: &str, more: &[&str]| {
        scene.checkpoint(&[&["paced", "--name", at, "--compress", "none"][..], more].concat())
    };
    for (at, pace) in [("usual", None), ("none", Some("none")), ("auto", Some("auto"))] {
        let pace = pace.map(|pace| vec!["--pace", pace]).unwrap_or_default();
        take(at, &[&["--leave-running"][..], &pace].concat())?;
        first.says_more()?;
        let mut files: Vec<_> =
            fs::read_dir(scene.checkpoint_dir(at))?.flatten().map(|one| one.file_name()).collect();
        files.sort();
        ensure_eq!(files, ["checkpoint.json", "object"], "{at}: its files");
    }
    let memory = Path::new("/dev/shm").join(format!("vellum-test-paced-{}", std::process::id()));
    let kept = scene.checkpoint_to(
        &memory,
        &["paced", "--leave-running", "--name", "memory", "--pace", "auto", "--compress", "none"],
    );
    let has_object = memory.join("memory/object").exists();
    fs::remove_dir_all(&memory)?;
    kept?;
    ensure!(has_object, "no object in memory");
    let begin = Instant::now();
    take("rate", &["--leave-running", "--pace", RATE.1])?;
    let took = begin.elapsed();
    // Without --leave-running it ends.
    take("next", &["--pace", RATE.1, "--parent", "usual"])?;
    ensure_eq!(first.ends()?, 137, "the container that has ended");
    let (usual, next) = (sizes(&scene, "usual")?, sizes(&scene, "next")?);
    ensure!(usual.0 > usual.1 / 2 && next.0 < next.1 / 2, "usual: {usual:?}, next: {next:?}");
    // But for groups that go at once, and what one may be late by.
    let least = Duration::from_secs_f64((usual.0.saturating_sub(12 << 20)) as f64 / RATE.0 as f64);
    ensure!(took > least, "{} bytes at {} took {took:?}", usual.0, RATE.1);
    for at in ["auto", "next"] {
        let restored = scene.restore(at, &[])?;
        restored.says_more()?;
        restored.says_more()?;
        restored.signal(Signal::TERM)?;
        ensure_eq!(restored.ends()?, 3, "{at}");
    }
    scene.vellum(&["checkpoints", "delete", &scene.to(), "usual", "none", "auto", "rate", "next"])?;
    ensure_eq!(fs::read_dir(scene.to())?.count(), 0, "what is left");
    chain_of(&scene, "paced-chain", &["--pace", "400M"])
}

/// Killed at any moment, or out of space: the container goes on, and the older checkpoint is as it was.
pub(super) fn interrupted(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?;
    let counter = scene.start(&["--name", "paced-cut", "sh", "-c", &large_counter()])?;
    counter.says_more()?;
    let manner = ["--pace", "100M", "--compress", "none"];
    for name in ["base", "cut"] {
        scene.checkpoint(&[&["paced-cut", "--leave-running", "--name", name][..], &manner].concat())?;
    }
    let record = |name: &str| -> Outcome<serde_json::Value> {
        serde_json::from_slice(&fs::read(scene.checkpoint_dir(name).join("checkpoint.json"))?)
            .doing("the record")
    };
    let mut before = record("cut")?;
    for (turn, millis) in [5, 40, 80, 120, 160, 200, 260, 320, 400, 500, 600].into_iter().enumerate() {
        let mut command = scene.taking("paced-cut", Path::new(&scene.to()));
        command.args(["--name", "cut"]).args(manner);
        if turn % 2 == 1 {
            command.args(["--parent", "base"]);
        }
        let mut child = command.spawn()?;
        std::thread::sleep(Duration::from_millis(millis));
        child.kill()?;
        let whole = child.wait()?.success();
        counter.says_more()?;
        let after = record("cut")?;
        ensure!(
            whole || after == before || after["pause_us"] != before["pause_us"],
            "after {millis} ms: {after}"
        );
        before = after;
        // It has the right to take one until it is done.
        eventually("no guard", || Ok(!is_guarded()?))?;
    }
    // So slow that it is killed in the middle.
    let slow = ["--pace", "1M", "--compress", "none", "--name", "slow"];
    scene.leaves_nothing_unfinished("paced-cut", &slow)?;
    counter.says_more()?;
    ensure_eq!(fs::read_dir(scene.to())?.count(), 2, "what is in the directory");
    let restored = scene.restore("cut", &["--name", "paced-cut-second"])?;
    restored.says_more()?;
    drop(restored);
    let disk = Disk::ext4(&cx.dir, "small")?;
    let to = disk.at().join("checkpoints");
    let taking = || {
        let mut command = scene.taking("paced-cut", &to);
        command.args(manner);
        command.output()
    };
    let fits = taking()?;
    ensure!(fits.status.success(), "what fits: {}", String::from_utf8_lossy(&fits.stderr));
    let before = fs::read(to.join("paced-cut/checkpoint.json"))?;
    let mut file = fs::File::create(disk.at().join("fill"))?;
    while file.write_all(&[1; 4096]).is_ok() {}
    drop(file);
    let full = taking()?;
    let said = String::from_utf8_lossy(&full.stderr).into_owned();
    ensure!(
        !full.status.success() && said.contains("space") && said.lines().count() == 1,
        "a full disk: {said}"
    );
    counter.says_more()?;
    ensure_eq!(fs::read(to.join("paced-cut/checkpoint.json"))?, before, "the older one");
    ensure_eq!(fs::read_dir(&to)?.count(), 1, "what is in the directory");
    counter.signal(Signal::TERM)?;
    ensure_eq!(counter.ends()?, 3, "the container's end");
    let restored = scene.restore("cut", &[])?;
    restored.says_more()?;
    drop(restored);
    scene.check_no_leftovers()
}
