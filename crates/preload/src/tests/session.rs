//! One session after another, and what programs do to them.

use super::service::{REQUESTS, RINGS, SET, Service};
use super::{SOCKET, TOKENS, UNION};
use crate::fds::service_fds;
use crate::session;
use crate::shim::attributes::STAT_LEN;
use crate::shim::hook_macros::{errno, set_errno};
use crate::shim::hooks::{self, attributes, identity, open_create, stat};
use crate::shim::raw::AT_FDCWD;
use crate::shim::{detach, process};
use crate::stats::{self, CallPath, Kind};
use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use vellum_ring::files::{FOLLOW, SET_ACCESSED, SET_GROUP, SET_MODE};

const CREATE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;

type Fxstat = unsafe extern "C" fn(i32, i32, *mut [u64; STAT_LEN]) -> i32;
type FxstatAt = unsafe extern "C" fn(i32, i32, *const libc::c_char, *mut [u64; STAT_LEN], i32) -> i32;

struct Ground {
    _kept: [tempfile::TempDir; 2],
    union: PathBuf,
    upper: PathBuf,
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn open(path: &Path, flags: i32, mode: u32) -> i32 {
    // SAFETY: a string.
    unsafe { open_create::open(c(path).as_ptr(), flags, mode) }
}

fn close(fd: i32) -> i32 {
    // SAFETY: a number.
    unsafe { hooks::close(fd) }
}

/// The socket of the first session.
fn first() -> i32 {
    let [first, ..] = session::sockets();
    first
}

fn make(path: &Path) {
    let fd = open(path, CREATE, 0o644);
    assert!(fd >= 0, "{}: {}", path.display(), errno());
    assert_eq!(close(fd), 0);
}

fn counts(kind: Kind) -> [u64; 5] {
    stats::calls()[kind as usize]
}

fn by(kind: Kind, by: CallPath) -> u64 {
    counts(kind)[by as usize]
}

impl Ground {
    fn new() -> Option<Self> {
        let shm = tempfile::tempdir_in("/dev/shm").ok()?;
        let other = tempfile::tempdir().ok()?;
        let device = fs::metadata(shm.path()).ok()?.dev();
        if libc::major(device) != 0 || device == fs::metadata(other.path()).ok()?.dev() {
            return None;
        }
        let (union, upper) = (shm.path().join("union"), other.path().join("upper"));
        for dir in [&union, &upper] {
            fs::create_dir_all(dir.join("sub")).ok()?;
        }
        UNION.set(device).ok()?;
        let path = other.path().join("socket");
        let listener = UnixListener::bind(&path).ok()?;
        SOCKET.set(Box::leak(c(&path).into_boxed_c_str())).ok()?;
        let service = Service { union: union.clone(), upper: upper.clone() };
        std::thread::spawn(move || service.run(listener));
        process::begin();
        identity::begin();
        stats::start();
        Some(Self { _kept: [shm, other], union, upper })
    }

    /// Makes files until there is a session; how many.
    fn warm(&self) -> u32 {
        for n in 0..1000 {
            if crate::fds::session_fds::is_live() {
                return n;
            }
            let path = self.union.join(format!("warm-{n}"));
            make(&path);
            let _ = fs::remove_file(path);
            let _ = fs::remove_file(self.upper.join(format!("warm-{n}")));
        }
        panic!("there is no session");
    }
}

#[test]
fn a_program_and_a_service() {
    let Some(ground) = Ground::new() else {
        return eprintln!("SKIPPED: /dev/shm and the directory for temporary files must be two filesystems");
    };
    assert!(process::is_on());
    begins(&ground);
    opens(&ground);
    directories(&ground);
    left_to_the_service(&ground);
    not_served(&ground);
    stale(&ground);
    the_sockets_number(&ground);
    further(&ground);
    children(&ground);
    others(&ground);
    away(&ground);
    gone(&ground);
}

fn begins(ground: &Ground) {
    let elsewhere = tempfile::tempdir().unwrap();
    (0..20).for_each(|n| make(&elsewhere.path().join(n.to_string())));
    assert!(!crate::fds::session_fds::is_live(), "a session for files elsewhere");
    assert_eq!(ground.warm(), 4);
    assert_eq!(RINGS.load(SeqCst), 1);
    assert!(first() >= 40, "{}", first());
}

fn opens(ground: &Ground) {
    let before = by(Kind::Open, CallPath::Ring);
    let (here, there) = (ground.upper.join("a"), ground.union.join("a"));
    // SAFETY: a number.
    let mask = unsafe { identity::umask(0o027) };
    let fd = open(&there, CREATE, 0o666);
    // SAFETY: a number.
    assert_eq!(unsafe { identity::umask(mask) }, 0o027);
    assert!(fd >= 0 && here.exists() && !there.exists());
    assert_eq!(fs::metadata(&here).unwrap().permissions().mode() & 0o777, 0o640);
    // SAFETY: a number.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
    // SAFETY: a few bytes.
    assert_eq!(unsafe { libc::write(fd, c"text".as_ptr().cast(), 4) }, 4);
    assert!(service_fds::mount_of(fd).is_some() && service_fds::mount_of(first()).is_none());
    let mut shown = [0; STAT_LEN];
    // SAFETY: room for an answer.
    assert_eq!(unsafe { stat::fstat(fd, &raw mut shown) }, 0);
    let (union, file) = (fs::metadata(&ground.union).unwrap(), fs::metadata(&here).unwrap());
    assert_eq!(shown[..2], [union.dev(), file.ino()]);
    for at in [stat::fstatat, stat::fstatat64] {
        let mut shown = [0; STAT_LEN];
        // SAFETY: a string and room for an answer.
        assert_eq!(unsafe { at(fd, c"".as_ptr(), &raw mut shown, libc::AT_EMPTY_PATH) }, 0);
        assert_eq!(shown[..2], [union.dev(), file.ino()]);
        // SAFETY: a string and room for an answer, of what is not handed out.
        assert_eq!(unsafe { at(AT_FDCWD, c(&here).as_ptr(), &raw mut shown, 0) }, 0);
        assert_eq!(shown[..2], [file.dev(), file.ino()]);
    }
    let version = i32::from(cfg!(target_arch = "x86_64"));
    for (of, at) in
        [(stat::__fxstat as Fxstat, stat::__fxstatat as FxstatAt), (stat::__fxstat64, stat::__fxstatat64)]
    {
        let mut shown = [[0; STAT_LEN]; 2];
        let [one, two] = &mut shown;
        // SAFETY: a string and room for answers.
        let done = unsafe { [of(version, fd, one), at(version, fd, c"".as_ptr(), two, libc::AT_EMPTY_PATH)] };
        assert_eq!(done, [0, 0]);
        assert!(shown.iter().all(|shown| shown[..2] == [union.dev(), file.ino()]));
    }
    let mut shown = crate::shim::attributes::Statx::default();
    // SAFETY: a string and room for an answer.
    let done = unsafe { stat::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, 0x7ff, (&raw mut shown).cast()) };
    assert_eq!((done, shown.device(), shown.size), (0, union.dev(), 4));
    assert_eq!(close(fd), 0);
    // Without the flag it stays open on exec.
    let fd = open(&there, libc::O_RDWR, 0);
    // SAFETY: a number.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, 0);
    assert!(service_fds::mount_of(fd).is_some());
    assert_eq!(close(fd), 0);
    assert_eq!(by(Kind::Open, CallPath::Ring), before + 2);
    // To read, it is the kernel's.
    fs::write(ground.union.join("sub/k"), "").unwrap();
    let fd = open(&ground.union.join("sub/k"), libc::O_RDONLY, 0);
    assert!(fd >= 0 && service_fds::mount_of(fd).is_none());
    assert_eq!(close(fd), 0);
    // Errors are the service's.
    assert_eq!(open(&there, CREATE, 0o666), -1);
    assert_eq!(errno(), libc::EEXIST);
    // Beneath a directory's descriptor.
    let dir = open(&ground.union, libc::O_RDONLY | libc::O_DIRECTORY, 0);
    // SAFETY: strings.
    let fd = unsafe { open_create::openat(dir, c"b".as_ptr(), CREATE, 0o600) };
    assert!(fd >= 0 && ground.upper.join("b").exists());
    assert_eq!((close(fd), close(dir)), (0, 0));
    // SAFETY: strings.
    let fd = unsafe { open_create::creat64(c(&ground.union.join("sub/c")).as_ptr(), 0o600) };
    assert!(fd >= 0 && ground.upper.join("sub/c").exists());
    assert_eq!(close(fd), 0);
    // What is no string is the kernel's to refuse.
    for nowhere in [0usize, 8, usize::MAX - 100] {
        // SAFETY: nothing is mapped there.
        assert_eq!(unsafe { open_create::open(nowhere as *const _, CREATE, 0) }, -1);
        assert_eq!(errno(), libc::EFAULT);
    }
}

fn directories(ground: &Ground) {
    // SAFETY: strings.
    let mkdir = |name: &str| unsafe { open_create::mkdir(c(&ground.union.join(name)).as_ptr(), 0o7777) };
    let mode = |name| fs::metadata(ground.upper.join(name)).unwrap().permissions().mode() & 0o7777;
    // SAFETY: numbers.
    let mask = unsafe { identity::umask(0o027) };
    let (made, tokens) = (by(Kind::MakeDir, CallPath::Ring), TOKENS.lock().unwrap().len());
    assert_eq!((mkdir("dir"), mkdir("dir/a//"), mkdir("dir/a/b")), (0, 0, 0));
    assert_eq!(mode("dir/a"), 0o1750);
    make(&ground.union.join("dir/a/b/file"));
    assert!(ground.upper.join("dir/a/b/file").exists());
    assert_eq!((mkdir("dir/a"), errno()), (-1, libc::EEXIST));
    // All that without showing anything to the kernel.
    assert_eq!((by(Kind::MakeDir, CallPath::Ring), TOKENS.lock().unwrap().len()), (made + 4, tokens));
    let at =
        rustix::fs::open(&ground.union, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    // SAFETY: strings.
    assert_eq!(unsafe { open_create::mkdirat(at.as_raw_fd(), c"dir/c".as_ptr(), 0o700) }, 0);
    assert!(ground.upper.join("dir/c").is_dir());
    for name in ["ask-dir", "look-dir", "dir/."] {
        let _ = mkdir(name);
        assert!(!ground.upper.join(name).exists() || name == "dir/.");
    }
    assert!(ground.union.join("ask-dir").is_dir() && ground.union.join("look-dir").is_dir());
    // SAFETY: numbers, and no string.
    unsafe {
        identity::umask(mask);
        assert_eq!((open_create::mkdir(std::ptr::null(), 0o700), errno()), (-1, libc::EFAULT));
    }
}

/// What is in directories that were made here the service is asked by their paths, until it says that the kernel knows them.
fn left_to_the_service(ground: &Ground) {
    let path = |name: &str| c(&ground.union.join(name));
    // SAFETY: strings.
    let mkdir = |name: &str| unsafe { open_create::mkdir(path(name).as_ptr(), 0o755) };
    assert_eq!((mkdir("tree"), mkdir("tree/a")), (0, 0));
    // SAFETY: strings.
    unsafe {
        assert_eq!(open_create::symlink(c"where it leads".as_ptr(), path("tree/a/link").as_ptr()), 0);
        assert_eq!(attributes::chmod(path("tree").as_ptr(), 0o755), 0);
        assert_eq!(attributes::lchown(path("tree/a/link").as_ptr(), u32::MAX, 7), 0);
        let times = [[1, 2], [3, 0x3fff_fffe]];
        assert_eq!(attributes::utimensat(AT_FDCWD, path("tree/a").as_ptr(), &raw const times, 0), 0);
    }
    assert_eq!(fs::read_link(ground.upper.join("tree/a/link")).unwrap().as_os_str(), "where it leads");
    let expected: [(&str, [u64; 4]); 3] = [
        ("tree", [SET_MODE | FOLLOW | 0o755 << 32, 0, 0, 0]),
        ("tree/a/link", [SET_GROUP, u64::from(u32::MAX) | 7 << 32, 0, 0]),
        ("tree/a", [SET_ACCESSED | FOLLOW, 0, 1_000_000_002, 0]),
    ];
    let set = std::mem::take(&mut *SET.lock().unwrap());
    let set = set.iter().map(|(name, args)| (&**name, <[u64; 4]>::try_from(&args[1..]).unwrap()));
    assert!(set.eq(expected));
    // By the kernel: what is in no such directory, what is no path, and what is not known to be asked for.
    // SAFETY: strings, or nothing.
    unsafe {
        assert_eq!((attributes::chmod(std::ptr::null(), 0), errno()), (-1, libc::EFAULT));
        assert_eq!(attributes::fchmodat(AT_FDCWD, path("tree").as_ptr(), 0o711, 1 << 30), -1);
        assert_eq!(attributes::chmod(c(&ground.union.join("dir/c")).as_ptr(), 0o711), 0);
    }
    assert!(SET.lock().unwrap().len() <= 1);
    // The service has heard of it from the kernel: it is asked about the directory alone, and then the kernel.
    let looked = by(Kind::MakeDir, CallPath::Look);
    assert_eq!(mkdir("tree/look-b"), 0);
    assert!(ground.union.join("tree/look-b").is_dir() && !ground.upper.join("tree/look-b").exists());
    assert_eq!(by(Kind::MakeDir, CallPath::Look), looked + 1);
    make(&ground.union.join("tree/file"));
    assert!(ground.upper.join("tree/file").exists());
}

fn not_served(ground: &Ground) {
    let (asked, looked) = (by(Kind::Open, CallPath::Asked), by(Kind::Open, CallPath::Look));
    make(&ground.union.join("ask-1"));
    assert!(ground.union.join("ask-1").exists());
    // The kernel knows no such name: it is to say what it is.
    make(&ground.union.join("look-1"));
    assert!(ground.union.join("look-1").exists());
    assert_eq!((by(Kind::Open, CallPath::Asked), by(Kind::Open, CallPath::Look)), (asked + 1, looked + 1));
    // It knows one, on the same mount: the service is asked again.
    fs::write(ground.union.join("look-2"), "").unwrap();
    make(&ground.union.join("look-2"));
    assert!(ground.upper.join("look-2").exists());
    let requests = REQUESTS.load(SeqCst);
    for name in [".wh.x", "sub/", "sub/."] {
        assert_eq!(open(&ground.union.join("x").with_file_name(name), libc::O_RDWR | libc::O_DIRECT, 0), -1);
    }
    let fd = open(&ground.union, libc::O_TMPFILE | libc::O_RDWR, 0o600);
    assert!(fd >= 0 && close(fd) == 0);
    assert_eq!(REQUESTS.load(SeqCst), requests);
}

fn stale(ground: &Ground) {
    let before = by(Kind::Open, CallPath::Ring);
    make(&ground.union.join("stale-1"));
    assert!(ground.upper.join("stale-1").exists());
    assert_eq!(by(Kind::Open, CallPath::Ring), before + 1);
}

fn the_sockets_number(ground: &Ground) {
    let socket = first();
    set_errno(0);
    assert_eq!((close(socket), errno()), (-1, libc::EBADF));
    assert!(crate::fds::session_fds::is_live());
    // SAFETY: numbers that nobody uses, but for one.
    assert_eq!(unsafe { hooks::close_range(socket as u32 - 1, socket as u32 + 1, 0) }, 0);
    make(&ground.union.join("kept"));
    assert!(ground.upper.join("kept").exists());
    // SAFETY: a number that nobody knows of.
    assert_eq!(unsafe { hooks::dup2(0, socket) }, socket);
    assert!(!crate::fds::session_fds::is_live());
    assert_eq!(ground.warm(), 4);
    assert_ne!(first(), socket);
    assert_eq!(close(socket), 0);
    // While a call is under way the number cannot be had.
    let hold = session::SessionGuard::take().unwrap();
    // SAFETY: a number that the program does not know of.
    assert_eq!(unsafe { hooks::dup2(0, first()) }, -1);
    assert_eq!(errno(), libc::EBUSY);
    let busy = by(Kind::Open, CallPath::Busy);
    make(&ground.union.join("busy"));
    assert!(ground.union.join("busy").exists() && by(Kind::Open, CallPath::Busy) == busy + 1);
    drop(hold);
    // It was to end.
    assert!(!crate::fds::session_fds::is_live());
    assert_eq!(ground.warm(), 4);
}

/// Calls that find the first session in use.
fn further(ground: &Ground) {
    let others = || session::sockets()[1..].to_vec();
    let (rings, busy, made) =
        (RINGS.load(SeqCst), by(Kind::Open, CallPath::Busy), by(Kind::Open, CallPath::Ring));
    let hold = session::SessionGuard::take().unwrap();
    // One has found it in use before.
    for n in 2..32 {
        make(&ground.union.join(format!("further-{n}")));
    }
    assert_eq!((RINGS.load(SeqCst), by(Kind::Open, CallPath::Busy)), (rings, busy + 30));
    make(&ground.union.join("further-32"));
    make(&ground.union.join("further-33"));
    assert_eq!((RINGS.load(SeqCst), by(Kind::Open, CallPath::Ring)), (rings + 1, made + 2));
    let [second, rest @ ..] = &others()[..] else { panic!() };
    assert!(*second > 0 && rest.iter().all(|socket| *socket == -1));
    // Both numbers are hidden, and neither is in the way.
    let (low, high) = (first().min(*second), first().max(*second));
    // SAFETY: numbers that nobody uses, but for those two.
    assert_eq!(unsafe { hooks::close_range(low as u32 - 1, high as u32 + 1, 0) }, 0);
    assert_eq!((close(low), close(high)), (-1, -1));
    make(&ground.union.join("further-34"));
    assert!(ground.upper.join("further-34").exists());
    drop(hold);
    // SAFETY: a number that nobody knows of.
    assert_eq!(unsafe { hooks::dup2(0, *second) }, *second);
    assert_eq!((close(*second), others()[0]), (0, -1));
    assert!(crate::fds::session_fds::is_live(), "the first one has ended, too");
    // Once more, and a child has neither.
    let hold = session::SessionGuard::take().unwrap();
    for n in 40..73 {
        make(&ground.union.join(format!("further-{n}")));
    }
    assert!(others()[0] > 0);
    drop(hold);
    // SAFETY: the child ends.
    let child = unsafe { hooks::fork() };
    if child == 0 {
        // SAFETY: it ends here.
        unsafe { libc::_exit(i32::from(crate::fds::session_fds::is_live())) };
    }
    let mut status = -1;
    // SAFETY: the child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn children(ground: &Ground) {
    let socket = first();
    for is_in_a_call in [false, true] {
        let hold = is_in_a_call.then(|| session::SessionGuard::take().unwrap());
        // SAFETY: the child makes system calls, and ends.
        let child = unsafe { hooks::fork() };
        if child == 0 {
            // SAFETY: numbers.
            let is_closed = unsafe { libc::fcntl(socket, libc::F_GETFD) } == -1;
            let is_over = !crate::fds::session_fds::is_live();
            drop(hold);
            let path = c(&ground.union.join("child"));
            // SAFETY: a string.
            let fd = unsafe { open_create::open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o600) };
            // SAFETY: it ends here.
            unsafe {
                libc::_exit(i32::from(
                    !(is_closed && is_over && fd >= 0 && service_fds::mount_of(fd).is_none()),
                ))
            };
        }
        let mut status = -1;
        // SAFETY: the child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(hold);
        assert!(crate::fds::session_fds::is_live());
        make(&ground.union.join("parent"));
        fs::remove_file(ground.upper.join("parent")).unwrap();
    }
}

fn others(ground: &Ground) {
    let rings = RINGS.load(SeqCst);
    // SAFETY: what it is already.
    assert_eq!(unsafe { identity::setuid(libc::getuid()) }, 0);
    assert!(!crate::fds::session_fds::is_live());
    assert_eq!(ground.warm(), 4);
    assert_eq!(RINGS.load(SeqCst), rings + 1);
}

/// The library goes away for a checkpoint: nothing of the service's is left, and it comes back as if it had just begun.
fn away(ground: &Ground) {
    let rings = RINGS.load(SeqCst);
    let hold = session::SessionGuard::take().unwrap();
    assert_eq!(detach::leave(60), 1, "a call is under way");
    drop(hold);
    // The service of this test is in this very process, and has files open for a moment.
    while detach::leave(60) != 0 {
        std::thread::yield_now();
    }
    assert!(!crate::fds::session_fds::is_live() && !session::is_any() && !service_fds::any());
    (0..100).for_each(|n| make(&ground.union.join(format!("away-{n}"))));
    assert!(ground.union.join("away-99").exists() && RINGS.load(SeqCst) == rings);
    session::detach_state::reattach();
    assert_eq!(ground.warm(), 4);
    assert!(RINGS.load(SeqCst) == rings + 1 && service_fds::any());
}

fn gone(ground: &Ground) {
    // SAFETY: a string.
    assert_eq!(unsafe { open_create::mkdir(c(&ground.union.join("gone-dir")).as_ptr(), 0o700) }, 0);
    assert!(!crate::fds::session_fds::is_live());
    // Again, but later than at first.
    assert_eq!(ground.warm(), 64);
    let gone = by(Kind::Open, CallPath::Gone);
    let path = ground.union.join("gone-1");
    let fd = open(&path, CREATE, 0o600);
    assert!(fd >= 0, "it had been made, and is told to exist");
    assert_eq!(close(fd), 0);
    assert!(!crate::fds::session_fds::is_live() && by(Kind::Open, CallPath::Gone) == gone + 1);
    assert_eq!(fs::read(&path).unwrap(), b"made");
    // After twice as many calls each time.
    assert_eq!(ground.warm(), 128);
}
