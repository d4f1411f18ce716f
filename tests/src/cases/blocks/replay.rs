//! Losses of power on real filesystems: all that a filesystem writes to its disk while files of a union are changed is recorded, and
//! what the disk holds at any moment of that, with any part of what it was not told to keep, is mounted and looked at. What was
//! synced by then must be there, and of the rest each block must be as it was at some moment since.

use crate::harness::disk::Disk;
use crate::harness::mount::only_vellum;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, skip};
use crate::harness::recorder::Recorder;
use crate::harness::{Cx, Layers, Rng, rng, shell};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

const BLOCK: usize = 4096;
const OPTIONS: &[&str] = &["block_copy=128K"];

/// VELLUM_REPLAY, for a longer run: how many states of each disk are looked at.
fn states() -> usize {
    std::env::var("VELLUM_REPLAY").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// What a file held from some moment on.
struct Version {
    begun: usize,
    data: Vec<u8>,
}

/// A file of the lower layer, and what has happened to it.
struct TrackedFile {
    names: [String; 2],
    /// Which of the names it has, from some moment on.
    named: Vec<(usize, usize)>,
    versions: Vec<Version>,
    /// Syncs that have returned: when, and which version they were of.
    synced: Vec<(usize, usize)>,
}

impl TrackedFile {
    fn new(name: &str, size: usize) -> Self {
        let data = (0..size).map(|at| (at / BLOCK % 50) as u8 + 200).collect();
        Self {
            names: [name.to_owned(), format!("{name}.moved")],
            named: vec![(0, 0)],
            versions: vec![Version { begun: 0, data }],
            synced: vec![(0, 0)],
        }
    }

    fn name(&self) -> &str {
        let (_, number) = self.named.last().copied().unwrap_or_default();
        self.names.get(number).map_or("", String::as_str)
    }

    fn data(&self) -> &[u8] {
        self.versions.last().map_or(&[], |version| &version.data)
    }

    fn change(&mut self, begun: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let mut data = self.data().to_vec();
        change(&mut data);
        self.versions.push(Version { begun, data });
    }

    /// Versions of which something may be found after a loss of power at some moment.
    fn possible(&self, moment: usize) -> &[Version] {
        let synced =
            self.synced.iter().rev().find(|(at, _)| *at <= moment).map_or(0, |(_, version)| *version);
        let last = self.versions.iter().rposition(|version| version.begun <= moment).unwrap_or(0);
        self.versions.get(synced..=last.max(synced)).unwrap_or_default()
    }

    /// Looks at what is left of it in a mount.
    fn check(&self, root: &Path, moment: usize) -> Outcome {
        let there: Vec<&String> = self.names.iter().filter(|name| root.join(name).exists()).collect();
        let [name] = *there else {
            return crate::harness::fail(format!("{} is there as {there:?}", self.names[0]));
        };
        let found = fs::read(root.join(name)).doing(name)?;
        let possible = self.possible(moment);
        let sizes = || possible.iter().map(|version| version.data.len());
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        ensure!(
            (least..=most).contains(&found.len()),
            "{name}: {} bytes, not {least} to {most}",
            found.len()
        );
        for (number, block) in found.chunks(BLOCK).enumerate() {
            let is = |version: &Version| {
                let then = version.data.get(number * BLOCK..).unwrap_or_default();
                block.iter().enumerate().all(|(at, byte)| then.get(at).copied().unwrap_or(0) == *byte)
            };
            ensure!(
                possible.iter().any(is),
                "{name}: block {number} of {} bytes, which begins with {:?}, is none of the {} that it may be",
                found.len(),
                block.get(..8),
                possible.len()
            );
        }
        Ok(())
    }
}

fn open(path: &Path) -> Outcome<OwnedFd> {
    rustix::fs::open(path, OFlags::RDWR, Mode::empty()).doing(path.display())
}

/// The sync that databases commit with.
fn sync(root: &Path, recorder: &Recorder, file: &mut TrackedFile) -> Outcome {
    rustix::fs::fdatasync(open(&root.join(file.name()))?)?;
    file.synced.push((recorder.moment(), file.versions.len() - 1));
    Ok(())
}

/// One change at random, or one sync.
fn step(
    rng: &mut Rng,
    number: usize,
    root: &Path,
    disk: &Disk,
    recorder: &Recorder,
    file: &mut TrackedFile,
) -> Outcome {
    let path = root.join(file.name());
    let begun = recorder.moment();
    let size = file.data().len();
    let byte = (number % 199) as u8 + 1;
    let at = rng.below(size.max(BLOCK) as u64) as usize;
    match rng.below(20) {
        0..=6 => {
            // Mostly in place: then a sync has no other reason to commit than the copy-up before it.
            let most = if rng.one_in(3) || at >= size { 3 * BLOCK } else { size - at };
            let len = 1 + rng.below(most as u64) as usize;
            ensure_eq!(rustix::io::pwrite(open(&path)?, &vec![byte; len], at as u64)?, len, "a write");
            file.change(begun, |data| {
                data.resize(data.len().max(at + len), 0);
                data[at..at + len].fill(byte);
            });
        }
        // All of it: a file that was copied in blocks is whole then.
        7 => {
            ensure_eq!(rustix::io::pwrite(open(&path)?, &vec![byte; size], 0)?, size, "a write");
            file.change(begun, |data| data.fill(byte));
        }
        8 | 9 => {
            let to = rng.below(size as u64 + 2 * BLOCK as u64) as usize;
            rustix::fs::ftruncate(open(&path)?, to as u64)?;
            file.change(begun, |data| data.resize(to, 0));
        }
        10 => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(open(&path)?, flags, at as u64, 3 * BLOCK as u64)?;
            file.change(begun, |data| {
                let end = (at + 3 * BLOCK).min(data.len());
                data.get_mut(at..end).unwrap_or_default().fill(0);
            });
        }
        11..=14 => {
            sync(root, recorder, file)?;
        }
        15 => {
            rustix::fs::fsync(open(&path)?)?;
            file.synced.push((recorder.moment(), file.versions.len() - 1));
        }
        16 => {
            let to = 1 - file.named.last().map_or(0, |(_, name)| *name);
            fs::rename(&path, root.join(file.names.get(to).map_or("", String::as_str)))?;
            file.named.push((begun, to));
        }
        17 => rustix::fs::chmod(&path, Mode::from_raw_mode(0o600 | u32::from(byte & 0o77)))?,
        // The filesystem below writes what it has, which is nothing that anybody may count on.
        _ => disk.sync()?,
    }
    Ok(())
}

fn replay(cx: &Cx, rng: &mut Rng, kind: &str, mkfs: &[&str], size: u64) -> Outcome {
    const STEPS: usize = 120;
    const FILES: usize = 24;
    let Some((program, arguments)) = mkfs.split_first() else { return Ok(()) };
    if !shell::have(program) {
        return skip(format!("{program} is missing: run make deps"));
    }
    let empty = cx.dir.join(format!("{kind}.empty"));
    fs::File::create(&empty)?.set_len(size)?;
    shell::run(Command::new(program).args(arguments).arg(&empty))?;
    let recorder = Recorder::new(&empty, &cx.dir.join(format!("{kind}.recorder")))?;
    let disk = Disk::mounted(recorder.disk(), cx.dir.join(kind), "loop")?;
    let layers = Layers::new(disk.at(), 1)?;
    // Many of them, for what comes right after a copy-up is what this is about.
    let sizes = [3 * BLOCK, 5000, 80 * BLOCK + 100];
    let mut files: Vec<TrackedFile> = (0..FILES)
        .map(|number| {
            let dir = if number % 2 == 0 { String::new() } else { format!("dir{number}/") };
            TrackedFile::new(
                &format!("{dir}file{number}"),
                *sizes.get(number % sizes.len()).unwrap_or(&BLOCK),
            )
        })
        .collect();
    for file in &files {
        let path = layers.lower().join(file.name());
        fs::create_dir_all(path.parent().unwrap_or(layers.lower()))?;
        fs::write(path, file.data())?;
    }
    let mut mount = cx.mount_with(&layers, OPTIONS)?;
    disk.sync()?;
    let begin = recorder.moment();
    for number in 0..STEPS {
        let which = rng.below(files.len() as u64) as usize;
        let Some(file) = files.get_mut(which) else { continue };
        step(rng, number, mount.root(), &disk, &recorder, file).doing(format!("{kind}: step {number}"))?;
        if rng.one_in(2) {
            sync(mount.root(), &recorder, file)?;
        }
    }
    let end = recorder.moment();
    mount.unmount()?;
    drop(disk);
    let within = |at: &usize| (begin..=end).contains(at);
    let flushes: Vec<usize> = recorder.flushes().into_iter().filter(within).collect();
    let synced: Vec<usize> =
        files.iter().flat_map(|file| &file.synced).map(|(at, _)| *at).filter(within).collect();
    ensure!(
        flushes.len() > 10 && synced.len() > 10,
        "{kind}: {} flushes, {} syncs",
        flushes.len(),
        synced.len()
    );
    for number in 0..states() {
        // Of what was not to be kept yet, all may be there, or any part of it.
        let (moment, lost) = match number % 4 {
            0 => (*rng.pick(&flushes), false),
            1 => (*rng.pick(&synced), false),
            2 => (*rng.pick(&synced), true),
            _ => (begin + rng.below((end - begin) as u64 + 1) as usize, true),
        };
        let pending = recorder.pending(moment);
        let image = cx.dir.join(format!("{kind}.left"));
        recorder.image(moment, lost.then_some(&mut *rng), &image)?;
        look(cx, &image, &files, moment)
            .doing(format!("{kind}: power lost at {moment} of {begin} to {end}, {pending} blocks pending"))?;
    }
    println!("{kind}: {} of {} moments and {} flushes", states(), end - begin, flushes.len());
    Ok(())
}

fn look(cx: &Cx, image: &Path, files: &[TrackedFile], moment: usize) -> Outcome {
    let left = Disk::of(image.to_path_buf(), "left", "loop")?;
    let layers = Layers::new(left.at(), 1)?;
    let mut mount = cx.mount_with(&layers, OPTIONS)?;
    for file in files {
        file.check(mount.root(), moment)?;
    }
    mount.unmount()
}

pub(super) fn ext4(cx: &Cx) -> Outcome {
    only_vellum("promises nothing of the kind")?;
    let seed = rng::seed();
    println!("seed {seed}");
    let mkfs = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0"];
    replay(cx, &mut Rng::new(seed), "ext4", &mkfs, 64 << 20)
}

pub(super) fn xfs(cx: &Cx) -> Outcome {
    only_vellum("promises nothing of the kind")?;
    let seed = rng::seed();
    println!("seed {seed}");
    // Where blocks can be shared there are no files that are copied in blocks.
    let mkfs = ["mkfs.xfs", "-q", "-f", "-m", "reflink=0"];
    replay(cx, &mut Rng::new(seed), "xfs", &mkfs, 320 << 20)
}
