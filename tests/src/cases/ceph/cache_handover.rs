//! A service that goes on with what its predecessor has cached of a layer on CephFS: it asks the cluster for versions only, and sees what
//! another client has changed.

use super::cluster::Cluster;
use super::trees::{forget_pages, layers, mount};
use crate::cases::cache::handover::kill;
use crate::cases::monitoring::stats_of;
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Mount};
use rustix::process::{Signal, kill_process};
use std::ffi::CString;
use std::fs;
use std::time::{Duration, Instant};
use vellum_vfs::{Name, OpenMode};

const SIZES: [usize; 6] = [100, 5000, 65_536, 70_000, 900_000, 16 << 20];

fn content(number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 11 + at / 4096 + number) as u8).collect()
}

fn figure(mount: &Mount, name: &str) -> Outcome<u64> {
    Ok(stats_of(mount)?["cache"][name].as_u64().unwrap_or_default())
}

/// Reads all files, whatever the kernel has cached of them; how long that takes.
fn read(mount: &Mount, files: &[(String, Vec<u8>)]) -> Outcome<Duration> {
    for (name, _) in files {
        forget_pages(&mount.path(name))?;
    }
    let begin = Instant::now();
    let mut all = Vec::new();
    for (name, _) in files {
        all.push(fs::read(mount.path(name)).doing(name)?);
    }
    let took = begin.elapsed();
    for ((name, right), found) in files.iter().zip(all) {
        ensure!(found == *right, "{name}: other contents");
    }
    Ok(took)
}

pub(super) fn warm(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let tree = cx.dir.join("tree");
    fs::create_dir(&tree)?;
    let mut files: Vec<(String, Vec<u8>)> = vec![];
    for (number, size) in SIZES.into_iter().enumerate() {
        files.push((format!("file{number}"), content(number, size)));
    }
    for (name, data) in &files {
        fs::write(tree.join(name), data)?;
    }
    cluster.put(&tree, "warm")?;
    for (number, profile) in Profile::ALL.into_iter().enumerate() {
        let layers = layers(cx, &profile.to_string(), &["ceph:/warm"])?;
        let mount = mount(cluster, &layers, profile, &["cache=shared", "cache_size=64M"])?;
        let cold = read(&mount, &files)?;
        let misses = figure(&mount, "misses")?;
        ensure!(misses > 0, "{profile}: nothing was fetched");
        kill(&mount)?;
        let warm = read(&mount, &files)?;
        ensure_eq!(figure(&mount, "misses")?, 0, "{profile}: blocks that were fetched again");
        ensure!(figure(&mount, "hits")? > 0, "{profile}: no hits");
        println!(
            "{profile}: read in {cold:?} with {misses} fetches, and by a successor in {warm:?} with none"
        );

        // Another client writes to a file, while nobody serves.
        let changed = number + 3;
        let (name, data) = files.get_mut(changed).ok_or("none").doing("a file")?;
        let dir = cluster.root()?.open_dir(Name::new(c"warm").doing("a name")?).doing("the layer")?;
        let c_name = CString::new(name.as_str()).doing("a name")?;
        let write = |text: &[u8]| -> Outcome {
            let name = Name::new(&c_name).doing("a name")?;
            let file = dir.open_file(name, OpenMode::WRITE).doing("a file")?;
            file.write_at(text, 50_000).doing("a write")?;
            file.sync(false).doing("a sync")
        };
        let text = format!("changed {number}");
        kill_process(mount.service()?, Signal::KILL)?;
        write(text.as_bytes())?;
        data.get_mut(50_000..50_000 + text.len())
            .ok_or("short")
            .doing("a file")?
            .copy_from_slice(text.as_bytes());
        read(&mount, &files)?;
        let again = figure(&mount, "misses")?;
        ensure!((1..misses).contains(&again), "{profile}: {again} of {misses} fetches after a change");
        // What it is now was fetched, and is kept.
        kill(&mount)?;
        read(&mount, &files)?;
        ensure_eq!(figure(&mount, "misses")?, 0, "{profile}: what had changed was not kept");
    }
    Ok(())
}

/// What a cache above keeps is not kept by the client's own, too, unless it is read in a row.
pub(super) fn read_past(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    const AT: u64 = 5 << 20;
    const LEN: usize = 64 << 10;
    let tree = cx.dir.join("tree");
    fs::create_dir(&tree)?;
    let data = content(1, 8 << 20);
    fs::write(tree.join("file"), &data)?;
    // The client that writes it has it in its cache.
    cluster.put(&tree, "read-past")?;
    let dir = cluster.root()?.open_dir(Name::new(c"read-past").doing("a name")?).doing("the layer")?;
    let mut buf = vec![0; LEN];
    for (mode, reads) in [(OpenMode::READ, 0), (OpenMode::READ | OpenMode::KEPT_ABOVE, 2)] {
        let file = dir.open_file(Name::new(c"file").doing("a name")?, mode).doing("a file")?;
        let before = cluster.asked()?;
        for at in [AT, 0] {
            file.read_at(&mut buf, at).doing("a read")?;
            ensure!(data.get(at as usize..).is_some_and(|rest| rest.starts_with(&buf)), "{mode:?} at {at}");
        }
        let asked = cluster.asked()?.since(before).reads;
        ensure!(if reads == 0 { asked == 0 } else { asked >= reads }, "{mode:?}: {asked} reads of objects");
    }
    Ok(())
}
