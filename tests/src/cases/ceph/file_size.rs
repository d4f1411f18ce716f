//! Files of lower layers that are larger than an upper layer on CephFS takes.

use super::cluster::Cluster;
use super::trees::mount;
use super::upper::far;
use crate::harness::Cx;
use crate::harness::mount::Profile;
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};

/// A file of a lower layer that the cluster does not take, for its size: who wants to change it hears so at once, and the log says why. What is made
/// shorter has room.
pub(super) fn file_size(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    const MOST: u64 = 1 << 20;
    let set = |bytes: u64| cluster.ceph(&["fs", "set", "cephfs", "max_file_size", &bytes.to_string()]);
    set(MOST)?;
    let done = larger_than(cx, cluster, MOST);
    set(1 << 40)?;
    done
}

fn larger_than(cx: &Cx, cluster: &Cluster, most: u64) -> Outcome {
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    for (name, size) in [("large", 4 * most), ("cut", 4 * most), ("small", most / 2)] {
        let file = File::create(local.join(name))?;
        file.write_all_at(b"data", 0)?;
        file.set_len(size)?;
    }
    let lower = local.display().to_string();
    let errno = |done: std::io::Result<()>| done.err().and_then(|error| error.raw_os_error());
    let too_large = Some(Errno::FBIG.raw_os_error());
    for profile in Profile::ALL {
        for (number, blocks) in ["block_copy=off", "block_copy=64K"].into_iter().enumerate() {
            let what = format!("{profile} {blocks}");
            let log = cx.dir.join(format!("log-{profile}-{number}"));
            let logged = format!("log_to={}", log.display());
            let layers = far(cx, cluster, &format!("upper-size-{profile}-{number}"), &[&lower])?;
            let mount = mount(cluster, &layers, profile, &[blocks, &logged])?;
            let large = mount.path("large");
            let mode = fs::Permissions::from_mode(0o600);
            ensure_eq!(errno(fs::set_permissions(&large, mode.clone())), too_large, "{what}: chmod");
            ensure_eq!(errno(chown(&large, Some(7), None)), too_large, "{what}: chown");
            let opened = File::options().write(true).open(&large);
            match profile {
                Profile::Passthrough => ensure_eq!(errno(opened.map(drop)), too_large, "{what}: open"),
                // Neither the open nor the write is the service's to answer.
                Profile::Cached => {
                    let file = opened?;
                    let written = file.write_all_at(b"x", 0).and_then(|()| file.sync_all());
                    ensure_eq!(errno(written), too_large, "{what}: fsync");
                }
            }
            let said = fs::read_to_string(&log)?;
            let line = said.lines().find(|line| line.contains("max_file_size")).unwrap_or_default();
            ensure!(line.contains("/large: larger than the upper's filesystem allows"), "{what}: {said}");
            fs::set_permissions(mount.path("small"), mode)?;
            fs::write(mount.path("cut"), "short")?;
            ensure_eq!(fs::read(mount.path("cut"))?, b"short", "{what}: cut");
            ensure_eq!(fs::metadata(&large)?.len(), 4 * most, "{what}: it is as it was");
        }
    }
    Ok(())
}
