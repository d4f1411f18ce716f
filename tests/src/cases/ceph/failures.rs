//! Clusters that cannot be reached, and what they may go through while something is mounted.

use super::cluster::Cluster;
use super::trees::{conf, forget_pages, layers, mount, program};
use crate::cases::pool::Pools;
use crate::harness::mount::Profile;
use crate::harness::outcome::{Doing, Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, Layers, shell};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Who cannot mount is told so within this time.
const SOON: Duration = Duration::from_secs(10);
/// How long the storage stands still.
const STOPPED: Duration = Duration::from_secs(3);

/// A directory on the cluster with some files of so many bytes.
fn fill(cx: &Cx, cluster: &Cluster, name: &str, size: usize) -> Outcome {
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    for number in 0..6_u8 {
        fs::write(local.join(number.to_string()), vec![b'a' + number; size])?;
    }
    cluster.put(&local, name)
}

/// One line, exit status 2, in time, and nothing is mounted.
pub(super) fn refused(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    fill(cx, cluster, "refused", 10)?;
    let usual = fs::read_to_string(&cluster.conf)?;
    let write = |name: &str, text: &str| {
        let path = cx.dir.join(name);
        fs::write(&path, text).map(|()| path.display().to_string())
    };
    let keyring = cx.dir.join("keyring");
    shell::run(Command::new("ceph-authtool").arg("--create-keyring").arg(&keyring).args([
        "--gen-key",
        "-n",
        "client.admin",
    ]))?;
    let wrong = write("wrong", &format!("{usual}\n[client]\nkeyring = {}\n", keyring.display()))?;
    let none = write("none", "[global]\nauth client required = none\n")?;
    let nobody = write("nobody", "[global]\nmon host = 127.0.0.1:1\nauth client required = none\n")?;
    let (good, missing) = (cluster.conf.display().to_string(), "/nowhere/ceph.conf");
    let cases = [
        (
            "no configuration",
            "/refused",
            format!("ceph.conf={missing}"),
            "give the cluster's, with ceph.conf=FILE",
        ),
        ("no monitors", "/refused", format!("ceph.conf={none}"), "see that ceph.conf"),
        ("nobody answers", "/refused", format!("ceph.conf={nobody}"), "see that the cluster is up"),
        ("a wrong key", "/refused", format!("ceph.conf={wrong}"), "ceph.id=NAME"),
        ("no such client", "/refused", format!("ceph.conf={good},ceph.id=other"), "client.other"),
        ("no such filesystem", "/refused", format!("ceph.conf={good},ceph.fs=other"), "ceph.fs"),
        ("no such path", "/refused/nowhere", format!("ceph.conf={good}"), "create the directory"),
        ("a file", "/refused/1", format!("ceph.conf={good}"), "give a directory"),
        ("a way out", "/refused/../refused", format!("ceph.conf={good}"), "without .."),
    ];
    let layers = cx.layers("l", 1)?;
    for (what, path, options, word) in cases {
        try_one(&layers, what, path, &options, word)?;
    }
    // Without the library, in this case's own mount namespace.
    let listed = shell::run(Command::new("ldconfig").arg("-p"))?;
    let library =
        listed.lines().find(|line| line.contains("libcephfs.so.2")).and_then(|line| line.split("=> ").nth(1));
    let library = PathBuf::from(library.unwrap_or_default().trim());
    let empty = cx.dir.join("empty");
    fs::write(&empty, "")?;
    rustix::mount::mount_bind(&empty, &library).doing(library.display())?;
    let outcome = try_one(
        &layers,
        "no library",
        "/refused",
        &format!("ceph.conf={good}"),
        "install the package libcephfs2",
    );
    rustix::mount::unmount(&library, rustix::mount::UnmountFlags::empty())?;
    outcome?;
    // What is wrong with one is not in another's way.
    let options = format!("lowerdir=ceph:/refused,ceph.conf={good},ceph.id=admin,ceph.fs=cephfs");
    shell::run(Command::new(program()?).arg("-o").arg(options).arg(&layers.merged))?;
    ensure_eq!(fs::read_to_string(layers.merged.join("2"))?, "c".repeat(10), "contents");
    Ok(rustix::mount::unmount(&layers.merged, rustix::mount::UnmountFlags::empty())?)
}

fn try_one(layers: &Layers, what: &str, path: &str, options: &str, word: &str) -> Outcome {
    let outside = fs::metadata(&layers.merged)?.dev();
    let (upper, work) = (layers.upper().display(), layers.work.display());
    let text = format!("lowerdir=ceph:{path},upperdir={upper},workdir={work},{options}");
    let begin = Instant::now();
    let mut command = Command::new(program()?);
    shell::refused(command.arg("-o").arg(text).arg(&layers.merged), word).doing(what)?;
    let took = begin.elapsed();
    println!("{what}: refused after {} ms", took.as_millis());
    ensure!(took < SOON, "{what}: it took {took:?}");
    ensure_eq!(fs::metadata(&layers.merged)?.dev(), outside, "{what}: something is mounted");
    Ok(())
}

/// Calls wait for a cluster whose storage stands still, and nothing is lost.
pub(super) fn storage_stopped(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    const SIZE: usize = 3 << 20;
    fill(cx, cluster, "stopped", SIZE)?;
    let layers = layers(cx, "l", &["ceph:/stopped"])?;
    let mount = mount(cluster, &layers, Profile::Cached, &[])?;
    ensure_eq!(fs::read(mount.path("0"))?.len(), SIZE, "before");
    let stopped = cluster.stop_storage()?;
    let begin = Instant::now();
    let (path, changed) = (mount.path("1"), mount.path("2"));
    let reader = std::thread::spawn(move || (fs::read(path), begin.elapsed()));
    let writer = std::thread::spawn(move || {
        use std::os::unix::fs::FileExt;
        let file = File::options().write(true).open(changed)?;
        file.write_all_at(b"changed", 1 << 20)?;
        file.sync_all()
    });
    std::thread::sleep(STOPPED);
    // The upper layer is nobody's but this host's.
    fs::write(mount.path("new"), "new")?;
    let waited = !reader.is_finished();
    drop(stopped);
    let (read, took) = reader.join().map_err(|_| crate::harness::Stop::Fail("the reader".into()))?;
    ensure!(read? == vec![b'b'; SIZE], "what was read");
    ensure!(waited && took >= STOPPED, "it was read from somewhere else, in {took:?}");
    writer.join().map_err(|_| crate::harness::Stop::Fail("the writer".into()))??;
    let mut wanted = vec![b'c'; SIZE];
    wanted[1 << 20..(1 << 20) + 7].copy_from_slice(b"changed");
    ensure!(fs::read(mount.path("2"))? == wanted, "what was written");
    Ok(())
}

/// Calls wait for a metadata server that is started again.
pub(super) fn server_restarted(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    fill(cx, cluster, "restarted", 100)?;
    let layers = layers(cx, "l", &["ceph:/restarted"])?;
    let mount = mount(cluster, &layers, Profile::Cached, &[])?;
    let open = File::open(mount.path("0"))?;
    let server = cluster.kill_server()?;
    let path = mount.path("1");
    let reader = std::thread::spawn(move || fs::read(path));
    cluster.start_server(server)?;
    let read = reader.join().map_err(|_| crate::harness::Stop::Fail("the reader".into()))?;
    ensure!(read.doing("a file that was looked for meanwhile")? == vec![b'b'; 100], "what was read");
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut found = [0; 100];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut found, 0)?;
    ensure!(found == [b'a'; 100], "a file that was open");
    fs::write(mount.path("3"), "changed")?;
    ensure_eq!(fs::read_dir(mount.root())?.count(), 6, "names");
    Ok(())
}

/// A client that was expelled can do nothing any more, which is said; a new mount works, also in a pool, where mounts have one client.
pub(super) fn expelled(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    const SIZE: usize = 1 << 20;
    fill(cx, cluster, "expelled", SIZE)?;
    let pools = Pools::new(cx)?;
    pools.run("create", &["--ceph", "on"])?;
    let (named, conf) = (format!("pool={}", pools.name()), conf(cluster));
    let lower = ["ceph:/expelled"];
    let first = pools.mount_with(&layers(cx, "first", &lower)?, &[&named, &conf])?;
    ensure_eq!(fs::read(first.path("0"))?.len(), SIZE, "before");
    cluster.expel(first.service()?)?;
    let begin = Instant::now();
    // What the kernel has read already it goes on showing.
    let error = loop {
        forget_pages(&first.path("0")).ok();
        match fs::read(first.path("0")).and_then(|_| fs::metadata(first.path("1"))) {
            Err(error) => break error,
            Ok(_) => ensure!(begin.elapsed() < SOON, "it goes on"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let errno = Errno::from_io_error(&error);
    if !matches!(errno, Some(Errno::IO | Errno::STALE)) {
        return fail(format!("expelled: {error}"));
    }
    println!("expelled: {error} after {} ms", begin.elapsed().as_millis());
    let second = pools.mount_with(&layers(cx, "second", &lower)?, &[&named, &conf])?;
    ensure_eq!(second.service()?, first.service()?, "one service");
    ensure!(fs::read(second.path("1"))? == vec![b'b'; SIZE], "a new mount");
    // And the old one, by a new service.
    pools.run("restart", &[])?;
    ensure!(fs::read(first.path("2"))? == vec![b'c'; SIZE], "the old mount, by a new service");
    Ok(())
}
