//! Snapshots as layers. Their files have the inode numbers of those that they were taken of, and are never taken for them.

use super::cluster::Cluster;
use super::failures::try_one;
use super::trees::{conf, layers, mount, program};
use super::upper::far;
use crate::cases::cache::handover::kill;
use crate::cases::pool::Pools;
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::{Cx, shell};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, lchown};
use std::process::Command;

/// Bytes of a file that is copied block by block.
const LARGE: usize = 2 << 20;

/// A directory with two snapshots: each has other contents under another name of the same file.
fn fill(cx: &Cx, cluster: &Cluster, name: &str) -> Outcome {
    let tree = cx.dir.join(name);
    fs::create_dir_all(tree.join("dir"))?;
    fs::write(tree.join("file"), "first 1")?;
    fs::write(tree.join("dir/kept"), "kept")?;
    fs::write(tree.join("large"), vec![b'1'; LARGE])?;
    cluster.put(&tree, name)?;
    cluster.snapshot(name, "v1")?;
    let write = |file: &str, text: &[u8]| cluster.write(&format!("{name}/{file}"), text);
    write("file", b"second!")?;
    write("large", &vec![b'2'; LARGE])?;
    cluster.rename(name, "file", "moved")?;
    cluster.snapshot(name, "v2")?;
    write("moved", b"present")?;
    write("large", &vec![b'3'; LARGE])
}

fn numbered(number: u8) -> Vec<u8> {
    vec![b'0' + number; LARGE]
}

pub(super) fn layered(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    fill(cx, cluster, "snapped")?;
    let [v1, v2, now] = ["ceph:/snapped/.snap/v1", "ceph:/snapped/.snap/v2", "ceph:/snapped"];
    for profile in Profile::ALL {
        // The oldest above all, and below all.
        for (order, [file, moved, large]) in
            [([v1, v2, now], ["first 1", "second!", "1"]), ([now, v2, v1], ["first 1", "present", "3"])]
        {
            for cache in ["cache=off", "cache=shared", "cache=immutable"] {
                let what = format!("{profile} {cache} {order:?}");
                let layers = layers(cx, &what.replace([' ', '/', '"', ':', '[', ']', ','], "-"), &order)?;
                let mounted = mount(cluster, &layers, profile, &[cache])?;
                for _ in 0..2 {
                    ensure_eq!(fs::read_to_string(mounted.path("file"))?, file, "{what}");
                    ensure_eq!(fs::read_to_string(mounted.path("moved"))?, moved, "{what}");
                    ensure!(
                        fs::read(mounted.path("large"))? == numbered(large.as_bytes()[0] - b'0'),
                        "{what}: large"
                    );
                }
                let (one, other) =
                    (fs::metadata(mounted.path("file"))?, fs::metadata(mounted.path("moved"))?);
                ensure!((one.dev(), one.ino()) != (other.dev(), other.ino()), "{what}: one file of two");
                ensure_eq!((one.nlink(), other.nlink()), (1, 1), "{what}");
                let open = |name: &str| OpenOptions::new().write(true).open(mounted.path(name));
                open("file")?.write_all_at(b"CHANGED", 0)?;
                open("large")?.write_all_at(b"x", 9)?;
                ensure_eq!(fs::read_to_string(mounted.path("file"))?, "CHANGED", "{what}");
                ensure_eq!(fs::read_to_string(mounted.path("moved"))?, moved, "{what}");
                drop(mounted);
                let again = mount(cluster, &layers, profile, &[cache])?;
                ensure_eq!(fs::read_to_string(again.path("file"))?, "CHANGED", "{what}");
                ensure_eq!(fs::read_to_string(again.path("moved"))?, moved, "{what}");
                let mut whole = numbered(large.as_bytes()[0] - b'0');
                whole[9] = b'x';
                ensure!(fs::read(again.path("large"))? == whole, "{what}: large, after a remount");
            }
        }
    }
    // An upper layer beside it, of the same client.
    let upper = far(cx, cluster, "snapped-upper", &[v1])?;
    let mounted = mount(cluster, &upper, Profile::Cached, &[])?;
    OpenOptions::new().append(true).open(mounted.path("dir/kept"))?.write_all_at(b"!", 4)?;
    fs::rename(mounted.path("dir"), mounted.path("other"))?;
    ensure_eq!(fs::read_to_string(mounted.path("other/kept"))?, "kept!", "an upper there");
    drop(mounted);
    let refused = cx.layers("refused", 1)?;
    let conf = conf(cluster);
    for (what, path, word) in [
        ("no such snapshot", "/snapped/.snap/v3", "correct the path"),
        ("all snapshots", "/snapped/.snap", "the name of a snapshot after .snap"),
    ] {
        try_one(&refused, what, path, &conf, word)?;
    }
    let options = format!("lowerdir=ceph:/snapped,upperdir={v1},workdir=ceph:/snapped-upper/work,{conf}");
    let mut command = Command::new(program()?);
    shell::refused(command.arg("-o").arg(options).arg(&refused.merged), "name it with lowerdir=")
}

/// What mounts of one service know of layers that nobody changes is each layer's own.
pub(super) fn known(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    fill(cx, cluster, "snapped-known")?;
    let pools = Pools::new(cx)?;
    pools.run("create", &["--ceph-conf", &cluster.conf.display().to_string()])?;
    let pool = format!("pool={}", pools.name());
    let mut mounts = Vec::new();
    for (name, path, file, text, number) in [
        ("one", "ceph:/snapped-known/.snap/v1", "file", "first 1", 1),
        ("two", "ceph:/snapped-known/.snap/v2", "moved", "second!", 2),
        ("three", "ceph:/snapped-known", "moved", "present", 3),
        ("four", "ceph:/snapped-known/.snap/v1", "file", "first 1", 1),
    ] {
        let layers = layers(cx, name, &[path])?;
        let mounted = pools.mount_with(&layers, &[&pool, "cache=immutable", "cache_size=64M"])?;
        mounts.push((mounted, file, text, number));
    }
    for killed in [false, true] {
        if killed {
            kill(&mounts.first().ok_or("none").doing("a mount")?.0)?;
        }
        for (mounted, file, text, number) in &mounts {
            ensure_eq!(fs::read_to_string(mounted.path(file))?, *text, "{file}, killed: {killed}");
            ensure!(
                fs::read(mounted.path("large"))? == numbered(*number),
                "large of {number}, killed: {killed}"
            );
            ensure_eq!(fs::read_dir(mounted.root())?.count(), 3, "names of {number}");
        }
    }
    Ok(())
}

/// A target that is longer than any of the kernel's is refused; cut, it would be another file's name.
pub(super) fn long_links(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let tree = cx.dir.join("tree");
    fs::create_dir_all(&tree)?;
    fs::write(tree.join("file"), "file")?;
    cluster.put(&tree, "long-links")?;
    for len in [4095, 4096, 10_000] {
        cluster.link("long-links", &len.to_string(), &"x".repeat(len))?;
    }
    for profile in Profile::ALL {
        for cache in ["cache=off", "cache=immutable"] {
            let layers = layers(cx, &format!("{profile}-{cache}"), &["ceph:/long-links"])?;
            let mounted = mount(cluster, &layers, profile, &[cache])?;
            ensure_eq!(fs::read_link(mounted.path("4095"))?.as_os_str().len(), 4095, "{profile}");
            for (name, len) in [("4096", 4096), ("10000", 10_000)] {
                let refused = |done: std::io::Result<()>| done.err().and_then(|error| error.raw_os_error());
                let long = Some(Errno::NAMETOOLONG.raw_os_error());
                ensure_eq!(refused(fs::read_link(mounted.path(name)).map(drop)), long, "{profile} {name}");
                ensure_eq!(
                    refused(lchown(mounted.path(name), Some(7), None)),
                    long,
                    "{profile} {name}: copied up"
                );
                ensure_eq!(fs::symlink_metadata(mounted.path(name))?.len(), len, "{profile}");
            }
            lchown(mounted.path("4095"), Some(7), None)?;
            ensure_eq!(fs::read_link(mounted.path("4095"))?.as_os_str().len(), 4095, "{profile}, copied up");
        }
    }
    Ok(())
}
