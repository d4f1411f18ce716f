//! A branch in memory, for tests and models.
//!
//! It answers as ext4 does to root, errno for errno, with a clock that counts changes instead of time, so that a
//! run can be repeated exactly. [`MemoryBranch::fork`] gives the disk as a crash would leave it.

mod data;
mod disk;
mod medium;
mod power;

pub use crate::tree::Options as MemoryOptions;

use self::data::CAPACITY;
use self::disk::Disk;
use crate::path;
use crate::tree::{Dir, File, IO_SIZE, Pin, ROOT};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vellum_vfs::{Branch, BranchDir, BranchFile, Errno, Name, OpenMode, Result, StatFs};

/// Device numbers of disks; each new one is another filesystem.
static NEXT_DEV: AtomicU64 = AtomicU64::new(0x4d00);

type MemoryDir = Dir<Disk>;
/// An open regular file.
type MemoryFile = File<Disk>;

/// A directory of a disk in memory.
pub struct MemoryBranch {
    disk: Arc<Disk>,
    root: Arc<MemoryDir>,
    path: String,
}

impl MemoryBranch {
    /// An empty disk that behaves like ext4.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with_options(MemoryOptions::default())
    }

    /// An empty disk with other abilities.
    #[must_use]
    pub fn with_options(options: MemoryOptions) -> Arc<Self> {
        let disk = Disk::new(NEXT_DEV.fetch_add(1, Ordering::Relaxed), options);
        // A disk always has its root.
        match Self::at(disk, ROOT, String::new()) {
            Ok(branch) => branch,
            Err(error) => unreachable!("a new disk: {error}"),
        }
    }

    fn at(disk: Arc<Disk>, ino: u64, path: String) -> Result<Arc<Self>> {
        let pin = Pin::new(&disk, &mut disk.lock(), ino)?;
        Ok(Arc::new(Self { disk, root: Arc::new(Dir { pin }), path }))
    }

    /// A directory below this one as a branch on the same disk, so that one can rename from one into the other.
    /// What is missing of `path` (components joined by `/`) is made, with mode 0755.
    pub fn subtree(&self, path: &str) -> Result<Arc<Self>> {
        let mut ino = self.root.pin.ino;
        let mut state = self.disk.lock();
        for component in path.split('/').filter(|part| !part.is_empty()) {
            let component = CString::new(component).map_err(|_| Errno::INVAL)?;
            let name = Name::new(&component)?;
            match state.make_dir(ino, name, 0o755) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            ino = state.find(ino, name)?;
            state.inode(ino)?.entries()?;
        }
        drop(state);
        Self::at(Arc::clone(&self.disk), ino, format!("{}/{path}", self.path))
    }

    /// The disk as it is now, apart from this one from now on: what a process that is started after a crash of
    /// this one finds. Files without a name are gone.
    pub fn fork(&self) -> Result<Arc<Self>> {
        Self::at(self.disk.fork(), self.root.pin.ino, self.path.clone())
    }

    /// Keeps what happens on the disk from now on, for [`MemoryBranch::after_power_loss`]. What is there now counts as durable.
    pub fn record(&self) {
        self.disk.record();
    }

    /// How many changes were recorded so far.
    #[must_use]
    pub fn moment(&self) -> usize {
        self.disk.moment()
    }

    /// The disk as a loss of power might leave it, apart from this one from now on, if that strikes at some moment since
    /// `earliest` ([`MemoryBranch::moment`]). Of what was not synced, changes of metadata arrive in their order up to one of
    /// them, and each block of data by itself (a sync of data only leaves names and attributes to chance), as on a filesystem with a journal and ordered data. `choose(n)` makes each
    /// choice: a number below n. ENODATA: nothing was recorded.
    pub fn after_power_loss(
        &self,
        earliest: usize,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> Result<Arc<Self>> {
        let disk = self.disk.after_power_loss(earliest, choose).ok_or(Errno::NODATA)?;
        Self::at(disk, self.root.pin.ino, self.path.clone())
    }

    /// The disk as it is found after the death of a client that keeps for itself what is written to files, and their size, owner, mode and
    /// times: of each file, what it was at some moment since it was last synced. All else is as it is. `choose` as in
    /// [`MemoryBranch::after_power_loss`].
    pub fn after_client_loss(&self, choose: &mut dyn FnMut(usize) -> usize) -> Result<Arc<Self>> {
        let disk = self.disk.after_client_loss(choose).ok_or(Errno::NODATA)?;
        Self::at(disk, self.root.pin.ino, self.path.clone())
    }
}

impl Branch for MemoryBranch {
    fn root(&self) -> Arc<dyn BranchDir> {
        Arc::<MemoryDir>::clone(&self.root)
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        path::walk(self.root(), path)
    }

    fn statfs(&self) -> Result<StatFs> {
        const MAGIC: u64 = 0x0102_1994;
        const FILES: u64 = 1 << 24;
        let state = self.disk.lock();
        Ok(StatFs {
            frsize: IO_SIZE,
            bsize: IO_SIZE,
            blocks: CAPACITY,
            bfree: CAPACITY,
            bavail: CAPACITY,
            files: FILES,
            ffree: FILES,
            namelen: u32::try_from(state.options.name_max).unwrap_or(u32::MAX),
            fsid: state.dev,
            fstype: MAGIC,
        })
    }

    fn sync(&self) -> Result<()> {
        self.disk.synced_all();
        Ok(())
    }

    fn find_file(&self, ino: u64) -> Result<Arc<dyn BranchFile>> {
        let mut state = self.disk.lock();
        let mut dirs = vec![self.root.pin.ino];
        while let Some(dir) = dirs.pop() {
            for child in state.inode(dir)?.entries()?.values() {
                if *child == ino && state.inode(ino)?.data().is_ok() {
                    let mode = OpenMode::READ | OpenMode::WRITE;
                    return Ok(Arc::new(MemoryFile::new(&self.disk, &mut state, ino, mode)?));
                }
                if state.inode(*child)?.is_dir() {
                    dirs.push(*child);
                }
            }
        }
        Err(Errno::NOENT.into())
    }

    fn exchanges(&self) -> bool {
        self.disk.lock().options.exchange
    }

    fn describe(&self) -> String {
        format!("memory:{}", self.path)
    }
}
