//! Upper layers on CephFS that are written behind: what was answered outlives the service, what was synced outlives everything, and limits
//! and failures are those that were promised.

use super::cluster::Cluster;
use super::trees::{conf, forget_pages, mount, program};
use super::upper::{another_service, far, killed_by, taken, write_and_kill_all};
use crate::cases::pool::Pools;
use crate::harness::PATIENCE;
use crate::harness::mount::Profile;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail, wait_while};
use crate::harness::tree::{self, Ignore, Tree};
use crate::harness::{Cx, shell};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// So long that nothing is written because of its age.
const NEVER: &str = "ceph.age=3600";
const BACK: &str = "ceph.write=back";

/// A service's log of what is to be written, as others reach it.
fn log(service: Pid) -> Outcome<PathBuf> {
    let descriptors = format!("/proc/{}/fd", service.as_raw_nonzero());
    let is_log =
        |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to == Path::new("/memfd:vellum-dirty (deleted)"));
    match fs::read_dir(descriptors)?.flatten().map(|entry| entry.path()).find(is_log) {
        Some(path) => Ok(path),
        None => fail("the service has no log"),
    }
}

/// Bytes of the log before the ring.
const BEFORE: u64 = 4096;

/// How many bytes were ever taken out of its ring and put into it, and how many it may have.
fn ring(service: Pid) -> Outcome<(u64, u64, u64)> {
    /// Words of tail and head.
    const TAIL: u64 = 3 * 8;
    let memory = File::open(log(service)?)?;
    let mut words = [0; 16];
    memory.read_exact_at(&mut words, TAIL)?;
    let [tail, head] = [0, 8]
        .map(|at| words.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes));
    Ok((tail, head, memory.metadata()?.size() - BEFORE))
}

/// Bytes that are in it, and bytes that it may have.
fn dirty(service: Pid) -> Outcome<(u64, u64)> {
    ring(service).map(|(tail, head, size)| (head - tail, size))
}

/// But for times: of files that a client could write to which has died, a metadata server sets them forward to those of their newest object.
fn dateless(mut tree: Tree) -> Tree {
    tree.values_mut().for_each(|node| node.mtime = (0, 0));
    tree
}

/// A local layer with a large file, and its contents.
fn local(cx: &Cx) -> Outcome<(PathBuf, Vec<u8>)> {
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    let data: Vec<u8> = (0..4 * MIB).map(|at| (at / BLOCK + at % 251) as u8 | 1).collect();
    fs::write(local.join("large"), &data)?;
    fs::write(local.join("small"), "small")?;
    Ok((local, data))
}

/// Changes that a service has answered and that are in its log when it is killed: all of them are there for its successor, and for
/// whoever mounts the layer afterwards.
pub(super) fn killed(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let (local, original) = local(cx)?;
    for profile in Profile::ALL {
        let mut data = original.clone();
        let name = format!("behind-killed-{profile}");
        let layers = far(cx, cluster, &name, &[&local.display().to_string()])?;
        let mut mount = mount(cluster, &layers, profile, &[BACK, NEVER, "no_writeback_cache"])?;
        let mut total = 0;
        for round in 0..3_usize {
            let large = File::options().read(true).write(true).open(mount.path("large"))?;
            for number in 0..20 {
                let path = mount.path(&format!("new-{round}-{number}"));
                fs::write(&path, vec![b'a' + number; 3000 * usize::from(number)])?;
                fs::set_permissions(&path, Permissions::from_mode(0o640))?;
                let file = File::options().write(true).open(&path)?;
                file.set_len(2000)?;
                file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1000 + u64::from(number)))?;
            }
            for number in 0..30 {
                let at = number * 130_000 + round * 7000;
                let text = format!("round {round}, place {number}");
                large.write_all_at(text.as_bytes(), at as u64)?;
                data[at..at + text.len()].copy_from_slice(text.as_bytes());
            }
            let before = taken(&mount)?;
            let service = mount.service()?;
            let (used, _) = dirty(service)?;
            ensure!(used > 100_000, "{profile}, {round}: {used} bytes in the log");
            total += used;
            kill_process(service, Signal::KILL)?;
            another_service(&mount, service)?;
            forget_pages(&mount.path("large"))?;
            ensure!(fs::read(mount.path("large"))? == data, "{profile}, {round}: contents, by a successor");
            for number in 0..20 {
                forget_pages(&mount.path(&format!("new-{round}-{number}")))?;
            }
            let after = dateless(taken(&mount)?);
            tree::same(&format!("{profile}, {round}"), &after, &dateless(before.clone()), Ignore::default())?;
            ensure_eq!(dirty(mount.service()?)?.0, 0, "{profile}, {round}: bytes left in the log");
            drop(large);
            if round == 0 {
                // As the cluster has it, times and all.
                mount.remount()?;
                tree::same(&format!("{profile}, as written"), &taken(&mount)?, &before, Ignore::default())?;
            }
        }
        println!("{profile}: {total} bytes were written by successors");
        let before = dateless(taken(&mount)?);
        mount.remount()?;
        let after = dateless(taken(&mount)?);
        tree::same(&format!("{profile}, mounted anew"), &after, &before, Ignore::default())?;
        ensure!(fs::read(mount.path("large"))? == data, "{profile}: contents, mounted anew");
    }
    Ok(())
}

/// Services that are killed in the middle of a tree's changes, with a log that has just begun to be written.
pub(super) fn changing(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    killed_by(cx, cluster, "behind-changing", &[BACK, "ceph.age=0.2"], dateless)
}

/// What was synced is there when all processes were killed at once, log and all; what was not is as it was or as it was to be. A block is never
/// said to be the file's own whose data are nowhere.
pub(super) fn synced(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let (local, original) = local(cx)?;
    for profile in Profile::ALL {
        let name = format!("behind-synced-{profile}");
        let layers = far(cx, cluster, &name, &[&local.display().to_string()])?;
        let mut mount = mount(cluster, &layers, profile, &[BACK, NEVER, "no_writeback_cache"])?;
        let large = File::options().read(true).write(true).open(mount.path("large"))?;
        let file = File::create(mount.path("file"))?;
        file.write_all_at(b"synced", 0)?;
        file.sync_all()?;
        large.write_all_at(b"synced", 5)?;
        large.sync_data()?;
        for number in 1..200_u64 {
            large.write_all_at(b"not synced", number * 20_000)?;
        }
        let renamed = mount.path("renamed");
        fs::write(mount.path("before"), "has got a name")?;
        fs::rename(mount.path("before"), &renamed)?;
        write_and_kill_all(cluster, &mount, || Ok(file.write_all_at(b"SYNCED, AND NOT", 0)?))?;
        drop((large, file));
        mount.crash()?;
        let found = fs::read(mount.path("file"))?;
        ensure!(found.len() >= 6, "{profile}: {found:?}");
        ensure!(found[..6].eq_ignore_ascii_case(b"synced"), "{profile}: {found:?}");
        ensure_eq!(fs::read_to_string(&renamed)?, "has got a name", "{profile}: a file that was renamed");
        let mut wanted = original.clone();
        wanted[5..11].copy_from_slice(b"synced");
        let found = fs::read(mount.path("large"))?;
        ensure_eq!(found.len(), wanted.len(), "{profile}: its size");
        ensure!(found[..BLOCK] == wanted[..BLOCK], "{profile}: a block that was synced");
        let mut new = wanted.clone();
        for number in 1..200 {
            new[number * 20_000..][..10].copy_from_slice(b"not synced");
        }
        let blocks = found.chunks(BLOCK).zip(wanted.chunks(BLOCK)).zip(new.chunks(BLOCK));
        let mut newer = 0;
        for (number, ((block, old), new)) in blocks.enumerate() {
            ensure!(
                block == old || block == new,
                "{profile}: block {number} is neither the old nor the new one"
            );
            newer += usize::from(block != old);
        }
        println!("{profile}: {newer} blocks that were not synced had arrived");
    }
    Ok(())
}

/// No more is in the log than was allowed, and nothing for longer.
pub(super) fn limits(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let layers = far(cx, cluster, "behind-limits", &[&local(cx)?.0.display().to_string()])?;
    let options = [BACK, "ceph.dirty=4M", "ceph.age=1", "no_writeback_cache"];
    let mut mount = mount(cluster, &layers, Profile::Cached, &options)?;
    let service = mount.service()?;
    let mut most = 0;
    for number in 0..12 {
        let file = File::create(mount.path(&format!("{}", number % 5)))?;
        for at in 0..16 {
            file.write_all_at(&vec![number; 128 << 10], at * (128 << 10))?;
            let (used, size) = dirty(service)?;
            ensure!(used <= size && size == 4 * MIB as u64, "{used} of {size} bytes");
            most = most.max(used);
        }
    }
    println!("at most {most} bytes in the log");
    let said = shell::run(std::process::Command::new(program()?).arg("inspect").arg(mount.root()))?;
    ensure!(said.contains("to be written") && said.contains("of 4194304 bytes"), "inspect: {said}");
    ensure!(most > MIB as u64, "nothing was left to later: {most} bytes");
    let begin = Instant::now();
    wait_while!(dirty(service)?.0 > 0, "something is not written");
    println!("written after {} ms", begin.elapsed().as_millis());
    // At the end of a mount there is no wait.
    fs::write(mount.path("last"), "last")?;
    mount.remount()?;
    ensure_eq!(fs::read_to_string(mount.path("last"))?, "last", "written at the end");
    for (option, why) in [
        ("ceph.dirty=1M", "option ceph.dirty: 1048576 bytes cannot be; write 4M to 64G"),
        ("ceph.age=0", "option ceph.age: 0 cannot be; write 0.1 to 3600"),
    ] {
        match self::mount(cluster, &layers, Profile::Cached, &[BACK, option]) {
            Ok(_) => return fail(format!("{option} is taken")),
            Err(stop) => ensure!(stop.to_string().contains(why), "{stop}"),
        }
    }
    Ok(())
}

/// A quota that is reached is told by a write or by fsync, and what was there stays.
pub(super) fn quota(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let layers = far(cx, cluster, "behind-full", &[&local(cx)?.0.display().to_string()])?;
    cluster.set_quota("behind-full", 24 * MIB as u64)?;
    let mut mount = mount(cluster, &layers, Profile::Cached, &[BACK, "no_writeback_cache"])?;
    fs::write(mount.path("kept"), "kept")?;
    File::open(mount.path("kept"))?.sync_all()?;
    let (file, block) = (File::create(mount.path("big"))?, vec![b'x'; MIB]);
    let mut written = 0;
    let error = loop {
        match file.write_at(&block, written) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
        if let Err(error) = file.sync_all() {
            break error;
        }
        ensure!(written < 256 * MIB as u64, "there is no quota");
        if written >= 24 * MIB as u64 {
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    println!("after {written} bytes: {error}");
    let errno = rustix::io::Errno::from_io_error(&error);
    ensure!(matches!(errno, Some(rustix::io::Errno::DQUOT | rustix::io::Errno::NOSPC)), "{error}");
    drop(file);
    let service = mount.service()?;
    kill_process(service, Signal::KILL)?;
    another_service(&mount, service)?;
    ensure_eq!(fs::read_to_string(mount.path("kept"))?, "kept", "what was there");
    fs::remove_file(mount.path("big"))?;
    wait_while!(fs::write(mount.path("after"), "after").is_err(), "no room after something was removed");
    mount.remount()?;
    ensure_eq!(fs::read_to_string(mount.path("kept"))?, "kept", "mounted anew");
    Ok(())
}

/// A client that is expelled with changes that the cluster has not got: the next one has them.
pub(super) fn expelled(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let layers = far(cx, cluster, "behind-expelled", &[&local(cx)?.0.display().to_string()])?;
    let mount = mount(cluster, &layers, Profile::Cached, &[BACK, NEVER, "no_writeback_cache"])?;
    let (before, text) = (mount.service()?, vec![b'd'; 50_000]);
    for number in 0..10 {
        fs::write(mount.path(&format!("file-{number}")), &text)?;
    }
    ensure!(dirty(before)?.0 > 500_000, "nothing was left to later");
    cluster.expel(before)?;
    let begin = Instant::now();
    while mount.service().is_ok_and(|now| now == before) {
        // Whatever asks the cluster.
        let _ = fs::write(mount.path("asks"), "asks");
        ensure!(begin.elapsed() < PATIENCE, "the client is not replaced");
    }
    for number in 0..10 {
        let path = mount.path(&format!("file-{number}"));
        forget_pages(&path)?;
        ensure!(fs::read(&path)? == text, "file {number}");
    }
    Ok(())
}

/// A log in which a record makes no sense: nothing is served as if it had not been lost, and the layer can be mounted anew.
pub(super) fn tampered(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let layers = far(cx, cluster, "behind-tampered", &[&local(cx)?.0.display().to_string()])?;
    let mut mount = mount(cluster, &layers, Profile::Cached, &[BACK, NEVER, "no_writeback_cache"])?;
    for name in ["first", "second"] {
        fs::write(mount.path(name), name.repeat(1000))?;
    }
    let service = mount.service()?;
    let (_, head, size) = ring(service)?;
    let memory = File::options().write(true).open(log(service)?)?;
    // In the last record. The log may have moved on before it.
    memory.write_all_at(b"?", BEFORE + (head - 100) % size)?;
    kill_process(service, Signal::KILL)?;
    let begin = Instant::now();
    let error = loop {
        match fs::metadata(mount.path("first")) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => break error,
            _ => ensure!(begin.elapsed() < PATIENCE, "the mount goes on"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    println!("the mount has ended: {error}");
    mount.crash()?;
    // What came before it was written.
    ensure_eq!(fs::read_to_string(mount.path("first"))?, "first".repeat(1000), "a record before that");
    Ok(())
}

/// Two mounts of a pool, one of which is written behind, have one client; a service that is replaced, and one that is killed, leave to their
/// successors what is to be written.
pub(super) fn pool(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let (local, _) = local(cx)?;
    let lower = local.display().to_string();
    let pools = Pools::new(cx)?;
    pools.run("create", &["--ceph", "on"])?;
    let (named, conf) = (format!("pool={}", pools.name()), conf(cluster));
    let options = [named.as_str(), conf.as_str(), "no_writeback_cache"];
    let back = [&options[..], &[BACK, NEVER]].concat();
    let [one, two] = ["behind-pool-back", "behind-pool-sync"].map(|name| far(cx, cluster, name, &[&lower]));
    let (first, second) = (pools.mount_with(&one?, &back)?, pools.mount_with(&two?, &options)?);
    ensure_eq!(cluster.sessions(first.service()?)?.len(), 1, "clients of two mounts");
    for round in 0..3 {
        let text = format!("round {round}").repeat(1000);
        for mount in [&first, &second] {
            fs::write(mount.path("file"), &text)?;
            let small = File::options().write(true).open(mount.path("small"))?;
            small.write_all_at(text.as_bytes(), 0)?;
        }
        let service = first.service()?;
        ensure!(dirty(service)?.0 as usize > text.len(), "{round}: nothing was left to later");
        if round == 1 {
            pools.run("restart", &[])?;
        } else {
            kill_process(service, Signal::KILL)?;
        }
        another_service(&first, service)?;
        for mount in [&first, &second] {
            for name in ["file", "small"] {
                forget_pages(&mount.path(name))?;
                ensure!(fs::read_to_string(mount.path(name))? == text, "{round}: {name}");
            }
        }
    }
    Ok(())
}

/// How long small pieces of work take by each policy. For people, not for tests.
pub(super) fn measured(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    const ROUNDS: usize = 7;
    let source = cx.dir.join("source");
    fs::create_dir_all(source.join("a/b"))?;
    for number in 0..200_usize {
        let dir = source.join(if number % 2 == 0 { "a" } else { "a/b" });
        fs::write(dir.join(format!("{number}")), vec![b'x'; number * 60])?;
    }
    let (local, _) = local(cx)?;
    let mut times: Vec<(String, Vec<u128>)> = Vec::new();
    let mut note = |what: String, begin: Instant| {
        let taken = begin.elapsed().as_micros();
        match times.iter_mut().find(|(known, _)| *known == what) {
            Some((_, times)) => times.push(taken),
            None => times.push((what, vec![taken])),
        }
    };
    for round in 0..ROUNDS {
        for (policy, option) in [("sync", "ceph.write=sync"), ("back", BACK)] {
            for (kind, more) in [("cached", "writeback=1"), ("no write-back in the kernel", "writeback=0")] {
                let name = format!("measured-{round}-{policy}-{}", kind.len());
                let layers = far(cx, cluster, &name, &[&local.display().to_string()])?;
                let mut mount = mount(cluster, &layers, Profile::Cached, &[option, more])?;
                let file = File::create(mount.path("file"))?;
                file.write_all_at(b"first", 0)?;
                let begin = Instant::now();
                (0..500_u64).try_for_each(|at| file.write_all_at(&[7; BLOCK], at * BLOCK as u64))?;
                note(format!("{kind}, {policy}: 500 writes of 4 KiB"), begin);
                let begin = Instant::now();
                file.sync_all()?;
                note(format!("{kind}, {policy}: fsync of them"), begin);
                let begin = Instant::now();
                for at in 0..50_u64 {
                    file.write_all_at(&[8; BLOCK], at * BLOCK as u64)?;
                    file.sync_all()?;
                }
                note(format!("{kind}, {policy}: 50 writes of 4 KiB, each synced"), begin);
                let begin = Instant::now();
                shell::run(std::process::Command::new("cp").arg("-a").arg(&source).arg(mount.path("copy")))?;
                note(format!("{kind}, {policy}: cp -a of 200 files"), begin);
                drop(file);
                mount.unmount()?;
                note(format!("{kind}, {policy}: cp -a of 200 files, and unmounted"), begin);
            }
        }
    }
    for (what, mut times) in times {
        times.sort_unstable();
        let [least, middle, most] = [0, times.len() / 2, times.len() - 1].map(|at| times[at] as f64 / 1000.0);
        println!("{what}: {middle:.1} ms ({least:.1} to {most:.1})");
    }
    Ok(())
}
