//! An image that is written, or read, from its start to its end.

use super::fixture::{BLOCK, Contest, Fixture, PIECE, of_store};
use crate::failure::{Failure, Result, While};
use crate::tree::incompressible;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use vellum_zoned::device::AlignedBuf;
use vellum_zoned::store::{Class, Store};

/// Direct reads and writes of the disk alone that are under way at once.
const DEPTH: u64 = 4;
/// An image comes, and is asked for, in parts of this many bytes.
const PART: usize = 256 << 10;

pub(super) struct Images {
    store: Store,
    /// The store's own.
    file: File,
    raw: File,
    bytes: u64,
    is_write: bool,
    piece: AlignedBuf,
}

impl Images {
    pub(super) fn write(bed: &Fixture, bytes: u64) -> Result<Self> {
        let raw = bed.file(bytes, true)?;
        let file = File::open(&bed.path).doing(|| format!("opening {}", bed.path.display()))?;
        Ok(Self { store: bed.store.clone(), file, raw, bytes, is_write: true, piece: incompressible(PIECE) })
    }

    pub(super) fn read(bed: &Fixture, bytes: u64) -> Result<Self> {
        Ok(Self { is_write: false, ..Self::write(bed, bytes)? })
    }

    fn put(&self) -> Result<()> {
        let mut writer = of_store(self.store.writer(Class::Checkpoint))?;
        let mut left = self.bytes as usize;
        while left > 0 {
            let some = left.min(PART);
            of_store(writer.write(&self.piece.as_slice()[..some]))?;
            left -= some;
        }
        of_store(writer.commit(b"image"))?;
        of_store(self.store.sync())
    }

    fn remove(&self) -> Result<()> {
        if self.store.entry(b"image").is_ok() {
            of_store(self.store.remove(b"image"))?;
        }
        of_store(self.store.sync())
    }

    fn get(&self) -> Result<()> {
        let mut into = vec![0; PART];
        let mut reader = of_store(self.store.reader(b"image"))?;
        let mut left = self.bytes;
        while left > 0 {
            let read = of_store(reader.read(&mut into))? as u64;
            if read == 0 {
                return Err(Failure::new("the image ends too early"));
            }
            left -= read.min(left);
        }
        Ok(())
    }

    /// Nothing of the store's file is in the page cache.
    fn forget(&self) -> Result<()> {
        fadvise(&self.file, 0, None, Advice::DontNeed).doing(|| "dropping the store's pages")
    }

    /// Direct I/O in the same order, some at once.
    fn raw(&self) -> Result<()> {
        let next = AtomicU64::new(0);
        let one = || -> std::io::Result<()> {
            let mut buffer = self.piece.clone();
            loop {
                let at = next.fetch_add(PIECE as u64, Ordering::Relaxed);
                if at >= self.bytes {
                    return Ok(());
                }
                if self.is_write {
                    self.raw.write_all_at(buffer.as_slice(), at)?;
                } else {
                    self.raw.read_exact_at(buffer.as_mut_slice(), at)?;
                }
            }
        };
        let done = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..DEPTH).map(|_| scope.spawn(one)).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread has panicked")))
            })
        });
        done.and_then(|()| self.raw.sync_data()).doing(|| "reading and writing directly")
    }
}

impl Contest for Images {
    fn name(&self) -> &'static str {
        if self.is_write { "image write" } else { "image read" }
    }

    fn peer(&self) -> &'static str {
        "direct I/O"
    }

    fn bar(&self) -> f64 {
        0.95
    }

    fn bytes(&self) -> u64 {
        self.bytes.next_multiple_of(BLOCK)
    }

    fn peer_seconds(&mut self) -> Result<f64> {
        let begins = Instant::now();
        self.raw()?;
        Ok(begins.elapsed().as_secs_f64())
    }

    fn store_seconds(&mut self) -> Result<f64> {
        if self.is_write {
            self.remove()?;
        } else {
            if self.store.entry(b"image").is_err() {
                self.put()?;
            }
            self.forget()?;
        }
        let begins = Instant::now();
        if self.is_write {
            self.put()?
        } else {
            self.get()?
        }
        Ok(begins.elapsed().as_secs_f64())
    }
}
