//! Stores on zoned devices, here on files that are used like one: as an upper layer, and mounted by themselves beside the image of a checkpoint.

use super::Case;
use super::pool::Pools;
use crate::harness::mount::only_vellum;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail, wait_while};
use crate::harness::tree::{self, Ignore};
use crate::harness::{Cx, Layers, Mount, MountKind, shell};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use vellum_service::store_server::{ConnectOutcome, StoreClient};
use vellum_zoned::device::{Conventional, ZonedDevice};
use vellum_zoned::store::{Class, Placement, Store};

pub(super) const CASES: &[Case] = &[
    Case::mounted("zoned/upper", 60, upper),
    Case::once("zoned/mount", 60, mounted),
    Case::once("zoned/killed", 60, killed),
    Case::once("zoned/store-sockets", 60, store_sockets),
    Case::once("zoned/pool", 60, pool),
    Case::once("zoned/pool-shares", 60, pool_shares),
    Case::once("zoned/refused", 60, refused),
];

/// The image that lies beside the files.
const IMAGE: &[u8] = b"image";

/// What is below, made in the directory `$1`.
const FILL: &str = r#"
cd "$1"
mkdir -p dir/deep many opaque; seq 2000 > dir/numbers; echo one > dir/one; echo deep > dir/deep/file; echo old > opaque/old
for n in 1 2 3 4 5 6 7 8 9 10; do head -c $((n * 3000)) /dev/zero | tr '\0' $((n % 10)) > many/$n; done
head -c 8000000 /dev/zero | tr '\0' L > large; ln many/1 many/1b; ln -s dir/one link; echo only > only; setfattr -n user.a -v b dir/one
touch -d 2001-01-01 dir/one many/*; truncate -s 3000000 sparse
"#;

/// Changes in the directory `$1`.
const CHANGE: &str = r#"
cd "$1"
echo more >> dir/numbers; echo more >> dir/one; chmod 600 large; chown 5:6 many/2; ln many/3 many/three
mv dir/deep moved; mv only many/only; rm many/4; rm -r opaque; mkdir opaque; echo new > opaque/new
printf X | dd of=large bs=1 seek=5000000 conv=notrunc status=none; truncate -s 1000 many/9; setfattr -n user.new -v 1 many/8
printf Y | dd of=sparse bs=1 seek=2000000 conv=notrunc status=none
cp -a many copied; mkfifo another; touch -d 2002-02-02 many/10; ln -sf nowhere link; rm -r copied/7; sync -f .
"#;

/// Makes a store in a file of 2 GiB, which takes space only as it is filled, with an image in it.
pub(super) fn make(file: &Path) -> Outcome {
    let file = File::options().read(true).write(true).create_new(true).open(file)?;
    let device = Conventional::create(file, 4096, 1024, 512).doing("lay zones out")?;
    let store = Store::format(Arc::new(device), Placement::NONE).doing("make a store")?;
    store.put(IMAGE, Class::Checkpoint, &[7; 3_000_000]).doing("put")?;
    store.sync().doing("sync")
}

/// Nothing is wrong with the store, and the image is there.
fn check(file: &Path) -> Outcome {
    let file = File::options().read(true).write(true).open(file)?;
    let device: Arc<dyn ZonedDevice> = Arc::new(Conventional::open(file).doing("open the device")?);
    let store = Store::open_read_only(device).doing("open the store")?;
    let report = store.check().doing("check")?;
    ensure!(report.is_clean(), "{report:?}");
    ensure!(store.get(IMAGE).doing("get")? == [7; 3_000_000], "the image is another one");
    Ok(())
}

fn layers(cx: &Cx, name: &str, store: &Path) -> Outcome<Layers> {
    Ok(stored(&cx.layers(name, 1)?, store))
}

/// Layers with the upper one in a store.
pub(super) fn stored(layers: &Layers, store: &Path) -> Layers {
    let [upper, work] = ["upper", "work"].map(|dir| format!("zoned:{}/containers/{dir}", store.display()));
    Layers { upper: Some(upper.into()), work: work.into(), ..layers.clone() }
}

fn program() -> Outcome<PathBuf> {
    match MountKind::under_test() {
        MountKind::Program(program, true) => Ok(program),
        other => fail(format!("{other:?} is not Vellum")),
    }
}

/// What is changed over a layer below is as on the kernel's overlayfs, in the mount and in the next one, also with the layer as a lower one.
fn upper(cx: &Cx) -> Outcome {
    only_vellum("has no such layers")?;
    let local = cx.layers("kernel", 1)?;
    shell::run(shell::bash(FILL).arg("fill").arg(local.lower()))?;
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let expected = Mount::kernel(&local)?;
    shell::run(shell::bash(CHANGE).arg("change").arg(expected.root()))?;
    let wanted = tree::take_overlayfs(expected.root(), since)?;
    let store = cx.dir.join("store");
    make(&store)?;
    let layers = Layers { lowers: local.lowers.clone(), ..layers(cx, "l", &store)? };
    let mut mount = cx.mount(&layers)?;
    shell::run(shell::bash(CHANGE).arg("change").arg(mount.root()))?;
    for _ in 0..2 {
        let tree = tree::take(mount.root(), since)?;
        tree::same("changes", &tree, &wanted, Ignore::default())?;
        tree::inodes_are_unique(&tree)?;
        mount.remount()?;
    }
    let said = shell::run(Command::new(program()?).arg("inspect").arg(mount.path("large")))?;
    ensure!(said.contains("/store/containers/upper"), "inspect: {said}");
    ensure!(said.contains("(seccomp)") && !said.contains("not in force"), "inspect: {said}");
    mount.unmount()?;
    check(&store)?;
    let as_lowers = Layers {
        lowers: layers.upper.iter().chain(&layers.lowers).cloned().collect(),
        upper: None,
        ..layers.clone()
    };
    let mut read = cx.mount(&as_lowers)?;
    // Readers are no hindrance to each other.
    let beside = cx.mount(&Layers { merged: beside(cx)?, ..as_lowers })?;
    for mount in [&read, &beside] {
        tree::same("as a lower layer", &tree::take(mount.root(), since)?, &wanted, Ignore::default())?;
    }
    read.unmount()?;
    drop(beside);
    check(&store)
}

/// Another mount point.
fn beside(cx: &Cx) -> Outcome<PathBuf> {
    let dir = cx.dir.join("beside");
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// A mount of a store by itself.
struct StandaloneMount {
    store: PathBuf,
    point: PathBuf,
}

impl StandaloneMount {
    fn new(cx: &Cx) -> Outcome<Self> {
        let new = Self { store: cx.dir.join("store"), point: cx.dir.join("point") };
        fs::create_dir(&new.point)?;
        make(&new.store)?;
        Ok(new)
    }

    fn command(&self) -> Outcome<Command> {
        let mut command = Command::new(program()?);
        command.args(["zoned", "mount"]).arg(&self.store).arg(&self.point);
        Ok(command)
    }

    fn mount(&self) -> Outcome {
        shell::run(&mut self.command()?).map(drop)
    }

    /// Unmounts, and waits until another may have the store.
    fn unmount(&self) -> Outcome {
        shell::run(Command::new("umount").arg(&self.point))?;
        self.wait_for_end()
    }

    fn wait_for_end(&self) -> Outcome {
        let file = File::options().read(true).write(true).open(&self.store)?;
        wait_while!(
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err(),
            "the store stays in use"
        );
        Ok(())
    }
}

impl Drop for StandaloneMount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Programs write into it what they read again, now and after it was mounted anew.
fn mounted(cx: &Cx) -> Outcome {
    only_vellum("has no such mounts")?;
    let source = cx.dir.join("source");
    fs::create_dir(&source)?;
    shell::run(shell::bash(FILL).arg("fill").arg(&source))?;
    shell::run(shell::bash(CHANGE).arg("change").arg(&source))?;
    // rsync leaves times of this very second as they are.
    shell::run(shell::bash("find \"$1\" -exec touch -hd 2003-03-03 {} +").arg("touch").arg(&source))?;
    let alone = StandaloneMount::new(cx)?;
    alone.mount()?;
    let copies = r#"
source="$1"; cd "$2"; cp -a "$source" copied; mkdir packed; tar -C "$source" --xattrs -cf - . | tar -C packed --xattrs -xpf -
if command -v rsync > /dev/null; then rsync -aHX "$source"/ synced; else cp -a "$source" synced; fi
mkdir busy; cd busy; for n in $(seq 200); do echo $n > new; mv new file; ln file link$n; done; rm link1[0-9]*
"#;
    shell::run(shell::bash(copies).arg("copies").args([&source, &alone.point]))?;
    let wanted = tree::take(&source, i64::MAX)?;
    for round in 0..2 {
        for copy in ["copied", "packed", "synced"] {
            let tree = tree::take(&alone.point.join(copy), i64::MAX)?;
            tree::same(&format!("{copy}, round {round}"), &tree, &wanted, Ignore::default())?;
        }
        ensure_eq!(fs::read_dir(alone.point.join("busy"))?.count(), 201 - 110, "links");
        let file = File::options().write(true).open(alone.point.join("busy/file"))?;
        let reserved = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20);
        ensure_eq!(reserved, Err(rustix::io::Errno::OPNOTSUPP), "reserving space");
        drop(file);
        let sparse = fs::metadata(alone.point.join("copied/sparse"))?;
        ensure!(sparse.blocks() <= 16, "holes are written: {sparse:?}");
        alone.unmount()?;
        check(&alone.store)?;
        alone.mount()?;
    }
    shell::run(
        shell::bash("cd \"$1\"; rm -r copied packed synced busy; test -z \"$(ls -A)\"")
            .arg("rm")
            .arg(&alone.point),
    )?;
    alone.unmount()?;
    check(&alone.store)
}

/// What was synced is there for the next mount after the service was killed; the mount itself ends, since what was not synced was the service's.
fn killed(cx: &Cx) -> Outcome {
    only_vellum("has no such mounts")?;
    let alone = StandaloneMount::new(cx)?;
    for round in 0..2_u8 {
        alone.mount()?;
        let name = |kind: &str| alone.point.join(format!("{kind}{round}"));
        let mut synced = File::create(name("synced"))?;
        synced.write_all(&[round; 100_000])?;
        synced.sync_all()?;
        fs::write(name("written"), [round; 100_000])?;
        synced.write_at(&[99; 5000], 0)?;
        let mut said = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(&alone.point, c"vellum.instance", &mut said)?;
        let report: serde_json::Value = serde_json::from_slice(&said[..len]).doing("vellum.instance")?;
        let pid = report["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        kill_process(
            pid.ok_or_else(|| crate::harness::outcome::Stop::Fail("no service".into()))?,
            Signal::KILL,
        )?;
        wait_while!(synced.sync_all().is_ok(), "a sync is answered by nobody");
        drop(synced);
        let _ = rustix::mount::unmount(&alone.point, rustix::mount::UnmountFlags::DETACH);
        alone.wait_for_end()?;
        check(&alone.store)?;
        alone.mount()?;
        let held = fs::read(name("synced"))?;
        let is_sound = held.len() == 100_000 && held[8192..].iter().all(|byte| *byte == round);
        ensure!(is_sound, "what was synced is not there");
        alone.unmount()?;
    }
    Ok(())
}

/// A store socket goes with its service, also when that is killed; what was left when everybody was killed goes with the next mount.
fn store_sockets(cx: &Cx) -> Outcome {
    only_vellum("has no such mounts")?;
    let dir = Path::new("/run/vellum/stores");
    // Mounts of others would take away what is left there as well: in the mount namespace of this case it is its own.
    fs::create_dir_all("/run/vellum")?;
    shell::run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run/vellum"]))?;
    let alone = StandaloneMount::new(cx)?;
    let found = fs::metadata(&alone.store)?;
    let socket = dir.join(format!("file-{:x}-{:x}", found.dev(), found.ino()));
    let gone = |socket: &Path| -> Outcome {
        wait_while!(socket.exists(), "{} stays", socket.display());
        Ok(())
    };
    let service = || -> Outcome<Pid> {
        let mut said = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(&alone.point, c"vellum.instance", &mut said)?;
        let report: serde_json::Value = serde_json::from_slice(&said[..len]).doing("vellum.instance")?;
        let pid = report["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
        pid.map_or_else(|| fail("no service"), Ok)
    };
    // Those of the mount, by what they were started with.
    let all = || -> Vec<Pid> {
        let point = alone.point.as_os_str().as_bytes();
        let is_its = |line: &[u8]| line.split(|byte| *byte == 0).any(|word| word == point);
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let its =
            entries.filter(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|line| is_its(&line)));
        its.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
    };
    for round in ["unmounted", "service killed", "all killed"] {
        alone.mount()?;
        ensure!(socket.exists(), "no socket");
        match round {
            "unmounted" => shell::run(Command::new("umount").arg(&alone.point)).map(drop)?,
            "service killed" => kill_process(service()?, Signal::KILL)?,
            _ => {
                for signal in [Signal::STOP, Signal::KILL] {
                    for process in all() {
                        let _ = kill_process(process, signal);
                    }
                }
            }
        }
        alone.wait_for_end()?;
        let _ = rustix::mount::unmount(&alone.point, rustix::mount::UnmountFlags::DETACH);
        if round != "all killed" {
            gone(&socket).doing(round)?;
        }
    }
    ensure!(socket.exists(), "somebody has taken it away");
    let left = dir.join(format!("file-{:x}-{}", found.dev(), "left"));
    drop(std::os::unix::net::UnixListener::bind(&left)?);
    alone.mount()?;
    ensure!(
        matches!(StoreClient::connect(&alone.store, false), ConnectOutcome::In(_)),
        "the socket is another's"
    );
    ensure!(!left.exists(), "what was left of another one");
    alone.unmount()?;
    gone(&socket)
}

/// In a pool, what happens to a store's mount happens to no other one.
fn pool(cx: &Cx) -> Outcome {
    only_vellum("has no pools")?;
    let store = cx.dir.join("store");
    make(&store)?;
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let option = format!("pool={}", pools.name());
    let local = cx.layers("local", 1)?;
    let stored = layers(cx, "stored", &store)?;
    let beside = pools.mount_with(&local, &[&option])?;
    for round in 0..2 {
        let mut mount = pools.mount_with(&stored, &[&option])?;
        let path = mount.path("file");
        if round == 0 {
            fs::write(&path, "unmounted")?;
            mount.unmount()?;
            check_when_free(&store)?;
            continue;
        }
        ensure_eq!(fs::read_to_string(&path)?, "unmounted", "what was written before");
        let refused = pools.attempt("restart", &[])?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(
            refused.status.code() == Some(2) && said.contains("would end; unmount it first"),
            "restart: {said}"
        );
        fs::write(&path, "synced")?;
        File::open(&path)?.sync_all()?;
        fs::write(beside.path("file"), "beside")?;
        kill_process(mount.service()?, Signal::KILL)?;
        wait_while!(fs::metadata(&path).is_ok(), "the mount goes on");
        ensure_eq!(fs::read_to_string(beside.path("file"))?, "beside", "another mount of the pool");
    }
    let _ = rustix::mount::unmount(&stored.merged, rustix::mount::UnmountFlags::DETACH);
    let mount = pools.mount_with(&stored, &[&option])?;
    ensure_eq!(fs::read_to_string(mount.path("file"))?, "synced", "what was synced");
    drop(mount);
    check_when_free(&store)
}

/// Two mounts of a pool have upper layers in one store, each its own directory; nobody else has.
fn pool_shares(cx: &Cx) -> Outcome {
    only_vellum("has no pools")?;
    let store = cx.dir.join("store");
    make(&store)?;
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    let option = format!("pool={}", pools.name());
    let in_dir = |name: &str| -> Outcome<Layers> {
        let [upper, work] = ["upper", "work"].map(|dir| format!("zoned:{}/{name}/{dir}", store.display()));
        Ok(Layers { upper: Some(upper.into()), work: work.into(), ..cx.layers(name, 1)? })
    };
    let (one, two) = (in_dir("one")?, in_dir("two")?);
    let mut first = pools.mount_with(&one, &[&option])?;
    let second = pools.mount_with(&two, &[&option])?;
    ensure_eq!(first.service()?, second.service()?, "the service");
    for (mount, words) in [(&first, "one"), (&second, "two")] {
        fs::write(mount.path("file"), words)?;
    }
    // Refused: a directory that has a mount, one that holds such a directory, and a mount by another service.
    let nested = Layers { upper: Some(format!("zoned:{}/one", store.display()).into()), ..in_dir("three")? };
    for layers in [Layers { merged: beside(cx)?, ..one.clone() }, nested] {
        let said = refusal(pools.mount_with(&layers, &[&option]))?;
        ensure!(said.contains("another mount of the pool uses it"), "{said}");
    }
    let said = refusal(cx.mount(&in_dir("four")?))?;
    ensure!(said.contains("has the store open"), "{said}");
    for _ in 0..3 {
        // The one whose right it was goes first; the other one has it now.
        first.unmount()?;
        ensure_eq!(fs::read_to_string(second.path("file"))?, "two", "the mount that goes on");
        fs::write(second.path("more"), "more")?;
        File::open(second.path("more"))?.sync_all()?;
        first = pools.mount_with(&one, &[&option])?;
        ensure_eq!(fs::read_to_string(first.path("file"))?, "one", "what was written before");
    }
    // What is not synced goes with the service, for both.
    kill_process(first.service()?, Signal::KILL)?;
    wait_while!(
        fs::metadata(first.path("file")).is_ok() || fs::metadata(second.path("file")).is_ok(),
        "a mount goes on"
    );
    for layers in [&one, &two] {
        let _ = rustix::mount::unmount(&layers.merged, rustix::mount::UnmountFlags::DETACH);
    }
    drop((first, second));
    let mut second = pools.mount_with(&two, &[&option])?;
    ensure_eq!(fs::read_to_string(second.path("more"))?, "more", "what was synced");
    second.unmount()?;
    check_when_free(&store)
}

/// Why a mount was refused.
fn refusal(mount: Outcome<Mount>) -> Outcome<String> {
    match mount {
        Err(crate::harness::outcome::Stop::Fail(why)) => Ok(why),
        Err(other) => Err(other),
        Ok(_) => fail("it was mounted"),
    }
}

/// As soon as nobody has the store.
fn check_when_free(store: &Path) -> Outcome {
    StandaloneMount { store: store.to_owned(), point: PathBuf::new() }.wait_for_end()?;
    check(store)
}

/// What cannot be is said in one line, and changes nothing.
fn refused(cx: &Cx) -> Outcome {
    only_vellum("has no such mounts")?;
    let alone = StandaloneMount::new(cx)?;
    alone.mount()?;
    let other = beside(cx)?;
    let said = Command::new(program()?).args(["zoned", "mount"]).arg(&alone.store).arg(&other).output()?;
    let line = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(
        !said.status.success() && line.contains("has the store open") && line.lines().count() == 1,
        "{line}"
    );
    alone.unmount()?;
    let empty = cx.dir.join("empty");
    File::create(&empty)?.set_len(1 << 20)?;
    let lower = cx.layers("l", 1)?;
    let mount = |options: String| {
        let mut command = Command::new(program()?);
        command.arg("-o").arg(options).arg(&other);
        Ok::<_, crate::harness::outcome::Stop>(command)
    };
    let (lower, store, empty) = (lower.lower().display(), alone.store.display(), empty.display());
    for (options, cause) in [
        (format!("lowerdir={lower},upperdir=zoned:{empty}/u,workdir=zoned:{empty}/w"), "no store"),
        (format!("lowerdir={lower},upperdir=zoned:{store}/u,workdir=zoned:{store}/u/w"), "lie in each other"),
        (format!("lowerdir={lower},upperdir=zoned:{store}/u,workdir=zoned:{empty}/w"), "another store"),
        (format!("lowerdir={lower},upperdir=zoned:{store}/u,workdir={lower}"), "not of the same kind"),
        (format!("lowerdir={lower},upperdir=zoned:{lower}/u,workdir=zoned:{lower}/w"), "no device or file"),
        (format!("lowerdir=zoned:{store}/nowhere"), "give a directory in the store"),
        (format!("upperdir=zoned:{store}/u"), "upperdir without workdir"),
    ] {
        shell::refused(&mut mount(options)?, cause)?;
    }
    check(&alone.store)
}
