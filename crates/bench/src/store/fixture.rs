//! Files of the store and of others, and what they compete in.

use crate::failure::{Failure, Result, While};
use crate::tree::incompressible;
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_zoned::device::emulator::Pace;
use vellum_zoned::device::{Access, Conventional, find};
use vellum_zoned::store::{Placement, Store};

/// Bytes of a block.
pub(super) const BLOCK: u64 = 4096;
/// Bytes of a zone of the store's file.
pub(super) const ZONE: u64 = 16 << 20;
/// Written at once when a file is made.
pub(super) const PIECE: usize = 1 << 20;

/// Something that is done by the store, and by somebody else.
pub(super) trait Contest {
    /// As tables call it.
    fn name(&self) -> &'static str;
    /// Whom the store is compared with.
    fn peer(&self) -> &'static str;
    /// The store must have at least this part of the other one's rate.
    fn bar(&self) -> f64;
    /// Bytes that one time is for.
    fn bytes(&self) -> u64;
    /// Seconds of the other one.
    fn peer_seconds(&mut self) -> Result<f64>;
    fn store_seconds(&mut self) -> Result<f64>;
}

/// The store's file, and where others' files are.
pub(super) struct Fixture {
    pub(super) directory: PathBuf,
    /// Of the store's file.
    pub(super) path: PathBuf,
    pub(super) store: Store,
}

impl Fixture {
    pub(super) fn new(directory: &Path, length: u64) -> Result<Self> {
        let path = directory.join("store");
        let what = || format!("making a store in {}", path.display());
        // Blocks that a filesystem has yet to find are no business of the store's.
        let file = File::options().read(true).write(true).create_new(true).open(&path).doing(what)?;
        fill(&file, length + (1 << 20))?;
        Conventional::create(file, BLOCK as u32, (length / ZONE) as u32, ZONE / BLOCK).doing(what)?;
        let found = find(&path, Access::Write, Pace::None).doing(what)?;
        let store = Store::format(Arc::clone(&found.device), Placement::NONE).doing(what)?;
        Ok(Self { directory: directory.to_owned(), path, store })
    }

    /// A file of `length` bytes, all of them written, for direct I/O or not. It has no name.
    pub(super) fn file(&self, length: u64, is_direct: bool) -> Result<File> {
        let mut flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        if is_direct {
            flags |= OFlags::DIRECT;
        }
        let file = open(&self.directory, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.doing(|| format!("making a file in {}", self.directory.display()))?);
        fill(&file, length)?;
        Ok(file)
    }
}

fn fill(file: &File, length: u64) -> Result<()> {
    let piece = incompressible(PIECE);
    for at in (0..length).step_by(PIECE) {
        crate::interrupt::check()?;
        let some = (length - at).min(PIECE as u64) as usize;
        file.write_all_at(&piece.as_slice()[..some], at).doing(|| "filling a file")?;
    }
    file.sync_all().doing(|| "filling a file")
}

/// The error of a store.
pub(super) fn of_store<T>(result: vellum_zoned::store::Result<T>) -> Result<T> {
    result.map_err(|error| Failure::new(format!("the store: {error}")))
}
