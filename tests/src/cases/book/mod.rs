//! The commands that the book shows do what it says: each page with commands to run is run in a directory of its own.

mod blocks;

use super::Case;
use super::checkpoint::support::criu;
use crate::harness::mount::MountKind;
use crate::harness::outcome::{DuringContext, Outcome, fail, skip};
use crate::harness::{Cx, shell, source_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

pub(super) const CASES: &[Case] = &[
    Case::once("book/install", 60, |cx| page(cx, "start/install.md")),
    Case::once("book/fstab", 60, |cx| page(cx, "start/fstab.md")),
    Case::once("book/back", 60, |cx| page(cx, "start/back.md")),
    Case::once("book/cache", 60, |cx| page(cx, "guide/cache.md")),
    Case::once("book/blocks", 60, |cx| page(cx, "guide/blocks.md")),
    Case::once("book/pools", 60, |cx| page(cx, "guide/pools.md")),
    Case::once("book/zoned", 60, |cx| page(cx, "guide/zoned.md")),
    Case::once("book/run", 60, |cx| page(cx, "guide/run.md")),
    Case::once("book/checkpoints", 120, |cx| page(cx, "guide/checkpoints.md")),
    Case::once("book/metrics", 60, |cx| page(cx, "guide/metrics.md")),
];

fn page(cx: &Cx, name: &str) -> Outcome {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("the book is about Vellum");
    };
    let path = source_root().join("docs/src").join(name);
    let page = blocks::read(&fs::read_to_string(&path)?);
    if page.steps.is_empty() {
        return fail(format!("{}: there is nothing to run", path.display()));
    }
    // CRIU may be another system's.
    let (checkpoints, programs): (Vec<_>, Vec<_>) = page.needs.iter().partition(|need| *need == "criu");
    if let Some(need) = programs.into_iter().find(|need| !shell::have(need)) {
        return skip(format!("{need} is missing: run make deps"));
    }
    let paths = match checkpoints.is_empty() {
        true => std::env::var_os("PATH").unwrap_or_default(),
        false => criu()?,
    };
    let [bin, state, here] = ["bin", "state", "here"].map(|name| cx.dir.join(name));
    fs::create_dir(&bin)?;
    fs::create_dir(&here)?;
    // Containers of this host, if there are any, are not to be seen.
    let wrapper = bin.join("vellum");
    let (program, state) = (program.display(), state.display());
    let text = format!(
        "#!/bin/sh\ncase ${{1-}} in run|checkpoint|restore) command=$1; shift; exec '{program}' $command --state '{state}' \"$@\" ;; esac\n\
        exec '{program}' \"$@\"\n"
    );
    fs::write(&wrapper, text)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let paths = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&paths))).doing("PATH")?;
    let bash = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(&here).stdin(Stdio::null());
        command.env("PATH", &paths).env("LC_ALL", "C").env("VELLUM_POOLS", cx.dir.join("pools"));
        command.env("VELLUM_LIBRARY", "");
        command.output()
    };
    let output = bash(&blocks::script(&page))?;
    let compared = blocks::compare(&page, &String::from_utf8_lossy(&output.stdout));
    if compared.is_err() {
        // Control groups are the host's.
        bash(
            "umount -l merged; for pool in \"$VELLUM_POOLS\"/*; do vellum pool delete \"${pool##*/}\"; done",
        )?;
    }
    compared.or_else(|why| fail(format!("docs/src/{name}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::{blocks, source_root};
    use std::fs;

    #[test]
    fn every_page_with_commands_to_run_has_a_case() {
        let cases = include_str!("mod.rs");
        for part in ["start", "guide", "reference"] {
            for entry in fs::read_dir(source_root().join("docs/src").join(part)).unwrap() {
                let path = entry.unwrap().path();
                let name = format!("{part}/{}", path.file_name().unwrap().to_string_lossy());
                let has_steps = !blocks::read(&fs::read_to_string(&path).unwrap()).steps.is_empty();
                assert_eq!(has_steps, cases.contains(&format!("\"{name}\"")), "{name}");
            }
        }
    }
}
