//! Suites that others wrote, run on the mount and on what holds its layers (ext4): what passes there must
//! pass here.

mod data;
mod pjdfstest;
mod stress_ng;

use super::Case;
use super::ceph::cluster::Cluster;
use super::pool::Pools;
use crate::harness::outcome::{Outcome, fail};
use crate::harness::{Cx, Layers, Mount, MountKind, shell, skip, source_root};
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

/// Says where the upper layer is, or who serves the mount: `zoned`, in a store on a file that is used like a zoned device; `ceph`, on CephFS,
/// in a cluster of its own; `pool`, in a pool.
const PLACE: &str = "VELLUM_TEST_PLACE";

/// What lives as long as the mount.
#[expect(dead_code, reason = "they end when they are dropped")]
enum MountGuard<'a> {
    Nothing,
    Pool(Pools<'a>),
    Cluster(Cluster),
}

/// What the mount needs, a plain directory and the mount, the latter two open to everybody.
/// `fill` puts into the layers what is to be below.
fn plain_and_mount(
    cx: &Cx,
    fill: impl FnOnce(&Layers) -> Outcome,
) -> Outcome<(MountGuard<'_>, PathBuf, Layers, Mount)> {
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    let layers = cx.layers("union", 2)?;
    for dir in [plain.as_path(), layers.upper(), layers.lower()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777))?;
    }
    fill(&layers)?;
    let (held, layers, mount) = match std::env::var(PLACE).as_deref() {
        Err(_) | Ok("") => {
            let mount = cx.mount(&layers)?;
            (MountGuard::Nothing, layers, mount)
        }
        Ok("zoned") => {
            let store = cx.dir.join("store");
            super::zoned::make(&store)?;
            let layers = super::zoned::stored(&layers, &store);
            let mount = cx.mount(&layers)?;
            (MountGuard::Nothing, layers, mount)
        }
        Ok("pool") => {
            let pools = Pools::new(cx)?;
            pools.run("create", &[])?;
            let mount = pools.mount(&layers, true)?;
            (MountGuard::Pool(pools), layers, mount)
        }
        Ok("ceph") => {
            let cluster = Cluster::start()?;
            cluster.put(layers.upper(), "upper")?;
            cluster.put(&layers.work, "work")?;
            let [upper, work] = ["ceph:/upper", "ceph:/work"].map(PathBuf::from);
            let layers = Layers { upper: Some(upper), work, ..layers };
            let conf = format!("ceph.conf={}", cluster.conf.display());
            let mount = Mount::new(MountKind::under_test(), cx.profile, &layers, &[&conf])?;
            (MountGuard::Cluster(cluster), layers, mount)
        }
        Ok(other) => return fail(format!("{PLACE}={other}: write zoned, pool or ceph")),
    };
    fs::set_permissions(mount.root(), fs::Permissions::from_mode(0o777))?;
    Ok((held, plain, layers, mount))
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
