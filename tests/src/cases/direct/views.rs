//! Directories that programs look at themselves: what they see there is what everybody sees, at every moment, and it is all that they
//! get.

use super::client::{Program, View};
use super::{Ground, SETTLED, forget, status};
use crate::cases::library::library;
use crate::harness::outcome::{Outcome, Stop, ensure, ensure_eq, fail, skip};
use crate::harness::{Cx, Rng, rng, shell};
use libc::{O_CREAT, O_EXCL, O_WRONLY};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, StatVfsMountFlags, fstatvfs, mknodat, openat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use vellum_ring::files::{ASK_KERNEL, KNOWN_MAX, LOOK, SET_MODE, name_hash};

/// Debian's, which everybody may run.
const PYTHON: &str = "/usr/bin/python3";

fn make(program: &Program, dir: u64, name: &str) -> Outcome {
    program.open(dir, name, O_CREAT | O_EXCL | O_WRONLY, 0o640)?.or_else(status)?.write_all(b"by ring")?;
    Ok(())
}

fn holds(program: &Program, view: &View) -> Outcome<bool> {
    let now = program.word(view)?;
    ensure!(now % 2 == 0, "something is under way");
    Ok(now >> 32 == view.word >> 32)
}

/// What is seen, how long that holds, and what cannot be done with it.
pub(super) fn views(cx: &Cx) -> Outcome {
    let fill = |lower: &Path| {
        ["merged", "later"].iter().try_for_each(|name| fs::create_dir(lower.join(name)))?;
        ["a", "b", "c", "merged/f", "later/f"]
            .iter()
            .try_for_each(|name| fs::write(lower.join(name), "below"))?;
        Ok(())
    };
    if !Path::new(PYTHON).exists() || !shell::have("unshare") {
        return skip("python3 or unshare is missing: run make deps");
    }
    let ground = Ground::new(cx, fill)?;
    let program = ground.program()?;
    let there = ground.path("new/v");
    fs::create_dir(&there)?;
    let dir = program.enter(&there)?.or_else(status)?;
    std::thread::sleep(SETTLED);
    ["f", "g"].iter().try_for_each(|name| make(&program, dir, name))?;
    program.make_link(dir, "l", "f")?.or_else(status)?;
    let view = match program.view(dir)? {
        Ok(view) => view,
        Err(ASK_KERNEL) if !has_clones_of_clones()? => return skip("this kernel makes no such mounts"),
        Err(refused) => return status(refused),
    };
    let seen: Vec<_> = ["f", "g", "l"].map(|name| statat(&view.dir, name, AtFlags::SYMLINK_NOFOLLOW)).into();
    ensure!(holds(&program, &view)?, "it does not hold for what has not been looked for");
    for (name, seen) in ["f", "g", "l"].iter().zip(seen) {
        let (seen, shown) = (seen?, fs::symlink_metadata(there.join(name))?);
        ensure_eq!(
            (seen.st_ino, seen.st_mode, seen.st_uid, seen.st_size as u64, seen.st_mtime),
            (shown.ino(), shown.mode(), shown.uid(), shown.size(), shown.mtime()),
            "{name}"
        );
        ensure!(!holds(&program, &view)?, "it holds for a name that the kernel knows");
    }
    nothing_else(&view)?;
    changes(&ground, &program, dir)?;
    known(&ground, &program, dir)?;
    ring_changes(&program, dir)?;
    not_plain(&ground, &program)?;
    // A successor does not know what is in the directory, and takes back what its predecessor has said.
    forget()?;
    let view = program.view(dir)?.or_else(status)?;
    kill_process(ground.mount.service()?, Signal::KILL)?;
    fs::symlink_metadata(there.join("g"))?;
    ensure!(!holds(&program, &view)?, "it holds after a kill, when the kernel knows a name");
    forget()?;
    let next = ground.program()?;
    let dir = next.enter(&there)?.or_else(status)?;
    ensure_eq!(next.view(dir)?.err(), Some(ASK_KERNEL), "of a directory that a predecessor has made");
    let own = ground.path("new/own");
    fs::create_dir(&own)?;
    let dir = next.enter(&own)?.or_else(status)?;
    let view = next.view(dir)?.or_else(status)?;
    fs::write(own.join("f"), "")?;
    ensure!(
        !holds(&next, &view)?,
        "that of a successor's own directory holds for a name that the kernel knows"
    );
    Ok(())
}

/// Whether the kernel makes mounts of mounts that are not in the tree: from Linux 6.15 on.
fn has_clones_of_clones() -> Outcome<bool> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    Ok((numbers.next(), numbers.next()) >= (Some(6), Some(15)))
}

/// It can only be read, and nothing is above it.
fn nothing_else(view: &View) -> Outcome {
    let dir = &view.dir;
    let made = openat(dir, "x", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU);
    ensure_eq!(made.err(), Some(Errno::ROFS), "making a file");
    ensure_eq!(openat(dir, "f", OFlags::WRONLY, Mode::empty()).err(), Some(Errno::ROFS), "writing to one");
    ensure_eq!(unlinkat(dir, "f", AtFlags::empty()), Err(Errno::ROFS), "removing one");
    let (here, above) = (statat(dir, ".", AtFlags::empty())?, statat(dir, "../..", AtFlags::empty())?);
    ensure_eq!((here.st_dev, here.st_ino), (above.st_dev, above.st_ino), "what is above it");
    let flags = fstatvfs(openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?)?.f_flag;
    let all = StatVfsMountFlags::RDONLY
        | StatVfsMountFlags::NOSUID
        | StatVfsMountFlags::NODEV
        | StatVfsMountFlags::NOEXEC;
    ensure!(flags.contains(all), "its flags are {flags:?}");
    // Nor can who may change mounts, in a user namespace of his own.
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--mount",
        "bash",
        "-c",
        "exec 9<&0 </dev/null; exec \"$@\"",
        "bash",
    ]);
    command.args([PYTHON, "-c", COMMANDER]);
    ensure_eq!(
        shell::run(command.stdin(dir.try_clone()?))?,
        "22 22 22\n",
        "what the kernel says to changes of it"
    );
    Ok(())
}

/// Tries to make the mount at descriptor 9 writable, to put it somewhere, and to make another one of it.
const COMMANDER: &str = r#"
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    return 0 if libc.syscall(*words) >= 0 else ctypes.get_errno()
AT_EMPTY_PATH, RESTRICTIONS = 0x1000, 0xf
print(call(442, 9, b"", AT_EMPTY_PATH, struct.pack("QQQQ", 0, RESTRICTIONS, 0, 0), 32),
      call(429, 9, b"", -100, b"/tmp", 4),
      call(428, 9, b"", AT_EMPTY_PATH | 1))
"#;

/// What the kernel does in the directory is told.
fn changes(ground: &Ground<'_>, program: &Program, dir: u64) -> Outcome {
    let (new, v) = (ground.path("new"), ground.path("new/v"));
    fs::create_dir(new.join("w"))?;
    ["r", "s", "t"].iter().try_for_each(|name| fs::write(new.join("w").join(name), "x"))?;
    type Change<'a> = (&'a str, &'a dyn Fn() -> std::io::Result<()>);
    let all: [Change<'_>; 9] = [
        ("a lookup", &|| fs::symlink_metadata(v.join("f")).map(drop)),
        ("a file", &|| fs::write(v.join("k1"), "")),
        ("a directory", &|| fs::create_dir(v.join("k2"))),
        ("a link", &|| symlink("x", v.join("k3"))),
        ("another name", &|| fs::hard_link(new.join("w/r"), v.join("k4"))),
        ("a move", &|| fs::rename(new.join("w/s"), v.join("k5"))),
        ("an exchange", &|| {
            Ok(renameat_with(CWD, new.join("w/t"), CWD, v.join("g"), RenameFlags::EXCHANGE)?)
        }),
        ("a list", &|| fs::read_dir(&v)?.try_for_each(|entry| entry?.metadata().map(drop))),
        ("a removal", &|| fs::remove_file(v.join("k1"))),
    ];
    for (what, act) in all {
        forget()?;
        let view = program.view(dir)?.or_else(status)?;
        ensure!(holds(program, &view)?, "it does not hold before {what}");
        act()?;
        ensure!(!holds(program, &view)?, "it holds after {what}");
    }
    forget()
}

/// The names that the kernel knows are said, if they are not too many.
fn known(ground: &Ground<'_>, program: &Program, dir: u64) -> Outcome {
    let v = ground.path("new/v");
    for n in 0..=KNOWN_MAX {
        make(program, dir, &format!("o{n}"))?;
    }
    forget()?;
    let mut last = program.view(dir)?.or_else(status)?;
    ensure_eq!(last.known.len(), 0, "names that nobody has looked for");
    // So that the kernel does not forget them, whatever else is going on.
    let mut held = Vec::new();
    for n in 0..=KNOWN_MAX {
        let name = format!("o{n}");
        held.push(rustix::fs::open(v.join(&name), OFlags::PATH, Mode::empty())?);
        ensure!(!holds(program, &last)?, "it holds after a look at {name}");
        match program.view(dir)? {
            Err(LOOK) if n == KNOWN_MAX => {}
            Ok(view) if n < KNOWN_MAX => {
                ensure_eq!(view.known.len(), n + 1, "known names");
                ensure!(view.known.contains(&name_hash(name.as_bytes())), "{name} is not among them");
                last = view;
            }
            other => return fail(format!("with {} names: {:?}", n + 1, other.err())),
        }
    }
    drop(held);
    forget()
}

/// What programs make is noticed by who has looked meanwhile, and ends nothing.
fn ring_changes(program: &Program, dir: u64) -> Outcome {
    let view = program.view(dir)?.or_else(status)?;
    let mut last = program.word(&view)?;
    let mut changed = |what: &str| -> Outcome {
        ensure!(holds(program, &view)?, "{what} ends a view");
        let now = program.word(&view)?;
        ensure!(now > last, "{what} is not noticed");
        last = now;
        Ok(())
    };
    make(program, dir, "m1")?;
    changed("a file")?;
    program.make_dir(dir, "m2", 0o755)?.or_else(status)?;
    changed("a directory")?;
    program.make_link(dir, "m3", "x")?.or_else(status)?;
    changed("a link")?;
    program.set(dir, "m1", (SET_MODE, 0o600), [0; 2], [0; 2])?.or_else(status)?;
    changed("a mode")?;
    ensure_eq!(program.open(dir, "m1", O_CREAT | O_EXCL | O_WRONLY, 0o600)?.is_err(), true, "made twice");
    ensure!(holds(program, &view)?, "what fails ends a view");
    ensure!(
        program.word(&program.view(dir)?.or_else(status)?)? >> 32 == view.word >> 32,
        "another view ends it"
    );
    Ok(())
}

/// Directories where more than the upper layer says what is in them.
fn not_plain(ground: &Ground<'_>, program: &Program) -> Outcome {
    let is_refused = |path: &Path, what: &str| -> Outcome {
        fs::write(path.join("made"), "")?;
        let dir = program.enter(path)?.or_else(status)?;
        forget()?;
        ensure_eq!(program.view(dir)?.err(), Some(ASK_KERNEL), "{what}");
        Ok(())
    };
    is_refused(&ground.path(""), "the root")?;
    is_refused(&ground.path("merged"), "a merged directory")?;
    type Fill<'a> = (&'a str, &'a dyn Fn(&Path) -> std::io::Result<()>);
    let fills: [Fill<'_>; 5] = [
        ("copied-up", &|dir| fs::rename(ground.path("a"), dir.join("a"))),
        ("linked", &|dir| fs::hard_link(ground.path("b"), dir.join("b"))),
        ("exchanged", &|dir| {
            fs::write(dir.join("c"), "new")?;
            Ok(renameat_with(CWD, ground.path("c"), CWD, dir.join("c"), RenameFlags::EXCHANGE)?)
        }),
        ("device", &|dir| Ok(mknodat(CWD, dir.join("null"), FileType::CharacterDevice, Mode::RUSR, 0)?)),
        ("whiteout-like", &|dir| fs::write(dir.join(".wh.x"), "")),
    ];
    for (name, fill) in fills {
        let dir = ground.path("new").join(name);
        fs::create_dir(&dir)?;
        fill(&dir)?;
        is_refused(&dir, name)?;
        // Nor when it is in another place, or that has gone again.
        let moved = ground.path("new").join(format!("{name}-moved"));
        fs::rename(&dir, &moved)?;
        is_refused(&moved, name)?;
    }
    // Numbers of directories that were made and removed say nothing of one that is copied up and gets such a number.
    for n in 0..64 {
        fs::create_dir(ground.path("new").join(format!("short-{n}")))?;
    }
    (0..64).try_for_each(|n| fs::remove_dir(ground.path("new").join(format!("short-{n}"))))?;
    forget()?;
    fs::set_permissions(ground.path("later"), fs::Permissions::from_mode(0o700))?;
    let to = ground.path("new/from-below");
    fs::create_dir(&to)?;
    fs::rename(ground.path("later/f"), to.join("f"))?;
    is_refused(&to, "a file from a directory that was copied up")?;
    // What is moved from there takes it along.
    let (from, to) = (ground.path("new/copied-up-moved"), ground.path("new/further"));
    fs::create_dir(&to)?;
    fs::rename(from.join("a"), to.join("a"))?;
    is_refused(&to, "a file from there")
}

/// Looks names up when it is told to, by the library, and says what it has found; makes and removes files when it is told to.
const LOOKER: &str = r#"
import os, sys
d = sys.argv[1]
names = [f"{d}/n{i}" for i in range(8)]
def look(path):
    try: s = os.lstat(path)
    except FileNotFoundError: return "-"
    return f"{s.st_mode:o}:{s.st_size}:{s.st_uid}"
for line in sys.stdin:
    what, *rest = line.split()
    if what == "look":
        all = {" ".join(map(look, names)) for _ in range(12)}
        print(*all, sep=" / ", flush=True)
    elif what == "make":
        fd = os.open(rest[0], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640); os.write(fd, b"x" * int(rest[1])); os.close(fd)
        print(flush=True)
    elif what == "remove":
        os.unlink(rest[0]); print(flush=True)
"#;

struct Looker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Looker {
    fn new(ground: &Ground<'_>, dir: &Path) -> Outcome<Self> {
        let mut command = Command::new(PYTHON);
        command
            .args(["-c", LOOKER])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ground.preload(&mut command, &library()?);
        let mut child = command.env("VELLUM_REPORT", "1").spawn()?;
        let missing = || Stop::Fail("no pipe".into());
        let to = child.stdin.take().ok_or_else(missing)?;
        let from = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Self { child, to, from })
    }

    fn ask(&mut self, line: &str) -> Outcome<String> {
        writeln!(self.to, "{line}")?;
        let mut answer = String::new();
        self.from.read_line(&mut answer)?;
        ensure!(answer.ends_with('\n'), "the looker has ended");
        Ok(answer.trim_end().to_owned())
    }

    /// Lookups in views, by its report.
    fn end(self) -> Outcome<u64> {
        let Self { child, to, from } = self;
        drop((to, from));
        let report = String::from_utf8_lossy(&child.wait_with_output()?.stderr).into_owned();
        let line = report.lines().find_map(|line| line.strip_prefix("vellum: stats in views: "));
        line.and_then(|number| number.parse().ok()).ok_or(Stop::Fail(report))
    }
}

/// A mount with a directory of its own for programs that look at it.
fn watched(cx: &Cx) -> Outcome<(Ground<'_>, PathBuf)> {
    if !Path::new(PYTHON).exists() {
        return skip("python3 is missing: run make deps");
    }
    if !has_clones_of_clones()? {
        return skip("this kernel makes no mounts of mounts that are not in the tree");
    }
    let ground = Ground::new(cx, |_| Ok(()))?;
    let dir = ground.path("new/d");
    fs::create_dir(&dir)?;
    Ok((ground, dir))
}

/// A program that looks names up again and again, while everybody changes them, and mounts over them.
pub(super) fn views_as_a_model(cx: &Cx) -> Outcome {
    let (ground, dir) = watched(cx)?;
    let over = cx.dir.join("over");
    fs::write(&over, "mounted over")?;
    let mut looker = Looker::new(&ground, &dir)?;
    let mut random = Rng::new(rng::seed());
    // Sizes and modes of what is there, and what is mounted over.
    let mut all: [Option<(usize, u32)>; 8] = [None; 8];
    let mut mounted: Option<usize> = None;
    let name = |n: usize| dir.join(format!("n{n}"));
    for step in 0..400 {
        let n = random.below(8) as usize;
        let path = name(n);
        // Often, for then there is a view.
        if random.below(2) == 0 {
            forget()?;
            looker.ask("look")?;
            looker.ask("look")?;
        }
        let what = random.below(9);
        match (what, all[n]) {
            _ if mounted == Some(n) => {}
            (0 | 1, _) => {
                looker.ask(&format!("make {} {step}", path.display()))?;
                all[n] = Some((step, all[n].map_or(0o640, |(_, mode)| mode)));
            }
            (2, Some(_)) => {
                looker.ask(&format!("remove {}", path.display()))?;
                all[n] = None;
            }
            (3, _) => {
                fs::write(&path, "y".repeat(step))?;
                all[n] = Some((step, all[n].map_or(0o644, |(_, mode)| mode)));
            }
            (4, Some((size, _))) => {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
                all[n] = Some((size, 0o600));
            }
            (5, Some(_)) => {
                let other = random.below(8) as usize;
                if mounted != Some(other) && other != n {
                    fs::rename(&path, name(other))?;
                    all[other] = all[n].take();
                }
            }
            (6, Some(_)) if mounted.is_none() => {
                shell::run(Command::new("mount").arg("--bind").args([&over, &path]))?;
                mounted = Some(n);
            }
            _ => {}
        }
        if what == 7
            && let Some(n) = mounted.take()
        {
            shell::run(Command::new("umount").arg(name(n)))?;
        }
        let expected: Vec<String> = (0..8)
            .map(|n| match all[n] {
                _ if mounted == Some(n) => "100644:12:0".into(),
                Some((size, mode)) => format!("{:o}:{size}:0", 0o100_000 | mode),
                None => "-".into(),
            })
            .collect();
        ensure_eq!(looker.ask("look")?, expected.join(" "), "step {step}, after {what} of n{n}");
    }
    if let Some(n) = mounted {
        shell::run(Command::new("umount").arg(name(n)))?;
    }
    let viewed = looker.end()?;
    ensure!(viewed > 1_000, "only {viewed} lookups in views");
    Ok(())
}

/// Makes and removes files without end.
const MAKER: &str = r#"
import os, sys
while True:
    for i in range(8):
        os.close(os.open(f"{sys.argv[1]}/n{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    for i in range(8): os.unlink(f"{sys.argv[1]}/n{i}")
"#;

/// A file that another program is just making is not there, or is whole.
pub(super) fn views_of_makers(cx: &Cx) -> Outcome {
    let (ground, dir) = watched(cx)?;
    std::os::unix::fs::chown(&dir, Some(1000), Some(1000))?;
    let mut maker = Command::new("setpriv");
    maker.args(["--reuid=1000", "--regid=1000", "--clear-groups", PYTHON, "-c", MAKER]).arg(&dir);
    ground.preload(&mut maker, &library()?);
    // A container has the socket mounted where its programs reach it.
    let around =
        ground.socket.ancestors().nth(2).ok_or_else(|| Stop::Fail("the socket is nowhere".into()))?;
    fs::set_permissions(around, fs::Permissions::from_mode(0o711))?;
    let mut maker = maker.spawn()?;
    let mut looker = Looker::new(&ground, &dir)?;
    let looked = (0..3_000).try_for_each(|_| {
        let seen = looker.ask("look")?;
        let strange = seen.split([' ', '/']).find(|one| !matches!(*one, "" | "-" | "100640:0:1000"));
        strange.map_or(Ok(()), |strange| fail(format!("a file is seen as {strange}")))
    });
    maker.kill()?;
    maker.wait()?;
    looked?;
    let viewed = looker.end()?;
    ensure!(viewed > 10_000, "only {viewed} lookups in views");
    Ok(())
}
