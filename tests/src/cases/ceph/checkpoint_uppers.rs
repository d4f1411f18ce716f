//! Checkpoints of containers whose upper layer lies on CephFS: restored, it is one of this host, with whiteouts and holes as those here have them.

use super::cluster::Cluster;
use super::upper::far;
use crate::cases::checkpoint::support::{Scene, VellumProcess, eventually};
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use rustix::fs::XattrFlags;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 4096;
/// Changes of all kinds; then each number goes into its block of a large file, and then to a list.
const CHANGES: &str = "echo first >/srv/words; ln /srv/words /srv/other; rm /gone; rm -r /away; rm -r /anew; mkdir /anew; echo new >/anew/new
trap 'exit 3' TERM; n=0; while :; do n=$((n+1)); printf %06d $n | dd of=/large bs=4096 seek=$n conv=notrunc 2>/dev/null; echo $n >>/srv/count; echo $n; sleep 0.02; done";

/// What the large file holds below.
fn original() -> Vec<u8> {
    (0..BLOCKS * BLOCK).map(|at| (at / 512 + at) as u8).collect()
}

/// The large file, and the list of numbers, are of one moment: each number that is in the list is in its block, and no later one.
fn check_numbers(tree: &Path) -> Outcome {
    let numbers = |text: String| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<usize>>();
    let before = numbers(fs::read_to_string(tree.join("srv/count"))?);
    ensure!(before.len() >= 3, "{before:?}");
    let (large, mut wanted) = (fs::read(tree.join("large"))?, original());
    let after = numbers(fs::read_to_string(tree.join("srv/count"))?);
    ensure!(after.iter().enumerate().all(|(at, number)| *number == at + 1), "{after:?}");
    let end = after.len() + 2;
    for number in 1..end {
        let at = number * BLOCK;
        if number <= before.len() || large[at..at + 6] != wanted[at..at + 6] {
            wanted[at..at + 6].copy_from_slice(format!("{number:06}").as_bytes());
        }
    }
    for (number, (one, other)) in large.chunks(BLOCK).zip(wanted.chunks(BLOCK)).enumerate() {
        let differs = one.iter().zip(other).filter(|(one, other)| one != other).count();
        let begin = one[..8].escape_ascii();
        ensure!(differs == 0, "block {number} of {}: {differs} bytes, it begins with {begin}", before.len());
    }
    ensure_eq!(large.len(), wanted.len(), "the large file");
    Ok(())
}

/// All else is as it was changed.
fn check_tree(tree: &Path) -> Outcome {
    ensure_eq!(fs::read_to_string(tree.join("srv/words"))?, "first\n", "words");
    let (one, other) = (fs::metadata(tree.join("srv/words"))?, fs::metadata(tree.join("srv/other"))?);
    ensure_eq!((one.ino(), one.nlink()), (other.ino(), 2), "two names of one file");
    for name in ["gone", "away", ".wh.gone", ".vellum.maps"] {
        ensure!(!tree.join(name).exists(), "{name} is there");
    }
    let names: Vec<_> = fs::read_dir(tree.join("anew"))?.flatten().map(|entry| entry.file_name()).collect();
    ensure_eq!(names, ["new"], "a directory that was made anew");
    let mut value = [0; 8];
    let len = rustix::fs::getxattr(tree.join("srv/words"), c"user.kept", &mut value)?;
    ensure_eq!(&value[..len], b"yes", "an extended attribute");
    // Names come and go as on any layer of this host.
    fs::write(tree.join("gone"), "back")?;
    fs::remove_file(tree.join("gone"))?;
    ensure!(!tree.join("gone").exists(), "what is below shows again");
    Ok(())
}

/// A copy of the layer is one of this host.
fn check_layer(layer: &Path) -> Outcome {
    let gone = fs::symlink_metadata(layer.join("gone"))?;
    ensure!(gone.file_type().is_char_device() && gone.rdev() == 0, "{gone:?}");
    ensure!(!layer.join(".wh.gone").exists() && layer.join(".vellum.maps").is_dir(), "names in the copy");
    let large = fs::symlink_metadata(layer.join("large"))?;
    ensure!(large.blocks() * 512 < large.size() / 2, "{} blocks of a partial file", large.blocks());
    let has = |name| rustix::fs::lgetxattr(layer, name, &mut [0_u8; 0]).is_ok();
    ensure!(has(c"trusted.vellum.format") && !has(c"trusted.vellum.writer"), "attributes of its root");
    Ok(())
}

/// The processes that show a layer.
fn showing(layer: &str) -> usize {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| {
            let line = String::from_utf8_lossy(line);
            line.contains("internal-show") && line.contains(layer)
        })
        .count()
}

fn goes_on(scene: &Scene<'_>, from: &str, name: &str) -> Outcome<VellumProcess> {
    let restored = scene.restore(from, &["--name", name])?;
    restored.says_more()?;
    let tree = scene.merged(name)?;
    check_layer(&scene.upper(name)?)?;
    check_tree(&tree).doing(name)?;
    check_numbers(&tree).doing(name)?;
    Ok(restored)
}

/// Left running and ended, into a directory and into a store, with either policy of writing.
pub(super) fn kept(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    for policy in ["sync", "back"] {
        let dir = cx.dir.join(policy);
        fs::create_dir(&dir)?;
        one(&Cx { dir, profile: None }, cluster, policy)?;
    }
    Ok(())
}

fn one(cx: &Cx, cluster: &Cluster, policy: &str) -> Outcome {
    let scene = Scene::new(cx)?.in_a_store(512)?;
    let image = scene.image();
    fs::write(image.join("large"), original())?;
    fs::write(image.join("gone"), "gone")?;
    for name in ["away", "anew"] {
        fs::create_dir(image.join(name))?;
        fs::write(image.join(name).join("old"), "old")?;
    }
    let name = format!("kept-{policy}");
    far(cx, cluster, &name, &[])?;
    let upper = format!("ceph:/{name}/upper");
    let conf = cluster.conf.display().to_string();
    let there = ["--upper", &upper, "--ceph-conf", &conf, "--ceph-write", policy];
    let run = |more: &[&str]| scene.start(&[&there[..], more].concat());
    let mut refused =
        scene.command(&["run", "--image", &image.display().to_string(), "--ceph-write", policy, "true"]);
    shell::refused(&mut refused, "option --ceph-write")?;
    let container = run(&["--name", &name, "sh", "-c", CHANGES])?;
    container.says_more()?;
    let merged = scene.merged(&name)?;
    rustix::fs::setxattr(merged.join("srv/words"), c"user.kept", b"yes", XattrFlags::empty())?;
    // What was changed as long ago is taken by the first pass.
    std::thread::sleep(Duration::from_secs(3));
    container.says_more()?;
    let to = cx.dir.join("kept");
    scene.checkpoint_to(&to, &[&name, "--leave-running", "--name", "running"])?;
    container.says_more()?;
    // A command that is killed while the layer is shown to it.
    let mut killed = scene.taking(&name, scene.to().as_ref());
    killed.args(["--name", "none", "--compress", "none", "--pace", "1M"]);
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    eventually("the layer is shown", || Ok(showing(&name) > 0))?;
    std::thread::sleep(Duration::from_millis(200));
    killed.kill()?;
    killed.wait()?;
    container.says_more()?;
    eventually("nobody shows the layer any more", || Ok(showing(&name) == 0))?;
    scene.checkpoint(&[&name, "--name", "ended"])?;
    ensure_eq!(container.ends()?, 137, "the container that has ended");
    eventually("nobody shows the layer at the end", || Ok(showing(&name) == 0))?;
    let running = to.join("running").display().to_string();
    let restored = goes_on(&scene, &running, &format!("{name}-running"))?;
    let ended = goes_on(&scene, "ended", &format!("{name}-ended"))?;
    drop((restored, ended));
    // The layer has stayed where it is, for the next one.
    let next = run(&[
        "--name",
        &name,
        "sh",
        "-c",
        "trap 'exit 3' TERM; cat /srv/words; tail -n 1 /srv/count; while :; do sleep 0.1; done",
    ])?;
    eventually("it says what was kept", || Ok(next.output_text()?.lines().count() >= 2))?;
    ensure!(next.output_text()?.starts_with("first\n"), "{}", next.output_text()?);
    check_numbers(&scene.merged(&name)?)?;
    drop(next);
    scene.check_no_leftovers()
}
