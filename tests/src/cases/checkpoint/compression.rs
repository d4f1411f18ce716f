//! Checkpoints that are packed, and such as have only what has changed since another one.

use super::support::{Scene, VellumProcess, eventually};
use crate::harness::disk::Disk;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A program with 48 MiB of memory, of which a part changes at each turn, and a file of 8 MiB likewise.
const PROGRAM: &str = include_str!("grows.py");

pub(super) fn start(scene: &Scene<'_>, name: &str) -> Outcome<VellumProcess> {
    fs::write(scene.image().join("srv/grows.py"), PROGRAM)?;
    fs::write(scene.image().join("srv/big"), vec![7; 8 << 20])?;
    let going = scene.start(&["--name", name, "-v", "/usr:/usr:ro", "python3", "/srv/grows.py"])?;
    going.says_more()?;
    Ok(going)
}

/// What a checkpoint says of itself.
fn record(scene: &Scene<'_>, name: &str) -> Outcome<serde_json::Value> {
    let said = scene.vellum(&["checkpoints", "show", "--json", &scene.to(), name])?;
    let said: serde_json::Value = serde_json::from_str(&said).doing("the record")?;
    Ok(said["record"].clone())
}

/// Bytes that one takes, and those that it would as it is.
pub(super) fn sizes(scene: &Scene<'_>, name: &str) -> Outcome<(u64, u64)> {
    let record = record(scene, name)?;
    let number = |field: &str| record[field].as_u64().unwrap_or(0);
    Ok((number("stored_bytes"), number("image_bytes") + number("upper_bytes")))
}

/// Packed in any case, and not at all: both go on.
pub(super) fn zstd(cx: &Cx) -> Outcome {
    resume_packed(&Scene::with_host_programs(cx)?.in_a_store(512)?, "zzstd")
}

fn resume_packed(scene: &Scene<'_>, name: &str) -> Outcome {
    let first = start(scene, name)?;
    for (compress, at) in [("none", "plain"), ("zstd:1", "packed"), ("auto", "auto")] {
        scene.checkpoint(&[name, "--leave-running", "--name", at, "--compress", compress])?;
        first.says_more()?;
    }
    let (plain, packed) = (sizes(scene, "plain")?, sizes(scene, "packed")?);
    ensure!(packed.0 > 0 && packed.0 < packed.1 / 4, "packed: {packed:?}");
    ensure!(plain.0 == 0 || plain.0 > plain.1 / 2, "not packed: {plain:?}");
    let shown = scene.vellum(&["checkpoints", "show", &scene.to(), "packed"])?;
    ensure!(shown.contains(" instead of "), "{shown}");
    first.signal(Signal::TERM)?;
    first.ends()?;
    for at in ["plain", "packed", "auto"] {
        let restored = scene.restore(at, &[])?;
        restored.says_more()?;
        restored.says_more()?;
        restored.signal(Signal::TERM)?;
        ensure_eq!(restored.ends()?, 3, "{at}");
    }
    shell::refused(
        &mut scene.command(&["checkpoint", name, "--to", &scene.to(), "--compress", "zstd:20"]),
        "1 to 19",
    )?;
    scene.check_no_leftovers()
}

pub(super) fn directory_zstd(cx: &Cx) -> Outcome {
    let scene = Scene::with_host_programs(cx)?;
    resume_packed(&scene, "dzstd")?;
    let again = scene.restore("packed", &[])?;
    again.says_more()?;
    scene.checkpoint(&["dzstd", "--name", "next", "--parent", "plain", "--compress", "none"])?;
    again.ends()?;
    let (plain, next) = (sizes(&scene, "plain")?, sizes(&scene, "next")?);
    ensure!(next.0 < next.1 / 2 && plain.0 > plain.1 / 2, "plain: {plain:?}, next: {next:?}");
    for at in ["plain", "next"] {
        let restored = scene.restore(at, &[])?;
        restored.says_more()?;
        restored.says_more()?;
        restored.signal(Signal::TERM)?;
        ensure_eq!(restored.ends()?, 3, "{at}");
    }
    // A page that is not what was written is no page: no container goes on with it.
    let object = scene.checkpoint_dir("packed").join("object");
    let mut bytes = fs::read(&object)?;
    let length = bytes.len();
    bytes.get_mut(length / 10..length / 2).into_iter().flatten().for_each(|byte| *byte ^= 1);
    fs::write(&object, &bytes)?;
    let damaged = scene.restore("packed", &[])?;
    ensure!(![0, 3].contains(&damaged.ends()?), "what is damaged was restored");
    let said = damaged.output_text()?;
    ensure!(said.lines().last().is_some_and(|line| line.contains("not what was written")), "{said}");
    // Cut off, it is no checkpoint.
    bytes.truncate(length / 2);
    fs::write(&object, &bytes)?;
    shell::refused(
        &mut scene.command(&["restore", &scene.checkpoint_dir("packed").display().to_string()]),
        "no checkpoint",
    )?;
    scene.check_no_leftovers()
}

/// What the program has in memory and in its file, in one number.
pub(super) fn digest(of: &VellumProcess) -> Outcome<String> {
    // It runs.
    of.says_more()?;
    of.signal(Signal::USR1)?;
    let digest =
        |said: &str| said.lines().rev().find_map(|line| line.strip_prefix("digest ").map(str::to_owned));
    eventually("it says its digest", || Ok(digest(&of.output_text()?).is_some()))?;
    match digest(&of.output_text()?) {
        Some(digest) => Ok(digest),
        None => fail("no digest"),
    }
}

pub(super) fn directory_increments(cx: &Cx) -> Outcome {
    chain_of(&Scene::with_host_programs(cx)?, "dchain", &[])
}

/// In a store.
pub(super) fn zoned_increments(cx: &Cx) -> Outcome {
    chain_of(&Scene::with_host_programs(cx)?.in_a_store(512)?, "zchain", &[])
}

/// Each has what has changed since the one before; what is restored is the same as from a whole one.
pub(super) fn chain_of(scene: &Scene<'_>, name: &str, manner: &[&str]) -> Outcome {
    let first = start(scene, name)?;
    let take = |at: &str, more: &[&str]| {
        scene.checkpoint(
            &[&[name, "--leave-running", "--name", at, "--compress", "zstd:1"][..], manner, more].concat(),
        )
    };
    take("whole", &[])?;
    first.says_more()?;
    take("next", &["--parent", "whole"])?;
    first.says_more()?;
    // From now on nothing changes.
    fs::write(scene.merged(name)?.join("srv/hold"), "")?;
    eventually("it holds", || Ok(first.output_text()?.contains("holds")))?;
    take("full", &[])?;
    take("last", &["--parent", "next"])?;
    let (whole, next, last) = (sizes(scene, "full")?, sizes(scene, "next")?, sizes(scene, "last")?);
    ensure!(next.0 < whole.0 / 4 && last.0 < whole.0 / 4, "whole {whole:?}, then {next:?}, {last:?}");
    let shown = scene.vellum(&["checkpoints", "show", &scene.to(), "last"])?;
    ensure!(shown.contains("needs next, whole"), "{shown}");
    // What others need stays, and what it was.
    let (to, state) = (scene.to(), scene.state());
    for (arguments, word) in [
        (&["checkpoints", "delete", &to, "whole"][..], "last, next cannot be restored without it"),
        (&["checkpoints", "delete", &to, "next", "full"], "last cannot be restored without it"),
        (
            &["checkpoint", name, "--state", &state, "--to", &to, "--name", "next"],
            "cannot be restored without it",
        ),
        (&["checkpoint", name, "--state", &state, "--to", &to, "--parent", name], "another --name"),
        (&["checkpoint", name, "--state", &state, "--to", &to, "--parent", "none"], "none"),
    ] {
        shell::refused(&mut scene.command(arguments), word)?;
    }
    let before = digest(&first)?;
    first.signal(Signal::TERM)?;
    first.ends()?;
    for at in ["full", "last"] {
        let restored = scene.restore(at, &[])?;
        ensure_eq!(digest(&restored)?, before, "what {at} has");
        fs::remove_file(scene.merged(name)?.join("srv/hold"))?;
        restored.says_more()?;
        restored.says_more()?;
        restored.signal(Signal::TERM)?;
        ensure_eq!(restored.ends()?, 3, "{at}");
    }
    scene.vellum(&["checkpoints", "delete", &to, "whole", "last", "next"])?;
    let restored = scene.restore("full", &[])?;
    ensure_eq!(digest(&restored)?, before, "what the other one has");
    restored.signal(Signal::TERM)?;
    restored.ends()?;
    scene.check_no_leftovers()
}

/// Killed at any moment while it is packed, or out of space: the container goes on, and those that are there are whole.
pub(super) fn interrupted(cx: &Cx) -> Outcome {
    let scene = Scene::with_host_programs(cx)?;
    let first = start(&scene, "packed-cut")?;
    let (base, again) =
        (["--name", "base", "--compress", "zstd:9"], ["--name", "again", "--compress", "zstd:9"]);
    scene.checkpoint(&[&["packed-cut", "--leave-running"][..], &base].concat())?;
    let parent = [&again[..], &["--parent", "base"]].concat();
    scene.checkpoint(&[&["packed-cut", "--leave-running"][..], &parent].concat())?;
    scene.checkpoint(&["packed-cut", "--leave-running", "--name", "plain", "--compress", "none"])?;
    let plain = [&again[..], &["--parent", "plain"]].concat();
    for (turn, millis) in [20, 60, 100, 140, 180, 220, 260, 300, 400].into_iter().enumerate() {
        let mut command = scene.taking("packed-cut", Path::new(&scene.to()));
        let arguments = [&plain[..], &parent, &again];
        let mut child = command.args(arguments.get(turn % 3).copied().unwrap_or_default()).spawn()?;
        std::thread::sleep(Duration::from_millis(millis));
        child.kill()?;
        child.wait()?;
        first.says_more()?;
        for name in ["base", "again", "plain"] {
            record(&scene, name)?;
        }
    }
    scene.leaves_nothing_unfinished("packed-cut", &[])?;
    let disk = Disk::ext4(&cx.dir, "small")?;
    let to = disk.at().join("checkpoints");
    let file = fs::File::create(disk.at().join("fill"))?;
    let free = rustix::fs::statvfs(disk.at()).doing("the disk")?;
    // One fits, and another one does not beside it.
    rustix::fs::fallocate(
        &file,
        rustix::fs::FallocateFlags::empty(),
        0,
        free.f_bavail * free.f_bsize - (80 << 20),
    )?;
    let full = scene.taking("packed-cut", &to).args(["--compress", "none", "--name", "fits"]).output()?;
    ensure!(full.status.success(), "what fits: {}", String::from_utf8_lossy(&full.stderr));
    let full = scene.taking("packed-cut", &to).args(["--compress", "none", "--name", "fits"]).output()?;
    let said = String::from_utf8_lossy(&full.stderr).into_owned();
    ensure!(
        !full.status.success() && said.contains("pace") && said.lines().count() == 1,
        "a full disk: {said}"
    );
    first.says_more()?;
    ensure_eq!(fs::read_dir(&to)?.count(), 1, "what is in the directory");
    first.signal(Signal::TERM)?;
    first.ends()?;
    for name in ["base", "again", "plain"] {
        let restored = scene.restore(name, &[])?;
        restored.says_more()?;
        restored.says_more()?;
        restored.signal(Signal::TERM)?;
        ensure_eq!(restored.ends()?, 3, "{name}");
    }
    scene.check_no_leftovers()
}
