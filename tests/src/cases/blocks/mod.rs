//! Copy-on-write by block: a file of a lower layer of which the upper holds only what was changed.

mod lifecycle;
mod other_programs;
mod programs;
mod random;
mod replay;

use super::Case;
use crate::harness::mount::MountKind;
use crate::harness::outcome::Outcome;
use crate::harness::{Layers, shell, source_root};
use std::process::Command;

pub(super) const CASES: &[Case] = &[
    Case::mounted("blocks/random-and-remounts", 240, random::remounts),
    Case::mounted("blocks/random-and-crashes", 240, random::crashes),
    Case::mounted("blocks/replay-ext4", 1800, replay::ext4),
    Case::mounted("blocks/replay-xfs", 1800, replay::xfs),
    Case::mounted("blocks/first-write-is-small", 60, lifecycle::first_write),
    Case::mounted("blocks/reader-and-writer", 60, lifecycle::reader_and_writer),
    Case::mounted("blocks/mappings", 60, lifecycle::mappings),
    Case::mounted("blocks/names", 60, lifecycle::names),
    Case::mounted("blocks/appends", 60, lifecycle::appends),
    Case::mounted("blocks/becomes-complete", 60, lifecycle::becomes_complete),
    Case::mounted("blocks/background-fill", 60, lifecycle::background),
    Case::mounted("blocks/flatten-interrupted", 120, lifecycle::flatten_interrupted),
    Case::mounted("blocks/maps-go", 60, lifecycle::maps_go),
    Case::mounted("blocks/changed-lower", 60, lifecycle::changed_lower),
    Case::mounted("blocks/others-refuse", 60, lifecycle::others_refuse),
    Case::mounted("blocks/same-size-and-time", 60, other_programs::same_size_and_time),
    Case::mounted("blocks/at-the-end", 60, other_programs::at_the_end),
    Case::once("blocks/fuse-overlayfs-refuses", 60, other_programs::fuse_overlayfs),
    Case::once("blocks/flatten-store", 60, other_programs::flatten_store),
    Case::mounted("blocks/reflink", 120, lifecycle::reflink),
    Case::mounted("blocks/clones", 120, lifecycle::clones),
    Case::mounted("blocks/sqlite", 120, programs::sqlite),
    Case::mounted("blocks/postgresql", 240, programs::postgresql),
    Case::mounted("blocks/qemu-img", 120, programs::qemu_img),
    Case::mounted("blocks/git-and-rsync", 120, programs::git_and_rsync),
];

/// `vellum flatten` on an upper that is not mounted.
fn flatten(layers: &Layers) -> Outcome<String> {
    shell::run(flatten_command(layers).arg(layers.upper()))
}

fn flatten_command(layers: &Layers) -> Command {
    let program = match MountKind::under_test() {
        MountKind::Program(program, true) => program,
        _ => source_root().join("target/release/vellum"),
    };
    let mut command = Command::new(program);
    command.arg("flatten");
    for lower in &layers.lowers {
        command.arg("--lower").arg(lower);
    }
    command
}
