//! Lower layers that are read through the service's cache: what is read is what is there, what the mount writes is not hidden by it, and
//! the mounts of a pool have one copy.

use super::Case;
use super::pool::Pools;
use super::watching::stats_of;
use crate::harness::mount::Profile;
use crate::harness::outcome::{Doing, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, Layers, Mount};
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) const CASES: &[Case] = &[
    Case::of(Profile::Cached, "cache/tree", 120, tree),
    Case::of(Profile::Cached, "cache/one-copy", 120, one_copy),
];

const BLOCK: usize = 64 << 10;
const SIZES: [usize; 8] = [0, 1, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 3 << 20, 9 << 20];

type Contents = BTreeMap<String, Vec<u8>>;

/// Files of many sizes in a layer.
fn fill(layer: &Path) -> Outcome<Contents> {
    let mut contents = Contents::new();
    for (number, size) in SIZES.into_iter().enumerate() {
        let data: Vec<u8> = (0..size).map(|at| (at * 7 + at / BLOCK + number) as u8).collect();
        contents.insert(format!("file{number}"), data);
    }
    for (name, data) in &contents {
        fs::write(layer.join(name), data)?;
    }
    Ok(contents)
}

/// Reads all files, whatever the kernel has cached of them.
fn compare(mount: &Mount, contents: &Contents) -> Outcome {
    for (name, data) in contents {
        let mut file = File::open(mount.path(name)).doing(name)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut found = Vec::new();
        file.read_to_end(&mut found)?;
        ensure!(found == *data, "{name}: {} bytes are not the {} that were written", found.len(), data.len());
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut piece = [0; 100];
        let offset = data.len().saturating_sub(150);
        let count = file.read_at(&mut piece, offset as u64)?;
        ensure_eq!(piece.get(..count), data.get(offset..(offset + 100).min(data.len())), "the end of {name}");
    }
    Ok(())
}

fn figure(mount: &Mount, name: &str) -> Outcome<u64> {
    Ok(stats_of(mount)?["figures"][name].as_u64().unwrap_or_default())
}

fn tree(cx: &Cx) -> Outcome {
    for sharing in ["shared", "immutable"] {
        let layers = cx.layers(sharing, 1)?;
        let mut contents = fill(layers.lower())?;
        // With `shared`, what has just changed is not cached.
        std::thread::sleep(std::time::Duration::from_millis(2100));
        let mount = cx.mount_with(&layers, &[&format!("cache={sharing}"), "cache_size=8M"])?;
        for _ in 0..2 {
            compare(&mount, &contents)?;
        }
        let (hits, misses, bytes) =
            (figure(&mount, "cache_hits")?, figure(&mount, "cache_misses")?, figure(&mount, "cache_bytes")?);
        ensure!(hits > 0 && misses > 0, "{sharing}: {hits} hits, {misses} misses");
        ensure!(bytes > 0 && bytes <= 8 << 20, "{sharing}: {bytes} bytes are cached");
        // What the mount writes: into files, as new files over them, in place of removed ones, by other names.
        File::options().write(true).open(mount.path("file5"))?.write_all_at(b"rewritten", 10)?;
        contents.entry("file5".into()).and_modify(|data| data[10..19].copy_from_slice(b"rewritten"));
        File::options().write(true).open(mount.path("file7"))?.write_all_at(b"rewritten", 5 << 20)?;
        contents
            .entry("file7".into())
            .and_modify(|data| data[5 << 20..(5 << 20) + 9].copy_from_slice(b"rewritten"));
        fs::write(mount.path("new"), "new contents")?;
        fs::rename(mount.path("new"), mount.path("file4"))?;
        contents.insert("file4".into(), b"new contents".to_vec());
        fs::remove_file(mount.path("file3"))?;
        fs::write(mount.path("file3"), "again")?;
        contents.insert("file3".into(), b"again".to_vec());
        fs::rename(mount.path("file6"), mount.path("moved"))?;
        let moved = contents.remove("file6").unwrap_or_default();
        contents.insert("moved".into(), moved);
        compare(&mount, &contents)?;
        // And once more, by a service that has nothing of it.
        let mut mount = mount;
        mount.remount()?;
        compare(&mount, &contents)?;
    }
    Ok(())
}

fn one_copy(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let first = cx.layers("first", 1)?;
    let contents = fill(first.lower())?;
    let second = Layers { lowers: first.lowers.clone(), ..cx.layers("second", 1)? };
    let pool = format!("pool={}", pools.name());
    let options = [pool.as_str(), "cache=immutable", "cache_size=64M"];
    let (first, second) = (pools.mount_with(&first, &options)?, pools.mount_with(&second, &options)?);
    compare(&first, &contents)?;
    let all = figure(&first, "cache_bytes")?;
    compare(&second, &contents)?;
    let (fetched, again) = (figure(&first, "cache_misses")?, figure(&second, "cache_misses")?);
    ensure!(fetched > 0, "nothing was fetched");
    ensure_eq!(again, 0, "blocks that the second mount has fetched, too");
    let (one, other) = (figure(&first, "cache_bytes")?, figure(&second, "cache_bytes")?);
    ensure_eq!(one + other, all, "bytes that both pay for together");
    ensure!(other >= all / 4, "the second pays for {other} bytes of {all}");
    Ok(())
}
