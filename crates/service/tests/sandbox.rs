//! What a service could do that somebody has taken over: a process enters the very sandbox of the service, and tries.
//!
//! There is no test harness, for the sandbox is entered by a process with one thread. The parent makes the directories and starts
//! itself once for each plan; the children enter and try.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../sys/tests/support/file_handle.rs"]
mod file_handle;

use file_handle::FileHandle;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode as Bits, OFlags, XattrFlags, mkdirat, openat, renameat, symlinkat, unlinkat,
};
use rustix::mount::{MountFlags, OpenTreeFlags, UnmountFlags};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::fmt::{Debug, Display};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use vellum_service::sandbox::{ActiveSandbox, Mode, Plan, Roots, enter};
use vellum_sys::{Real, Sys};

/// An ordinary user.
const USER: u32 = 1000;

const PLANS: [&str; 7] = ["cached", "passthrough", "read-only", "cluster", "nofiles", "later", "warn"];

/// Those that have rules about files.
const WITH_FILES: [&str; 4] = ["cached", "passthrough", "read-only", "cluster"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [child, plan, dir] = arguments.as_slice()
        && child == "--child"
    {
        return tried(plan, Path::new(dir));
    }
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: what root's service gives up; run as root");
    }
    let mut good = true;
    for plan in PLANS {
        good &= one(plan, false);
        if root {
            good &= one(plan, true);
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one plan in a process of its own; `as_user`: as an ordinary user.
fn one(plan: &str, as_user: bool) -> bool {
    // Not in the home directory, which the user may not enter.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = dir.path().join("tries");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for name in ["lower", "upper", "work", "outside"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("file"), name).unwrap();
        if as_user {
            for path in [dir.path().join(name), dir.path().join(name).join("file")] {
                std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
            }
        }
    }
    if rustix::process::geteuid().is_root() && !as_user {
        let closed = dir.path().join("lower/closed");
        fs::write(&closed, "closed").unwrap();
        std::os::unix::fs::chown(&closed, Some(USER), Some(USER)).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o0)).unwrap();
        rustix::fs::setxattr(&closed, "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    }
    fs::write(dir.path().join("key"), "key").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(program);
    command.args(["--child", plan]).arg(dir.path());
    if as_user {
        command.uid(USER).gid(USER);
    }
    let mut good = command.status().unwrap().success();
    if WITH_FILES.contains(&plan) {
        // Whatever the child says, nothing outside has changed.
        let outside = fs::read_dir(dir.path().join("outside")).unwrap().count();
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        good &= outside == 1 && text("outside/file") == "outside" && text("lower/file") == "lower";
    }
    let who = if as_user { "an ordinary user" } else { "whoever runs this" };
    println!("test {plan}, as {who} ... {}", if good { "ok" } else { "FAILED" });
    good
}

/// What went another way than it should.
#[derive(Default)]
struct Verdict(usize);

impl Verdict {
    fn refused<T: Debug, E: Display>(&mut self, what: &str, outcome: Result<T, E>) {
        if let Ok(got) = outcome {
            eprintln!("    NOT refused: {what}: {got:?}");
            self.0 += 1;
        }
    }

    fn works<T, E: Display>(&mut self, what: &str, outcome: Result<T, E>) -> Option<T> {
        outcome
            .inspect_err(|e| {
                eprintln!("    does NOT work: {what}: {e}");
                self.0 += 1;
            })
            .ok()
    }

    fn is(&mut self, what: &str, holds: bool) {
        if !holds {
            eprintln!("    is NOT so: {what}");
            self.0 += 1;
        }
    }

    fn exit(&self) -> ExitCode {
        if self.0 == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// What is opened before, as the service has it open.
struct Before {
    lower: OwnedFd,
    upper: OwnedFd,
    work: OwnedFd,
    /// A handle of a file outside, and its filesystem.
    handle: Option<(FileHandle, OwnedFd)>,
    namespace: File,
    /// Where somebody listens.
    address: SocketAddr,
    _listener: TcpListener,
    _daemon: UnixListener,
}

impl Before {
    fn open(dir: &Path) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |name: &str| rustix::fs::open(dir.join(name), flags, Bits::empty()).unwrap();
        // As the service opens lower layers, where it may.
        let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let lower = rustix::mount::open_tree(CWD, dir.join("lower"), copy).unwrap_or_else(|_| open("lower"));
        let handle = FileHandle::lookup(open("outside").as_fd(), c"file").ok();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let filesystem = rustix::fs::open(dir, OFlags::RDONLY, Bits::empty()).unwrap();
        Self {
            lower,
            upper: open("upper"),
            work: open("work"),
            handle: handle.map(|handle| (handle, filesystem)),
            namespace: File::open("/proc/self/ns/ipc").unwrap(),
            address: listener.local_addr().unwrap(),
            _listener: listener,
            _daemon: UnixListener::bind(dir.join("upper/socket")).unwrap(),
        }
    }

    fn roots(&self, writable: bool) -> Roots {
        let [lower, upper, work] = [&self.lower, &self.upper, &self.work].map(|fd| fd.try_clone().unwrap());
        if writable {
            Roots { read_only: vec![lower], writable: vec![upper, work] }
        } else {
            Roots { read_only: vec![lower, upper], writable: Vec::new() }
        }
    }
}

fn tried(plan: &str, dir: &Path) -> ExitCode {
    let before = Before::open(dir);
    let writable = plan != "read-only";
    let root = rustix::process::geteuid().is_root();
    let entered = enter(&Plan {
        mode: match plan {
            "warn" => Mode::Warn,
            "nofiles" => Mode::NoFiles,
            _ => Mode::On,
        },
        roots: (plan != "later").then(|| before.roots(writable)),
        passthrough: plan == "passthrough",
        writable,
        keep_awake: false,
        cache: false,
        ceph: (plan == "cluster").then(|| vec![dir.join("key")]),
        zoned: false,
    });
    let mut verdict = Verdict::default();
    if plan == "warn" {
        verdict.works("a program, where nothing is refused", Command::new("/bin/true").status());
        return verdict.exit();
    }
    let has_files = in_force(&mut verdict, &entered, "files") && WITH_FILES.contains(&plan);
    in_force(&mut verdict, &entered, "capabilities");
    if in_force(&mut verdict, &entered, "calls") {
        calls(&mut verdict, dir, &before, plan);
    }
    capabilities(&mut verdict, root);
    if has_files {
        files_outside(&mut verdict, dir, root);
        lower_is_only_read(&mut verdict, dir, &before);
        verdict.refused("changing a client's key", fs::write(dir.join("key"), "another"));
    }
    serving(&mut verdict, &before);
    if writable {
        upper_is_written(&mut verdict, dir, &before, root);
    } else if has_files {
        verdict.refused("a file in an upper that is only read", File::create(dir.join("upper/new")));
    }
    verdict.exit()
}

/// Whether a part is in force; a kernel without it is no failure, but said.
fn in_force(verdict: &mut Verdict, entered: &ActiveSandbox, part: &str) -> bool {
    let what = entered.parts.get(part).map_or("missing", String::as_str);
    let missing = what.starts_with("not in force: the kernel has no");
    if missing {
        println!("    SKIPPED: {part}: {what}");
    } else {
        verdict
            .is(&format!("{part} in force: {what}"), !what.starts_with("not in force") && what != "missing");
    }
    !missing
}

fn calls(verdict: &mut Verdict, dir: &Path, before: &Before, plan: &str) {
    verdict.refused("a program", Command::new("/bin/true").status());
    let upper = dir.join("upper");
    verdict.refused("a mount", rustix::mount::mount("x", &upper, "tmpfs", MountFlags::empty(), None));
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    verdict.refused("a copy of a mount", rustix::mount::open_tree(CWD, "/", copy));
    verdict.refused("an unmount", rustix::mount::unmount("/proc", UnmountFlags::DETACH));
    verdict.refused("tracing the first process", nix::sys::ptrace::attach(nix::unistd::Pid::from_raw(1)));
    let parent = rustix::process::getppid().unwrap();
    let traced = nix::unistd::Pid::from_raw(parent.as_raw_nonzero().get());
    let seized = nix::sys::ptrace::seize(traced, nix::sys::ptrace::Options::empty());
    verdict.refused("tracing the parent", seized);
    verdict.refused("a signal to another process", rustix::process::test_kill_process(parent));
    if plan == "cluster" {
        verdict.works("TCP to a cluster", TcpStream::connect(before.address));
        verdict.works("the client's key", fs::read(dir.join("key")));
    } else {
        verdict.refused("TCP", TcpStream::connect(before.address));
    }
    verdict.refused("hearing datagrams", UdpSocket::bind("127.0.0.1:0"));
    verdict.refused("listening", TcpListener::bind("127.0.0.1:0"));
    verdict.refused("a daemon's socket", UnixStream::connect(dir.join("upper/socket")));
    verdict.refused("a new socket", UnixDatagram::unbound());
    verdict.refused("a module", rustix::system::init_module(b"\x7fELF", c""));
    verdict.refused("a new namespace of users", unshare(CloneFlags::CLONE_NEWUSER));
    verdict.refused("a new namespace of mounts", unshare(CloneFlags::CLONE_NEWNS));
    let moved = rustix::thread::move_into_link_name_space(before.namespace.as_fd(), None);
    verdict.refused("another namespace", moved);
    verdict.refused("another root", rustix::process::chroot(&upper));
    let user = rustix::process::Uid::from_raw(USER + 1);
    verdict.refused("another user", rustix::thread::set_thread_uid(user));
    let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::empty());
    // What a pool's service keeps for its successor; it can be read, and not be run.
    if !matches!(plan, "later" | "cluster") {
        verdict.refused("a file in memory", memory);
    }
    if let Some((handle, filesystem)) = &before.handle {
        let opened = handle.open(filesystem.as_fd(), OFlags::RDONLY);
        verdict.refused("a file by its handle", opened);
    }
}

fn capabilities(verdict: &mut Verdict, root: bool) {
    let all = CapabilitySets {
        effective: CapabilitySet::all(),
        permitted: CapabilitySet::all(),
        inheritable: CapabilitySet::all(),
    };
    verdict.refused("all capabilities", rustix::thread::set_capabilities(None, all));
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let never = CapabilitySet::SYS_PTRACE
        | CapabilitySet::SYS_RESOURCE
        | CapabilitySet::SYS_MODULE
        | CapabilitySet::SYS_RAWIO
        | CapabilitySet::SETUID
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::KILL
        | CapabilitySet::SYS_CHROOT;
    let forbidden = if root { never.bits() } else { u64::MAX };
    for name in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:", "CapBnd:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim();
        let set = u64::from_str_radix(line, 16).unwrap_or(u64::MAX);
        // An ordinary user cannot narrow the bounding set.
        verdict.is(&format!("{name} {line}"), set & forbidden == 0 || (name == "CapBnd:" && !root));
    }
    verdict.is("no new privileges", status.contains("NoNewPrivs:\t1"));
}

fn files_outside(verdict: &mut Verdict, dir: &Path, root: bool) {
    let (file, new) = (dir.join("outside/file"), dir.join("outside/new"));
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero();
    for process in ["1".to_owned(), parent.to_string()] {
        for name in ["environ", "mem", "maps", "root/etc/passwd", "cwd/file"] {
            let path = format!("/proc/{process}/{name}");
            verdict.refused(&path, File::open(&path));
        }
    }
    for path in ["/etc/passwd", "/etc/shadow"] {
        verdict.refused(path, File::open(path));
    }
    verdict.refused("a directory outside", fs::read_dir("/etc"));
    verdict.refused("reading outside", File::open(&file));
    let link = |from: &Path, to: &Path| rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty());
    let to_write = |path: &Path| File::options().write(true).open(path);
    verdict.refused("writing outside", to_write(&file));
    verdict.refused("writing past a layer", to_write(&dir.join("upper/../outside/file")));
    verdict.refused("truncating outside", File::options().write(true).truncate(true).open(&file));
    verdict.refused("a new file outside", File::create(&new));
    verdict.refused("a new directory outside", mkdirat(CWD, &new, Bits::RWXU));
    verdict.refused("a symbolic link outside", symlinkat("file", CWD, &new));
    verdict.refused("a hard link of a file outside", link(&file, &dir.join("upper/stolen")));
    verdict.refused("a hard link to the outside", link(&dir.join("upper/file"), &new));
    verdict.refused("moving to the outside", renameat(CWD, dir.join("upper/file"), CWD, &new));
    verdict.refused("moving in from the outside", renameat(CWD, &file, CWD, dir.join("upper/stolen")));
    verdict.refused("removing outside", unlinkat(CWD, &file, AtFlags::empty()));
    // A link in a layer leads nowhere else.
    if symlinkat(&file, CWD, dir.join("upper/way-out")).is_ok() {
        verdict.refused("through a link in a layer", File::open(dir.join("upper/way-out")));
    }
    for kind in [FileType::BlockDevice, FileType::CharacterDevice] {
        let made = rustix::fs::mknodat(CWD, &new, kind, Bits::RUSR, rustix::fs::makedev(8, 0));
        verdict.refused("a device outside", made);
    }
    for path in ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/profiling", "/dev/kmsg"]
    {
        if root && Path::new(path).exists() {
            verdict.refused(path, to_write(Path::new(path)));
        }
    }
}

fn lower_is_only_read(verdict: &mut Verdict, dir: &Path, before: &Before) {
    let ways = [("its copy", before.lower.as_fd(), PathBuf::new()), ("its path", CWD, dir.join("lower"))];
    for (way, at, within) in ways {
        let write = openat(at, within.join("file"), OFlags::WRONLY, Bits::empty());
        verdict.refused(&format!("writing to a lower by {way}"), write);
        let made = openat(at, within.join("new"), OFlags::CREATE | OFlags::WRONLY, Bits::RUSR);
        verdict.refused(&format!("a new file in a lower by {way}"), made);
        let removed = unlinkat(at, within.join("file"), AtFlags::empty());
        verdict.refused(&format!("removing from a lower by {way}"), removed);
    }
}

/// What any mount needs while it serves.
fn serving(verdict: &mut Verdict, before: &Before) {
    let mut text = String::new();
    let file = openat(&before.lower, "file", OFlags::RDONLY, Bits::empty()).map(File::from);
    if let Some(mut file) = verdict.works("a file of a lower", file) {
        verdict.works("reading it", file.read_to_string(&mut text));
    }
    verdict.is("its text", text == "lower");
    let held = openat(&before.lower, "file", OFlags::PATH, Bits::empty());
    if let Some(held) = verdict.works("holding a file", held) {
        verdict.works("opening what is held", Real.reopen(held.as_fd(), OFlags::RDONLY));
    }
    let listed = openat(&before.lower, ".", OFlags::RDONLY | OFlags::DIRECTORY, Bits::empty());
    verdict.works("listing a lower", listed);
    if rustix::process::geteuid().is_root() {
        let closed = openat(&before.lower, "closed", OFlags::RDONLY | OFlags::NOATIME, Bits::empty());
        if let Some(closed) = verdict.works("a file of another without any rights", closed) {
            let mark = rustix::fs::fgetxattr(closed, "trusted.overlay.opaque", &mut [0; 8]);
            verdict.works("a mark in a lower", mark);
        }
    }
    verdict.works("attributes of a lower", Real.stat_at(before.lower.as_fd(), c"file"));
    let thread = std::thread::Builder::new().name("other".into()).spawn(|| {
        let state = File::open("/proc/thread-self/stat").is_ok();
        state && Command::new("/bin/true").status().is_err()
    });
    if let Some(thread) = verdict.works("a thread", thread) {
        let confined = thread.join().unwrap_or(false);
        verdict.is("a thread is as confined as the one that started it", confined);
    }
    verdict.works("/dev/null", File::options().read(true).write(true).open("/dev/null"));
    if Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root() {
        verdict.works("another descriptor of FUSE", vellum_sys::fuse_dev::open());
    }
    let parent = rustix::process::getppid().unwrap();
    let opened = rustix::process::pidfd_open(parent, rustix::process::PidfdFlags::empty());
    if let Some(opened) = verdict.works("another process", opened) {
        let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", opened.as_raw_fd()));
        verdict.is("what a client is", info.is_ok_and(|info| info.contains("NSpid:")));
    }
    verdict.is("memory", vec![1_u8; 64 << 20].iter().all(|byte| *byte == 1));
    std::thread::sleep(std::time::Duration::from_millis(1));
}

fn upper_is_written(verdict: &mut Verdict, dir: &Path, before: &Before, root: bool) {
    let own = Bits::RUSR | Bits::WUSR;
    let file = openat(&before.work, "new", OFlags::CREATE | OFlags::RDWR, own).map(File::from);
    if let Some(mut file) = verdict.works("a file in the work directory", file) {
        verdict.works("writing to it", file.write_all(b"text"));
        verdict.works("shortening it", file.set_len(1));
        verdict.works("making it durable", file.sync_all());
        verdict.works("its mode", Real.set_mode(file.as_fd(), 0o640));
        verdict.works("its times", file.set_modified(std::time::SystemTime::UNIX_EPOCH));
    }
    let moved = renameat(&before.work, "new", &before.upper, "new");
    verdict.works("from the work directory to the upper", moved);
    let linked = rustix::fs::linkat(&before.upper, "new", &before.work, "linked", AtFlags::empty());
    verdict.works("a hard link from one to the other", linked);
    let unnamed = openat(&before.work, ".", OFlags::TMPFILE | OFlags::RDWR, own);
    if let Some(unnamed) = verdict.works("a file without a name", unnamed) {
        let named = Real.link_fd(unnamed.as_fd(), before.upper.as_fd(), c"named");
        verdict.works("a name for it", named);
    }
    verdict.works("a directory", mkdirat(&before.upper, "dir", Bits::RWXU));
    verdict.works("moving it", renameat(&before.upper, "dir", &before.work, "dir"));
    verdict.works("removing it", unlinkat(&before.work, "dir", AtFlags::REMOVEDIR));
    verdict.works("a symbolic link", symlinkat("x", &before.upper, "symlink"));
    let node = |name: &str, kind, device| rustix::fs::mknodat(&before.upper, name, kind, Bits::RUSR, device);
    verdict.works("a fifo", node("fifo", FileType::Fifo, 0));
    verdict.works("a whiteout", node("whiteout", FileType::CharacterDevice, 0));
    let new = dir.join("upper/new");
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(&new, name, value, XattrFlags::empty());
    verdict.works("an attribute", set("user.x", b"y"));
    if !root {
        return;
    }
    verdict.works("a mark", set("trusted.overlay.opaque", b"y"));
    verdict.works("another label", set("security.vellum", b"y"));
    let other = Some(rustix::fs::Uid::from_raw(USER));
    let owned = rustix::fs::chownat(&before.upper, "new", other, None, AtFlags::empty());
    verdict.works("an owner", owned);
    let mode = |bits| Real.set_mode_at(before.upper.as_fd(), c"new", bits);
    verdict.works("the mode of another's file", mode(0o0));
    verdict.works("a file without any rights", File::options().write(true).open(&new));
    // cap_net_raw, permitted and effective.
    let raw = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    verdict.works("capabilities of a file", set("security.capability", &raw));
    let null = rustix::fs::makedev(1, 3);
    verdict.works("a device", node("null", FileType::CharacterDevice, null));
    let group = rustix::fs::chownat(
        &before.upper,
        "new",
        None,
        Some(rustix::fs::Gid::from_raw(USER)),
        AtFlags::empty(),
    );
    verdict.works("a group", group);
    verdict.works("a set-group-id bit", mode(0o2755));
    let kept = fs::metadata(&new).is_ok_and(|meta| meta.permissions().mode() & 0o2000 != 0);
    verdict.is("the bit of a group that is not ours", kept);
}
