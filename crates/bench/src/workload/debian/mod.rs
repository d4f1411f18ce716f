//! The root tree of a Debian system, as a lower layer, and what the tasks in it read.
//!
//! Tree and packages are made once on a machine, by the script `tree`, and kept in a cache; each place of comparisons has a copy on
//! its filesystem, made by the script `layer`.

use crate::failure::{Failure, Result, While};
use crate::programs::{self, on_path};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names another directory for the cache.
const VARIABLE: &str = "VELLUM_BENCH_TREE";
/// The cache's name. The number grows when the script makes something else.
const NAME: &str = "vellum/bench-tree-1";

/// Where the tree and packages are kept.
fn cache() -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || named("HOME").unwrap_or_else(|| "/root".into()).join(".cache");
    named(VARIABLE).unwrap_or_else(|| named("XDG_CACHE_HOME").unwrap_or_else(home).join(NAME))
}

/// Why there can be no tree here, if so.
#[must_use]
pub fn missing_requirement() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("working in a Debian tree needs root, for chroot".into());
    }
    let makes = !on_path("debootstrap").is_empty();
    (!makes && !cache().join("complete").exists())
        .then(|| "there is no debootstrap to make a Debian tree; install the package debootstrap".into())
}

/// Makes the tree in `layer`, with `files` files in it that are to be worked on, and what tasks read in `inputs`.
pub fn make(layer: &Path, inputs: &Path, files: usize) -> Result<()> {
    let cache = cache();
    if !cache.join("complete").exists() {
        eprintln!("making a Debian tree in {}, once: this takes minutes", cache.display());
        programs::run(script(include_str!("tree"), "tree").arg(&cache))?;
    }
    fs::create_dir_all(inputs).doing(|| "making inputs")?;
    programs::run(
        script(include_str!("layer"), "layer").arg(&cache).arg(layer).arg(inputs).arg(files.to_string()),
    )
}

/// What the cache has for tasks to read: packages.
#[must_use]
pub fn packages() -> PathBuf {
    cache().join("inputs")
}

/// Fails where the cache lacks what its source did not give.
pub fn check_available(what: &str) -> Result<()> {
    if packages().join(what).exists() {
        return Ok(());
    }
    let cache = cache().display().to_string();
    Err(Failure::new(format!("{what}: not in {cache}; remove that directory to have it made again")))
}

fn script(text: &str, name: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg("-c").arg(text).arg(name);
    command
}
