//! Checkpoints that are packed, and such as have only what has changed since another one.

use super::support::{Going, Scene};
use crate::harness::outcome::{Doing, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::fs;

/// A program with 48 MiB of memory, of which a part changes at each turn, and a file of 8 MiB likewise.
const PROGRAM: &str = include_str!("grows.py");

fn start(scene: &Scene<'_>, name: &str) -> Outcome<Going> {
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
fn sizes(scene: &Scene<'_>, name: &str) -> Outcome<(u64, u64)> {
    let record = record(scene, name)?;
    let number = |field: &str| record[field].as_u64().unwrap_or(0);
    Ok((number("stored_bytes"), number("image_bytes") + number("upper_bytes")))
}

/// Packed in any case, and not at all: both go on.
pub(super) fn zstd(cx: &Cx) -> Outcome {
    goes_on_packed(&Scene::with_host_programs(cx)?.in_a_store(512)?, "zzstd")
}

fn goes_on_packed(scene: &Scene<'_>, name: &str) -> Outcome {
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
    scene.nothing_is_left()
}
