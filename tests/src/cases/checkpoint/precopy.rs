//! A first pass over memory. Where the kernel does not tell what was written there is none; what it leaves is restored everywhere.

use super::COUNTER;
use super::support::Scene;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use std::fs;
use std::path::Path;

/// A kernel that cannot is said to if it is asked for, and otherwise nothing is. What CRIU writes in two passes goes on, from files and from an object.
pub(super) fn memory(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?;
    let first = scene.start(&["--name", "ahead", "sh", "-c", COUNTER])?;
    first.says_more()?;
    let mut taking = scene.taking("ahead", Path::new(&scene.to()));
    taking.args(["--name", "always", "--memory-ahead", "always"]);
    if taking.output()?.status.success() {
        ensure!(scene.kept("always").join("images/parent/inventory.img").exists(), "no first pass");
    } else {
        shell::refused(&mut taking, "CONFIG_MEM_SOFT_DIRTY")?;
        ensure!(!scene.kept("always").exists(), "it is there");
    }
    let mut other = scene.taking("ahead", Path::new(&scene.to()));
    shell::refused(other.args(["--memory-ahead", "twice"]), "auto, none or always")?;
    first.says_more()?;
    let output = scene.taking("ahead", Path::new(&scene.to())).args(["--name", "usual"]).output()?;
    ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    ensure!(!scene.kept("usual").join("images/parent").exists(), "a first pass over so little");
    scene.checkpoint(&["ahead", "--name", "two"])?;
    ensure_eq!(first.ends()?, 137, "the container that has ended");
    let said = first.last_number();
    in_two_passes(&scene.kept("two"))?;
    let shown = scene.vellum(&["checkpoints", "show", &scene.to(), "two"])?;
    ensure!(shown.contains("and 0.01 s before"), "{shown}");
    let second = scene.restore("two", &[])?;
    second.says_more()?;
    ensure!(second.last_number() > said, "{} after {said}", second.last_number());
    // What another one needs becomes an object.
    scene.checkpoint(&["ahead", "--name", "next", "--parent", "two"])?;
    second.ends()?;
    ensure!(scene.kept("two").join("object").exists(), "it is no object");
    let third = scene.restore("two", &[])?;
    third.says_more()?;
    ensure!(third.last_number() > said, "{} after {said}", third.last_number());
    drop(third);
    scene.nothing_is_left()
}

/// Makes of a plain checkpoint what it would be had all of its processes' memory been read ahead, and none been written since.
fn in_two_passes(kept: &Path) -> Outcome {
    let (images, ahead) = (kept.join("images"), kept.join("images/parent"));
    fs::create_dir(&ahead)?;
    let mut memory = 0;
    for entry in fs::read_dir(&images)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("pagemap-").and_then(|rest| rest.strip_suffix(".img"));
        let Some(Ok(_)) = number.map(str::parse::<u32>) else { continue };
        let map = fs::read(images.join(&name))?;
        let (pages, map_in_parent) = elsewhere(&map).ok_or("no map of pages").doing(&name)?;
        fs::rename(images.join(&name), ahead.join(&name))?;
        fs::write(images.join(&name), map_in_parent)?;
        let pages = format!("pages-{pages}.img");
        memory += fs::metadata(images.join(&pages))?.len();
        fs::rename(images.join(&pages), ahead.join(&pages))?;
        fs::write(images.join(&pages), "")?;
    }
    ensure!(memory > 4096, "{memory} bytes of memory");
    let path = kept.join("checkpoint.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path)?).doing("the record")?;
    record["format"] = 6.into();
    record["pause_ahead_us"] = 12_000.into();
    Ok(fs::write(path, record.to_string())?)
}

/// The number of its pages, and the map with all of them in the parent: two magic numbers, then messages, each after its length. The first one has that number
/// as its field 1, the others get a field 4, flags, of which the last one counts.
fn elsewhere(map: &[u8]) -> Option<(u8, Vec<u8>)> {
    let (magic, mut rest) = map.split_at_checked(8)?;
    let mut changed = magic.to_vec();
    let mut number = None;
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let (message, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let more: &[u8] = if number.is_some() { &[0x20, 1] } else { &[] };
        changed.extend_from_slice(&((message.len() + more.len()) as u32).to_le_bytes());
        changed.extend_from_slice(message);
        changed.extend_from_slice(more);
        if number.is_none() {
            number = message.get(1).copied().filter(|number| message.first() == Some(&8) && *number < 0x80);
            number?;
        }
        rest = after;
    }
    Some((number?, changed))
}
