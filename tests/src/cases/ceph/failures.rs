//! Clusters that cannot be reached, and what they may go through while something is mounted.

use super::cluster::Cluster;
use super::trees::{conf, forget_pages, layers, mount, program};
use crate::cases::pool::Pools;
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, wait_while};
use crate::harness::{Cx, Layers, shell};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A mount that cannot be is refused within 10 s, for the client gives each of its steps 8 (`client_mount_timeout`); as long again is for a busy machine to
/// start and to end the program.
const SOON: Duration = Duration::from_secs(20);
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
    let (good, missing) = (cluster.conf.display().to_string(), cx.dir.join("missing").display().to_string());
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

pub(super) fn try_one(layers: &Layers, what: &str, path: &str, options: &str, word: &str) -> Outcome {
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

/// Who asks for what is not on the cluster is answered while many others wait for it, in the same mount and in another one of the pool.
pub(super) fn others_answered(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    const SIZE: usize = 3 << 20;
    const READERS: usize = 16;
    let (far, here) = (cx.dir.join("far"), cx.dir.join("here"));
    fs::create_dir(&far)?;
    fs::create_dir_all(here.join("dir"))?;
    for number in 0..READERS {
        fs::write(far.join(number.to_string()), vec![b'x'; SIZE])?;
        fs::write(here.join("dir").join(format!("local{number}")), vec![b'y'; 1 << 20])?;
    }
    cluster.put(&far, "others")?;
    let pools = Pools::new(cx)?;
    pools.run("create", &["--ceph", "on"])?;
    let (named, conf) = (format!("pool={}", pools.name()), conf(cluster));
    let lowers = ["ceph:/others", &here.display().to_string()];
    let first = pools.mount_with(&layers(cx, "first", &lowers)?, &[&named, &conf])?;
    let second = pools.mount_with(&layers(cx, "second", &lowers)?, &[&named, &conf])?;
    let threads = || -> Outcome<usize> {
        Ok(fs::read_dir(format!("/proc/{}/task", first.service()?.as_raw_nonzero()))?.count())
    };
    let before = threads()?;
    let stopped = cluster.stop_storage()?;
    let readers: Vec<_> = (0..READERS)
        .map(|number| {
            let path = first.path(&number.to_string());
            std::thread::spawn(move || fs::read(path))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    ensure!(!readers.iter().any(std::thread::JoinHandle::is_finished), "they do not wait for the storage");
    for (what, mount) in [("the same mount", &first), ("another mount", &second)] {
        let (dir, new) = (mount.path("dir"), mount.path("new"));
        let asked = std::thread::spawn(move || -> std::io::Result<usize> {
            let mut bytes = 0;
            for entry in fs::read_dir(&dir)? {
                bytes += fs::read(entry?.path())?.len();
            }
            fs::write(&new, "new")?;
            File::open(&new)?.sync_all()?;
            Ok(bytes)
        });
        let begin = Instant::now();
        wait_while!(!asked.is_finished(), "{what}: local files wait for the cluster");
        // However long that took, the storage stood still all the time.
        let waiting = readers.iter().all(|reader| !reader.is_finished());
        ensure!(waiting, "{what}: who reads from the storage has not waited for it");
        let read = asked.join().map_err(|_| crate::harness::Stop::Fail("a reader".into()))??;
        ensure_eq!(read, READERS << 20, "{what}: bytes");
        println!("{what}: answered after {} ms", begin.elapsed().as_millis());
    }
    println!("{before} threads of the service, {} while {READERS} readers wait", threads()?);
    drop(stopped);
    for reader in readers {
        let read = reader.join().map_err(|_| crate::harness::Stop::Fail("a reader".into()))??;
        ensure!(read == vec![b'x'; SIZE], "what was read in the end");
    }
    Ok(())
}

/// A client that was expelled is replaced, with its service: who reads goes on and hears nothing of it. Also twice, and in a pool, where
/// mounts have one client.
pub(super) fn expelled(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    const SIZE: usize = 1 << 20;
    fill(cx, cluster, "expelled", SIZE)?;
    let pools = Pools::new(cx)?;
    pools.run("create", &["--ceph", "on"])?;
    let (named, conf) = (format!("pool={}", pools.name()), conf(cluster));
    let lower = ["ceph:/expelled"];
    let first = pools.mount_with(&layers(cx, "first", &lower)?, &[&named, &conf])?;
    let second = pools.mount_with(&layers(cx, "second", &lower)?, &[&named, &conf])?;
    ensure_eq!(fs::read(first.path("0"))?.len(), SIZE, "before");
    for round in 1..=2 {
        let service = first.service()?;
        let ended = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = [&first, &second]
            .into_iter()
            .flat_map(|mount| (1..4_u8).map(|number| (number, mount.path(&number.to_string()))))
            .map(|(number, path)| {
                let ended = Arc::clone(&ended);
                std::thread::spawn(move || {
                    let (mut reads, mut errors) = (0, Vec::new());
                    while !ended.load(Ordering::Relaxed) {
                        // What the kernel has read already it goes on showing.
                        forget_pages(&path).ok();
                        match fs::read(&path) {
                            Ok(data) if data == vec![b'a' + number; SIZE] => reads += 1,
                            Ok(_) => errors.push("other contents".to_owned()),
                            Err(error) => errors.push(error.to_string()),
                        }
                    }
                    (reads, errors)
                })
            })
            .collect();
        cluster.expel(service)?;
        let begin = Instant::now();
        let replaced = super::upper::another_service(&first, service);
        println!("round {round}: another service after {} ms", begin.elapsed().as_millis());
        std::thread::sleep(Duration::from_millis(300));
        ended.store(true, Ordering::Relaxed);
        let (mut reads, mut errors) = (0, Vec::new());
        for reader in readers {
            let (its_reads, its_errors) =
                reader.join().map_err(|_| crate::harness::Stop::Fail("a reader".into()))?;
            reads += its_reads;
            errors.extend(its_errors);
        }
        replaced?;
        println!("round {round}: {reads} reads, errors: {errors:?}");
        ensure!(errors.is_empty(), "round {round}: {errors:?}");
        ensure_eq!(cluster.sessions(first.service()?)?.len(), 1, "clients of the service");
    }
    let third = pools.mount_with(&layers(cx, "third", &lower)?, &[&named, &conf])?;
    ensure!(fs::read(third.path("1"))? == vec![b'b'; SIZE], "a new mount");
    ensure_eq!(third.service()?, first.service()?, "one service");
    Ok(())
}
