//! Files of a layer on CephFS that are whole in the cache are lent to the kernel: reads, mappings and programs come from one copy in
//! memory, and no request reaches the service.

use super::cluster::Cluster;
use super::trees::{layers, mount};
use crate::cases::cache::warm::kill;
use crate::cases::watching::stats_of;
use crate::harness::mount::Profile;
use crate::harness::outcome::{Doing, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Mount, shell};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

const SMALL: usize = 300_000;
const LARGE: usize = 4 << 20;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 4096 + seed) as u8).collect()
}

/// Requests to read that the service has had.
fn reads(mount: &Mount) -> Outcome<u64> {
    Ok(stats_of(mount)?["operations"]["READ"]["count"].as_u64().unwrap_or_default())
}

fn read_all(file: &File, len: usize) -> Outcome<Vec<u8>> {
    let mut found = vec![0; len];
    file.read_exact_at(&mut found, 0)?;
    Ok(found)
}

pub(super) fn lent(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let tree = cx.dir.join("tree");
    fs::create_dir(&tree)?;
    let (small, large) = (bytes(SMALL, 1), bytes(LARGE, 2));
    fs::write(tree.join("small"), &small)?;
    fs::write(tree.join("large"), &large)?;
    fs::copy("/bin/busybox", tree.join("busybox")).doing("busybox")?;
    cluster.put(&tree, "lent")?;
    let layers = layers(cx, "lent", &["ceph:/lent"])?;
    let mut mount = mount(cluster, &layers, Profile::Passthrough, &["cache=immutable", "cache_size=64M"])?;

    // A small file is fetched when it is opened, a large one lent when it has been read.
    ensure!(fs::read(mount.path("small"))? == small, "small");
    ensure_eq!(reads(&mount)?, 0, "requests to read a small file");
    ensure!(fs::read(mount.path("large"))? == large, "large");
    let asked = reads(&mount)?;
    ensure!(asked > 0, "a large file is not read without being asked for");
    let open = File::open(mount.path("large"))?;
    ensure!(read_all(&open, LARGE)? == large, "large again");
    let said = shell::run(
        Command::new("cmp").args(["-n", "4194304"]).arg(tree.join("large")).arg(mount.path("large")),
    )?;
    ensure_eq!(said, "", "compared by another process");
    ensure_eq!(reads(&mount)?, asked, "requests to read what was lent");
    let said = shell::run(Command::new(mount.path("busybox")).args(["echo", "it runs"]))?;
    ensure_eq!(said, "it runs\n", "a program");

    // Another service has what was cached, as it was lent. The file that is open stays so, and who opens it joins.
    kill(&mount)?;
    ensure!(read_all(&open, LARGE)? == large, "what was open when the service died");
    ensure!(read_all(&File::open(mount.path("large"))?, LARGE)? == large, "opened beside it");
    ensure!(fs::read(mount.path("small"))? == small, "small, from another service");
    let said = shell::run(Command::new(mount.path("busybox")).args(["echo", "it runs"]))?;
    ensure_eq!(said, "it runs\n", "a program, from another service");
    let cache = stats_of(&mount)?["cache"].clone();
    ensure_eq!((cache["misses"].as_u64(), reads(&mount)?), (Some(0), 0), "fetches and requests after that");

    // A write goes to a copy of its own.
    let writer = OpenOptions::new().read(true).write(true).open(mount.path("large"))?;
    writer.write_all_at(b"changed", 100)?;
    let mut changed = large.clone();
    changed.get_mut(100..107).ok_or("short").doing("large")?.copy_from_slice(b"changed");
    ensure!(read_all(&writer, LARGE)? == changed, "what was written");
    ensure!(fs::read(mount.path("large"))? == changed, "opened again");
    ensure!(read_all(&open, LARGE)? == large, "who had the lower file open goes on with it");
    drop((open, writer));
    mount.unmount()
}
