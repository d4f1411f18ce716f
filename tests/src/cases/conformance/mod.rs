//! Suites that others wrote, run on the mount and on what holds its layers (ext4): what passes there must
//! pass here.

mod data;
mod pjdfstest;
mod stress_ng;

use super::Case;
use crate::harness::outcome::Outcome;
use crate::harness::{Cx, Layers, Mount, shell, skip, source_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub(super) const CASES: &[Case] = &[
    Case::mounted("conformance/pjdfstest", 240, pjdfstest::all),
    Case::mounted("conformance/fsx", 240, data::fsx),
    Case::mounted("conformance/fio", 240, data::fio),
    Case::mounted("conformance/dbench", 120, data::dbench),
    Case::mounted("conformance/stress-ng", 400, stress_ng::all),
];

/// A plain directory and the mount, both open to everybody.
/// `fill` puts into the layers what is to be below. With VELLUM_TEST_ZONED, the upper layer is in a store on a file that is used like a zoned device.
fn plain_and_mount(cx: &Cx, fill: impl FnOnce(&Layers) -> Outcome) -> Outcome<(PathBuf, Layers, Mount)> {
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    let layers = cx.layers("union", 2)?;
    for dir in [plain.as_path(), layers.upper(), layers.lower()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777))?;
    }
    fill(&layers)?;
    let layers = if std::env::var_os("VELLUM_TEST_ZONED").is_some() {
        let store = cx.dir.join("store");
        super::zoned::make(&store)?;
        super::zoned::stored(&layers, &store)
    } else {
        layers
    };
    let mount = cx.mount(&layers)?;
    fs::set_permissions(mount.root(), fs::Permissions::from_mode(0o777))?;
    Ok((plain, layers, mount))
}

/// A tool that `make deps` installs below target/tools, or that is in PATH.
fn tool(name: &str) -> Outcome<PathBuf> {
    let ours = source_root().join("target/tools/bin").join(name);
    if ours.is_file() {
        return Ok(ours.canonicalize()?);
    }
    if shell::have(name) {
        Ok(PathBuf::from(name))
    } else {
        skip(format!("{name} is missing: run make deps"))
    }
}
