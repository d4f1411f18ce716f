//! Layers that are no directories, through real mounts and the whole service: here they are trees in memory.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "other tests use the rest of it")]
mod common;

use common::{Place, VELLUM, can_mount, line, signal, wait_until};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LOWER: &str = r"lowerdir=memory\:known=from memory;dir/inner=deeper";

fn mount(place: &Place, options: &str) -> Output {
    let mut command = Command::new(VELLUM);
    command.arg("-o").arg(options).arg(place.at("merged")).stdin(Stdio::null());
    command.output().unwrap()
}

fn mounted(place: &Place, options: &str) {
    let output = mount(place, options);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Options with an upper layer that is a directory.
fn over(place: &Place, lower: &str, more: &str) -> String {
    let (upper, work) = (place.at("upper"), place.at("work"));
    format!("{lower},upperdir={},workdir={}{more}", upper.display(), work.display())
}

/// Kills the service, and waits until another serves.
fn replace_service(place: &Place) {
    let before = place.service();
    signal(before, "KILL");
    wait_until("another service", || fs::metadata(place.at("merged")).is_ok() && place.service() != before);
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_lower_in_memory_survives_its_service() {
    if !can_mount() {
        return;
    }
    for profile in ["cached", "passthrough"] {
        let place = Place::new();
        mounted(&place, &over(&place, LOWER, &format!(",profile={profile}")));
        let merged = place.at("merged");
        assert_eq!(names(&merged), ["dir", "known"]);
        let mut known = File::open(merged.join("known")).unwrap();
        let ino = known.metadata().unwrap().ino();
        let mut text = String::new();
        known.read_to_string(&mut text).unwrap();
        assert_eq!(text, "from memory");
        OpenOptions::new().append(true).open(merged.join("dir/inner")).unwrap().write_all(b"!").unwrap();
        fs::write(merged.join("new"), "new").unwrap();
        replace_service(&place);
        // It is made again of what the record says; what was written is in the upper layer.
        known.seek(SeekFrom::Start(0)).unwrap();
        text.clear();
        known.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), known.metadata().unwrap().ino()), ("from memory", ino));
        assert_eq!(fs::read_to_string(merged.join("dir/inner")).unwrap(), "deeper!");
        fs::rename(merged.join("known"), merged.join("dir/known")).unwrap();
        fs::remove_file(merged.join("new")).unwrap();
        replace_service(&place);
        assert_eq!(names(&merged), ["dir"]);
        assert_eq!(fs::read_to_string(merged.join("dir/known")).unwrap(), "from memory");
        let output = common::run(&["inspect", merged.to_str().unwrap()]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("memory:"), "{said}");
        drop(known);
        place.unmount();
        assert_eq!(fs::read_to_string(place.at("upper/dir/inner")).unwrap(), "deeper!");
    }
}

/// A pool in a directory of its own, which is deleted at the end.
struct Pool {
    store: tempfile::TempDir,
    name: String,
}

impl Pool {
    /// None: control groups, which a pool needs, are not mounted here; that is said.
    fn new() -> Option<Self> {
        if !fs::read_to_string("/proc/self/mounts").unwrap().lines().any(|line| line.contains(" cgroup")) {
            eprintln!("SKIPPED: control groups are needed for a pool");
            return None;
        }
        // Groups are the host's.
        let name = format!("memory-{}", std::process::id());
        let pool = Self { store: tempfile::tempdir().unwrap(), name };
        let made = pool.command(&["pool", "create", &pool.name]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Some(pool)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(VELLUM);
        command.args(arguments).env("VELLUM_POOLS", self.store.path()).stdin(Stdio::null());
        command
    }

    fn shown(&self) -> serde_json::Value {
        let shown = self.command(&["pool", "show", &self.name, "--json"]).output().unwrap();
        serde_json::from_slice(&shown.stdout).unwrap_or_else(|e| panic!("{e}: {shown:?}"))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Its service ends a moment after the mount.
        let end = Instant::now() + common::PATIENCE;
        while !self.command(&["pool", "delete", &self.name]).output().unwrap().status.success() {
            if Instant::now() > end {
                eprintln!("the pool {} is left", self.name);
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The command says over the pool's socket where layers come from, and the pool's service in the record that it leaves: each of its
/// successors makes the tree again.
#[test]
fn a_pool_passes_a_lower_in_memory_to_successors() {
    if !can_mount() {
        return;
    }
    let Some(pool) = Pool::new() else { return };
    for profile in ["cached", "passthrough"] {
        let place = Place::new();
        let options = over(&place, LOWER, &format!(",profile={profile},pool={}", pool.name));
        let merged = place.at("merged");
        let output = pool.command(&["-o", &options]).arg(&merged).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let shown = pool.shown();
        let service = shown["mounts"][0]["service"].as_u64();
        assert_eq!(service, Some(place.service().into()), "it is served by another: {shown}");
        replace_service(&place);
        // Read for the first time, by a successor.
        assert_eq!(names(&merged), ["dir", "known"]);
        assert_eq!(fs::read_to_string(merged.join("known")).unwrap(), "from memory");
        replace_service(&place);
        assert_eq!(fs::read_to_string(merged.join("dir/inner")).unwrap(), "deeper");
        let output = common::run(&["inspect", merged.to_str().unwrap()]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("memory:"), "{said}");
        place.unmount();
    }
}

#[test]
fn a_copy_up_from_memory_records_no_origin_path() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let big = "0123456789abcdef".repeat(1024);
    let lower = format!(r"lowerdir=memory\:big={big}");
    mounted(&place, &over(&place, &lower, ",block_copy=4k,fill_at_end=off"));
    let file = OpenOptions::new().read(true).write(true).open(place.at("merged/big")).unwrap();
    file.write_all_at(b"X", 5000).unwrap();
    file.sync_all().unwrap();
    replace_service(&place);
    let mut wanted = big.into_bytes();
    wanted[5000] = b'X';
    assert_eq!(fs::read(place.at("merged/big")).unwrap(), wanted);
    drop(file);
    place.unmount();
    let mut recorded = [0; 64];
    let len = rustix::fs::getxattr(place.at("upper"), "trusted.vellum.lowers", &mut recorded);
    assert_eq!(len, Ok(0), "a path of what has none");
    let refused = common::run(&["flatten", place.at("upper").to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn an_upper_in_memory_ends_with_its_service() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (lower, log) = (place.at("lower"), place.at("log"));
    let options =
        format!("lowerdir={},upperdir=memory:,workdir=memory:,log_to={}", lower.display(), log.display());
    mounted(&place, &options);
    let merged = place.at("merged");
    fs::write(merged.join("file"), "changed").unwrap();
    fs::create_dir(merged.join("dir")).unwrap();
    fs::rename(merged.join("file"), merged.join("dir/file")).unwrap();
    assert_eq!(fs::read_to_string(merged.join("dir/file")).unwrap(), "changed");
    assert_eq!(names(&merged), ["dir"]);
    let found = common::run(&["inspect", "--json", merged.to_str().unwrap()]);
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["instance"]["upper"], "memory:/upper");
    signal(place.service(), "KILL");
    wait_until("the mount has ended", || fs::read_dir(&merged).is_err());
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let why = "upper layer memory:: what was written to it has gone with the service";
    wait_until("it is said why", || said().contains(why));
    assert!(said().contains("a mount is lost"), "{}", said());
    assert_eq!(fs::read_to_string(lower.join("file")).unwrap(), "from below");
}

#[test]
fn conflicting_layers_are_refused() {
    let place = Place::new();
    let at = |name| place.at(name).display().to_string();
    for (options, why) in [
        (format!("lowerdir={},upperdir=memory:,workdir={}", at("lower"), at("work")), "not of the same kind"),
        (
            format!("lowerdir={},upperdir={},workdir=memory:", at("lower"), at("upper")),
            "not of the same kind",
        ),
    ] {
        let refused = mount(&place, &options);
        assert_eq!(refused.status.code(), Some(2));
        assert!(line(&refused).contains(why), "{refused:?}");
    }
}
