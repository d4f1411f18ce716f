//! Files of the upper layer in the hands of programs: what they do with them is what everybody sees through the mount, at once, and
//! nobody gets more than he may have.

mod client;
mod descriptors;
mod directories;
mod forged_marks;
mod hostile;
mod landlock;
mod leases;
mod programs;
mod reopen;
mod unknown_directories;

use super::Case;
use super::library::library;
use super::monitoring::stats_of;
use super::pool::PoolMount;
use crate::harness::mount::Profile;
use crate::harness::outcome::{Outcome, Stop, ensure, ensure_eq, fail};
use crate::harness::{Cx, Rng, rng, shell};
use client::{Program, settled};
use libc::{O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags, statat};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use vellum_ring::Request;
use vellum_ring::files::{ASK_KERNEL, LOOK, OPEN, STALE, TOKEN};

const PASSTHROUGH: Profile = Profile::Passthrough;

pub(super) const CASES: &[Case] = &[
    Case::of(PASSTHROUGH, "direct/seen-by-all", 60, seen_by_all),
    Case::of(PASSTHROUGH, "direct/believed-before", 60, believed_before),
    Case::of(PASSTHROUGH, "direct/refusals", 60, refused),
    Case::of(PASSTHROUGH, "direct/forged-marks", 60, forged_marks::forged),
    Case::of(PASSTHROUGH, "direct/nobody-gains", 60, access_control),
    Case::of(PASSTHROUGH, "direct/as-a-model", 120, as_a_model),
    Case::of(PASSTHROUGH, "direct/directories", 60, directories::directories),
    Case::of(PASSTHROUGH, "direct/unseen", 60, unknown_directories::unseen),
    Case::of(PASSTHROUGH, "direct/killed-service", 60, killed_service),
    Case::of(PASSTHROUGH, "direct/programs", 180, programs::programs),
    Case::of(PASSTHROUGH, "direct/programs-and-kills", 240, programs::programs_and_kills),
    Case::of(PASSTHROUGH, "direct/sharing", 60, programs::sharing),
    Case::of(PASSTHROUGH, "direct/user-namespaces", 60, programs::user_namespaces),
    Case::of(PASSTHROUGH, "direct/filtered", 60, programs::filtered),
    Case::of(PASSTHROUGH, "direct/volatile", 60, programs::volatile),
    Case::of(PASSTHROUGH, "direct/writes", 120, programs::writes),
    Case::of(PASSTHROUGH, "direct/writes-and-kills", 120, programs::writes_and_kills),
    Case::of(PASSTHROUGH, "direct/reopened", 60, reopen::reopened),
    Case::of(PASSTHROUGH, "direct/leases", 60, leases::leases),
    Case::of(PASSTHROUGH, "direct/made-again", 60, descriptors::made_again),
    Case::of(PASSTHROUGH, "direct/running", 60, descriptors::running),
    Case::of(PASSTHROUGH, "direct/mount-options", 60, descriptors::mount_options),
    Case::of(PASSTHROUGH, "direct/takes-nothing", 60, hostile::takes_nothing),
    Case::of(PASSTHROUGH, "direct/without-descriptors", 60, hostile::without_descriptors),
    Case::of(PASSTHROUGH, "direct/set-user-id", 60, hostile::set_user_id),
    Case::of(PASSTHROUGH, "direct/lingering-sockets", 60, hostile::sends_lingering_sockets),
    Case::of(PASSTHROUGH, "direct/started-in-a-domain", 60, landlock::started_in_a_domain),
    Case::of(PASSTHROUGH, "direct/any-handled-right", 60, landlock::any_handled_right),
    Case::of(Profile::Cached, "direct/not-in-cached", 60, not_in_cached),
];

/// After so long all answers have arrived at the kernel, as a rule: [`settled`] waits for longer.
const SETTLED: Duration = Duration::from_millis(20);

/// The kernel forgets whatever nobody has open.
fn forget() -> Outcome {
    fs::write("/proc/sys/vm/drop_caches", "2")?;
    std::thread::sleep(SETTLED);
    Ok(())
}

/// A mount in a pool, with a directory `new`.
struct Ground<'a>(PoolMount<'a>);

impl<'a> std::ops::Deref for Ground<'a> {
    type Target = PoolMount<'a>;

    fn deref(&self) -> &PoolMount<'a> {
        &self.0
    }
}

impl<'a> Ground<'a> {
    fn new(cx: &'a Cx, fill: impl FnOnce(&Path) -> Outcome) -> Outcome<Self> {
        Self::of(PoolMount::new(cx, fill)?)
    }

    fn of(pooled: PoolMount<'a>) -> Outcome<Self> {
        let mount = &pooled.mount;
        fs::create_dir_all(mount.path("new"))?;
        let shown = rustix::fs::setxattr(mount.path("new"), TOKEN, &[0; 16], XattrFlags::empty());
        ensure_eq!(shown, Ok(()), "showing a directory");
        Ok(Self(pooled))
    }

    fn program(&self) -> Outcome<Program> {
        Program::new(&self.socket)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }
}

fn status<T>(status: u32) -> Outcome<T> {
    fail(format!("refused with {status}"))
}

/// A program's changes are seen through the mount, and the mount's by the program, at once.
fn seen_by_all(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    let program = ground.program()?;
    let dir = program.enter(&ground.path("new"))?.or_else(status)?;
    for round in 0..50 {
        let name = format!("f{round}");
        let path = ground.path("new").join(&name);
        let mut file = program.opened(dir, &name, O_CREAT | O_EXCL | O_RDWR, 0o640)?;
        let made = file.metadata()?;
        file.write_all(b"by the program")?;
        let seen = fs::symlink_metadata(&path)?;
        ensure_eq!(seen.len(), 14, "size through the mount");
        ensure_eq!((seen.ino(), seen.mode()), (made.ino(), made.mode()), "number and mode");
        ensure_eq!(seen.permissions().mode() & 0o7777, 0o640, "mode");
        ensure_eq!(fs::read(&path)?, b"by the program", "contents");
        // The kernel has looked now, and must not believe it for long.
        file.write_all(b", and more")?;
        ensure_eq!(fs::symlink_metadata(&path)?.len(), 24, "size afterwards");
        fs::OpenOptions::new().append(true).open(&path)?.write_all(b" by others")?;
        let mut all = String::new();
        file.rewind()?;
        file.read_to_string(&mut all)?;
        ensure_eq!(all, "by the program, and more by others", "what the program reads");
        file.set_len(3)?;
        ensure_eq!(fs::read(&path)?, b"by ", "after a cut");
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        ensure_eq!(fs::metadata(&path)?.mode() & 0o7777, 0o600, "mode afterwards");
        // The directory.
        let mut names: Vec<_> = fs::read_dir(ground.path("new"))?.flatten().map(|e| e.file_name()).collect();
        names.sort_unstable();
        ensure_eq!(names.len(), 1, "{names:?}");
        let own = rustix::fs::fstat(&file)?;
        ensure_eq!(own.st_ino, seen.ino(), "number by descriptor");
        ensure!(
            program.mounts.iter().any(|[shown, device, ..]| (*shown, *device) == (seen.dev(), own.st_dev)),
            "the greeting does not name the mount"
        );
        // Removed by way of the kernel it is gone for the program, too.
        fs::remove_file(&path)?;
        ensure_eq!(program.find(dir, &name)?.err(), Some(libc::ENOENT as u32), "after it was removed");
        ensure_eq!(rustix::fs::fstat(&file)?.st_nlink, 0, "links");
        // Just now names were listed and missed.
        std::thread::sleep(SETTLED);
    }
    Ok(())
}

/// What the kernel believed before a program changed it is not believed afterwards.
fn believed_before(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    let new = ground.path("new");
    fs::write(new.join("old"), "old")?;
    ensure!(!new.join("later").exists(), "nothing is there yet");
    ensure_eq!(fs::read_dir(&new)?.count(), 1, "names");
    let before = fs::metadata(&new)?;
    let reader = fs::File::open(new.join("old"))?;
    let program = ground.program()?;
    let dir = program.enter(&new)?.or_else(status)?;
    // What the kernel was told is not there, it makes itself. From now on it is told no more.
    for _ in 0..2 {
        let later = program.open(dir, "later", O_CREAT | O_WRONLY, 0o644)?;
        ensure_eq!(later.err(), Some(ASK_KERNEL), "a name that it believes not to be there");
    }
    ensure!(!new.join("latest").exists(), "nothing is there yet");
    std::thread::sleep(SETTLED);
    let _latest = program.opened(dir, "latest", O_CREAT | O_WRONLY, 0o644)?;
    ensure!(new.join("latest").exists(), "it was believed not to be there");
    ensure_eq!(fs::read_dir(&new)?.count(), 2, "names afterwards");
    fs::write(new.join("later"), "by the kernel")?;
    let mut text = String::new();
    program.open_existing(dir, "later")?.read_to_string(&mut text)?;
    ensure_eq!(text, "by the kernel", "what the kernel has made, by the program");
    let after = fs::metadata(&new)?;
    let times = [&before, &after].map(|attr| (attr.mtime(), attr.mtime_nsec()));
    ensure!(times[0] < times[1], "the directory's time stays: {times:?}");
    // A file that the kernel has open, and knows the size of.
    let mut old = program.opened(dir, "old", O_WRONLY | O_APPEND, 0)?;
    ensure_eq!(fs::metadata(new.join("old"))?.len(), 3, "size before");
    old.write_all(b" and new")?;
    ensure_eq!(fs::metadata(new.join("old"))?.len(), 11, "size afterwards");
    ensure_eq!(reader.metadata()?.len(), 11, "size by a descriptor");
    let mut read = [0; 32];
    ensure_eq!(reader.read_at(&mut read, 0)?, 11, "bytes by a descriptor");
    let cut = program.opened(dir, "old", O_WRONLY | O_TRUNC, 0)?;
    ensure_eq!(fs::read(new.join("old"))?, b"", "after a cut");
    drop(cut);
    // Once nobody writes any more, the kernel is told what it may believe.
    let asked = |expected: bool, why: &str| -> Outcome {
        let requests = || -> Outcome<u64> {
            let stats = stats_of(&ground.mount)?;
            let of = |name: &str| stats["operations"][name]["count"].as_u64().unwrap_or(0);
            Ok(of("GETATTR") + of("STATX"))
        };
        fs::metadata(new.join("old"))?;
        let before = requests()?;
        for _ in 0..20 {
            fs::metadata(new.join("old"))?;
        }
        let asked = requests()?.saturating_sub(before) >= 20;
        ensure!(asked == expected, "{why}: the kernel asked {} of 20 times", requests()? - before);
        Ok(())
    };
    asked(true, "while it is written")?;
    drop(old);
    drop(reader);
    asked(false, "afterwards")?;
    let mut old = program.opened(dir, "old", O_WRONLY | O_APPEND, 0)?;
    asked(true, "again")?;
    // Renamed and removed by the kernel, it stays the program's file.
    fs::rename(new.join("old"), new.join("older"))?;
    old.write_all(b"still")?;
    ensure_eq!(fs::read(new.join("older"))?, b"still", "after a rename");
    ensure_eq!(program.open(dir, "old", O_WRONLY, 0)?.err(), Some(libc::ENOENT as u32), "the old name");
    // A directory that has moved, and one that has gone.
    fs::rename(&new, ground.path("moved"))?;
    std::thread::sleep(SETTLED);
    let inside = program.opened(dir, "inside", O_CREAT | O_WRONLY, 0o644)?;
    ensure!(ground.path("moved/inside").exists() && !new.exists(), "in the directory that has moved");
    drop(inside);
    fs::remove_dir_all(ground.path("moved"))?;
    ensure_eq!(program.open(dir, "x", O_CREAT | O_WRONLY, 0o644)?.err(), Some(STALE), "in one that has gone");
    Ok(())
}

/// Whatever is not a file of the upper layer goes through the kernel.
fn refused(cx: &Cx) -> Outcome {
    let fill = |lower: &Path| {
        fs::create_dir(lower.join("d"))?;
        fs::write(lower.join("d/lower"), "lower")?;
        fs::write(lower.join("d/gone"), "gone")?;
        Ok(())
    };
    let ground = Ground::new(cx, fill)?;
    let program = ground.program()?;
    ensure_eq!(program.enter(&ground.path("d"))?, Err(ASK_KERNEL), "a directory that is not in the upper");
    fs::remove_file(ground.path("d/gone"))?;
    let outside = cx.dir.join("outside");
    fs::write(&outside, "as it was")?;
    symlink(&outside, ground.path("d/link"))?;
    shell::run(Command::new("mkfifo").arg(ground.path("d/pipe")))?;
    fs::create_dir(ground.path("d/sub"))?;
    fs::write(ground.path("d/set"), "set")?;
    fs::set_permissions(ground.path("d/set"), fs::Permissions::from_mode(0o4755))?;
    std::thread::sleep(SETTLED);
    let dir = program.enter(&ground.path("d"))?.or_else(status)?;
    for name in
        ["lower", "gone", "link", "pipe", "sub", "set", "", ".", "..", "a/b", "../d/x", ".wh.x", "x\0y"]
    {
        for flags in [O_WRONLY, O_CREAT | O_WRONLY, O_CREAT | O_EXCL | O_RDWR, O_RDWR | O_TRUNC, O_RDONLY] {
            let refused = match name {
                "a/b" => LOOK,
                // What has been removed is not there, unless it is to be made. To read is the kernel's.
                "gone" if flags & O_CREAT == 0 && flags != O_RDONLY => libc::ENOENT as u32,
                _ => ASK_KERNEL,
            };
            let open = || program.open(dir, name, flags, 0o644);
            let opened = if refused == ASK_KERNEL { open()? } else { settled(open)? };
            ensure_eq!(opened.err(), Some(refused), "{name:?} {flags:o}");
        }
    }
    for (flags, mode) in
        [(O_CREAT | O_WRONLY, 0o4755), (libc::O_TMPFILE | O_WRONLY, 0o600), (libc::O_PATH, 0), (3, 0)]
    {
        ensure_eq!(program.open(dir, "x", flags, mode)?.err(), Some(ASK_KERNEL), "{flags:o} {mode:o}");
    }
    ensure_eq!(fs::read(&outside)?, b"as it was", "behind a link");
    ensure_eq!(fs::read(ground.path("d/lower"))?, b"lower", "the lower file");
    ensure!(!ground.path("d/gone").exists(), "what was removed is there again");
    // New names beside what is below.
    program.opened(dir, "fresh", O_CREAT | O_EXCL | O_WRONLY, 0o644)?.write_all(b"new")?;
    ensure_eq!(fs::read(ground.path("d/fresh"))?, b"new", "a new file beside lower ones");
    ensure_eq!(fs::read(ground.layers.upper().join("d/fresh"))?, b"new", "in the upper");
    // A file whose attributes are copied up is not whole, and marks of users are no marks.
    fs::set_permissions(ground.path("d/lower"), fs::Permissions::from_mode(0o600))?;
    ensure_eq!(program.open(dir, "lower", O_WRONLY, 0)?.err(), Some(ASK_KERNEL), "attributes alone");
    let forged = program.opened(dir, "forged", O_CREAT | O_EXCL | O_RDWR, 0o644)?;
    forged.set_len(1 << 20)?;
    for name in ["metacopy", "redirect", "whiteout", "opaque"] {
        let name = format!("user.overlay.{name}");
        let value: &[u8] = if name.ends_with("redirect") { b"/d/lower" } else { b"" };
        rustix::fs::fsetxattr(&forged, &*name, value, XattrFlags::empty())?;
    }
    let mut read = vec![1; 1 << 20];
    fs::File::open(ground.path("d/forged"))?.read_exact(&mut read)?;
    ensure!(read.iter().all(|byte| *byte == 0), "a forged mark is believed");
    Ok(())
}

/// Who may not, may not by a ring; and who does not keep to the rules hurts only himself.
fn access_control(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    fs::write(ground.path("new/secret"), "secret")?;
    fs::set_permissions(ground.path("new/secret"), fs::Permissions::from_mode(0o600))?;
    let theirs = ground.path("theirs");
    fs::create_dir(&theirs)?;
    std::os::unix::fs::chown(&theirs, Some(1000), Some(1000))?;
    fs::write(theirs.join("mine"), "mine")?;
    let program = ground.program()?;
    // Numbers by chance open nothing, and a token is good once.
    ensure_eq!(program.enter_by(&[7; 16])?, Err(ASK_KERNEL), "a token by chance");
    ensure_eq!(program.enter_by(b"short")?, Err(ASK_KERNEL), "a short one");
    ensure_eq!(program.reopen_by(&[7; 16], 0)?.err(), Some(ASK_KERNEL), "one by chance for a file");
    rustix::fs::setxattr(ground.path("new"), TOKEN, &[7; 16], XattrFlags::empty())?;
    let dir = program.enter_by(&[7; 16])?.or_else(status)?;
    ensure_eq!(program.enter_by(&[7; 16])?, Err(ASK_KERNEL), "the same again");
    ensure_eq!(program.open(dir + 1, "x", O_CREAT | O_WRONLY, 0)?.err(), Some(STALE), "another's number");
    // Nor is one that somebody else has set, of the same user even: he may not know what he does.
    let others = "import os, sys; os.setxattr(sys.argv[1], 'vellum.token', bytes([8] * 16))";
    for (path, is_dir) in [(ground.path("new"), true), (ground.path("new/secret"), false)] {
        shell::run(Command::new("python3").args(["-c", others]).arg(&path))?;
        let refused =
            if is_dir { program.enter_by(&[8; 16])?.err() } else { program.reopen_by(&[8; 16], 0)?.err() };
        ensure_eq!(refused, Some(ASK_KERNEL), "{}, shown by another process", path.display());
    }
    // What is written to by a right that root has by capability, the kernel alone may judge.
    std::os::unix::fs::chown(theirs.join("mine"), Some(1000), Some(1000))?;
    let reopened = program.reopen(&theirs.join("mine"), 0)?.and_then(Result::err);
    ensure_eq!(reopened, Some(ASK_KERNEL), "another's file, by root");
    std::os::unix::fs::chown(theirs.join("mine"), Some(0), Some(0))?;
    // Root is not more than others here: the kernel knows what it may.
    let theirs_entered = program.enter(&theirs)?.or_else(status)?;
    ensure_eq!(
        program.open(theirs_entered, "x", O_CREAT | O_WRONLY, 0o644)?.err(),
        Some(ASK_KERNEL),
        "by root"
    );
    // A read-only mount of the same shows nothing.
    let bound = cx.dir.join("bound");
    fs::create_dir(&bound)?;
    shell::run(Command::new("mount").arg("--bind").arg(ground.path("new")).arg(&bound))?;
    let read_only = shell::run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&bound));
    let shown = rustix::fs::setxattr(&bound, TOKEN, &[9; 16], XattrFlags::empty());
    shell::run(Command::new("umount").arg(&bound))?;
    read_only?;
    ensure_eq!(shown, Err(rustix::io::Errno::ROFS), "by a read-only mount");
    // Whoever becomes somebody else is served no more.
    std::thread::sleep(SETTLED);
    let outcome = Command::new(std::env::current_exe()?)
        .arg("internal-program")
        .arg(&ground.socket)
        .arg(&theirs)
        .output()?;
    ensure!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    ensure!(!theirs.join("by-old-ring").exists(), "the old ring still works");
    ensure_eq!(fs::metadata(theirs.join("by-ring"))?.uid(), 1000, "owner of what was made");
    // Nonsense in requests, and in the memory.
    let mut rng = Rng::new(rng::seed());
    for _ in 0..2000 {
        let opcode = rng.below(10) as u16;
        let args = std::array::from_fn(|_| if rng.below(2) == 0 { dir } else { rng.below(1 << 33) });
        let len = rng.below(300) as usize;
        let request = Request { opcode, flags: rng.below(4) as u16, args, ..Request::default() };
        let mut named = rng.bytes(len);
        if rng.below(2) == 0 {
            named.iter_mut().for_each(|byte| *byte = b"a/.\0"[usize::from(*byte % 4)]);
        }
        let fine = opcode != OPEN && program.call(request, &named).is_ok();
        ensure!(fine || opcode == OPEN, "the ring has gone");
    }
    ensure!(program.memory().region().is_some(), "the memory is there");
    ensure_eq!(fs::read(ground.path("new/secret"))?, b"secret", "others' files");
    Ok(())
}

/// What the process does that [`access_control`] starts: the socket, and a directory of user 1000.
pub(crate) fn program(args: &[String]) -> ExitCode {
    let [_, socket, dir] = args else { return ExitCode::FAILURE };
    match as_program(Path::new(socket), Path::new(dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            eprintln!("{stop}");
            ExitCode::FAILURE
        }
    }
}

/// A program of user 1000, and then of nobody.
fn as_program(socket: &Path, dir: &Path) -> Outcome {
    let become_id = |uid: u32, gid: u32| -> Outcome {
        rustix::thread::set_thread_groups(&[])?;
        let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        // The saved one stays root's, to come back.
        Ok(rustix::thread::set_thread_res_uid(uid, uid, rustix::process::Uid::ROOT)?)
    };
    // Both by descriptors: the way there is root's alone.
    let by_descriptor = |path: &Path| -> Outcome<(OwnedFd, PathBuf)> {
        let held = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        Ok((held, path))
    };
    let ((_socket, socket), (_dir, dir)) = (by_descriptor(socket)?, by_descriptor(dir)?);
    become_id(1000, 1000)?;
    let program = Program::new(&socket)?;
    let entered = program.enter(&dir)?.or_else(status)?;
    let mut made = program.opened(entered, "by-ring", O_CREAT | O_EXCL | O_WRONLY, 0o644)?;
    made.write_all(b"by user 1000")?;
    ensure_eq!(program.open(entered, "mine", O_WRONLY, 0)?.err(), Some(ASK_KERNEL), "root's file");
    ensure!(program.reopen(&dir.join("mine"), 0)?.is_none(), "root's file, shown to the kernel");
    // Back to root for a moment, as only root can become nobody.
    rustix::thread::set_thread_res_uid(
        rustix::process::Uid::ROOT,
        rustix::process::Uid::ROOT,
        rustix::process::Uid::ROOT,
    )?;
    become_id(65_534, 65_534)?;
    for _ in 0..3 {
        let gone = program.open(entered, "by-old-ring", O_CREAT | O_EXCL | O_WRONLY, 0o644);
        let served = gone.as_ref().is_ok_and(|answered| answered.as_ref().err() != Some(&ASK_KERNEL));
        ensure!(!served, "a program that is somebody else is served: {gone:?}");
    }
    Ok(())
}

/// Random operations by the ring and through the mount, against a plain map.
fn as_a_model(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    let new = ground.path("new");
    let mut rng = Rng::new(rng::seed());
    let program = ground.program()?;
    let dir = program.enter(&new)?.or_else(status)?;
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut by_ring = 0;
    for step in 0..4000 {
        let name = format!("n{}", rng.below(24));
        let path = new.join(&name);
        let what = format!("step {step}, {name}");
        let is_there = model.contains_key(&name);
        match rng.below(10) {
            0..4 => {
                let flags = [
                    O_CREAT | O_WRONLY,
                    O_CREAT | O_WRONLY | O_TRUNC,
                    O_WRONLY | O_APPEND,
                    O_CREAT | O_EXCL | O_RDWR,
                ];
                let flags = flags[rng.below(4) as usize];
                let len = rng.below(300) as usize;
                let data = rng.bytes(len);
                match program.open(dir, &name, flags, 0o644)? {
                    Ok(mut file) => {
                        by_ring += 1;
                        ensure!(is_there || flags & O_CREAT != 0, "{what}: nothing was there");
                        ensure!(!is_there || flags & O_EXCL == 0, "{what}: it was there");
                        let now = model.entry(name.clone()).or_default();
                        if flags & O_TRUNC != 0 {
                            now.clear();
                        }
                        file.write_all(&data)?;
                        let begin = if flags & O_APPEND != 0 { now.len() } else { 0 };
                        now.resize(now.len().max(begin + data.len()), 0);
                        now[begin..begin + data.len()].copy_from_slice(&data);
                    }
                    Err(refused) => {
                        let absent = refused == libc::ENOENT as u32 && !is_there;
                        ensure!(absent || refused == ASK_KERNEL, "{what}: {refused}");
                    }
                }
            }
            4 => match program.find(dir, &name)? {
                Ok(file) => {
                    let size = file.metadata()?.len();
                    ensure_eq!(model.get(&name).map(|data| data.len() as u64), Some(size), "{what}")
                }
                Err(refused) => ensure!(refused > 4096 || !is_there, "{what}: {refused}"),
            },
            5 => {
                let seen = fs::symlink_metadata(&path).ok().map(|attr| attr.len());
                ensure_eq!(seen, model.get(&name).map(|data| data.len() as u64), "{what}: size alone");
            }
            6 => {
                let len = rng.below(300) as usize;
                let data = rng.bytes(len);
                fs::write(&path, &data)?;
                model.insert(name, data);
            }
            7 => ensure_eq!(fs::remove_file(&path).is_ok(), model.remove(&name).is_some(), "{what}"),
            8 => {
                let seen = fs::symlink_metadata(&path).ok().map(|attr| attr.len());
                ensure_eq!(seen, model.get(&name).map(|data| data.len() as u64), "{what}: size");
                ensure_eq!(fs::read(&path).ok(), model.get(&name).cloned(), "{what}: contents");
            }
            _ => {
                let to = format!("n{}", rng.below(24));
                ensure_eq!(fs::rename(&path, new.join(&to)).is_ok(), is_there, "{what}: renamed");
                if let Some(data) = model.remove(&name) {
                    model.insert(to, data);
                }
            }
        }
        if step % 500 == 499 {
            // What was missed and listed a while ago is nobody's any more.
            std::thread::sleep(SETTLED);
            let names: Vec<_> = fs::read_dir(&new)?.flatten().map(|e| e.file_name()).collect();
            ensure_eq!(names.len(), model.len(), "names");
            std::thread::sleep(SETTLED);
        }
    }
    ensure!(by_ring > 500, "only {by_ring} operations went by the ring");
    drop(program);
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&new)?.flatten() {
        found.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
    }
    ensure!(found == model, "contents differ at the end");
    Ok(())
}

/// Where the kernel has pages of its own of every file, nothing is handed out, and programs with the library do the same.
fn not_in_cached(cx: &Cx) -> Outcome {
    const SCRIPT: &str = r#"
        set -e; cd "$D"; umask 022; cp -r /etc/default tree; rm -f gone; echo again > gone; ln -s gone link
        for n in $(seq 1 60); do echo $n > f$n; done; for n in $(seq 1 2 60); do rm f$n; mkdir f$n; done
        chmod 600 gone; touch -d @1000000000 f2; echo more >> f4; find . | sort; cat f2 f4 gone; stat -c %a gone; stat -c %Y f2
    "#;
    let pooled = PoolMount::new(cx, |lower| Ok(fs::write(lower.join("gone"), "gone")?))?;
    let path = |name| pooled.mount.path(name);
    fs::create_dir(path("new"))?;
    let shown = rustix::fs::setxattr(path("new"), TOKEN, &[0; 16], XattrFlags::empty());
    ensure_eq!(shown, Err(rustix::io::Errno::OPNOTSUPP), "showing a directory");
    ensure!(Program::new(&pooled.socket).is_err(), "a ring where nothing is handed out");
    let [here, there] = [path("d"), cx.dir.join("plain")];
    let mut said = Vec::new();
    for dir in [&here, &there] {
        fs::create_dir(dir)?;
        fs::write(dir.join("gone"), "gone")?;
        let mut command = Command::new("bash");
        pooled.preload(&mut command, &library()?);
        said.push(shell::run(command.args(["-c", SCRIPT]).env("D", dir).env("VELLUM_RING", "on"))?);
    }
    ensure_eq!(said[0], said[1], "what programs say");
    ensure!(said[0].lines().count() > 60, "they say little: {}", said[0]);
    Ok(())
}

/// A ring ends with its service, the descriptors stay, and the next service gives another.
fn killed_service(cx: &Cx) -> Outcome {
    let ground = Ground::new(cx, |_| Ok(()))?;
    let new = ground.path("new");
    let program = ground.program()?;
    let dir = program.enter(&new)?.or_else(status)?;
    let mut file = program.opened(dir, "kept", O_CREAT | O_RDWR, 0o644)?;
    file.write_all(b"before")?;
    kill_process(ground.mount.service()?, Signal::KILL)?;
    file.write_all(b" and after")?;
    ensure_eq!(fs::read(new.join("kept"))?, b"before and after", "through the mount");
    ensure_eq!(file.metadata()?.len(), 16, "size");
    let kept = statat(CWD, new.join("kept"), AtFlags::SYMLINK_NOFOLLOW)?;
    file.write_all(b"!")?;
    let now = statat(CWD, new.join("kept"), AtFlags::SYMLINK_NOFOLLOW)?;
    ensure_eq!((kept.st_size, now.st_size), (16, 17), "the successor knows who writes");
    std::thread::sleep(SETTLED);
    let next = Program::new(&ground.pools.session_socket()?)?;
    let dir = next.enter(&new)?.or_else(status)?;
    next.opened(dir, "next", O_CREAT | O_EXCL | O_WRONLY, 0o644)?.write_all(b"next")?;
    ensure_eq!(fs::read(new.join("next"))?, b"next", "by the next ring");
    let flags = OFlags::RDONLY;
    ensure!(rustix::fs::open(new.join("next"), flags, Mode::empty()).is_ok(), "open");
    Ok::<(), Stop>(())
}
