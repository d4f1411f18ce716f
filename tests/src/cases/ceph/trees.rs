//! What a mount shows of layers on CephFS, and what becomes of them when it is written to.

use super::cluster::Cluster;
use crate::cases::monitoring::stats_of;
use crate::cases::pool::Pools;
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, wait_while};
use crate::harness::tree::{self, Ignore};
use crate::harness::{Cx, Layers, Mount, MountKind, shell};
use rustix::fs::{Advice, fadvise};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A layer with everything that one can hold, above one with files that it hides and merges.
const FILL: &str = r#"
cd "$1"; mkdir -p top/dir/deep/er top/opaque top/many bottom/dir bottom/opaque bottom/only
for i in $(seq 150); do echo "number $i" > top/many/$i; done
seq 100000 > top/dir/numbers; seq 2000000 > top/large; : > top/empty
echo one > top/dir/one; ln top/dir/one top/dir/deep/two; ln top/dir/one top/three
ln -s dir/one top/link; ln -s /nowhere top/dir/dangling; ln -s "$(printf 'x%.0s' $(seq 300))" top/long
printf name > top/"$(printf 'odd \001\303\251:,\\ name')"
mkfifo top/fifo; mknod top/null c 1 3; chmod 4755 top/dir/numbers; chmod 2770 top/dir/deep; chmod 1777 top/many
chown 1234:4321 top/dir/one top/many/7; chown -h 77:88 top/link
setfattr -n user.color -v blue top/dir/one; setfattr -n user.empty top/dir; setfattr -n trusted.other -v x top/large
setfacl -m u:1000:rw top/dir/one; setfacl -d -m g:1000:rx top/dir
mknod top/hidden c 0 0; echo hidden > bottom/hidden; setfattr -n trusted.overlay.opaque -v y top/opaque
echo no > bottom/opaque/no; echo yes > top/opaque/yes; echo below > bottom/dir/below; echo below > bottom/dir/one
echo only > bottom/only/file; touch -d '2001-02-03 04:05:06.789012345' top/dir/one top/dir/deep bottom/only top/many
"#;

/// Makes the layers on this host, and copies the upper of the two to the cluster.
pub(super) fn fill(cx: &Cx, cluster: &Cluster, name: &str) -> Outcome<[PathBuf; 2]> {
    shell::run(shell::bash(FILL).arg("fill").arg(&cx.dir))?;
    let [top, bottom] = ["top", "bottom"].map(|name| cx.dir.join(name));
    cluster.put(&top, name)?;
    Ok([top, bottom])
}

/// Options by which a mount finds the cluster.
pub(super) fn conf(cluster: &Cluster) -> String {
    format!("ceph.conf={}", cluster.conf.display())
}

/// Layers of which the lowers are given, also such on a cluster.
pub(super) fn layers(cx: &Cx, name: &str, lowers: &[&str]) -> Outcome<Layers> {
    Ok(Layers { lowers: lowers.iter().map(PathBuf::from).collect(), ..cx.layers(name, 0)? })
}

/// A mount of them, and what it is mounted with beside.
pub(super) fn mount(
    cluster: &Cluster,
    layers: &Layers,
    profile: Profile,
    options: &[&str],
) -> Outcome<Mount> {
    let conf = conf(cluster);
    let options = [&[conf.as_str()], options].concat();
    Mount::new(MountKind::under_test(), Some(profile), layers, &options)
}

/// Takes what the kernel has of a file away, so that it is read anew.
pub(super) fn forget_pages(path: &Path) -> Outcome {
    Ok(fadvise(&File::open(path)?, 0, None, Advice::DontNeed)?)
}

/// The kernel's overlayfs over local copies shows the same, in both profiles, with a cache and without; and what is read is read again
/// from the cache.
pub(super) fn as_local(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let [top, bottom] = fill(cx, cluster, "as-local")?;
    let local = Layers { lowers: vec![top, bottom.clone()], upper: None, ..cx.layers("kernel", 0)? };
    let expected = Mount::kernel(&local)?;
    let expected_tree = tree::take_overlayfs(expected.root(), i64::MAX)?;
    ensure!(expected_tree.len() > 170, "the tree is small");
    let bottom = bottom.display().to_string();
    for (number, profile) in Profile::ALL.into_iter().enumerate() {
        for cache in ["off", "shared", "immutable"] {
            let lowers = ["ceph:/as-local", bottom.as_str()];
            let layers = Layers { upper: None, ..layers(cx, &format!("{cache}{number}"), &lowers)? };
            let cached = format!("cache={cache}");
            let mount = mount(cluster, &layers, profile, &[&cached])?;
            let what = format!("CephFS and the kernel, {profile}, {cached}");
            for _ in 0..2 {
                let tree = tree::take(mount.root(), i64::MAX)?;
                tree::same(&what, &tree, &expected_tree, Ignore::default())?;
                tree::inodes_are_unique(&tree)?;
                for name in ["large", "dir/numbers"] {
                    forget_pages(&mount.path(name))?;
                }
            }
            if cache != "off" {
                let cached = &stats_of(&mount)?["cache"];
                ensure!(cached["hits"].as_u64() > Some(0), "{what}: no hits: {cached}");
            }
            let said = shell::run(Command::new(program()?).arg("inspect").arg(mount.path("dir/numbers")))?;
            ensure!(said.contains("ceph:/as-local/dir/numbers"), "{what}: inspect: {said}");
            ensure!(said.contains("connections: to clusters"), "{what}: inspect: {said}");
            ensure!(
                said.contains("(seccomp)") && !said.contains("not in force: the process"),
                "{what}: {said}"
            );
        }
    }
    Ok(())
}

pub(super) fn program() -> Outcome<PathBuf> {
    match MountKind::under_test() {
        MountKind::Program(program, true) => Ok(program),
        _ => crate::harness::skip("only Vellum has this"),
    }
}

/// What programs do to a tree. The name of a merged directory cannot be changed by the kernel's overlayfs without redirects, which are on.
pub(super) const CHANGE: &str = r#"
cd "$1"
echo more >> dir/numbers; echo more >> dir/one; chmod 600 large; chown 5:6 empty; ln many/3 many/three
mv dir/deep moved; mv only many/only; rm many/4; rm -r opaque; mkdir opaque; echo new > opaque/new
printf X | dd of=large bs=1 seek=5000000 conv=notrunc status=none; truncate -s 1000 many/9; setfattr -n user.new -v 1 link -h || true
cp -a many copied; mkfifo another; touch -d 2002-02-02 many/10; rm hidden 2>/dev/null || echo again > hidden; sync -f .
"#;

/// Changes are made as on local copies, in the upper layer alone.
pub(super) fn changed(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let [top, bottom] = fill(cx, cluster, "changed")?;
    let bottom_text = bottom.display().to_string();
    let local = Layers { lowers: vec![top, bottom], ..cx.layers("kernel", 0)? };
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let expected = Mount::kernel(&local)?;
    shell::run(shell::bash(CHANGE).arg("change").arg(expected.root()))?;
    let wanted = tree::take_overlayfs(expected.root(), since)?;
    let lower = Layers { upper: None, ..layers(cx, "lower", &["ceph:/changed"])? };
    let before = tree::take(mount(cluster, &lower, Profile::Cached, &[])?.root(), i64::MAX)?;
    for profile in Profile::ALL {
        let layers = layers(cx, &profile.to_string(), &["ceph:/changed", &bottom_text])?;
        let mut mount = mount(cluster, &layers, profile, &[])?;
        shell::run(shell::bash(CHANGE).arg("change").arg(mount.root()))?;
        for _ in 0..2 {
            let tree = tree::take(mount.root(), since)?;
            tree::same(&format!("changes, {profile}"), &tree, &wanted, Ignore::default())?;
            mount.remount()?;
        }
        mount.unmount()?;
        let after = tree::take(self::mount(cluster, &lower, Profile::Cached, &[])?.root(), i64::MAX)?;
        tree::same("the layer afterwards", &after, &before, Ignore::default())?;
    }
    Ok(())
}

/// The first write to a large file copies a block and not the file.
pub(super) fn large_file(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    let mut data: Vec<u8> = (0..64 * MIB).map(|at| (at / 4096 + at % 251) as u8).collect();
    fs::write(local.join("file"), &data)?;
    cluster.put(&local, "large-file")?;
    let at = 40 * MIB + 12_345;
    data[at..at + 7].copy_from_slice(b"changed");
    for profile in Profile::ALL {
        let layers = layers(cx, &profile.to_string(), &["ceph:/large-file"])?;
        let mut mount = mount(cluster, &layers, profile, &[])?;
        let file = File::options().read(true).write(true).open(mount.path("file"))?;
        let begin = Instant::now();
        file.write_all_at(b"changed", at as u64)?;
        file.sync_all()?;
        println!("{profile}: the first write took {} us", begin.elapsed().as_micros());
        let upper = fs::metadata(layers.upper().join("file"))?;
        ensure_eq!(upper.len(), data.len() as u64, "{profile}: size in the upper layer");
        ensure!(upper.blocks() * 512 < MIB as u64, "{profile}: {} KiB were copied", upper.blocks() / 2);
        ensure!(fs::read(mount.path("file"))? == data, "{profile}: contents");
        drop(file);
        mount.remount()?;
        ensure!(fs::read(mount.path("file"))? == data, "{profile}: contents after a remount");
        mount.unmount()?;
    }
    Ok(())
}

/// A pool has to be allowed to reach a cluster. Its mounts have one client.
pub(super) fn pool(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    fs::write(local.join("file"), "on CephFS")?;
    cluster.put(&local, "pool")?;
    let (named, conf) = (format!("pool={}", pools.name()), conf(cluster));
    let options = [named.as_str(), conf.as_str()];
    let [one, two] = ["one", "two"].map(|name| layers(cx, name, &["ceph:/pool"]));
    let (one, two) = (one?, two?);
    let why = |outcome: Outcome<Mount>| match outcome {
        Ok(_) => crate::harness::fail("it is mounted"),
        Err(stop) => Ok(stop.to_string()),
    };
    let refused = why(pools.mount_with(&one, &options))?;
    let remedy = format!("vellum pool set {} --ceph on", pools.name());
    ensure!(refused.contains(&remedy), "without the setting: {refused}");
    // A service that is there before the setting.
    let before = pools.mount(&cx.layers("before", 1)?, true)?;
    pools.run("set", &["--ceph", "on"])?;
    let refused = why(pools.mount_with(&one, &options))?;
    ensure!(refused.contains("vellum pool restart"), "a service that is older: {refused}");
    pools.run("restart", &[])?;
    let (first, second) = (pools.mount_with(&one, &options)?, pools.mount_with(&two, &options)?);
    ensure_eq!(first.service()?, before.service()?, "one service");
    ensure_eq!(cluster.sessions(first.service()?)?.len(), 1, "clients of two mounts");
    for mount in [&first, &second] {
        ensure_eq!(fs::read_to_string(mount.path("file"))?, "on CephFS", "contents");
    }
    let taken_back = pools.attempt("set", &["--ceph", "none"])?;
    ensure_eq!(taken_back.status.code(), Some(2), "taken back while there are mounts");
    // The services after it, too.
    for replace in [true, false] {
        let service = first.service()?;
        if replace {
            pools.run("restart", &[])?;
        } else {
            kill_process(service, Signal::KILL)?;
        }
        wait_while!(first.service().is_ok_and(|now| now == service), "no other service");
        forget_pages(&first.path("file"))?;
        ensure_eq!(fs::read_to_string(first.path("file"))?, "on CephFS", "contents afterwards");
        fs::write(second.path("file"), "written")?;
        fs::remove_file(second.path("file"))?;
        fs::write(second.path("file"), "on CephFS")?;
    }
    Ok(())
}

/// The service is killed: what is open stays open, and all goes on.
pub(super) fn successor(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let [top, bottom] = fill(cx, cluster, "successor")?;
    let bottom = bottom.display().to_string();
    let large = fs::read(top.join("large"))?;
    for profile in Profile::ALL {
        let layers = layers(cx, &profile.to_string(), &["ceph:/successor", &bottom])?;
        let mount = mount(cluster, &layers, profile, &["cache=immutable"])?;
        let open = File::open(mount.path("large"))?;
        let held = File::open(mount.path("dir"))?;
        fs::write(mount.path("many/6"), "written")?;
        let before = tree::take(mount.root(), i64::MAX)?;
        for _ in 0..2 {
            let service = mount.service()?;
            let begin = Instant::now();
            kill_process(service, Signal::KILL)?;
            let mut found = vec![0; large.len()];
            fadvise(&open, 0, None, Advice::DontNeed)?;
            open.read_exact_at(&mut found, 0)?;
            ensure!(found == large, "{profile}: an open file");
            println!(
                "{profile}: a file of 15 MB was read by a successor after {} ms",
                begin.elapsed().as_millis()
            );
            ensure!(mount.service()? != service, "{profile}: the service is the old one");
            let left = cluster.sessions(service)?;
            ensure!(left.is_empty(), "{profile}: the cluster waits for the dead one: {left:?}");
            ensure!(rustix::fs::Dir::read_from(&held)?.count() > 4, "{profile}: an open directory");
            let after = tree::take(mount.root(), i64::MAX)?;
            tree::same(&format!("after a kill, {profile}"), &after, &before, Ignore::default())?;
        }
    }
    Ok(())
}

/// A successor that cannot reach the cluster waits for it, and so do those who use the mount. Other mounts go on.
pub(super) fn successor_waits(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &["--ceph", "on"])?;
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    fs::write(local.join("file"), "on CephFS")?;
    cluster.put(&local, "waits")?;
    // The configuration goes for a while.
    let (conf, away) = (cx.dir.join("ceph.conf"), cx.dir.join("away"));
    fs::copy(&cluster.conf, &conf)?;
    let (named, option) = (format!("pool={}", pools.name()), format!("ceph.conf={}", conf.display()));
    let far = pools.mount_with(&layers(cx, "far", &["ceph:/waits"])?, &[&named, &option])?;
    let near = pools.mount(&cx.layers("near", 1)?, true)?;
    let service = near.service()?;
    fs::rename(&conf, &away)?;
    kill_process(service, Signal::KILL)?;
    let path = far.path("file");
    let reader = std::thread::spawn(move || fs::read_to_string(path));
    wait_while!(near.service().is_ok_and(|now| now == service), "no other service");
    fs::write(near.path("new"), "new")?;
    std::thread::sleep(Duration::from_millis(300));
    ensure!(!reader.is_finished(), "the file was read from somewhere else");
    // And the next one, too.
    let service = near.service()?;
    kill_process(service, Signal::KILL)?;
    ensure_eq!(fs::read_to_string(near.path("new"))?, "new", "the other mount");
    fs::rename(&away, &conf)?;
    let read = reader.join().map_err(|_| crate::harness::Stop::Fail("the reader".into()))?;
    ensure_eq!(read.doing("a file that was asked for meanwhile")?, "on CephFS", "contents");
    fs::write(far.path("file"), "written")?;
    ensure_eq!(fs::read_to_string(far.path("file"))?, "written", "contents");
    Ok(())
}
