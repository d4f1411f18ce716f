//! Several processes in one tree: renames, links, creations and removals against each other. Afterwards nothing may
//! be lost, doubled or left over.

use super::Case;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::tree::{self, Ignore, Tree};
use crate::harness::{Cx, Rng, rng};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case::mounted("stress/processes", 120, processes),
    Case::mounted("stress/kill-while-busy", 120, kill_while_busy),
];

const WORKERS: u64 = 4;
const SECONDS: u64 = 10;

/// Files that are only ever renamed: each must exist exactly once, whatever happens.
const TOKENS: u64 = 24;

/// Directories between which things move.
const DIRS: u64 = 6;

/// Errors that a race may give.
const EXPECTED: [Errno; 10] = [
    Errno::NOENT,
    Errno::EXIST,
    Errno::NOTEMPTY,
    Errno::NOTDIR,
    Errno::ISDIR,
    Errno::INVAL,
    Errno::BUSY,
    Errno::MLINK,
    Errno::LOOP,
    Errno::STALE,
];

fn fill(dir: &Path) -> Outcome {
    for n in 0..DIRS {
        fs::create_dir(dir.join(format!("d{n}")))?;
        for m in 0..30 {
            fs::write(dir.join(format!("d{n}/f{m}")), format!("{n}/{m}"))?;
        }
        fs::create_dir(dir.join(format!("d{n}/sub")))?;
        fs::write(dir.join(format!("d{n}/sub/inner")), "inner")?;
    }
    for n in 0..TOKENS {
        fs::write(dir.join(format!("d0/token-{n}")), format!("token {n}"))?;
    }
    Ok(fs::write(dir.join("counter"), "0")?)
}

fn start(root: &Path, seed: u64, worker: u64) -> Outcome<std::process::Child> {
    Ok(Command::new(std::env::current_exe()?)
        .arg("internal-worker")
        .arg(root)
        .arg((seed + worker).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?)
}

fn processes(cx: &Cx) -> Outcome {
    let seed = rng::seed();
    println!("seed {seed}");
    let layers = cx.layers("union", 1)?;
    fill(layers.lower())?;
    let mut mount = cx.mount(&layers)?;
    let workers: Vec<_> =
        (0..WORKERS).map(|worker| start(mount.root(), seed, worker)).collect::<Outcome<Vec<_>>>()?;
    let mut counted = 0_u64;
    let mut failed = Vec::new();
    for worker in workers {
        let output = worker.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{}", text.trim());
        counted +=
            text.lines().find_map(|line| line.strip_prefix("counted ")?.parse::<u64>().ok()).unwrap_or(0);
        if !output.status.success() {
            failed.push(text.lines().next_back().unwrap_or_default().to_owned());
        }
    }
    ensure!(failed.is_empty(), "workers failed: {failed:?}");
    let counter = fs::read_to_string(mount.path("counter"))?;
    ensure_eq!(counter.trim(), counted.to_string(), "the counter behind a lock file");
    let seen = tree::take(mount.root(), i64::MAX)?;
    check(&seen)?;
    // The kernel keeps times of cached writes to itself for a while.
    let ignore = Ignore { mtime: true, nlink: false };
    mount.remount()?;
    tree::same("left: before, right: after remount", &seen, &tree::take(mount.root(), i64::MAX)?, ignore)?;
    mount.crash()?;
    tree::same("left: before, right: after kill -9", &seen, &tree::take(mount.root(), i64::MAX)?, ignore)?;
    mount.unmount()?;
    super::behaviour::no_leftovers(&layers)
}

/// Every token once, every number of links true, every inode number unique.
fn check(tree: &Tree) -> Outcome {
    tree::inodes_are_unique(tree)?;
    let mut tokens: BTreeMap<&[u8], u32> = BTreeMap::new();
    let mut links: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (path, node) in tree {
        if path.contains("token-") {
            *tokens.entry(&node.head).or_insert(0) += 1;
        }
        if node.mode & libc::S_IFMT == libc::S_IFREG {
            let (count, _) = links.get(&node.ino).copied().unwrap_or_default();
            links.insert(node.ino, (count + 1, node.nlink));
        }
    }
    ensure_eq!(tokens.len() as u64, TOKENS, "different tokens");
    ensure!(tokens.values().all(|&count| count == 1), "a token is there twice");
    for (ino, (count, nlink)) in links {
        ensure_eq!(count, nlink, "names of inode {ino} against its number of links");
    }
    Ok(())
}

fn kill_while_busy(cx: &Cx) -> Outcome {
    let seed = rng::seed();
    println!("seed {seed}");
    let layers = cx.layers("union", 1)?;
    fill(layers.lower())?;
    let mut mount = cx.mount(&layers)?;
    let mut rng = Rng::new(seed);
    for round in 0..6 {
        let workers: Vec<_> = (0..2)
            .map(|worker| start(mount.root(), rng.next() % 1_000_000, worker))
            .collect::<Outcome<Vec<_>>>()?;
        std::thread::sleep(Duration::from_millis(200 + rng.below(800)));
        mount.crash().doing(format!("round {round}"))?;
        // They have lost their tree; how they end says nothing.
        for mut worker in workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
        let seen = tree::take(mount.root(), i64::MAX).doing(format!("round {round}"))?;
        tree::inodes_are_unique(&seen)?;
        // What was renamed whole is there whole: a token is never lost, doubled or cut.
        let tokens: Vec<_> = seen.iter().filter(|(path, _)| path.contains("token-")).collect();
        ensure_eq!(tokens.len() as u64, TOKENS, "tokens after kill -9, round {round}");
        for (path, node) in tokens {
            ensure!(node.head.starts_with(b"token "), "{path} holds {:?}", node.head);
        }
    }
    mount.unmount()?;
    super::behaviour::no_leftovers(&layers)
}

/// One of the processes: `internal-worker ROOT SEED`.
pub(crate) fn worker(args: &[String]) -> ExitCode {
    let (Some(root), Some(Ok(seed))) = (args.get(1), args.get(2).map(|text| text.parse())) else {
        return ExitCode::from(2);
    };
    match work(Path::new(root), seed) {
        Ok(counted) => {
            println!("counted {counted}");
            ExitCode::SUCCESS
        }
        Err(stop) => {
            println!("{stop}");
            ExitCode::FAILURE
        }
    }
}

fn work(root: &Path, seed: u64) -> Outcome<u64> {
    let mut rng = Rng::new(seed);
    let begin = Instant::now();
    let mut counted = 0;
    let mut steps = 0_u64;
    while begin.elapsed() < Duration::from_secs(SECONDS) {
        steps += 1;
        let dir = |rng: &mut Rng| format!("d{}", rng.below(DIRS));
        let name = |rng: &mut Rng| format!("d{}/f{}", rng.below(DIRS), rng.below(40));
        let (from, to) = (name(&mut rng), name(&mut rng));
        let (from, to) = (root.join(from), root.join(to));
        let result: Result<(), Errno> = match rng.below(14) {
            0 | 1 => rustix::fs::rename(&from, &to),
            2 => rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE),
            3 => rustix::fs::link(&from, &to),
            4 => rustix::fs::unlink(&from),
            5 => fs::write(&from, format!("{steps}")).map_err(|error| raw(&error)),
            6 => append(&from).map_err(|error| raw(&error)),
            7 => {
                // A token moves to any directory; no other token has its name, so nothing is replaced.
                let token = format!("token-{}", rng.below(TOKENS));
                let (one, other) = (dir(&mut rng), dir(&mut rng));
                rustix::fs::rename(root.join(one).join(&token), root.join(other).join(&token))
            }
            8 => {
                let (one, other) = (dir(&mut rng), dir(&mut rng));
                rustix::fs::rename(root.join(one).join("sub"), root.join(other).join("sub2")).and_then(|()| {
                    rustix::fs::rename(
                        root.join(dir(&mut rng)).join("sub2"),
                        root.join(dir(&mut rng)).join("sub"),
                    )
                })
            }
            9 => {
                let path = root.join(dir(&mut rng)).join(format!("made-{}", rng.below(3)));
                rustix::fs::mkdir(&path, rustix::fs::Mode::from_raw_mode(0o755)).and_then(|()| {
                    fs::write(path.join("x"), "x").map_err(|error| raw(&error))?;
                    rustix::fs::unlink(path.join("x"))?;
                    rustix::fs::rmdir(&path)
                })
            }
            10 => fs::read_dir(root.join(dir(&mut rng)))
                .and_then(|entries| entries.into_iter().try_for_each(|entry| entry.map(drop)))
                .map_err(|error| raw(&error)),
            11 => rustix::fs::stat(&from).map(drop),
            12 => rustix::fs::chmod(&from, rustix::fs::Mode::from_raw_mode(0o600 + (steps % 8) as u32)),
            _ => {
                counted += u64::from(count(root)?);
                Ok(())
            }
        };
        if let Err(errno) = result {
            ensure!(EXPECTED.contains(&errno), "step {steps}: {errno}");
        }
    }
    println!("{steps} steps");
    Ok(counted)
}

/// Whoever creates the lock file may add one to the counter.
fn count(root: &Path) -> Outcome<bool> {
    let lock = root.join("lock");
    match fs::OpenOptions::new().write(true).create_new(true).open(&lock) {
        Ok(file) => {
            let text = fs::read_to_string(root.join("counter"))?;
            let number: u64 = text.trim().parse().doing(format!("counter {text:?}"))?;
            fs::write(root.join("counter"), (number + 1).to_string())?;
            drop(file);
            fs::remove_file(&lock).doing("removing the lock")?;
            Ok(true)
        }
        Err(error) => match raw(&error) {
            Errno::EXIST => Ok(false),
            errno => Err(errno.into()),
        },
    }
}

fn append(path: &Path) -> std::io::Result<()> {
    fs::OpenOptions::new().append(true).open(path)?.write_all(b"more")
}

fn raw(error: &std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}
