//! The operations of [`super::filebench`] on a filesystem.

use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::workload::filebench::{Call, LOG, Target, Thread, directories};
use crate::workload::personality::Personality;
use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The most that one call reads or writes, in bytes: the published `iosize`.
const IO_BYTES: usize = 1 << 20;
/// The seed of everything.
const SEED: u64 = 0x6669_6c65;

/// What one thread has open in a directory.
#[derive(Debug)]
struct Disk<'a> {
    root: &'a Path,
    current: Option<File>,
    log: Option<File>,
    buffer: Vec<u8>,
}

impl<'a> Disk<'a> {
    fn new(root: &'a Path) -> Self {
        Self { root, current: None, log: None, buffer: vec![0x5a; IO_BYTES] }
    }

    fn open(&mut self, path: &Path, create: bool) -> Result<()> {
        let file = OpenOptions::new().read(true).write(true).create_new(create).open(self.root.join(path));
        self.current = Some(file.doing(|| format!("opening {}", path.display()))?);
        Ok(())
    }

    fn current(&self) -> Result<&File> {
        self.current.as_ref().ok_or_else(|| Failure::new("no file is open"))
    }

    /// Writes at an offset, in pieces of at most [`IO_BYTES`].
    fn write_at(&self, mut offset: u64, bytes: usize) -> Result<()> {
        let file = self.current()?;
        let mut left = bytes;
        while left > 0 {
            let piece = self.buffer.get(..left.min(IO_BYTES)).unwrap_or_default();
            file.write_all_at(piece, offset).doing(|| "writing")?;
            offset += piece.len() as u64;
            left -= piece.len();
        }
        Ok(())
    }

    fn append_log(&mut self, bytes: usize) -> Result<()> {
        if self.log.is_none() {
            let log = OpenOptions::new().append(true).open(self.root.join(LOG));
            self.log = Some(log.doing(|| "opening the log")?);
        }
        let piece = self.buffer.get(..bytes.min(IO_BYTES)).unwrap_or_default();
        let log = self.log.as_mut().ok_or_else(|| Failure::new("no log"))?;
        log.write_all(piece).doing(|| "appending to the log")
    }

    fn read_whole(&mut self) -> Result<()> {
        let mut file = self.current.as_ref().ok_or_else(|| Failure::new("no file is open"))?;
        while file.read(&mut self.buffer).doing(|| "reading")? > 0 {}
        Ok(())
    }
}

impl Target for Disk<'_> {
    fn call(&mut self, call: &Call) -> Result<()> {
        match call {
            Call::Create(path) => self.open(path, true),
            Call::Open(path) => self.open(path, false),
            Call::Append(bytes) => {
                let end = self.current()?.metadata().doing(|| "the size of a file")?.len();
                self.write_at(end, *bytes)
            }
            Call::AppendLog(bytes) => self.append_log(*bytes),
            Call::ReadWhole => self.read_whole(),
            Call::ReadAt { offset, bytes } => {
                let file = self.current.as_ref().ok_or_else(|| Failure::new("no file is open"))?;
                let buffer = self.buffer.get_mut(..*bytes).unwrap_or_default();
                file.read_exact_at(buffer, *offset).doing(|| "reading at random")
            }
            Call::WriteAt { offset, bytes } => self.write_at(*offset, *bytes),
            Call::Sync => self.current()?.sync_data().doing(|| "fdatasync"),
            Call::Close => {
                self.current = None;
                Ok(())
            }
            Call::Delete(path) => {
                fs::remove_file(self.root.join(path)).doing(|| format!("deleting {}", path.display()))
            }
            Call::Stat(path) => {
                fs::metadata(self.root.join(path)).map(drop).doing(|| format!("stat of {}", path.display()))
            }
        }
    }
}

/// Makes the files that are there at the beginning, in `root`, and makes them durable.
pub fn prepare(personality: &Personality, root: &Path) -> Result<()> {
    for dir in directories(&personality.files) {
        fs::create_dir(root.join(&dir)).doing(|| format!("making {}", dir.display()))?;
    }
    let mut disk = Disk::new(root);
    let mut make = |path: &Path, bytes: u64| {
        disk.open(path, true)?;
        disk.write_at(0, usize::try_from(bytes).unwrap_or(usize::MAX))?;
        interrupt::check()
    };
    if let Some(bytes) = personality.files.log_bytes {
        make(Path::new(LOG), bytes)?;
    }
    for (path, bytes) in personality.files.initial(personality.sharers(), SEED) {
        make(&path, bytes)?;
    }
    rustix::fs::sync();
    Ok(())
}

/// Runs all threads to their end.
pub fn run(personality: &Personality, root: &Path) -> Result<()> {
    in_threads(personality, |thread| thread.run(&mut Disk::new(root), interrupt::check))
}

/// Runs all threads until then; the roles have to have more to do. How many operations there were.
pub fn run_until(personality: &Personality, root: &Path, end: Instant) -> Result<u64> {
    let operations = AtomicU64::new(0);
    in_threads(personality, |thread| {
        let mut counted = OpCounts { disk: Disk::new(root), operations: 0 };
        let is_over = Cell::new(false);
        let done = thread.run(&mut counted, || {
            is_over.set(Instant::now() >= end);
            if is_over.get() { Err(Failure::new("the time is over")) } else { interrupt::check() }
        });
        operations.fetch_add(counted.operations, Relaxed);
        if is_over.get() { Ok(()) } else { done }
    })?;
    Ok(operations.into_inner())
}

struct OpCounts<'a> {
    disk: Disk<'a>,
    operations: u64,
}

impl Target for OpCounts<'_> {
    fn call(&mut self, call: &Call) -> Result<()> {
        self.operations += 1;
        self.disk.call(call)
    }
}

fn in_threads(personality: &Personality, run: impl Fn(Thread<'_>) -> Result<()> + Sync) -> Result<()> {
    let run = &run;
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (role, seed) in personality.roles.iter().zip(0_u64..) {
            for number in 0..role.threads {
                let thread = Thread::new(&personality.files, role, number, SEED ^ (seed << 32));
                let body = move || run(thread);
                threads.push(std::thread::Builder::new().spawn_scoped(scope, body).doing(|| "a thread")?);
            }
        }
        let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("a thread has panicked")))
        };
        threads.into_iter().try_for_each(ended)
    })
}
