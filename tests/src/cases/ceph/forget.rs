//! A partial file there that the kernel forgets while it is being written to: what is known of its blocks goes to its sidecar, which takes a while, and the
//! next one that is asked for the file has to know all of it.

use super::cluster::Cluster;
use super::trees::mount;
use super::upper::far;
use crate::harness::Cx;
use crate::harness::mount::Profile;
use crate::harness::outcome::{Outcome, ensure};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Enough for a partial file in either profile.
const BLOCKS: usize = 512;
/// As many of them are written to.
const WRITTEN: usize = 200;

/// Has the kernel forget what nobody has open, while `work` is done.
fn while_forgetting<T>(work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = fs::write("/proc/sys/vm/drop_caches", "2");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        worked
    })
}

/// Each block is written to by a descriptor of its own. None of them is lost, neither here nor for the next mount.
pub(super) fn forgotten(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    let original: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK + at % 251) as u8).collect();
    fs::write(local.join("file"), &original)?;
    let lower = local.display().to_string();
    for (profile, policy) in
        Profile::ALL.into_iter().flat_map(|profile| [(profile, "sync"), (profile, "back")])
    {
        let layers = far(cx, cluster, &format!("forgotten-{profile}-{policy}"), &[&lower])?;
        let mut mount = mount(cluster, &layers, profile, &[&format!("ceph.write={policy}")])?;
        let (path, mut wanted) = (mount.path("file"), original.clone());
        while_forgetting(|| -> Outcome {
            for number in 0..WRITTEN {
                let (at, text) = (number * BLOCK, format!("{number:06}"));
                File::options().write(true).open(&path)?.write_all_at(text.as_bytes(), at as u64)?;
                wanted[at..at + text.len()].copy_from_slice(text.as_bytes());
            }
            Ok(())
        })?;
        let lost = || -> Outcome<Vec<usize>> {
            let found = fs::read(&path)?;
            let blocks = found.chunks(BLOCK).zip(wanted.chunks(BLOCK)).enumerate();
            Ok(blocks.filter(|(_, (found, wanted))| found != wanted).map(|(number, _)| number).collect())
        };
        super::trees::forget_pages(&path)?;
        let here = lost()?;
        ensure!(here.is_empty(), "{profile}, {policy}: blocks {here:?} are lost");
        mount.remount()?;
        let next = lost()?;
        ensure!(next.is_empty(), "{profile}, {policy}: blocks {next:?} are lost for the next mount");
        mount.unmount()?;
    }
    Ok(())
}
