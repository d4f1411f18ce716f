//! Container engines, really run, with the program under test as their mount program. The scripts are in
//! tests/engines.

use super::Case;
use crate::harness::outcome::{DuringContext, Outcome, ensure, fail, skip};
use crate::harness::{Cx, MountKind, Profile, shell, source_root};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub(super) const CASES: &[Case] = &[
    Case::mounted("engines/podman-5.4", 300, |cx| podman_5(cx, "podman.sh", "")),
    Case::mounted("engines/podman-4.3", 300, |cx| podman_4(cx, "podman.sh", &[])),
    Case::once("engines/podman-4.3-switch", 120, |cx| podman_4(cx, "switch.sh", &[])),
    Case::once("engines/podman-5.4-rootless", 300, |cx| podman_5(cx, "rootless.sh", "NO_BUILD=1")),
    Case::once("engines/podman-4.3-rootless", 300, |cx| podman_4(cx, "rootless.sh", &[])),
    Case::mounted("engines/docker-20.10", 200, docker),
    Case::once("engines/demo-rootless", 120, |cx| podman_4(cx, "demo.sh", &[])),
];

/// What a script is called with: its directory, the program, the profile.
struct Arguments {
    dir: PathBuf,
    program: PathBuf,
    profile: String,
}

fn arguments(cx: &Cx) -> Outcome<Arguments> {
    let MountKind::Program(program, _) = MountKind::under_test() else {
        return skip("engines need a mount program");
    };
    let dir = cx.dir.join("e");
    fs::create_dir_all(&dir)?;
    let profile = cx.profile.map(|profile| profile.to_string()).unwrap_or_default();
    Ok(Arguments { dir, program, profile })
}

/// Gives a script the preload library and a program that works by it: `DIR/library/{libvellum.so,works}`.
pub(super) fn give_library(cx: &Cx) -> Outcome {
    let dir = cx.dir.join("e/library");
    fs::create_dir_all(&dir)?;
    fs::copy(super::library::library()?, dir.join("libvellum.so"))?;
    fs::copy(super::library::compile(cx, "gcc", "checkpoint")?, dir.join("works"))?;
    Ok(())
}

fn script(name: &str) -> PathBuf {
    source_root().join("tests/engines").join(name)
}

/// Runs it, its output into this case's log.
fn finish(command: &mut Command) -> Outcome {
    // Building an image of many layers takes long and shows nothing new in the other profile.
    let status = command.stdin(Stdio::null()).status().doing("running the script")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(77) => skip("see the last line of the log"),
        _ => fail(format!("the script ended with {status}")),
    }
}

/// Whether the long build is left out: it is done in one profile with each engine.
fn without_build(cx: &Cx, built: Profile) -> &'static str {
    if cx.profile.is_some_and(|profile| profile != built) { "1" } else { "" }
}

/// A script with podman of this host.
pub(super) fn podman_4(cx: &Cx, name: &str, environment: &[(&str, OsString)]) -> Outcome {
    if !shell::have("podman") {
        return skip("podman is missing: run make deps");
    }
    let Arguments { dir, program, profile } = arguments(cx)?;
    let no_build = if name == "rootless.sh" { "1" } else { without_build(cx, Profile::Cached) };
    let mut command = Command::new(script(name));
    command.arg(dir).arg(program).arg(profile).env("NO_BUILD", no_build);
    finish(command.envs(environment.iter().map(|(name, value)| (name, value))))
}

/// A script with containerd of this host.
pub(super) fn containerd(cx: &Cx, name: &str, environment: &[(&str, OsString)]) -> Outcome {
    let Arguments { dir, program, profile } = arguments(cx)?;
    let mut command = Command::new(script(name));
    command.arg(dir).arg(program).arg(profile).envs(environment.iter().map(|(name, value)| (name, value)));
    finish(&mut command)
}

/// A script with podman of Debian 13.
pub(super) fn podman_5(cx: &Cx, name: &str, environment: &str) -> Outcome {
    let Arguments { dir, program, profile } = arguments(cx)?;
    let no_build = format!("NO_BUILD={}", without_build(cx, Profile::Passthrough));
    let environment = if environment.is_empty() { no_build.as_str() } else { environment };
    let results = dir.join("results");
    fs::write(&results, "")?;
    let mut command = Command::new(source_root().join("scripts/debian13"));
    command.arg("--bind").arg(format!("{}:/work", dir.display()));
    command.arg("--bind").arg(format!("{}:/usr/local/bin/vellum", program.display()));
    command.arg("--bind").arg(format!("{}:/engines", script("").display()));
    command.args([
        "env",
        environment,
        &format!("/engines/{name}"),
        "/work",
        "/usr/local/bin/vellum",
        &profile,
    ]);
    let outcome = finish(command.env(crate::runner::child::RESULTS, "/work/results"));
    let parts = fs::read_to_string(&results)?;
    ensure!(!parts.is_empty() || outcome.is_err(), "the script noted no results");
    if let Some(file) = std::env::var_os(crate::runner::child::RESULTS) {
        fs::write(file, parts)?;
    }
    outcome
}

fn docker(cx: &Cx) -> Outcome {
    let Arguments { dir, program, profile } = arguments(cx)?;
    finish(Command::new(script("docker.sh")).arg(dir).arg(program).arg(profile))
}
