//! A service that is killed all the time, at moments by chance, under threads that do one thing after the other: each answer is the one that
//! the host would have given.

use super::Case;
use super::checkpoint::support::eventually;
use super::monitoring::stats_of;
use super::pool::Pools;
use crate::harness::layers::Layers;
use crate::harness::mount::only_vellum;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, Mount, Profile, Rng, rng};
use rustix::fs::{CWD, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vellum_sys::fuse_dev::{backing_close, backing_open};

pub(super) const CASES: &[Case] = &[
    Case::mounted("crash/as-on-the-host", 120, as_on_the_host),
    Case::mounted("crash/first-changes", 120, first_changes),
    Case::mounted("crash/first-changes-in-a-pool", 120, first_changes_in_a_pool),
    Case::of(Profile::Passthrough, "crash/opens", 120, opens),
    Case::mounted("crash/forgotten-files", 120, forgotten_files),
];

const TIME: Duration = Duration::from_secs(8);

/// How long a service has after it was seen to serve.
const PAUSE: Duration = Duration::from_millis(20);

const THREADS: u64 = 4;

/// Names that a thread uses in its directory.
const NAMES: [&str; 10] = ["n0", "n1", "n2", "n3", "n4", "n5", "d0/x", "d1/x", "d0", "d1"];

/// Most files that a thread has open.
const OPEN: usize = 8;

/// How long a case goes on: until the time is over, or as many services are dead as VELLUM_KILLS says.
struct Run {
    /// When threads began.
    begin: OnceLock<Instant>,
    kills: AtomicU64,
    wanted: Option<u64>,
    seed: u64,
    /// A thread has ended before the others.
    ends: AtomicBool,
}

impl Run {
    fn new() -> Self {
        let wanted = std::env::var("VELLUM_KILLS").ok().and_then(|text| text.parse().ok());
        let run = Self {
            begin: OnceLock::new(),
            kills: AtomicU64::new(0),
            wanted,
            seed: rng::seed(),
            ends: AtomicBool::new(false),
        };
        println!("seed {}", run.seed);
        run
    }

    fn is_over(&self) -> bool {
        let is_enough = match self.wanted {
            Some(kills) => self.kills.load(Relaxed) >= kills,
            None => self.begin.get().is_some_and(|begin| begin.elapsed() > TIME),
        };
        is_enough || self.ends.load(Relaxed)
    }

    fn end(self) -> Outcome {
        let kills = self.kills.into_inner();
        println!("{kills} kills");
        ensure!(kills > 3, "only {kills} kills");
        Ok(())
    }

    /// Runs threads until one of them has ended, and kills the service all the time.
    fn kill(&self, mount: &Mount, threads: u64, act: impl Fn(u64, &mut Rng) -> Outcome + Sync) -> Outcome {
        self.begin.get_or_init(Instant::now);
        let seed = self.seed + self.kills.load(Relaxed) * threads;
        std::thread::scope(|scope| -> Outcome {
            let act = &act;
            let threads: Vec<_> = (0..threads)
                .map(|thread| scope.spawn(move || act(thread, &mut Rng::new(seed + thread))))
                .collect();
            while !threads.iter().any(|thread| thread.is_finished()) {
                std::thread::sleep(PAUSE);
                // Its own word: so each successor has served before it is killed in its turn.
                kill_process(mount.service()?, Signal::KILL)?;
                self.kills.fetch_add(1, Relaxed);
            }
            self.ends.store(true, Relaxed);
            let outcome =
                threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| fail("a panic")));
            // A case may have further rounds.
            self.ends.store(false, Relaxed);
            outcome
        })
    }
}

/// Files are opened, read and closed by several at once: each open succeeds. The kernel answers with EIO where a successor counts fewer
/// opens of a file than there are, or thinks that they are of another file. In the end the kernel has no file left that it has been given.
fn opens(cx: &Cx) -> Outcome {
    const FILES: u64 = 64;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("union", 1)?;
    let mount = cx.mount(&layers)?;
    let path = |n: u64| mount.path(&format!("f{n}"));
    let nodes = || Outcome::Ok(stats_of(&mount)?["figures"]["nodes"].as_u64());
    let none = nodes()?;
    (0..FILES).try_for_each(|n| fs::write(path(n), n.to_string()))?;
    let run = Run::new();
    run.kill(&mount, 8, |_, rng| {
        while !run.is_over() {
            let n = rng.below(FILES);
            let file = OpenOptions::new().read(true).write(true).open(path(n))?;
            ensure_eq!(std::io::read_to_string(file)?, n.to_string(), "what file {n} says");
        }
        Ok(())
    })?;
    // An open that was counted twice ends with its node. The kernel waits for no answer where a file is closed, or forgotten.
    mount.service()?;
    (0..FILES).try_for_each(|n| fs::remove_file(path(n)))?;
    eventually("the service knows of no file", || Ok(nodes()? <= none))?;
    let left = backing_files(&mount, &layers.lower().join("probe"))?;
    ensure!(left == 0, "{left} files are left with the kernel");
    run.end()
}

/// How many files the kernel has been given to serve, and not been told to give back; it is told now. `probe`: a file to give to it.
fn backing_files(mount: &Mount, probe: &Path) -> Outcome<usize> {
    let service = mount.service()?;
    let all = fs::read_dir(format!("/proc/{}/fd", service.as_raw_nonzero()))?.flatten();
    let device = all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("/dev/fuse")));
    let device = device.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).min();
    let Some(device) = device else { return fail("the service has no connection") };
    let process = pidfd_open(service, PidfdFlags::empty())?;
    let device = pidfd_getfd(process, device, PidfdGetfdFlags::empty())?;
    // Numbers are given out one after the other.
    let next = backing_open(&device, File::create(probe)?)?;
    backing_close(&device, next)?;
    Ok((1..next).filter(|id| backing_close(&device, *id).is_ok()).count())
}

/// Files are made and removed: what the kernel has forgotten is not kept open by successors of the service that was told so.
fn forgotten_files(cx: &Cx) -> Outcome {
    /// Without kills some files are open for a moment, too.
    const FEW: usize = 8;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("union", 1)?;
    let mount = cx.mount(&layers)?;
    let run = Run::new();
    run.kill(&mount, THREADS, |thread, _| {
        while !run.is_over() {
            let dir = mount.path(&thread.to_string());
            fs::create_dir(&dir)?;
            (0..100).try_for_each(|n| fs::write(dir.join(n.to_string()), "x"))?;
            fs::remove_dir_all(&dir)?;
        }
        Ok(())
    })?;
    let held = || -> Outcome<usize> {
        let open = fs::read_dir(format!("/proc/{}/fd", mount.service()?.as_raw_nonzero()))?;
        let targets = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        let is_removed = |target: &PathBuf| {
            target.starts_with(&cx.dir) && target.to_string_lossy().ends_with(" (deleted)")
        };
        Ok(targets.filter(is_removed).count())
    };
    println!("{} removed files are open", held()?);
    eventually("removed files are closed", || Ok(held()? <= FEW))?;
    run.end()
}

/// Names, links, attributes and data, also of what is open: as in a directory of the host.
fn as_on_the_host(cx: &Cx) -> Outcome {
    only_vellum("has no supervisor")?;
    let layers = cx.layers("union", 1)?;
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    let mount = cx.mount(&layers)?;
    let run = Run::new();
    compare(cx, &mount, &plain, &run, &Course { steps: 400, dirs: u64::MAX, filled: false })?;
    run.end()
}

/// As on the host in directories of a lower layer, each used for a short time only: most changes are the first ones of their file.
/// In the end another mount shows what the host has.
fn first_changes(cx: &Cx) -> Outcome {
    only_vellum("has no supervisor")?;
    change_first(cx, |layers| cx.mount(layers))
}

fn first_changes_in_a_pool(cx: &Cx) -> Outcome {
    only_vellum("has no supervisor")?;
    let pools = Pools::new(cx)?;
    pools.run("create", &[])?;
    change_first(cx, |layers| pools.mount(layers, true))
}

fn change_first(cx: &Cx, mount: impl Fn(&Layers) -> Outcome<Mount>) -> Outcome {
    let run = Run::new();
    for round in 0.. {
        if run.is_over() {
            break;
        }
        let (union, plain) = (format!("union{round}"), cx.dir.join(format!("plain{round}")));
        let layers = cx.layers(&union, 1)?;
        Course::BELOW.fill(&[layers.lower(), &plain])?;
        let mut mount = mount(&layers)?;
        compare(cx, &mount, &plain, &run, &Course::BELOW)?;
        mount.remount()?;
        same_files(mount.root(), &plain)?;
        mount.unmount()?;
        fs::remove_dir_all(&plain)?;
        fs::remove_dir_all(cx.dir.join(union))?;
    }
    run.end()
}

/// Through which directories threads go.
struct Course {
    /// Steps in a directory.
    steps: u64,
    /// Directories of a thread.
    dirs: u64,
    /// They are there beforehand.
    filled: bool,
}

impl Course {
    const BELOW: Self = Self { steps: 60, dirs: 60, filled: true };

    fn dir(thread: u64, number: u64) -> String {
        format!("t{thread}-{number}")
    }

    /// Makes the directories of all threads.
    fn fill(&self, bases: &[&Path]) -> Outcome {
        for base in bases {
            for thread in 0..THREADS {
                (0..self.dirs).try_for_each(|number| fill(&base.join(Self::dir(thread, number))))?;
            }
        }
        Ok(())
    }
}

/// Threads do the same in a mount and in a directory of the host: each answer is the same.
fn compare(cx: &Cx, mount: &Mount, plain: &Path, run: &Run, course: &Course) -> Outcome {
    run.kill(mount, THREADS, |thread, rng| {
        for number in 0..course.dirs {
            let dir = Course::dir(thread, number);
            let follows = cx.profile != Some(Profile::Passthrough);
            let mut sides =
                [mount.path(&dir), plain.join(&dir)].map(|dir| Side { dir, open: Vec::new(), follows });
            if !course.filled {
                sides.iter().try_for_each(|side| fill(&side.dir))?;
            }
            let mut before = Vec::new();
            for number in 0..course.steps {
                if run.is_over() {
                    return Ok(());
                }
                let step = Step::by(rng);
                let [here, there] = &mut sides;
                let (found, expected) = (here.act(&step), there.act(&step));
                before.push(format!("{step:?}: {}", brief(&expected)));
                if found != expected {
                    before.iter().for_each(|line| println!("{line}"));
                    let (found, expected) = (brief(&found), brief(&expected));
                    return fail(format!("{dir}, step {number}, {step:?}: {found}, not {expected}"));
                }
            }
        }
        Ok(())
    })
}

/// Whether two trees have the same files.
fn same_files(here: &Path, there: &Path) -> Outcome {
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let names = |base: &Path| -> Outcome<Vec<OsString>> {
            let entries = fs::read_dir(base.join(&dir))?.collect::<Result<Vec<_>, _>>()?;
            let mut names: Vec<_> = entries.iter().map(fs::DirEntry::file_name).collect();
            names.sort();
            Ok(names)
        };
        let (found, expected) = (names(here)?, names(there)?);
        ensure_eq!(found, expected, "names in {}", dir.display());
        for name in found {
            let path = dir.join(name);
            let (one, other) = (here.join(&path), there.join(&path));
            let (meta, expected) = (fs::symlink_metadata(&one)?, fs::symlink_metadata(&other)?);
            ensure!(file_summary(&meta) == file_summary(&expected), "attributes of {}", path.display());
            if meta.is_dir() {
                dirs.push(path);
            } else {
                let (found, expected) =
                    (brief(&fs::read(&one).map_err(raw)), brief(&fs::read(&other).map_err(raw)));
                ensure_eq!(found, expected, "contents of {}", path.display());
            }
        }
    }
    Ok(())
}

fn fill(dir: &Path) -> Outcome {
    for sub in ["d0", "d1"] {
        fs::create_dir_all(dir.join(sub))?;
    }
    for (n, name) in ["n0", "n1", "n2", "d0/x"].into_iter().enumerate() {
        fs::write(dir.join(name), vec![b'0' + n as u8; 100 + 1500 * n])?;
    }
    for (old, new) in [("n2", "n3"), ("n2", "d1/x"), ("n1", "n4")] {
        fs::hard_link(dir.join(old), dir.join(new))?;
    }
    Ok(())
}

/// An answer, in a line: data are said by where they change.
fn brief(answer: &Answer) -> String {
    match answer {
        Ok(bytes) => {
            let mut text = format!("{} bytes", bytes.len());
            let mut last = None;
            for (at, byte) in bytes.iter().enumerate() {
                if last != Some(byte) && text.len() < 300 {
                    text += &format!(" {at}:{}", byte.escape_ascii());
                }
                last = Some(byte);
            }
            text
        }
        Err(error) => error.to_string(),
    }
}

/// What a step says: nothing, data, or what was asked for as text.
type Answer = Result<Vec<u8>, Errno>;

/// One of the two directories, and what is open in it.
struct Side {
    dir: PathBuf,
    open: Vec<(File, bool)>,
    /// What is open to be read shows what is written afterwards, also where that is the first change of a lower layer's file.
    follows: bool,
}

/// Something to do.
#[derive(Clone, Copy, Debug)]
struct Step {
    what: Operation,
    name: &'static str,
    other: &'static str,
    at: u64,
    len: usize,
    letter: u8,
    choice: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write,
    Append,
    MakeDir,
    RemoveDir,
    Unlink,
    Rename,
    Link,
    SetXattr,
    RemoveXattr,
    Truncate,
    Read,
    CreateNew,
    Stat,
    List,
    Cut,
    Chmod,
    Open,
    OpenRead,
    ChmodOpen,
    WriteOpen,
    ReadOpen,
    StatOpen,
}

impl Step {
    fn by(rng: &mut Rng) -> Self {
        const ALL: [Operation; 27] = [
            Operation::Write,
            Operation::Write,
            Operation::Append,
            Operation::MakeDir,
            Operation::RemoveDir,
            Operation::Unlink,
            Operation::Unlink,
            Operation::Rename,
            Operation::Rename,
            Operation::Rename,
            Operation::Link,
            Operation::Link,
            Operation::SetXattr,
            Operation::RemoveXattr,
            Operation::Truncate,
            Operation::Cut,
            Operation::Chmod,
            Operation::ChmodOpen,
            Operation::OpenRead,
            Operation::OpenRead,
            Operation::Read,
            Operation::CreateNew,
            Operation::Stat,
            Operation::List,
            Operation::Open,
            Operation::WriteOpen,
            Operation::ReadOpen,
        ];
        let what = if rng.one_in(20) { Operation::StatOpen } else { *rng.pick(&ALL) };
        Self {
            what,
            name: *rng.pick(&NAMES),
            other: *rng.pick(&NAMES),
            at: rng.below(9000),
            len: 1 + rng.below(5000) as usize,
            letter: b'A' + rng.below(26) as u8,
            choice: rng.below(3) as usize,
        }
    }
}

impl Side {
    fn act(&mut self, step: &Step) -> Answer {
        let (name, other) = (self.dir.join(step.name), self.dir.join(step.other));
        let data = || vec![step.letter; step.len];
        let attribute = format!("user.a{}", step.choice);
        let mode = Mode::from_raw_mode([0o600, 0o640, 0o755][step.choice % 3]);
        let open = (!self.open.is_empty()).then(|| self.open.get(step.len % self.open.len())).flatten();
        let said = match step.what {
            Operation::Write => {
                let mut how = OpenOptions::new();
                let file =
                    how.write(true).create(true).truncate(step.choice == 0).open(&name).map_err(raw)?;
                file.write_all_at(&data(), step.at).map_err(raw)
            }
            Operation::Append => {
                let mut file = OpenOptions::new().append(true).open(&name).map_err(raw)?;
                file.write_all(&data()).map_err(raw)
            }
            Operation::MakeDir => fs::create_dir(&name).map_err(raw),
            Operation::RemoveDir => rustix::fs::rmdir(&name),
            Operation::Unlink => rustix::fs::unlink(&name),
            Operation::Rename => {
                let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
                let flags = flags.get(step.choice).copied().unwrap_or(RenameFlags::empty());
                rustix::fs::renameat_with(CWD, &name, CWD, &other, flags)
            }
            Operation::Link => fs::hard_link(&name, &other).map_err(raw),
            Operation::SetXattr => {
                let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
                let flags = flags.get(step.len % 3).copied().unwrap_or(XattrFlags::empty());
                rustix::fs::lsetxattr(&name, attribute, &[step.letter; 20], flags)
            }
            Operation::RemoveXattr => rustix::fs::lremovexattr(&name, attribute),
            Operation::Truncate => {
                OpenOptions::new().write(true).open(&name).and_then(|file| file.set_len(step.at)).map_err(raw)
            }
            Operation::Cut => {
                OpenOptions::new().write(true).truncate(true).open(&name).map(drop).map_err(raw)
            }
            Operation::Chmod => rustix::fs::chmod(&name, mode),
            // The mode of a removed directory is nobody's to see, and is not kept.
            Operation::ChmodOpen => open
                .filter(|(file, _)| file.metadata().is_ok_and(|meta| meta.is_file()))
                .map_or(Ok(()), |(file, _)| rustix::fs::fchmod(file, mode)),
            Operation::CreateNew => {
                OpenOptions::new().write(true).create_new(true).open(&name).map(drop).map_err(raw)
            }
            Operation::Read => return fs::read(&name).map_err(raw),
            Operation::Stat => {
                return fs::symlink_metadata(&name).map(|meta| file_summary(&meta)).map_err(raw);
            }
            Operation::List => {
                let entries =
                    fs::read_dir(&self.dir).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(raw)?;
                let mut names: Vec<_> = entries.iter().map(fs::DirEntry::file_name).collect();
                names.sort();
                return Ok(format!("{names:?}").into_bytes());
            }
            Operation::Open | Operation::OpenRead => {
                let writes = step.what == Operation::Open;
                let file = OpenOptions::new().read(true).write(writes).open(&name).map_err(raw)?;
                if self.open.len() == OPEN {
                    self.open.swap_remove(step.len % OPEN);
                }
                self.open.push((file, writes));
                Ok(())
            }
            Operation::WriteOpen => {
                open.map_or(Ok(()), |(file, _)| file.write_all_at(&data(), step.at).map_err(raw))
            }
            Operation::ReadOpen => {
                let Some((file, _)) = open.filter(|(_, writes)| *writes || self.follows) else {
                    return Ok(Vec::new());
                };
                let mut found = vec![0; 1 << 16];
                let len = file.read_at(&mut found, 0).map_err(raw)?;
                found.truncate(len);
                return Ok(found);
            }
            Operation::StatOpen => {
                return open.map_or(Ok(Vec::new()), |(file, _)| {
                    file.metadata().map(|meta| file_summary(&meta)).map_err(raw)
                });
            }
        };
        said.map(|()| Vec::new())
    }
}

/// What is known of a file; of a directory only its mode means anything.
fn file_summary(meta: &fs::Metadata) -> Vec<u8> {
    let of_file = meta.is_file().then_some((meta.len(), meta.nlink()));
    format!("{:o} {of_file:?}", meta.mode()).into_bytes()
}

fn raw(error: std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}
