//! A first pass over memory. Where the kernel does not tell what was written there is none; what it leaves is restored everywhere.

use super::COUNTER;
use super::support::Scene;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::fs;
use std::path::Path;

/// A kernel that cannot is said to if it is asked for, and otherwise nothing is. What CRIU writes in two
/// passes goes on, and so does what Vellum 0.2 has taken: images, files and the layer as files.
pub(super) fn memory(cx: &Cx) -> Outcome {
    let scene = Scene::new(cx)?;
    let first = scene.start(&["--name", "ahead", "sh", "-c", COUNTER])?;
    first.says_more()?;
    let show = |name: &str| scene.vellum(&["checkpoints", "show", &scene.to(), name]);
    let mut taking = scene.taking("ahead", Path::new(&scene.to()));
    taking.args(["--name", "always", "--memory-ahead", "always"]);
    if taking.output()?.status.success() {
        ensure!(show("always")?.contains(" before"), "no first pass");
    } else {
        shell::refused(&mut taking, "CONFIG_MEM_SOFT_DIRTY")?;
        ensure!(!scene.checkpoint_dir("always").exists(), "it is there");
    }
    let mut other = scene.taking("ahead", Path::new(&scene.to()));
    shell::refused(other.args(["--memory-ahead", "twice"]), "auto, none or always")?;
    first.says_more()?;
    let output = scene.taking("ahead", Path::new(&scene.to())).args(["--name", "usual"]).output()?;
    ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    ensure!(!show("usual")?.contains(" before"), "a first pass over so little");
    let said = first.last_number();
    taken_by_vellum_0_2(&scene, "ahead", "old")?;
    first.says_more()?;
    let mut needs = scene.taking("ahead", Path::new(&scene.to()));
    shell::refused(needs.args(["--name", "next", "--parent", "old"]), "no other one can need")?;
    first.signal(Signal::TERM)?;
    ensure_eq!(first.ends()?, 3, "the container");
    for passes in ["one", "two"] {
        if passes == "two" {
            in_two_passes(&scene.checkpoint_dir("old"))?;
            ensure!(show("old")?.contains("and 0.01 s before"), "{}", show("old")?);
        }
        let restored = scene.restore("old", &[])?;
        restored.says_more()?;
        ensure!(restored.last_number() > said, "{passes}: {} after {said}", restored.last_number());
        scene.checkpoint(&["ahead", "--name", "again"])?;
        ensure_eq!(restored.ends()?, 137, "the restored container");
    }
    let last = scene.restore("again", &[])?;
    last.says_more()?;
    ensure!(last.last_number() > said, "{} after {said}", last.last_number());
    drop(last);
    scene.check_no_leftovers()
}

/// A checkpoint as that version took it. It had the runtime write the images, and copied the layer.
fn taken_by_vellum_0_2(scene: &Scene<'_>, container: &str, name: &str) -> Outcome {
    scene.checkpoint(&[container, "--leave-running", "--name", name])?;
    let (kept, dir) = (scene.checkpoint_dir(name), scene.merged(container)?.with_file_name(""));
    let record = kept.join("checkpoint.json");
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&record)?).doing("the record")?;
    text["format"] = 1.into();
    text.as_object_mut().ok_or("no object").doing("the record")?.remove("stored_bytes");
    fs::write(record, text.to_string())?;
    let script = r#"set -e; cd "$1"; rm object; mkdir images files
        printf 'ghost-limit 1048576\nnetwork-lock skip\n' > "$2/old.conf"
        runc --root "$2/runtime" pause "$3"; trap 'runc --root "$2/runtime" resume "$3"' EXIT
        CRIU_CONFIG_FILE="$2/old.conf" runc --root "$2/runtime" checkpoint --image-path images --work-path "$2" --file-locks --tcp-established --leave-running "$3"
        cp -a "$2/private/upper" upper
        for name in hostname hosts resolv.conf; do [ ! -e "$2/$name" ] || cp "$2/$name" files; done"#;
    let mut old = scene.program("bash");
    old.args(["-c", script, "bash"]).arg(kept).arg(dir).arg(container);
    shell::run(&mut old).map(drop)
}

/// Makes of a checkpoint in files what it would be had all of its processes' memory been read ahead, and none been written since.
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

/// The number of its pages, and the map with all of them in the parent: two magic numbers, then messages,
/// each after its length. The first one has that number as its field 1, the others get a field 4, flags, of
/// which the last one counts.
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
