//! Pools: what a tenant may use holds for the services of its mounts, and who is not in a pool is not touched by any.

mod little_memory;

use super::Case;
use super::checkpoint::support::eventually;
use crate::harness::mount::MountKind;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, Layers, Mount, shell};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

pub(super) const CASES: &[Case] = &[
    Case::once("pool/the-tenant-pays", 60, the_tenant_pays),
    Case::once("pool/memory-is-limited", 60, memory_is_limited),
    Case::once("pool/names-are-bounded", 120, names_are_bounded),
    Case::once("pool/too-little-memory", 120, little_memory::too_little),
    Case::once("pool/processors", 60, processors),
    Case::once("pool/layers-belong-to-pools", 60, layers_belong_to_pools),
    Case::once("pool/uid-range", 60, uid_range),
    Case::once("pool/life", 60, life),
    Case::once("pool/elsewhere", 60, elsewhere),
    Case::once("pool/bad-input", 60, bad_input),
];

const MIB: usize = 1 << 20;

/// Pools of this case, and one of them. It is deleted at the end.
pub(super) struct Pools<'a> {
    cx: &'a Cx,
    name: String,
    /// Another program than the one under test.
    pub(super) program: Option<PathBuf>,
}

impl<'a> Pools<'a> {
    pub(super) fn new(cx: &'a Cx) -> Outcome<Self> {
        if !MountKind::under_test().is_vellum() {
            return skip("only Vellum has pools");
        }
        let groups = fs::read_to_string("/proc/self/mounts")?;
        if !groups.lines().any(|line| line.contains(" cgroup")) {
            return skip("no control groups are mounted here");
        }
        // Groups are the host's, and other cases run at the same time.
        let now = UNIX_EPOCH.elapsed().doing("the time")?.as_nanos();
        Ok(Self { cx, name: format!("test-{now}"), program: None })
    }

    fn command(&self) -> Outcome<Command> {
        let MountKind::Program(program, _) = MountKind::under_test() else { return skip("no program") };
        let mut command = Command::new(self.program.as_ref().unwrap_or(&program));
        command.env("VELLUM_POOLS", self.cx.dir.join("pools")).stdin(Stdio::null());
        command.env("VELLUM_LOG_TO", self.log());
        Ok(command)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Where the pool's service logs.
    pub(super) fn log(&self) -> PathBuf {
        self.cx.dir.join("service.log")
    }

    /// `vellum pool VERB NAME ARGUMENTS`, whatever becomes of it.
    pub(super) fn attempt(&self, verb: &str, arguments: &[&str]) -> Outcome<Output> {
        Ok(self.command()?.args(["pool", verb, &self.name]).args(arguments).output()?)
    }

    pub(super) fn run(&self, verb: &str, arguments: &[&str]) -> Outcome<String> {
        shell::run(self.command()?.args(["pool", verb, &self.name]).args(arguments))
    }

    pub(super) fn show(&self) -> Outcome<Value> {
        serde_json::from_str(&self.run("show", &["--json"])?).doing("pool show --json")
    }

    /// Gives a mount another weight.
    pub(super) fn weigh(&self, mount: &Mount, weight: &str) -> Outcome<String> {
        shell::run(self.command()?.arg("weight").arg(mount.root()).arg(weight))
    }

    /// The socket for programs.
    pub(super) fn session_socket(&self) -> Outcome<PathBuf> {
        let run = fs::read_dir(self.cx.dir.join("pools/.run")).doing("where sockets are")?;
        let found = run.flatten().map(|entry| entry.path());
        let session = found.into_iter().find(|path| path.extension().is_some_and(|e| e == "session"));
        session.map_or_else(|| fail("no socket for programs"), |session| Ok(session.join("socket")))
    }

    /// Mounts in this pool, or in the one that claims the layers.
    pub(super) fn mount(&self, layers: &Layers, named: bool) -> Outcome<Mount> {
        let pool = format!("pool={}", self.name);
        let options: &[&str] = if named { &[&pool] } else { &[] };
        self.mount_with(layers, options)
    }

    /// Mounts the layers in the pool by another program.
    pub(super) fn mount_by(&self, program: &Path, layers: &Layers) -> Outcome<Mount> {
        let pool = format!("pool={}", self.name);
        self.mount_of(MountKind::Program(program.to_owned(), true), layers, &[&pool])
    }

    pub(super) fn mount_with(&self, layers: &Layers, options: &[&str]) -> Outcome<Mount> {
        self.mount_of(MountKind::under_test(), layers, options)
    }

    fn mount_of(&self, kind: MountKind, layers: &Layers, options: &[&str]) -> Outcome<Mount> {
        let pools = self.cx.dir.join("pools").display().to_string();
        let log = self.log().display().to_string();
        let variables = [("VELLUM_POOLS", pools.as_str()), ("VELLUM_LOG_TO", &log), ("VELLUM_LOG", "info")];
        Mount::with_variables(kind, self.cx.profile, layers, options, &variables)
    }
}

/// A mount in a pool of its own, and where programs find that.
pub(super) struct PoolMount<'a> {
    pub(super) mount: Mount,
    pub(super) layers: Layers,
    pub(super) pools: Pools<'a>,
    pub(super) socket: PathBuf,
}

impl<'a> PoolMount<'a> {
    /// Makes it; `fill` puts files into the lower layer before.
    pub(super) fn new(cx: &'a Cx, fill: impl FnOnce(&Path) -> Outcome) -> Outcome<Self> {
        Self::with(cx, fill, &[])
    }

    /// Makes it with further options of the mount; `fill` puts files into the lower layer before.
    pub(super) fn with(cx: &'a Cx, fill: impl FnOnce(&Path) -> Outcome, options: &[&str]) -> Outcome<Self> {
        let pools = Pools::new(cx)?;
        pools.run("create", &[])?;
        let layers = cx.layers("l", 1)?;
        fill(layers.lower())?;
        let pool = format!("pool={}", pools.name);
        let mount = pools.mount_with(&layers, &[&[pool.as_str()], options].concat())?;
        let socket = pools.session_socket()?;
        Ok(Self { mount, layers, pools, socket })
    }

    /// Puts the library into a command.
    pub(super) fn preload(&self, command: &mut Command, library: &Path) {
        command.env("LD_PRELOAD", library).env("VELLUM_SOCKET", &self.socket);
    }
}

impl Drop for Pools<'_> {
    fn drop(&mut self) {
        // Services end a moment after their mounts.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5)
            && self.attempt("delete", &[]).is_ok_and(|done| done.status.code() == Some(2))
            && self.show().is_ok()
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether limits of disks can hold here.
fn on_a_disk(dir: &Path) -> Outcome<bool> {
    let dev = fs::metadata(dir)?.dev();
    let name = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    Ok(Path::new(&name).exists())
}

fn lower_file(layers: &Layers, mib: usize) -> Outcome {
    let data: Vec<u8> = (0..mib * MIB).map(|at| (at / 97) as u8).collect();
    fs::write(layers.lower().join("file"), data)?;
    rustix::fs::sync();
    Ok(())
}

fn forget_pages(path: &Path) -> Outcome {
    let file = fs::File::open(path)?;
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// What a container reads and writes through FUSE is counted in its tenant's pool, and a limit holds.
fn the_tenant_pays(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    if !on_a_disk(&cx.dir)? {
        return skip("the directory for tests lies on no disk of its own");
    }
    pools.run("create", &["--read-limit", "8M", "--write-limit", "8M"])?;
    let layers = cx.layers("l", 1)?;
    lower_file(&layers, 16)?;
    forget_pages(&layers.lower().join("file"))?;
    let mount = pools.mount(&layers, true)?;
    let begin = Instant::now();
    ensure_eq!(fs::read(mount.path("file"))?.len(), 16 * MIB, "bytes read");
    let took = begin.elapsed();
    ensure!(took >= Duration::from_secs(1), "16 MiB at 8 MiB/s came in {took:?}");
    let of = |key: &str| Ok::<_, crate::harness::Stop>(pools.show()?[key].as_u64().unwrap_or(0));
    let read = of("read_bytes")?;
    ensure!(read >= 16 * MIB as u64, "only {read} bytes were read in the pool");
    let new = fs::File::create(mount.path("new"))?;
    rustix::io::write(&new, &vec![1; 4 * MIB])?;
    new.sync_all()?;
    let written = of("written_bytes")?;
    ensure!(written >= 4 * MIB as u64, "only {written} bytes were written in the pool");
    // Changed for services that are there: without a limit the rest is not held up for long by the old one.
    pools.run("set", &["--read-limit", "none"])?;
    ensure!(pools.show()?["read_limit"].is_null(), "the limit stays");
    Ok(())
}

/// The page cache that a service fills is its pool's, and no more than that has.
fn memory_is_limited(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &["--memory", "48M"])?;
    let layers = cx.layers("l", 1)?;
    lower_file(&layers, 96)?;
    forget_pages(&layers.lower().join("file"))?;
    let mount = pools.mount(&layers, true)?;
    ensure_eq!(fs::read(mount.path("file"))?.len(), 96 * MIB, "bytes read");
    fs::write(mount.path("new"), vec![1; 96 * MIB])?;
    fs::File::open(mount.path("new"))?.sync_all()?;
    ensure_eq!(fs::read(mount.path("new"))?, vec![1; 96 * MIB], "what was written");
    let peak = pools.show()?["memory_peak_bytes"].as_u64();
    // An old kernel has no such file.
    ensure!(peak.is_none_or(|peak| peak <= 48 * MIB as u64), "the pool had {peak:?} bytes");
    ensure!(peak.is_none_or(|peak| peak >= 8 * MIB as u64), "the pool had only {peak:?} bytes");
    Ok(())
}

/// Programs look at more names than the pool's memory is for: the kernel is asked to forget, and nobody is killed. What is open, and what
/// is watched, stays as it is.
fn names_are_bounded(cx: &Cx) -> Outcome {
    const DIRS: usize = 50;
    const FILES: usize = 500;
    let pools = Pools::new(cx)?;
    if kernel_version()? < (6, 18) {
        return skip("the kernel cannot be asked to forget before Linux 6.18");
    }
    pools.run("create", &["--memory", "16M"])?;
    let layers = cx.layers("l", 1)?;
    for dir in 0..DIRS {
        let dir = layers.lower().join(format!("directory-{dir}"));
        fs::create_dir(&dir)?;
        (0..FILES).try_for_each(|file| fs::write(dir.join(format!("some-name-{file}")), ""))?;
    }
    let mount = pools.mount(&layers, true)?;
    let service = mount.service()?;
    fs::write(mount.path("directory-0/open"), "before")?;
    let mut open = fs::File::options().read(true).append(true).open(mount.path("directory-0/open"))?;
    let gone = fs::File::open(mount.path("directory-1/some-name-7"))?;
    fs::remove_file(mount.path("directory-1/some-name-7"))?;
    let numbers = |dir: usize| -> Outcome<Vec<u64>> {
        let listed = fs::read_dir(mount.path(&format!("directory-{dir}")))?;
        let mut numbers: Vec<u64> =
            listed.map(|entry| entry?.metadata().map(|meta| meta.ino())).collect::<Result<_, _>>()?;
        numbers.sort_unstable();
        Ok(numbers)
    };
    let before = numbers(3)?;
    for dir in 0..DIRS {
        let seen = numbers(dir)?.len();
        ensure!(seen.abs_diff(FILES) <= 1, "{seen} names in directory {dir}");
    }
    ensure_eq!(numbers(3)?, before, "inode numbers");
    open.write_all(b", after")?;
    ensure_eq!(fs::read(mount.path("directory-0/open"))?, b"before, after", "what is open");
    ensure_eq!((gone.metadata()?.nlink(), gone.metadata()?.len()), (0, 0), "what was removed and is open");
    ensure_eq!(mount.service()?, service, "the service that has answered");
    Ok(())
}

/// The first two numbers of the kernel's version.
fn kernel_version() -> Outcome<(u32, u32)> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse().ok());
    Ok((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)))
}

/// A service runs where its pool's processors are, also when these change.
fn processors(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &["--cpuset-cpus", "0", "--weight", "300"])?;
    let layers = cx.layers("l", 1)?;
    let _mount = pools.mount(&layers, true)?;
    let allowed = || -> Outcome<String> {
        let service = pools.show()?["mounts"][0]["service"].as_u64();
        let status = fs::read_to_string(format!("/proc/{}/status", service.unwrap_or(0)))?;
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Ok(line.unwrap_or_default().trim().to_owned())
    };
    ensure_eq!(allowed()?, "0", "processors of the service");
    pools.run("set", &["--cpuset-cpus", "none"])?;
    let all = fs::read_to_string("/sys/devices/system/cpu/online")?;
    if all.trim() == "0" {
        return skip("one processor");
    }
    ensure!(allowed()? != "0", "the service stays on processor 0");
    Ok(())
}

/// An engine need not know of pools: its storage belongs to one. Other mounts stay outside.
fn layers_belong_to_pools(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    let (claimed, free) = (cx.layers("claimed", 1)?, cx.layers("free", 1)?);
    let storage = cx.dir.join("claimed").display().to_string();
    pools.run("create", &["--storage", &storage])?;
    let (inside, outside) = (pools.mount(&claimed, false)?, pools.mount(&free, false)?);
    let group = format!("vellum/{}", pools.name);
    for (mount, belongs) in [(&inside, true), (&outside, false)] {
        let service = mount.service()?.as_raw_nonzero();
        let groups = fs::read_to_string(format!("/proc/{service}/cgroup"))?;
        ensure_eq!(groups.contains(&group), belongs, "{}: {groups}", mount.root().display());
    }
    let shown = pools.show()?;
    ensure_eq!(shown["mounts"].as_array().map(Vec::len), Some(1), "mounts of {shown}");
    let root = inside.root().canonicalize()?;
    ensure_eq!(shown["mounts"][0]["mountpoint"].as_str(), root.to_str(), "where it is mounted");
    Ok(())
}

/// What layers hold as owned by 0 and so on is shown as the pool's ids, which no other pool has.
fn uid_range(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    let storage = cx.dir.join("claimed").display().to_string();
    fs::create_dir(&storage)?;
    pools.run("create", &["--uid-range", "300000:65536", "--storage", &storage])?;
    let shown = pools.show()?;
    ensure_eq!(shown["uid_range"].as_str(), Some("300000:65536"), "the range");
    let owner = |path: &Path| -> Outcome<(u32, u32)> {
        let meta = fs::symlink_metadata(path)?;
        Ok((meta.uid(), meta.gid()))
    };
    let all = [("root", (0, 0)), ("web", (33, 34)), ("last", (65_535, 65_535)), ("beyond", (65_536, 0))];
    let files = |layers: &Layers| -> Outcome {
        for (name, (uid, gid)) in all {
            fs::write(layers.lower().join(name), name)?;
            std::os::unix::fs::chown(layers.lower().join(name), Some(uid), Some(gid))?;
        }
        Ok(())
    };
    let pool = format!("pool={}", pools.name);
    // Named, claimed, and served by a process of its own.
    for (base, options) in
        [("named", &[pool.as_str()][..]), ("claimed", &[]), ("own", &[pool.as_str(), "auto_unmount"])]
    {
        let layers = cx.layers(base, 1)?;
        files(&layers)?;
        let mount = pools.mount_with(&layers, options)?;
        for (name, shown) in [
            ("root", (300_000, 300_000)),
            ("web", (300_033, 300_034)),
            ("last", (365_535, 365_535)),
            ("beyond", (65_534, 300_000)),
        ] {
            ensure_eq!(owner(&mount.path(name))?, shown, "{base}: {name}");
        }
        let line = "setpriv --reuid 300000 --regid 300000 --clear-groups touch made root; touch given; chown 300005:300006 given";
        shell::run(shell::bash(line).current_dir(mount.root()))?;
        for (name, held) in [("made", (0, 0)), ("root", (0, 0)), ("given", (5, 6))] {
            ensure_eq!(owner(&layers.upper().join(name))?, held, "{base}: {name} in the upper layer");
        }
    }
    // Who says how owners are to be shown is right.
    let layers = cx.layers("explicit", 1)?;
    files(&layers)?;
    let mount = pools.mount_with(&layers, &[&pool, "uidmapping=0:500000:100"])?;
    ensure_eq!(owner(&mount.path("web"))?, (500_033, 34), "a mapping of its own");
    drop(mount);
    // A mount stays as it is, whoever serves it and whatever the pool has now.
    let layers = cx.layers("stays", 1)?;
    files(&layers)?;
    let mount = pools.mount_with(&layers, &[&pool])?;
    ensure_eq!(owner(&mount.path("root"))?, (300_000, 300_000), "before");
    pools.run("set", &["--uid-range", "none"])?;
    ensure!(pools.show()?["uid_range"].is_null(), "the range stays");
    pools.run("restart", &[])?;
    ensure_eq!(owner(&mount.path("web"))?, (300_033, 300_034), "by a successor");
    drop(mount);
    let layers = cx.layers("without", 1)?;
    files(&layers)?;
    ensure_eq!(owner(&pools.mount_with(&layers, &[&pool])?.path("web"))?, (33, 34), "without a range");
    // Nobody else gets these ids.
    pools.run("set", &["--uid-range", "300000:65536"])?;
    let other = Pools { cx, name: format!("{}-other", pools.name), program: None };
    for (range, fits) in [("365535:1", false), ("1:300000", false), ("300005:5", false), ("365536:1", true)] {
        if fits {
            other.run("create", &["--uid-range", range])?;
            continue;
        }
        let mut command = other.command()?;
        command.args(["pool", "create", &other.name, "--uid-range", range]);
        shell::refused(&mut command, &format!("pool {} has ids of it", pools.name))?;
        ensure_eq!(other.attempt("show", &[])?.status.code(), Some(2), "made with {range}");
    }
    let mut command = other.command()?;
    command.args(["pool", "set", &other.name, "--weight", "5", "--uid-range", "365535:9"]);
    shell::refused(&mut command, &other.name)?;
    let shown = other.show()?;
    ensure!(shown["uid_range"] == "365536:1" && shown["weight"].is_null(), "{shown} has changed");
    Ok(())
}

/// Made once, deleted when nothing is mounted in it any more, and then nothing is left.
fn life(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    pools.run("create", &["--weight", "50"])?;
    let again = pools.attempt("create", &[])?;
    ensure_eq!(again.status.code(), Some(2), "a second pool of that name");
    let groups: Vec<String> = strings(&pools.show()?["control_groups"]);
    ensure!(!groups.is_empty(), "no control groups");
    let layers = cx.layers("l", 1)?;
    let mut mount = pools.mount(&layers, true)?;
    let busy = pools.attempt("delete", &[])?;
    let said = String::from_utf8_lossy(&busy.stderr).into_owned();
    ensure_eq!(busy.status.code(), Some(2), "deleted under a mount");
    ensure!(said.contains(&*mount.root().to_string_lossy()), "{said} does not name the mount");
    ensure!(pools.run("list", &[]).is_err(), "list takes no name");
    let list = shell::run(pools.command()?.args(["pool", "list"]))?;
    ensure!(list.contains(&pools.name), "{list}");
    // A kill leaves the pool as it is, and the mount.
    kill_process(mount.service()?, Signal::KILL)?;
    fs::read_dir(mount.root())?;
    ensure_eq!(pools.show()?["mounts"].as_array().map(Vec::len), Some(1), "mounts after a kill");
    mount.unmount()?;
    // A service ends a moment after its mount.
    eventually("the pool goes", || Ok(pools.run("delete", &[]).is_ok()))?;
    let left = groups.iter().find(|group| Path::new(group).exists());
    ensure!(left.is_none(), "{left:?} is left");
    ensure_eq!(pools.attempt("show", &[])?.status.code(), Some(2), "shown though deleted");
    Ok(())
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|one| one.as_str().map(str::to_owned)).collect()
}

/// A mount that another mount namespace has copied lives on there: whoever unmounts it, mounts its layers or deletes its pool is told
/// where, and the pool is deleted as soon as the copy has gone.
fn elsewhere(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    for pooled in [true, false] {
        pools.run("create", &[])?;
        let layers = cx.layers(if pooled { "pooled" } else { "alone" }, 1)?;
        let mount = pools.mount(&layers, pooled)?;
        let root = mount.root().to_owned();
        let mut holder = Holder(Command::new("unshare").args(["-m", "sleep", "600"]).spawn()?);
        let (own, its) = ("/proc/self/ns/mnt", format!("/proc/{}/ns/mnt", holder.0.id()));
        eventually("a mount namespace", || Ok(fs::read_link(own)? != fs::read_link(&its)?))?;
        let nsenter = format!("nsenter -t {} -m umount {}", holder.0.id(), root.display());
        let unmounted = pools.command()?.arg("umount").arg(&root).output()?;
        let said = String::from_utf8_lossy(&unmounted.stderr).into_owned();
        ensure!(unmounted.status.success() && said.contains(&nsenter), "umount: {said}");
        ensure_eq!(said.lines().count(), 1, "lines of {said}");
        if pooled {
            let deleted = pools.attempt("delete", &[])?;
            let said = String::from_utf8_lossy(&deleted.stderr);
            ensure!(deleted.status.code() == Some(2) && said.contains(&nsenter), "delete: {said}");
        }
        match pools.mount(&layers, pooled) {
            Ok(_) => return fail("two mounts write to one layer"),
            Err(stop) => ensure!(stop.to_string().contains(&nsenter), "mounted again: {stop}"),
        }
        holder.end()?;
        pools.run("delete", &[])?;
        drop(mount);
    }
    Ok(())
}

/// A process that is killed in the end.
struct Holder(std::process::Child);

impl Holder {
    fn end(&mut self) -> Outcome {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// One line that names the cause, exit status 2, and no pool.
fn bad_input(cx: &Cx) -> Outcome {
    let pools = Pools::new(cx)?;
    let missing = cx.dir.join("missing").display().to_string();
    for (arguments, cause) in [
        (&["--cpus", "0"][..], "--cpus 0"),
        (&["--cpus", "0-1"], "--cpuset-cpus"),
        (&["--cpuset-cpus", "x"], "--cpuset-cpus x"),
        (&["--cpuset-cpus", "60000"], "60000"),
        (&["--memory", "12X"], "--memory 12X"),
        (&["--memory", "0"], "--memory 0"),
        (&["--memory", "1M"], "memory 1M"),
        (&["--weight", "0"], "weight 0"),
        (&["--weight", "-1"], "-1"),
        (&["--storage", &missing], &missing),
        (&["--uid-range", "0:65536"], "--uid-range 0:65536"),
        (&["--uid-range", "100000"], "START:COUNT"),
        (&["--uid-range", "4294967290:6"], "--uid-range 4294967290:6"),
        (&["--nothing"], "--nothing"),
    ] {
        shell::refused(pools.command()?.args(["pool", "create", &pools.name]).args(arguments), cause)?;
    }
    for name in ["..", "a/b", ".x", ""] {
        let done = pools.command()?.args(["pool", "create", name]).output()?;
        ensure_eq!(done.status.code(), Some(2), "a pool {name:?}");
    }
    let list = shell::run(pools.command()?.args(["pool", "list", "--json"]))?;
    ensure_eq!(list.trim(), "[]", "pools");
    // A mount in a pool that is not there does not go without one.
    let layers = cx.layers("l", 1)?;
    match pools.mount(&layers, true) {
        Ok(_) => fail("mounted in a pool that does not exist"),
        Err(_) => Ok(()),
    }
}
