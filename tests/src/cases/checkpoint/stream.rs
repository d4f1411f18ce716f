//! A checkpoint that goes from one command to another, with no place between.

use super::compression::{digest, start};
use super::support::{Scene, VellumProcess};
use super::zoned::large_counter;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// `vellum checkpoint --stream`, not started yet.
fn sending(scene: &Scene<'_>, name: &str, more: &[&str]) -> Command {
    let state = scene.state();
    let mut command = scene.command(&["checkpoint", name, "--state", &state, "--stream"]);
    command.args(more);
    command
}

fn pipe_of(sender: &mut Child) -> Outcome<Stdio> {
    match sender.stdout.take() {
        Some(pipe) => Ok(pipe.into()),
        None => fail("no pipe"),
    }
}

/// `vellum restore --stream` of what comes.
fn receiving(scene: &Scene<'_>, from: Stdio, more: &[&str]) -> Outcome<VellumProcess> {
    let state = scene.state();
    scene.going_from(from, &[&["restore", "--stream", "--state", &state][..], more].concat())
}

/// Through a file, and from one command right into another one; it ends here, and goes on there with what it had.
pub(super) fn moves(cx: &Cx) -> Outcome {
    let scene = Scene::with_host_programs(cx)?;
    let first = start(&scene, "stream")?;
    fs::write(scene.merged("stream")?.join("srv/hold"), "")?;
    let before = digest(&first)?;
    let kept = cx.dir.join("kept");
    let sent = sending(&scene, "stream", &["--leave-running", "--compress", "zstd:1"])
        .stdout(File::create(&kept)?)
        .output()?;
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    ensure!(sent.status.success() && said.contains("paused for") && said.lines().count() == 1, "{said}");
    first.says_more()?;
    let mut sender = sending(&scene, "stream", &[]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let pipe = pipe_of(&mut sender)?;
    let second = receiving(&scene, pipe, &["--name", "stream-second"])?;
    ensure!(sender.wait()?.success(), "the one that sends");
    ensure_eq!(first.ends()?, 137, "the container that was sent");
    ensure_eq!(digest(&second)?, before, "what was sent");
    fs::remove_file(scene.merged("stream-second")?.join("srv/hold"))?;
    second.says_more()?;
    second.says_more()?;
    second.signal(Signal::TERM)?;
    ensure_eq!(second.ends()?, 3, "the one that was received");
    let third = receiving(&scene, File::open(&kept)?.into(), &[])?;
    ensure_eq!(digest(&third)?, before, "what was kept");
    third.signal(Signal::TERM)?;
    third.ends()?;
    // Cut off anywhere, or changed: nothing begins.
    let whole = fs::read(&kept)?;
    let mut changed = whole.clone();
    changed[whole.len() / 3] ^= 1;
    let length = |part: usize, word| (whole.get(..part).unwrap_or_default().to_vec(), word);
    for (bytes, word) in [
        length(0, "no stream"),
        length(5, "no stream"),
        length(8, "cut off"),
        length(whole.len() / 2, "cut off"),
        length(whole.len() - 1, "cut off"),
        (changed, "not what was written"),
        (vec![7; 100], "no stream"),
    ] {
        fs::write(&kept, bytes)?;
        let mut command = scene.command(&["restore", "--stream", "--state", &scene.state()]);
        shell::refused(command.stdin(File::open(&kept)?), word)?;
    }
    for (arguments, word) in [
        (&["--to", "x"][..], "--to"),
        (&["--parent", "x"], "--parent"),
        (&["--name", "x"], "--name"),
        (&["--pace", "auto"], "--pace"),
    ] {
        shell::refused(&mut sending(&scene, "stream", arguments), word)?;
    }
    scene.check_no_leftovers()
}

/// Whoever reads it goes, or it is killed: the container goes on, and nothing begins elsewhere.
pub(super) fn interrupted(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?;
    let counter = scene.start(&["--name", "stream-cut", "sh", "-c", &large_counter()])?;
    counter.says_more()?;
    for reads in [0, 1000, 1_000_000] {
        let mut sender = sending(&scene, "stream-cut", &["--compress", "none"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut reader = Command::new("head");
        reader.args(["-c", &reads.to_string()]).stdin(pipe_of(&mut sender)?).stdout(Stdio::null());
        reader.status()?;
        // It has the pipe as well.
        drop(reader);
        let ended = sender.wait_with_output()?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(!ended.status.success() && said.lines().count() == 1, "after {reads} bytes: {said}");
        ensure!(said.contains("whoever reads it has ended"), "after {reads} bytes: {said}");
        counter.says_more()?;
    }
    for millis in [20, 60, 100, 140, 200, 300] {
        let mut sender = sending(&scene, "stream-cut", &["--compress", "zstd:9"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipe = pipe_of(&mut sender)?;
        let second = receiving(&scene, pipe, &["--name", "stream-cut-second"])?;
        std::thread::sleep(Duration::from_millis(millis));
        sender.kill()?;
        if sender.wait()?.success() {
            break;
        }
        ensure_eq!(second.ends()?, 2, "what was cut off after {millis} ms: {}", second.output_text()?);
        counter.says_more()?;
    }
    drop(counter);
    scene.check_no_leftovers()
}
