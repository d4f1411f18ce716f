//! Upper layers on CephFS: what is done to a tree is done as on a local one, and stands there for whoever mounts it next.

use super::cluster::Cluster;
use super::trees::{CHANGE, conf, fill, layers, mount, program};
use crate::cases::pool::Pools;
use crate::harness::PATIENCE;
use crate::harness::mount::Profile;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail, wait_while};
use crate::harness::tree::{self, Ignore, Tree};
use crate::harness::{Cx, Layers, Mount, MountKind, shell};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::process::{Signal, kill_process};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use vellum_vfs::Name;

const MIB: usize = 1 << 20;

/// Makes an upper layer and a work directory on the cluster, in a directory of that name, and the rest of a mount here.
pub(super) fn far(cx: &Cx, cluster: &Cluster, name: &str, lowers: &[&str]) -> Outcome<Layers> {
    let make = |dir: &dyn vellum_vfs::BranchDir, name: &str| {
        let text = CString::new(name).doing("a name")?;
        dir.make_dir(Name::new(&text).doing("a name")?, 0o755).doing("mkdir")
    };
    let root = cluster.root()?;
    make(&*root, name)?;
    let text = CString::new(name).doing("a name")?;
    let dir = root.open_dir(Name::new(&text).doing("a name")?).doing("open")?;
    make(&*dir, "upper")?;
    make(&*dir, "work")?;
    Ok(Layers {
        upper: Some(PathBuf::from(format!("ceph:/{name}/upper"))),
        work: PathBuf::from(format!("ceph:/{name}/work")),
        ..layers(cx, name, lowers)?
    })
}

/// Layers at another mount point, as another host would mount them: by another service and another client.
fn elsewhere(layers: &Layers) -> Outcome<Layers> {
    let merged = layers.merged.with_file_name("elsewhere");
    fs::create_dir_all(&merged)?;
    Ok(Layers { merged, ..layers.clone() })
}

/// What `vellum inspect` says of a file.
fn inspected(mount: &Mount, name: &str) -> Outcome<String> {
    shell::run(Command::new(program()?).arg("inspect").arg(mount.path(name)))
}

/// What a mount shows, but for the times of directories: a metadata server may be late to say when an entry came or went.
pub(super) fn taken(mount: &Mount) -> Outcome<Tree> {
    tree::take(mount.root(), i64::MAX).map(without_times)
}

fn without_times(mut tree: Tree) -> Tree {
    for node in tree.values_mut().filter(|node| node.mode & libc::S_IFMT == libc::S_IFDIR) {
        node.mtime = (0, 0);
    }
    tree
}

/// Waits for another service than `before`.
pub(super) fn another_service(mount: &Mount, before: rustix::process::Pid) -> Outcome {
    wait_while!(mount.service().is_ok_and(|now| now == before), "no other service");
    Ok(())
}

/// Changes are those of the kernel's overlayfs on local layers, in both profiles, over local and far lower layers, through the same mount, after
/// it, and where the layer is a lower one.
pub(super) fn changed(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let [top, bottom] = fill(cx, cluster, "upper-changed")?;
    let (top_text, bottom_text) = (top.display().to_string(), bottom.display().to_string());
    let local = Layers { lowers: vec![top, bottom], ..cx.layers("kernel", 0)? };
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let expected = Mount::kernel(&local)?;
    shell::run(shell::bash(CHANGE).arg("change").arg(expected.root()))?;
    let wanted = tree::take_overlayfs(expected.root(), since)?;
    for (kind, first) in [("local", top_text.as_str()), ("far", "ceph:/upper-changed")] {
        for profile in Profile::ALL {
            let name = format!("upper-changed-{kind}-{profile}");
            let what = format!("an upper layer on CephFS over {kind} ones, {profile}");
            let layers = far(cx, cluster, &name, &[first, &bottom_text])?;
            let mut mount = mount(cluster, &layers, profile, &[])?;
            let begin = Instant::now();
            shell::run(shell::bash(CHANGE).arg("change").arg(mount.root()))?;
            println!("{what}: changed in {} ms", begin.elapsed().as_millis());
            for _ in 0..2 {
                let tree = tree::take(mount.root(), since)?;
                tree::same(&what, &tree, &wanted, Ignore::default())?;
                tree::inodes_are_unique(&tree)?;
                mount.remount()?;
            }
            let said = inspected(&mount, "large")?;
            ensure!(said.contains(&format!("ceph:/{name}/upper")), "{what}: inspect: {said}");
            ensure!(
                said.contains("(seccomp)") && !said.contains("not in force: the process"),
                "{what}: {said}"
            );
            mount.unmount()?;
            let as_lowers = Layers {
                lowers: layers.upper.iter().chain(&layers.lowers).cloned().collect(),
                upper: None,
                ..layers.clone()
            };
            let read = self::mount(cluster, &as_lowers, profile, &[])?;
            let tree = tree::take(read.root(), since)?;
            tree::same(&format!("{what}, as a lower one"), &tree, &wanted, Ignore::default())?;
        }
    }
    Ok(())
}

/// The first write to a large file copies a block and not the file. What was answered is there after the service was killed, for its
/// successor and, when nobody is left, for another mount, though nobody has synced anything.
pub(super) fn large_file(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let local = cx.dir.join("local");
    fs::create_dir(&local)?;
    let mut data: Vec<u8> = (0..32 * MIB).map(|at| (at / 4096 + at % 251) as u8).collect();
    fs::write(local.join("file"), &data)?;
    let original = data.clone();
    let lower = local.display().to_string();
    for profile in Profile::ALL {
        data.clone_from(&original);
        let layers = far(cx, cluster, &format!("upper-large-{profile}"), &[&lower])?;
        // Each write is answered when it has come to the service.
        let mut mount = mount(cluster, &layers, profile, &["no_writeback_cache"])?;
        let file = File::options().read(true).write(true).open(mount.path("file"))?;
        let mut write = |at: usize, text: &[u8]| -> Outcome {
            let begin = Instant::now();
            file.write_all_at(text, at as u64)?;
            println!("{profile}: a write took {} us", begin.elapsed().as_micros());
            data[at..at + text.len()].copy_from_slice(text);
            Ok(())
        };
        write(20 * MIB + 12_345, b"changed")?;
        write(20 * MIB + 12_345, b"again")?;
        let said = inspected(&mount, "file")?;
        ensure!(said.contains("4096 of 33554432 bytes its own"), "{profile}: inspect: {said}");
        let before = mount.service()?;
        kill_process(before, Signal::KILL)?;
        write(10 * MIB - 2, b"over two blocks")?;
        another_service(&mount, before)?;
        super::trees::forget_pages(&mount.path("file"))?;
        ensure!(fs::read(mount.path("file"))? == data, "{profile}: contents, by a successor");
        write_and_kill_all(cluster, &mount, || {
            file.write_all_at(b"the last word", 5 * MIB as u64).map_err(Into::into)
        })?;
        data[5 * MIB..5 * MIB + 13].copy_from_slice(b"the last word");
        drop(file);
        mount.crash()?;
        ensure!(fs::read(mount.path("file"))? == data, "{profile}: contents after a crash");
        mount.unmount()?;
        ensure!(fs::read(local.join("file"))? == original, "{profile}: the lower file");
    }
    Ok(())
}

/// Kills all processes of a mount, and has the cluster forget their client, as it does by itself after some minutes.
pub(super) fn write_and_kill_all(
    cluster: &Cluster,
    mount: &Mount,
    write: impl FnOnce() -> Outcome,
) -> Outcome {
    let service = mount.service()?;
    write()?;
    mount.kill_all()?;
    cluster.expel(service)
}

/// A tree goes to another service and another client, and is complete there. Meanwhile nobody else writes to it.
pub(super) fn moved(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let [top, bottom] = fill(cx, cluster, "upper-moved")?;
    let lowers = [top.display().to_string(), bottom.display().to_string()];
    let layers = far(cx, cluster, "upper-moves", &[&lowers[0], &lowers[1]])?;
    let mut here = mount(cluster, &layers, Profile::Cached, &[])?;
    let mut there = {
        let other = elsewhere(&layers)?;
        let begin = Instant::now();
        let refused = match mount(cluster, &other, Profile::Cached, &[]) {
            Ok(_) => return fail("two mounts write to one layer"),
            Err(stop) => stop.to_string(),
        };
        let took = begin.elapsed();
        println!("refused after {} ms: {refused}", took.as_millis());
        ensure!(
            refused.contains("another mount writes to it") && refused.contains("unmount that first"),
            "{refused}"
        );
        // That a refusal comes at all, instead of a wait for the other mount; a busy machine is given what it takes.
        ensure!(took < PATIENCE, "it took {took:?}");
        // Others may look at it.
        drop(mount(cluster, &other, Profile::Cached, &["ro"])?);
        other
    };
    for round in 0..3 {
        fs::write(here.path(&format!("dir/round{round}")), format!("round {round}"))?;
        if round == 0 {
            shell::run(shell::bash(CHANGE).arg("change").arg(here.root()))?;
        }
        let before = taken(&here)?;
        here.unmount()?;
        let begin = Instant::now();
        let next = mount(cluster, &there, Profile::Cached, &[])?;
        println!("moved in {} ms", begin.elapsed().as_millis());
        let after = taken(&next)?;
        tree::same("a tree that has moved", &after, &before, Ignore::default())?;
        there = layers_of(&here, &layers, &there);
        here = next;
    }
    Ok(())
}

/// The other one of two places.
fn layers_of(now: &Mount, one: &Layers, other: &Layers) -> Layers {
    if now.root() == one.merged { one.clone() } else { other.clone() }
}

/// Reads the beginning of a file from its layer.
fn read(file: &File, len: usize) -> Outcome<Vec<u8>> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut found = vec![0; len];
    file.read_exact_at(&mut found, 0)?;
    Ok(found)
}

/// Files that were removed, or replaced, while somebody has them open, and one that never had a name, when the service is killed.
pub(super) fn removed(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let [top, bottom] = fill(cx, cluster, "upper-removed")?;
    let bottom = bottom.display().to_string();
    for profile in Profile::ALL {
        let name = format!("upper-removed-{profile}");
        let layers = far(cx, cluster, &name, &["ceph:/upper-removed", &bottom])?;
        let mut mount = mount(cluster, &layers, profile, &[])?;
        let open = |name: &str| {
            File::options().read(true).write(true).create(true).truncate(false).open(mount.path(name))
        };
        let unnamed = {
            let flags = OFlags::TMPFILE | OFlags::RDWR;
            File::from(rustix::fs::open(mount.root(), flags, Mode::from_raw_mode(0o640)).doing("O_TMPFILE")?)
        };
        let (new, replaced, copied, large) =
            (open("new")?, open("old")?, open("dir/numbers")?, open("large")?);
        new.write_all_at(b"removed", 0)?;
        replaced.write_all_at(b"replaced", 0)?;
        unnamed.write_all_at(b"unnamed", 0)?;
        copied.write_all_at(b"COPIED", 0)?;
        large.write_all_at(b"LARGE", 0)?;
        let original = File::open(mount.path("many/5"))?;
        for name in ["new", "dir/numbers", "many/5", "large"] {
            fs::remove_file(mount.path(name))?;
        }
        fs::write(mount.path("other"), "other")?;
        fs::rename(mount.path("other"), mount.path("old"))?;
        let all: [(&str, &File, &[u8]); 6] = [
            ("a new file", &new, b"removed"),
            ("one that was replaced", &replaced, b"replaced"),
            ("one without a name", &unnamed, b"unnamed"),
            ("a copy", &copied, b"COPIED"),
            ("a partial file", &large, b"LARGE"),
            ("a lower file", &original, b"number 5"),
        ];
        let rest = fs::read(top.join("large"))?.get(5..).unwrap_or_default().to_vec();
        let before = taken(&mount)?;
        for round in 0..3 {
            let service = mount.service()?;
            kill_process(service, Signal::KILL)?;
            another_service(&mount, service)?;
            for (what, file, text) in all {
                let what = format!("{profile}, {round}: {what}");
                ensure_eq!(read(file, text.len()).doing(&what)?, text, "{what}");
                ensure_eq!(file.metadata()?.nlink(), 0, "{what}: links");
                if what.ends_with("a lower file") {
                    continue;
                }
                file.write_all_at(&text.to_ascii_uppercase(), 0).doing(&what)?;
                file.sync_all().doing(&what)?;
                ensure_eq!(read(file, text.len()).doing(&what)?, text.to_ascii_uppercase(), "{what}");
                file.write_all_at(text, 0)?;
            }
            ensure!(read(&large, rest.len() + 5)?[5..] == rest, "{profile}, {round}: blocks from below");
            tree::same(&format!("{profile}, {round}"), &taken(&mount)?, &before, Ignore::default())?;
            let names = kept_names(cluster, &name)?;
            ensure_eq!(names.len(), 5, "{profile}, {round}: in the work directory: {names:?}");
        }
        // A name for what had none.
        let path = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
        rustix::fs::linkat(CWD, path, CWD, mount.path("named"), AtFlags::SYMLINK_FOLLOW).doing("linkat")?;
        ensure_eq!(fs::read(mount.path("named"))?, b"unnamed", "{profile}: a file that was given a name");
        ensure_eq!(fs::metadata(mount.path("named"))?.nlink(), 1, "{profile}: its links");
        drop(new);
        wait_while!(kept_names(cluster, &name)?.len() > 3, "{profile}: what nobody has open is kept");
        // The others are dropped before the mount is.
        drop((replaced, unnamed, copied, large, original));
        mount.unmount()?;
        let left = kept_names(cluster, &name)?;
        ensure!(left.is_empty(), "{profile}: in the work directory: {left:?}");
        let maps = cluster.names(&format!("{name}/upper/.vellum.maps"))?;
        ensure!(maps.is_empty(), "{profile}: sidecars: {maps:?}");
        let again = self::mount(cluster, &layers, profile, &[])?;
        ensure_eq!(fs::read(again.path("named"))?, b"unnamed", "{profile}: afterwards");
    }
    Ok(())
}

/// Names in a work directory that stand for removed files.
fn kept_names(cluster: &Cluster, name: &str) -> Outcome<Vec<String>> {
    let mut names = cluster.names(&format!("{name}/work/work"))?;
    names.retain(|name| name.starts_with('@'));
    Ok(names)
}

/// What is open when the service is killed, in the middle of changes.
pub(super) fn killed(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    killed_by(cx, cluster, "upper-killed", &[], |tree| tree)
}

/// As [`killed`], with options, and as much of a tree as stays.
pub(super) fn killed_by(
    cx: &Cx,
    cluster: &Cluster,
    name: &str,
    options: &[&str],
    stays: fn(Tree) -> Tree,
) -> Outcome {
    let [top, bottom] = fill(cx, cluster, name)?;
    let lowers = [top.display().to_string(), bottom.display().to_string()];
    for profile in Profile::ALL {
        let name = format!("{name}-{profile}");
        let layers = far(cx, cluster, &name, &[&lowers[0], &lowers[1]])?;
        let mount = mount(cluster, &layers, profile, options)?;
        let kept = File::options().read(true).write(true).create_new(true).open(mount.path("kept"))?;
        kept.write_all_at(b"kept", 0)?;
        let before = stays(taken(&mount)?);
        for round in 0..2 {
            let service = mount.service()?;
            kill_process(service, Signal::KILL)?;
            another_service(&mount, service)?;
            let after = stays(taken(&mount)?);
            tree::same(&format!("after a kill, {profile}"), &after, &before, Ignore::default())?;
            let mut found = [0; 4];
            kept.read_exact_at(&mut found, 0)?;
            ensure_eq!(&found, b"kept", "{profile}, {round}: a file that is open");
        }
        // In the middle of it.
        let root = mount.root().to_owned();
        let changes = std::thread::spawn(move || shell::run(shell::bash(CHANGE).arg("change").arg(root)));
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            let service = mount.service()?;
            println!("{profile}: killed with the changes done: {}", changes.is_finished());
            kill_process(service, Signal::KILL)?;
            another_service(&mount, service)?;
        }
        changes.join().map_err(|_| crate::harness::Stop::Fail("the changes".into()))??;
        let expected = Mount::kernel(&Layers {
            lowers: layers.lowers.clone(),
            ..cx.layers(&format!("kernel-{profile}"), 0)?
        })?;
        fs::write(expected.path("kept"), "kept")?;
        shell::run(shell::bash(CHANGE).arg("change").arg(expected.root()))?;
        // Times of what was changed are those of two clocks.
        let timeless = |mut tree: Tree| {
            tree.values_mut().for_each(|node| node.mtime = (0, 0));
            tree
        };
        let wanted = timeless(tree::take_overlayfs(expected.root(), i64::MAX)?);
        let same = || {
            let found = timeless(taken(&mount)?);
            tree::same(&format!("killed meanwhile, {profile}"), &found, &wanted, Ignore::default())
        };
        // A metadata server may be late after a client has died: the size of a file with several names is an old one then.
        let begin = Instant::now();
        while let Err(why) = same() {
            println!("{profile}: after {} ms {why:?}", begin.elapsed().as_millis());
            if begin.elapsed() > PATIENCE {
                return Err(why);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    Ok(())
}

/// A client that was expelled: who has it open is told so, nothing is mixed up, and a new mount works.
pub(super) fn expelled(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let lower = cx.dir.join("local");
    fs::create_dir(&lower)?;
    fs::write(lower.join("file"), "lower")?;
    let layers = far(cx, cluster, "upper-expelled", &[&lower.display().to_string()])?;
    let mount = mount(cluster, &layers, Profile::Cached, &[])?;
    fs::write(mount.path("file"), "written")?;
    File::open(mount.path("file"))?.sync_all()?;
    // The writer's record is still there, so a new client goes on, and nobody hears of it.
    let service = mount.service()?;
    cluster.expel(service)?;
    let begin = Instant::now();
    while mount.service().is_ok_and(|now| now == service) {
        let file = File::options().write(true).open(mount.path("file"))?;
        file.write_all_at(b"rewrite", 0)?;
        file.sync_all()?;
        ensure!(begin.elapsed() < PATIENCE, "the client is not replaced");
    }
    println!("another client after {} ms", begin.elapsed().as_millis());
    fs::write(mount.path("file"), "written")?;
    File::open(mount.path("file"))?.sync_all()?;
    // Nor does it, where it cannot come back: it stands still, and somebody else takes its place meanwhile.
    let service = mount.service()?;
    kill_process(service, Signal::STOP)?;
    let other = elsewhere(&layers)?;
    let taken = cluster.expel(service).and_then(|()| {
        let begin = Instant::now();
        let next = self::mount(cluster, &other, Profile::Cached, &[])?;
        println!("another mount after {} ms", begin.elapsed().as_millis());
        ensure_eq!(fs::read_to_string(next.path("file"))?, "written", "contents");
        Ok(fs::write(next.path("file"), "by another")?)
    });
    kill_process(service, Signal::CONT)?;
    taken?;
    // Whoever comes back has to see that it is not his any more, also when the other has gone.
    let begin = Instant::now();
    let error = loop {
        let outcome = File::options()
            .write(true)
            .open(mount.path("file"))
            .and_then(|file| file.write_all_at(b"LOST", 0).and_then(|()| file.sync_all()));
        match outcome {
            Err(error) if !is_lost(&error) => break error,
            Err(_) => ensure!(begin.elapsed() < PATIENCE, "it goes on"),
            Ok(()) => return fail("it has written to a layer that is not its own any more"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    println!("the old one: {error}");
    ensure!(error.raw_os_error() == Some(libc::ENOTCONN), "{error}");
    let again = self::mount(cluster, &other, Profile::Cached, &[])?;
    ensure_eq!(fs::read_to_string(again.path("file"))?, "by another", "contents");
    Ok(())
}

/// As an expelled client says it, and a connection that ends while it is asked.
fn is_lost(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ESTALE | libc::ECONNABORTED))
}

/// A quota that is reached is said, and the union is sound afterwards.
pub(super) fn quota(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let [top, bottom] = fill(cx, cluster, "upper-quota")?;
    let lowers = [top.display().to_string(), bottom.display().to_string()];
    let layers = far(cx, cluster, "upper-apart", &[&lowers[0], &lowers[1]])?;
    cluster.set_quota("upper-apart/upper", 8 * MIB as u64)?;
    match mount(cluster, &layers, Profile::Cached, &[]) {
        Ok(_) => return fail("nothing can be moved to the upper layer, and it is mounted"),
        Err(stop) => {
            ensure!(stop.to_string().contains("set a quota on a directory that holds both"), "{stop}")
        }
    }
    let layers = far(cx, cluster, "upper-full", &[&lowers[0], &lowers[1]])?;
    cluster.set_quota("upper-full", 40 * MIB as u64)?;
    let mut mount = mount(cluster, &layers, Profile::Cached, &["no_writeback_cache"])?;
    let block = vec![b'x'; MIB];
    let file = File::create(mount.path("big"))?;
    let mut written = 0;
    let error = loop {
        match file.write_at(&block, written) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
        // The cluster counts what is in a directory and below it now and then.
        ensure!(written < 256 * MIB as u64, "there is no quota");
        if written >= 40 * MIB as u64 {
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    println!("after {written} bytes: {error}");
    let errno = rustix::io::Errno::from_io_error(&error);
    ensure!(matches!(errno, Some(rustix::io::Errno::DQUOT | rustix::io::Errno::NOSPC)), "{error}");
    // A copy-up that does not fit leaves the file as it was.
    let numbers = fs::read(mount.path("dir/numbers"))?;
    let appended = File::options().append(true).open(mount.path("dir/numbers")).and_then(|mut file| {
        std::io::Write::write_all(&mut file, b"more")?;
        file.sync_all()
    });
    println!("a copy-up: {appended:?}");
    let now = fs::read(mount.path("dir/numbers"))?;
    let grown = [numbers.as_slice(), b"more"].concat();
    ensure!(now == numbers || appended.is_ok() && now == grown, "a file that could not be copied up");
    drop(file);
    let before = taken(&mount)?;
    mount.remount()?;
    tree::same("a full layer", &taken(&mount)?, &before, Ignore::default())?;
    // What is removed makes room. It goes through the work directory, and the cluster counts the two directories at different times: there
    // may be room, and none for a moment, and room again. That is over when it counts little in each of them and in both together, and when
    // the mount, which hears of it on its own, has then had room for a second.
    fs::remove_file(mount.path("big"))?;
    let begin = Instant::now();
    for path in ["upper-full/upper", "upper-full/work", "upper-full"] {
        loop {
            let bytes = cluster.counted_bytes(path)?;
            println!("{path}: {bytes} bytes after {} ms", begin.elapsed().as_millis());
            if bytes < 20 * MIB as u64 {
                break;
            }
            ensure!(begin.elapsed() < PATIENCE, "{path} has {bytes} bytes after a file was removed");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_secs(1) {
        if let Err(error) = fs::write(mount.path("after"), "after") {
            ensure!(begin.elapsed() < PATIENCE, "after room was made: {error}");
            since = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    shell::run(shell::bash(CHANGE).arg("change").arg(mount.root()))?;
    let before = taken(&mount)?;
    mount.remount()?;
    tree::same("afterwards", &taken(&mount)?, &before, Ignore::default())
}

/// Mounts of a pool have one client, and each its own right.
pub(super) fn pool(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let lower = cx.dir.join("local");
    fs::create_dir(&lower)?;
    fs::write(lower.join("file"), "lower")?;
    let lower = lower.display().to_string();
    let pools = Pools::new(cx)?;
    pools.run("create", &["--ceph", "on"])?;
    let (named, conf) = (format!("pool={}", pools.name()), conf(cluster));
    let options = [named.as_str(), conf.as_str()];
    let [one, two] = ["upper-pool-one", "upper-pool-two"].map(|name| far(cx, cluster, name, &[&lower]));
    let (one, two) = (one?, two?);
    let (first, second) = (pools.mount_with(&one, &options)?, pools.mount_with(&two, &options)?);
    ensure_eq!(cluster.sessions(first.service()?)?.len(), 1, "clients of two mounts");
    for (number, mount) in [&first, &second].into_iter().enumerate() {
        fs::write(mount.path("file"), format!("mount {number}"))?;
    }
    let refused = match pools.mount_with(&elsewhere(&one)?, &options) {
        Ok(_) => return fail("two mounts of a pool write to one layer"),
        Err(stop) => stop.to_string(),
    };
    ensure!(refused.contains("another mount writes to it"), "{refused}");
    let mixed =
        Layers { work: two.work.clone(), ..elsewhere(&far(cx, cluster, "upper-pool-three", &[&lower])?)? };
    let refused = match pools.mount_with(&mixed, &options) {
        Ok(_) => return fail("two mounts have one work directory"),
        Err(stop) => stop.to_string(),
    };
    ensure!(refused.contains("another mount uses it"), "{refused}");
    for replace in [true, false] {
        let service = first.service()?;
        if replace {
            pools.run("restart", &[])?;
        } else {
            kill_process(service, Signal::KILL)?;
        }
        another_service(&first, service)?;
        for (number, mount) in [&first, &second].into_iter().enumerate() {
            ensure_eq!(fs::read_to_string(mount.path("file"))?, format!("mount {number}"), "contents");
            fs::write(mount.path("more"), "more")?;
        }
    }
    drop(first);
    // Out of the pool, too.
    let alone = Mount::new(MountKind::under_test(), Some(Profile::Cached), &elsewhere(&one)?, &[&conf])?;
    ensure_eq!(fs::read_to_string(alone.path("file"))?, "mount 0", "contents");
    Ok(())
}
