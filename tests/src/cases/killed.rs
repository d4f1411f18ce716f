//! A service that is killed all the time, at moments by chance, under threads that do one thing after the other: each answer is the one that
//! the host would have given.

use super::Case;
use super::checkpoint::support::eventually;
use crate::harness::mount::only_vellum;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, Mount, Profile, Rng, rng};
use rustix::fs::{CWD, RenameFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case::mounted("killed/as-on-the-host", 120, as_on_the_host),
    Case::of(Profile::Passthrough, "killed/opens", 120, opens),
    Case::mounted("killed/what-is-forgotten", 120, what_is_forgotten),
];

const TIME: Duration = Duration::from_secs(8);

/// How long a service has after it was seen to serve.
const PAUSE: Duration = Duration::from_millis(20);

/// Names that a thread uses in its directory.
const NAMES: [&str; 10] = ["n0", "n1", "n2", "n3", "n4", "n5", "d0/x", "d1/x", "d0", "d1"];

/// Most files that a thread has open.
const OPEN: usize = 8;

/// Runs threads until the time is over or one of them has failed, and kills the service all the time.
fn under_kills(mount: &Mount, threads: u64, act: impl Fn(u64, &mut Rng) -> Outcome + Sync) -> Outcome {
    let seed = rng::seed();
    println!("seed {seed}");
    let mut kills = 0;
    std::thread::scope(|scope| -> Outcome {
        let act = &act;
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || act(thread, &mut Rng::new(seed + thread))))
            .collect();
        while !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(PAUSE);
            // Its own word: so each successor has served before it is killed in its turn.
            kill_process(mount.service()?, Signal::KILL)?;
            kills += 1;
        }
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| fail("a panic")))
    })?;
    ensure!(kills > 3, "only {kills} kills");
    println!("{kills} kills");
    Ok(())
}

/// Files are opened, read and closed by several at once: each open succeeds. The kernel answers with EIO where a successor counts fewer
/// opens of a file than there are, or thinks that they are of another file.
fn opens(cx: &Cx) -> Outcome {
    const FILES: u64 = 4;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("union", 1)?;
    let mount = cx.mount(&layers)?;
    let path = |n: u64| mount.path(&format!("f{n}"));
    (0..FILES).try_for_each(|n| fs::write(path(n), n.to_string()))?;
    let begin = Instant::now();
    under_kills(&mount, 8, |_, rng| {
        while begin.elapsed() < TIME {
            let n = rng.below(FILES);
            let file = OpenOptions::new().read(true).write(true).open(path(n))?;
            ensure_eq!(std::io::read_to_string(file)?, n.to_string(), "what file {n} says");
        }
        Ok(())
    })
}

/// Files are made and removed: what the kernel has forgotten is not kept open by successors of the service that was told so.
fn what_is_forgotten(cx: &Cx) -> Outcome {
    /// Without kills some files are open for a moment, too.
    const FEW: usize = 8;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("union", 1)?;
    let mount = cx.mount(&layers)?;
    let begin = Instant::now();
    under_kills(&mount, 4, |thread, _| {
        while begin.elapsed() < TIME {
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
    eventually("removed files are closed", || Ok(held()? <= FEW))
}

/// Names, links, attributes and data, also of what is open: as in a directory of the host.
fn as_on_the_host(cx: &Cx) -> Outcome {
    const THREADS: u64 = 4;
    /// Steps in a directory, until a new one is begun.
    const STEPS: u64 = 400;
    only_vellum("has no supervisor")?;
    let layers = cx.layers("union", 1)?;
    let plain = cx.dir.join("plain");
    fs::create_dir(&plain)?;
    let mount = cx.mount(&layers)?;
    let begin = Instant::now();
    under_kills(&mount, THREADS, |thread, rng| {
        let mut sides = [mount.root(), &plain].map(|base| Side { dir: base.to_owned(), open: Vec::new() });
        let mut before = Vec::new();
        for number in 0.. {
            if begin.elapsed() > TIME {
                println!("thread {thread}: {number} steps");
                break;
            }
            if number % STEPS == 0 {
                let dir = format!("t{thread}-{}", number / STEPS);
                sides = [mount.path(&dir), plain.join(&dir)].map(|dir| Side { dir, open: Vec::new() });
                sides.iter().try_for_each(|side| fill(&side.dir))?;
                before.clear();
            }
            let step = Step::by(rng);
            let [here, there] = &mut sides;
            let (found, expected) = (here.act(&step), there.act(&step));
            before.push(format!("{step:?}: {}", brief(&expected)));
            if found != expected {
                before.iter().rev().take(400).rev().for_each(|line| println!("{line}"));
                return fail(format!("step {number}, {step:?}: {}, not {}", brief(&found), brief(&expected)));
            }
        }
        Ok(())
    })
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
    open: Vec<File>,
}

/// Something to do.
#[derive(Clone, Copy, Debug)]
struct Step {
    what: What,
    name: &'static str,
    other: &'static str,
    at: u64,
    len: usize,
    letter: u8,
    choice: usize,
}

#[derive(Clone, Copy, Debug)]
enum What {
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
    Open,
    WriteOpen,
    ReadOpen,
    StatOpen,
}

impl Step {
    fn by(rng: &mut Rng) -> Self {
        const ALL: [What; 22] = [
            What::Write,
            What::Write,
            What::Append,
            What::MakeDir,
            What::RemoveDir,
            What::Unlink,
            What::Unlink,
            What::Rename,
            What::Rename,
            What::Rename,
            What::Link,
            What::Link,
            What::SetXattr,
            What::RemoveXattr,
            What::Truncate,
            What::Read,
            What::CreateNew,
            What::Stat,
            What::List,
            What::Open,
            What::WriteOpen,
            What::ReadOpen,
        ];
        let what = if rng.one_in(20) { What::StatOpen } else { *rng.pick(&ALL) };
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
        let open = (!self.open.is_empty()).then(|| self.open.get(step.len % self.open.len())).flatten();
        let said = match step.what {
            What::Write => {
                let mut how = OpenOptions::new();
                let file =
                    how.write(true).create(true).truncate(step.choice == 0).open(&name).map_err(raw)?;
                file.write_all_at(&data(), step.at).map_err(raw)
            }
            What::Append => {
                let mut file = OpenOptions::new().append(true).open(&name).map_err(raw)?;
                file.write_all(&data()).map_err(raw)
            }
            What::MakeDir => fs::create_dir(&name).map_err(raw),
            What::RemoveDir => rustix::fs::rmdir(&name),
            What::Unlink => rustix::fs::unlink(&name),
            What::Rename => {
                let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
                let flags = flags.get(step.choice).copied().unwrap_or(RenameFlags::empty());
                rustix::fs::renameat_with(CWD, &name, CWD, &other, flags)
            }
            What::Link => fs::hard_link(&name, &other).map_err(raw),
            What::SetXattr => {
                let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
                let flags = flags.get(step.len % 3).copied().unwrap_or(XattrFlags::empty());
                rustix::fs::lsetxattr(&name, attribute, &[step.letter; 20], flags)
            }
            What::RemoveXattr => rustix::fs::lremovexattr(&name, attribute),
            What::Truncate => {
                OpenOptions::new().write(true).open(&name).and_then(|file| file.set_len(step.at)).map_err(raw)
            }
            What::CreateNew => {
                OpenOptions::new().write(true).create_new(true).open(&name).map(drop).map_err(raw)
            }
            What::Read => return fs::read(&name).map_err(raw),
            What::Stat => return fs::symlink_metadata(&name).map(|meta| said(&meta)).map_err(raw),
            What::List => {
                let entries =
                    fs::read_dir(&self.dir).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(raw)?;
                let mut names: Vec<_> = entries.iter().map(fs::DirEntry::file_name).collect();
                names.sort();
                return Ok(format!("{names:?}").into_bytes());
            }
            What::Open => {
                let file = OpenOptions::new().read(true).write(true).open(&name).map_err(raw)?;
                if self.open.len() == OPEN {
                    self.open.swap_remove(step.len % OPEN);
                }
                self.open.push(file);
                Ok(())
            }
            What::WriteOpen => open.map_or(Ok(()), |file| file.write_all_at(&data(), step.at).map_err(raw)),
            What::ReadOpen => {
                let Some(file) = open else { return Ok(Vec::new()) };
                let mut found = vec![0; 1 << 16];
                let len = file.read_at(&mut found, 0).map_err(raw)?;
                found.truncate(len);
                return Ok(found);
            }
            What::StatOpen => {
                return open
                    .map_or(Ok(Vec::new()), |file| file.metadata().map(|meta| said(&meta)).map_err(raw));
            }
        };
        said.map(|()| Vec::new())
    }
}

/// What is known of a file; of a directory only its mode means anything.
fn said(meta: &fs::Metadata) -> Vec<u8> {
    let of_file = meta.is_file().then_some((meta.len(), meta.nlink()));
    format!("{:o} {of_file:?}", meta.mode()).into_bytes()
}

fn raw(error: std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}
