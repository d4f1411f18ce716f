//! Checkpoints of containers whose image lies on CephFS: they go on above it, above copies of it there and here, and above nothing else.

use super::cluster::Cluster;
use crate::cases::checkpoint::COUNTER;
use crate::cases::checkpoint::support::Scene;
use crate::cases::run::layout;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use std::fs;
use vellum_vfs::Name;

/// What the record of a checkpoint says of layers.
fn lowers(scene: &Scene<'_>, name: &str) -> Outcome<(u64, serde_json::Value)> {
    let text = fs::read(scene.checkpoint_dir(name).join("checkpoint.json"))?;
    let record: serde_json::Value = serde_json::from_slice(&text).doing("the record")?;
    Ok((record["format"].as_u64().unwrap_or_default(), record["lowers"].clone()))
}

pub(super) fn checkpoints(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let scene = Scene::new(cx)?;
    cluster.put(scene.image(), "kept-image")?;
    cluster.put(scene.image(), "kept-copy")?;
    let (conf, here) = (cluster.conf.display().to_string(), scene.image().display().to_string());
    let cluster_is = ["--ceph-conf", &conf];
    let counts = |name| ["--name", name, "sh", "-c", COUNTER];
    let in_cache = [&cluster_is[..], &["--cache", "immutable"], &counts("far-tree")].concat();
    let first = scene.start_of("ceph:/kept-image", &in_cache)?;
    first.says_more()?;
    scene.checkpoint(&["far-tree"])?;
    ensure_eq!(first.ends()?, 137, "the container that has ended");
    let (format, known) = lowers(&scene, "far-tree")?;
    ensure!(format == 5 && known["fartree"]["fingerprint"].is_string(), "{known}");

    // Where it was; a copy there; and here, from where it comes back.
    let there = [&["--image", "ceph:/kept-copy"], &cluster_is[..]].concat();
    for image in [&[][..], &there] {
        scene.restore("far-tree", image)?.says_more()?;
    }
    let local = scene.restore("far-tree", &["--image", &here])?;
    local.says_more()?;
    scene.checkpoint(&["far-tree", "--name", "local"])?;
    local.ends()?;
    let (format, of_local) = lowers(&scene, "local")?;
    let fingerprints = [&known["fartree"], &of_local["tree"]].map(|one| one["fingerprint"].as_str());
    ensure!(format == 4 && fingerprints[0].is_some() && fingerprints[0] == fingerprints[1], "{of_local}");
    scene.restore("local", &there)?.says_more()?;

    // Nothing else will do.
    let kept = scene.checkpoint_dir("far-tree").display().to_string();
    let restore = |more: &[&str]| {
        let state = scene.state();
        let mut command = scene.command(&["restore", &kept, "--state", &state]);
        command.args(more);
        command
    };
    let copy = cluster.root()?.open_dir(Name::new(c"kept-copy").doing("a name")?).doing("the copy")?;
    let srv = copy.open_dir(Name::new(c"srv").doing("a name")?).doing("a directory")?;
    srv.set_mode_at(Name::new(c"file").doing("a name")?, 0o600).doing("chmod")?;
    shell::refused(&mut restore(&there), "has changed since the checkpoint")?;
    let nowhere = [&["--image", "ceph:/nowhere"], &cluster_is[..]].concat();
    shell::refused(&mut restore(&nowhere), "ceph:/nowhere")?;
    shell::refused(&mut restore(&["--image", &here, "--ceph-id", "x"]), "nothing is on CephFS")?;
    scene.check_no_leftovers()?;

    // Layers of a layout there, which are unpacked here anew.
    let dir = cx.dir.join("layout");
    layout::write(&dir, scene.image())?;
    cluster.put(&dir, "kept-layout")?;
    let entered = [&cluster_is[..], &["--entrypoint", "", "--user", "0"], &counts("far-layout")].concat();
    let container = scene.start_of("oci:ceph:/kept-layout:v1", &entered)?;
    container.says_more()?;
    scene.checkpoint(&["far-layout"])?;
    container.ends()?;
    fs::remove_dir_all(format!("{}/layers", scene.state()))?;
    scene.restore("far-layout", &[])?.says_more()?;
    scene.check_no_leftovers()
}
