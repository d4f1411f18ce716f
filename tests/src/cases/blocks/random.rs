//! Random operations on a file of a lower layer and on an ordinary file: they must stay equal, through remounts; and after
//! kill -9 every byte must be one that it has had since the last fsync.

use crate::harness::outcome::{DuringContext, Outcome, ensure};
use crate::harness::rng::Rng;
use crate::harness::{Cx, Layers, Profile, rng};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long new runs are begun.
const TIME: Duration = Duration::from_secs(25);
/// Operations of one run.
const STEPS: usize = 400;
const PAGE: u64 = 4096;
/// Largest file.
const SIZE: u64 = 1 << 20;

pub(super) fn remounts(cx: &Cx) -> Outcome {
    runs(cx, false)
}

pub(super) fn crashes(cx: &Cx) -> Outcome {
    runs(cx, true)
}

fn runs(cx: &Cx, crashes: bool) -> Outcome {
    let first = rng::seed();
    let begin = Instant::now();
    let mut seed = first;
    while begin.elapsed() < TIME {
        run(cx, seed, crashes).doing(format!("VELLUM_TEST_SEED={seed}"))?;
        seed += 1;
        if std::env::var_os("VELLUM_TEST_SEED").is_some() {
            break;
        }
    }
    println!("seeds {first} to {} passed, {STEPS} operations each", seed - 1);
    Ok(())
}

/// The file under test, the one that it is compared with, and what may be left of it after a crash.
struct Pair {
    ours: OwnedFd,
    plain: OwnedFd,
    /// Contents since the last fsync, the first one at that time.
    states: Vec<Vec<u8>>,
    keep_states: bool,
    seek: bool,
}

fn open(path: &Path) -> Outcome<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).doing(format!("opening {}", path.display()))
}

fn run(cx: &Cx, seed: u64, crashes: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let base = cx.dir.join("run");
    let _ = fs::remove_dir_all(&base);
    let options = [
        format!("block_copy={}", [1, 4096, 65536][rng.below(3) as usize]),
        format!("block_map={}", if rng.one_in(3) { "sidecar" } else { "holes" }),
    ];
    println!("{options:?}");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let layers = Layers::new(&base, 1)?;
    let plain = base.join("plain");
    lower(&layers.lower().join("file"), &mut rng)?;
    fs::copy(layers.lower().join("file"), &plain)?;
    // A former upper between: a partial file over a whole one.
    let layers =
        if rng.one_in(2) { with_middle(cx, &base, layers, &plain, &options, &mut rng)? } else { layers };
    let mut mount = cx.mount_with(&layers, &options)?;
    let seek = cx.profile == Some(Profile::Passthrough);
    let mut pair = Pair {
        ours: open(&mount.path("file"))?,
        plain: open(&plain)?,
        states: vec![fs::read(&plain)?],
        keep_states: crashes,
        seek,
    };
    let mut name = String::from("file");
    for step in 0..STEPS {
        match rng.below(100) {
            0..=1 => {
                println!("remount");
                drop(pair.ours);
                if crashes && rng.one_in(2) {
                    mount.crash()?;
                    let found = after_crash(&mount.path(&name), &plain, &pair.states)
                        .doing(format!("after kill -9 at step {step}"))?;
                    pair.states = vec![found];
                } else {
                    mount.remount()?;
                }
                pair.ours = open(&mount.path(&name))?;
            }
            2 => {
                let other = if name == "file" { "other" } else { "file" };
                fs::rename(mount.path(&name), mount.path(other))?;
                other.clone_into(&mut name);
            }
            3 => {
                drop(pair.ours);
                pair.ours = open(&mount.path(&name))?;
            }
            _ => pair.act(&mut rng).doing(format!("step {step}"))?,
        }
    }
    same(&mount.path(&name), &plain)?;
    drop(pair.ours);
    mount.remount()?;
    same(&mount.path(&name), &plain).doing("at the end, remounted")?;
    mount.unmount()?;
    flattened(&layers, &name, &plain)
}

/// Random data with holes.
fn lower(path: &Path, rng: &mut Rng) -> Outcome {
    let file = fs::File::create(path)?;
    file.set_len(rng.below(SIZE / 2) + 1)?;
    let size = file.metadata()?.len();
    for _ in 0..rng.below(6) + 1 {
        let at = rng.below(size);
        let len = rng.below(SIZE / 4).min(size - at) as usize;
        rustix::io::pwrite(&file, &rng.bytes(len), at)?;
    }
    Ok(())
}

/// Writes to the file through a mount, and makes the upper of that a lower.
fn with_middle(
    cx: &Cx,
    base: &Path,
    layers: Layers,
    plain: &Path,
    options: &[&str],
    rng: &mut Rng,
) -> Outcome<Layers> {
    let mut mount = cx.mount_with(&layers, options)?;
    for _ in 0..rng.below(4) + 1 {
        let len = rng.below(9000) as usize;
        let (at, data) = (rng.below(SIZE / 2), rng.bytes(len));
        for path in [&mount.path("file"), plain] {
            rustix::io::pwrite(open(path)?, &data, at)?;
        }
    }
    mount.unmount()?;
    let mut above = Layers::new(&base.join("above"), 0)?;
    above.lowers = layers.upper.iter().chain(&layers.lowers).cloned().collect();
    Ok(above)
}

impl Pair {
    fn act(&mut self, rng: &mut Rng) -> Outcome {
        let size = rustix::fs::fstat(&self.plain)?.st_size as u64;
        let at = match rng.below(4) {
            0 => rng.below(SIZE) / 4096 * 4096,
            1 => size,
            _ => rng.below(size + 5000),
        }
        .min(SIZE);
        let len = match rng.below(4) {
            0 => rng.below(100) + 1,
            1 => (rng.below(16) + 1) * 4096,
            2 => rng.below(100_000) + 1,
            _ => rng.below(9000) + 1,
        };
        let both = |act: &dyn Fn(&OwnedFd) -> Result<(), Errno>| -> Outcome {
            let (ours, plain) = (act(&self.ours), act(&self.plain));
            ensure!(ours == plain, "{ours:?}, on an ordinary file {plain:?}");
            Ok(())
        };
        match rng.below(20) {
            0..=7 => {
                let data = rng.bytes(len as usize);
                println!("write {len} at {at}");
                both(&|fd| write_all(fd, &data, at)).doing(format!("write {len} at {at}"))?;
            }
            8..=9 => {
                let size = rng.below(size + 100_000).min(SIZE);
                println!("truncate to {size}");
                both(&|fd| rustix::fs::ftruncate(fd, size)).doing(format!("truncate to {size}"))?;
            }
            10 => self.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)?,
            11 => {
                let keep = if rng.one_in(2) { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                self.allocate(FallocateFlags::ZERO_RANGE | keep, at, len)?;
            }
            12 => {
                let keep = if rng.one_in(2) { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                self.allocate(keep, at, len)?;
            }
            13 => {
                let to = rng.below(SIZE);
                println!("copy {len} from {at} to {to}");
                both(&|fd| copy_all(fd, at, to, len)).doing(format!("copy {len} from {at} to {to}"))?;
            }
            14 => {
                println!("fsync");
                rustix::fs::fsync(&self.ours).doing("fsync")?;
                self.states.clear();
            }
            16 => self.direct(rng, at / PAGE * PAGE, len.next_multiple_of(PAGE))?,
            15 if self.seek => {
                // Where there is said to be a hole, there are zeros.
                if let Ok(hole) = rustix::fs::seek(&self.ours, SeekFrom::Hole(at)) {
                    let end = rustix::fs::seek(&self.ours, SeekFrom::Data(hole)).unwrap_or(size);
                    let data = read(&self.plain, hole, end.saturating_sub(hole) as usize)?;
                    ensure!(data.iter().all(|byte| *byte == 0), "data in a hole from {hole} to {end}");
                }
            }
            _ => {
                let (ours, plain) =
                    (read(&self.ours, at, len as usize)?, read(&self.plain, at, len as usize)?);
                let first = ours.iter().zip(&plain).position(|(a, b)| a != b);
                let bad = ours.iter().zip(&plain).filter(|(a, b)| a != b).count();
                println!("first {first:?} bad {bad} lens {} {}", ours.len(), plain.len());
                ensure!(ours == plain, "reading {len} at {at} differs");
            }
        }
        let (ours, plain) = (rustix::fs::fstat(&self.ours)?.st_size, rustix::fs::fstat(&self.plain)?.st_size);
        ensure!(ours == plain, "size {ours}, of an ordinary file {plain}");
        if self.keep_states {
            let now = read(&self.plain, 0, plain as usize)?;
            if self.states.last() != Some(&now) {
                self.states.push(now);
            }
        }
        Ok(())
    }

    /// Past the page cache: writes, and reads it again.
    fn direct(&self, rng: &mut Rng, at: u64, len: u64) -> Outcome {
        println!("direct write {len} at {at}");
        // Memory for it must begin at a page.
        let mut room = vec![0; (len + PAGE) as usize];
        let start = room.as_ptr().align_offset(PAGE as usize);
        let buffer = &mut room[start..start + len as usize];
        buffer.copy_from_slice(&rng.bytes(len as usize));
        for fd in [&self.ours, &self.plain] {
            let flags = rustix::fs::fcntl_getfl(fd)?;
            rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT).doing("O_DIRECT")?;
            write_all(fd, buffer, at).doing(format!("direct write {len} at {at}"))?;
            let written = buffer.to_vec();
            let n = rustix::io::pread(fd, &mut *buffer, at).doing("direct read")?;
            rustix::fs::fcntl_setfl(fd, flags)?;
            ensure!(written[..n] == buffer[..n] && n > 0, "direct read of {len} at {at} differs");
        }
        Ok(())
    }

    fn allocate(&self, flags: FallocateFlags, at: u64, len: u64) -> Outcome {
        println!("fallocate {flags:?} {len} at {at}");
        let ours = rustix::fs::fallocate(&self.ours, flags, at, len);
        let plain = rustix::fs::fallocate(&self.plain, flags, at, len);
        ensure!(ours == plain, "fallocate {flags:?} {len} at {at}: {ours:?}, on an ordinary file {plain:?}");
        Ok(())
    }
}

fn write_all(fd: &OwnedFd, data: &[u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        done += rustix::io::pwrite(fd, &data[done..], at + done as u64)?;
    }
    Ok(())
}

fn copy_all(fd: &OwnedFd, from: u64, to: u64, len: u64) -> Result<(), Errno> {
    // Ranges that overlap are refused by the kernel before any filesystem sees them.
    let data = {
        let mut data = vec![0; len as usize];
        let n = rustix::io::pread(fd, data.as_mut_slice(), from)?;
        data.truncate(n);
        data
    };
    if from.abs_diff(to) < len {
        return write_all(fd, &data, to);
    }
    let (mut from, mut to, mut left) = (from, to, data.len());
    while left > 0 {
        match rustix::fs::copy_file_range(fd, Some(&mut from), fd, Some(&mut to), left)? {
            0 => break,
            n => left -= n,
        }
    }
    Ok(())
}

fn read(fd: &OwnedFd, at: u64, len: usize) -> Outcome<Vec<u8>> {
    let mut data = vec![0; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(fd, &mut data[done..], at + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    data.truncate(done);
    Ok(data)
}

fn same(ours: &Path, plain: &Path) -> Outcome {
    let (ours, plain) = (fs::read(ours)?, fs::read(plain)?);
    ensure!(ours.len() == plain.len(), "{} bytes, an ordinary file {}", ours.len(), plain.len());
    let first = ours.iter().zip(&plain).position(|(a, b)| a != b);
    ensure!(first.is_none(), "differs from an ordinary file at {first:?}");
    Ok(())
}

/// Every byte is one of those that it has had since the last fsync; then both go on from there.
fn after_crash(ours: &Path, plain: &Path, states: &[Vec<u8>]) -> Outcome<Vec<u8>> {
    let found = fs::read(ours)?;
    if !states.is_empty() {
        for (at, byte) in found.iter().enumerate() {
            let possible = states.iter().any(|state| state.get(at).copied().unwrap_or(0) == *byte);
            ensure!(
                possible,
                "byte {at} of {} has a value that it never had since the last fsync",
                found.len()
            );
        }
        let sizes = states.iter().map(Vec::len);
        ensure!(
            sizes.clone().min() <= Some(found.len()) && Some(found.len()) <= sizes.max(),
            "{} bytes: a size that the file never had",
            found.len()
        );
    }
    fs::write(plain, &found)?;
    Ok(found)
}

/// `vellum flatten` makes it a file like any other.
fn flattened(layers: &Layers, name: &str, plain: &Path) -> Outcome {
    super::flatten(layers)?;
    let path = layers.upper().join(name);
    if path.exists() {
        same(&path, plain).doing("flattened")?;
    }
    Ok(())
}
