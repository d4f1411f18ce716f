//! Where a comparison takes place: a directory of its own on one filesystem, with the lower layers that all subjects
//! share, and fresh upper layers for each run. It is removed at the end.

use crate::ceph::{Ceph, CephLayers, Tenants};
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::programs::run;
use crate::service::Service;
use crate::tree::{self, Tree};
use crate::workload::{debian, rocksdb, server};
use rustix::mount::{UnmountFlags, unmount};
use std::cell::{Cell, OnceCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::UNIX_EPOCH;

/// The seed of all trees.
const SEED: u64 = 0x76656c6c756d;
/// Files in a tree at scale 1.
const TREE_FILES: f64 = 4000.0;
/// Bytes of a large file at scale 1.
const LARGE_BYTES: f64 = 512.0 * 1024.0 * 1024.0;
/// Files in the largest tree at scale 1.
const MILLION: f64 = 1_000_000.0;
/// Files per directory of the largest tree.
const MILLION_PER_DIR: usize = 1000;
/// Values of 128 KiB in the lower database at scale 1.
const ROCKSDB_VALUES: usize = 8192;
/// Files that tasks in a Debian tree copy, unpack, and remove, at scale 1.
const DEBIAN_FILES: usize = 7500;

/// Testbeds that this process has made, for a name for the next.
static TESTBEDS: AtomicU32 = AtomicU32::new(0);

/// The name of the tree in a layer, and of the directory in an archive.
pub const TREE_NAME: &str = "tree";
/// The file of [`Lower::Shares`] that is read by all.
pub const SHARES_COMMON: &str = "common";
/// A unit of data there at scale 1, in MiB.
const SHARE_UNIT_MIB: usize = 64;
/// The name of the large file in a layer.
pub const LARGE_NAME: &str = "large";

/// What the lower layer of a task holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lower {
    /// Nothing.
    Empty,
    /// [`TREE_NAME`], a tree of small files.
    Tree,
    /// [`LARGE_NAME`], a large file.
    Large,
    /// [`LARGE_NAME`], of so many MiB at scale 1.
    Sized(u32),
    /// Directories `0`, `1`, ... of empty files `0`, `1`, ...
    Million,
    /// The root of an image with a web server.
    Server,
    /// A database of RocksDB.
    RocksDb,
    /// The root tree of a Debian system.
    Debian,
    /// For mounts that share a cache: files `0` to `3` of two units each, and [`SHARES_COMMON`] of one.
    Shares,
}

/// The filesystem of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// ext4, as mkfs.ext4 makes it.
    Ext4,
    /// XFS with reflinks.
    Xfs,
}

/// The directories of one mount.
#[derive(Clone, Debug)]
pub struct Layers {
    /// The lower layer. Shared: nothing may change it.
    pub lower: PathBuf,
    /// The upper layer, empty at first.
    pub upper: PathBuf,
    /// The work directory.
    pub work: PathBuf,
    /// Where to mount.
    pub merged: PathBuf,
    /// Where ceph-fuse shows what of them lies on CephFS, and an empty directory there; None: nothing does.
    pub far: Option<(PathBuf, PathBuf)>,
}

/// A place for comparisons.
#[derive(Debug)]
pub struct Testbed {
    /// What is removed at the end.
    outer: PathBuf,
    /// Where everything lies: `outer`, or a filesystem image mounted in it.
    top: PathBuf,
    /// What of it lies on CephFS; before the directory that it is mounted in.
    ceph: Option<Ceph>,
    mounted: bool,
    /// Whether it is this process that removes it.
    ours: bool,
    scale: f64,
    /// The tree of small files.
    pub tree: Tree,
    tree_lower: OnceCell<PathBuf>,
    large_lower: OnceCell<PathBuf>,
    million_lower: OnceCell<PathBuf>,
    sized_lowers: [OnceCell<PathBuf>; 32],
    server_lower: OnceCell<PathBuf>,
    rocksdb_lower: OnceCell<PathBuf>,
    debian_lower: OnceCell<PathBuf>,
    shares_lower: OnceCell<PathBuf>,
    archive: OnceCell<PathBuf>,
    /// Different in every process.
    salt: u128,
    /// Mounts so far.
    runs: Cell<u32>,
}

impl Testbed {
    /// Makes a place below `dir`, on a filesystem of its own of `image_mib` MiB where that is given.
    pub fn new(dir: &Path, image_mib: Option<u64>, scale: f64) -> Result<Self> {
        Self::on(dir, image_mib.map(|mib| (Format::Ext4, mib)), scale)
    }

    /// Makes a place below `dir`, on an image with a filesystem of that format and of so many MiB where that is given.
    pub fn on(dir: &Path, image: Option<(Format, u64)>, scale: f64) -> Result<Self> {
        let dir = fs::canonicalize(dir).map_err(|error| {
            let dir = dir.display();
            Failure::bad_input(format!("option --dir: {dir}: {error}; give a directory that exists"))
        })?;
        let number = TESTBEDS.fetch_add(1, Ordering::Relaxed);
        let outer = dir.join(format!("vellum-bench-{}-{number}", std::process::id()));
        fs::create_dir(&outer).doing(|| format!("making {}", outer.display()))?;
        interrupt::register_dir(&outer);
        let mut testbed = Self::of_other_process(&outer, scale);
        testbed.ours = true;
        if let Some((format, mib)) = image {
            testbed.mount_image(format, mib)?;
        }
        spread(&testbed.top);
        Ok(testbed)
    }

    /// The place at `top` of another process, to work in: that one has made it, and will remove it.
    pub(crate) fn of_other_process(top: &Path, scale: f64) -> Self {
        let files = (TREE_FILES * scale).ceil() as usize;
        Self {
            outer: top.to_owned(),
            top: top.to_owned(),
            ceph: Ceph::of_other_process(top),
            mounted: false,
            ours: false,
            scale,
            tree: Tree::plan(files, SEED),
            tree_lower: OnceCell::new(),
            large_lower: OnceCell::new(),
            million_lower: OnceCell::new(),
            sized_lowers: [const { OnceCell::new() }; 32],
            server_lower: OnceCell::new(),
            rocksdb_lower: OnceCell::new(),
            debian_lower: OnceCell::new(),
            shares_lower: OnceCell::new(),
            archive: OnceCell::new(),
            salt: UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos()),
            runs: Cell::new(0),
        }
    }

    /// From now on its lower layers, or all of them, lie on CephFS.
    pub fn move_to_ceph(&mut self, far: CephLayers) -> Result<()> {
        let name = self.outer.file_name().unwrap_or_default();
        self.ceph = Some(Ceph::make(&self.top, Path::new(name), far)?);
        Ok(())
    }

    /// Has what shows layers on CephFS begin anew.
    pub(crate) fn begin_anew(&self) -> Result<()> {
        self.ceph.as_ref().map_or(Ok(()), Ceph::begin_anew)
    }

    /// Shows so many tenants what lies on CephFS, each by a client of his own. None: nothing does.
    pub(crate) fn tenants(&self, count: usize) -> Result<Option<Tenants>> {
        self.ceph.as_ref().map(|ceph| ceph.tenants(count)).transpose()
    }

    /// The client that shows all others what lies on CephFS.
    pub(crate) fn remote_service(&self) -> Option<Service> {
        self.ceph.as_ref().and_then(Ceph::service)
    }

    /// Has what lies on CephFS shown again, if that was taken away.
    pub(crate) fn restore_remote(&self) -> Result<()> {
        self.ceph.as_ref().map_or(Ok(()), Ceph::remount_if_gone)
    }

    /// Whether layers lie on CephFS.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.ceph.is_some()
    }

    /// Where lower layers lie.
    fn lowers(&self) -> &Path {
        self.ceph.as_ref().map_or(&self.top, |ceph| &ceph.dir)
    }

    fn mount_image(&mut self, format: Format, mib: u64) -> Result<()> {
        let image = self.outer.join("image");
        let top = self.outer.join("image.mounted");
        let file = fs::File::create(&image).doing(|| "making an image")?;
        file.set_len(mib << 20).doing(|| "making an image")?;
        fs::create_dir(&top).doing(|| "making a mount point")?;
        match format {
            Format::Ext4 => run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?,
            Format::Xfs => run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image))?,
        }
        // What is removed gives its space back to the filesystem that the image lies on.
        run(Command::new("mount").args(["-o", "loop,discard"]).arg(&image).arg(&top))?;
        interrupt::register_place(&top);
        self.top = top;
        self.mounted = true;
        Ok(())
    }

    /// Where everything lies.
    #[must_use]
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// Bytes of the large file.
    #[must_use]
    pub fn large_bytes(&self) -> u64 {
        // A whole number of MiB, so that every read is a full one.
        (((LARGE_BYTES * self.scale) as u64) >> 20).max(1) << 20
    }

    /// `count` at this place's scale, at least 1.
    #[must_use]
    pub fn scaled(&self, count: usize) -> usize {
        scaled(count, self.scale)
    }

    /// The factor of all sizes and counts.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Directories and files of the largest tree, as (number of directories, files in each).
    #[must_use]
    pub fn million(&self) -> (usize, usize) {
        (((MILLION * self.scale) as usize).div_ceil(MILLION_PER_DIR), MILLION_PER_DIR)
    }

    /// A unit of data of one of the mounts that share a cache, in MiB.
    #[must_use]
    pub fn share_unit_mib(&self) -> usize {
        self.scaled(SHARE_UNIT_MIB)
    }

    /// Values in the lower database.
    #[must_use]
    pub fn rocksdb_values(&self) -> usize {
        self.scaled(ROCKSDB_VALUES)
    }

    /// Files that tasks in a Debian tree copy, unpack, and remove.
    #[must_use]
    pub fn debian_files(&self) -> usize {
        self.scaled(DEBIAN_FILES)
    }

    /// What is bound into a Debian tree: archives and a repository, made with its layer.
    #[must_use]
    pub fn debian_inputs(&self) -> PathBuf {
        self.top.join("debian-inputs")
    }

    /// The layer that holds `what`, made when first asked for.
    pub fn lower(&self, what: Lower) -> Result<PathBuf> {
        self.restore_remote()?;
        match what {
            Lower::Empty => {
                let layer = self.lowers().join("lower-empty");
                fs::create_dir_all(&layer).doing(|| "making a layer")?;
                Ok(layer)
            }
            Lower::Tree => self.layer_once(&self.tree_lower, "lower-tree", |layer| {
                let top = layer.join(TREE_NAME);
                fs::create_dir(&top).doing(|| "making a layer")?;
                self.tree.write(&top)
            }),
            Lower::Large => self.layer_once(&self.large_lower, "lower-large", |layer| {
                tree::write_large(&layer.join(LARGE_NAME), self.large_bytes())
            }),
            Lower::Sized(mib) => {
                let bytes = ((f64::from(mib) * self.scale) as u64).max(1) << 20;
                // A place for each power of two.
                let cell = self.sized_lowers.get(mib.ilog2() as usize);
                let cell = cell.ok_or_else(|| Failure::new("no such size"))?;
                self.layer_once(cell, &format!("lower-{mib}"), |layer| {
                    tree::write_large(&layer.join(LARGE_NAME), bytes)
                })
            }
            Lower::Server => self.layer_once(&self.server_lower, "lower-server", server::make),
            Lower::RocksDb => self.layer_once(&self.rocksdb_lower, "lower-rocksdb", |layer| {
                rocksdb::make(layer, self.rocksdb_values())
            }),
            Lower::Debian => self.layer_once(&self.debian_lower, "lower-debian", |layer| {
                debian::make(layer, &self.debian_inputs(), self.debian_files())
            }),
            Lower::Shares => self.layer_once(&self.shares_lower, "lower-shares", |layer| {
                let unit = (self.share_unit_mib() as u64) << 20;
                (0..4).try_for_each(|number| tree::write_large(&layer.join(number.to_string()), 2 * unit))?;
                tree::write_large(&layer.join(SHARES_COMMON), unit)
            }),
            Lower::Million => self.layer_once(&self.million_lower, "lower-million", |layer| {
                let (dirs, files) = self.million();
                for dir in 0..dirs {
                    interrupt::check()?;
                    let dir = layer.join(dir.to_string());
                    fs::create_dir(&dir).doing(|| "making a layer")?;
                    for file in 0..files {
                        fs::File::create(dir.join(file.to_string())).doing(|| "making a layer")?;
                    }
                }
                Ok(())
            }),
        }
    }

    fn layer_once(
        &self,
        cell: &OnceCell<PathBuf>,
        name: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        if let Some(layer) = cell.get() {
            return Ok(layer.clone());
        }
        let layer = make_once(self.lowers(), name, |layer| {
            fs::create_dir(layer).doing(|| "making a layer")?;
            make(layer)?;
            rustix::fs::sync();
            Ok(())
        })?;
        Ok(cell.get_or_init(|| layer).clone())
    }

    /// A tar archive of the tree.
    pub fn archive(&self) -> Result<PathBuf> {
        if let Some(archive) = self.archive.get() {
            return Ok(archive.clone());
        }
        let pack = |archive: &Path, layer: &Path| {
            run(Command::new("tar").arg("-cf").arg(archive).arg("-C").arg(layer).arg(TREE_NAME))
        };
        let archive = if self.is_remote() {
            // CephFS tells a directory's size some time after a change in it, and tar ends with a failure when one changes.
            make_once(&self.top, "tree.tar", |archive| {
                let layer = self.top.join("tree.here");
                interrupt::remove(&layer).doing(|| "removing a tree")?;
                fs::create_dir_all(layer.join(TREE_NAME)).doing(|| "making a tree")?;
                self.tree.write(&layer.join(TREE_NAME))?;
                pack(archive, &layer)?;
                interrupt::remove(&layer).doing(|| "removing a tree")
            })?
        } else {
            let layer = self.lower(Lower::Tree)?;
            make_once(&self.top, "tree.tar", |archive| pack(archive, &layer))?
        };
        Ok(self.archive.get_or_init(|| archive).clone())
    }

    /// Directories for one mount, the upper layer empty.
    pub fn layers(&self, what: Lower) -> Result<Layers> {
        let lower = self.lower(what)?;
        let run = self.new_run()?;
        self.make_layers(&run, "", lower)
    }

    /// Directories for `count` mounts over one lower layer, their upper layers empty.
    pub fn clones(&self, what: Lower, count: usize) -> Result<Vec<Layers>> {
        if count <= 1 {
            return Ok(vec![self.layers(what)?]);
        }
        let lower = self.lower(what)?;
        let run = self.new_run()?;
        let make = |number: usize| {
            let dir = run.join(number.to_string());
            fs::create_dir(&dir).doing(|| format!("making {}", dir.display()))?;
            self.make_layers(&dir, &number.to_string(), lower.clone())
        };
        (0..count).map(make).collect()
    }

    /// Empty directories for a mount, in `dir`, and in the part of this run on CephFS those of this number.
    fn make_layers(&self, dir: &Path, number: &str, lower: PathBuf) -> Result<Layers> {
        let make = |dir: &Path| fs::create_dir(dir).doing(|| format!("making {}", dir.display()));
        let there = self.remote_run().map(|run| run.join(format!("mount{number}")));
        let uppers = match (&self.ceph, &there) {
            (Some(Ceph { far: CephLayers::Both, .. }), Some(there)) => there,
            _ => dir,
        };
        let far = self.ceph.as_ref().zip(there.as_ref());
        let far = far.map(|(ceph, there)| (ceph.mount_point().to_owned(), there.join("alone")));
        let (upper, work) = (uppers.join("upper"), uppers.join("work"));
        let layers = Layers { lower, upper, work, merged: dir.join("merged"), far };
        there.iter().try_for_each(|there| make(there))?;
        layers.far.iter().try_for_each(|(_, alone)| make(alone))?;
        [&layers.upper, &layers.work, &layers.merged].into_iter().try_for_each(|dir| make(dir))?;
        Ok(layers)
    }

    /// What of the run lies on CephFS.
    fn remote_run(&self) -> Option<PathBuf> {
        Some(self.ceph.as_ref()?.dir.join(format!("run-{}", self.runs.get())))
    }

    /// An empty directory; what the run before has left is removed.
    fn new_run(&self) -> Result<PathBuf> {
        self.clear()?;
        // A new name each time: see `spread`.
        self.runs.set(self.runs.get() + 1);
        let run = self.run_dir();
        let far = self.remote_run();
        for run in [&run].into_iter().chain(&far) {
            fs::create_dir(run).doing(|| format!("making {}", run.display()))?;
        }
        Ok(run)
    }

    fn run_dir(&self) -> PathBuf {
        // ext4 chooses the place by the name: one that no earlier process has used either.
        self.top.join(format!("run-{}-{}", self.salt, self.runs.get()))
    }

    /// Removes what [`Testbed::layers`] made. Nothing may be mounted there.
    pub fn clear(&self) -> Result<()> {
        self.restore_remote()?;
        let (run, far) = (self.run_dir(), self.remote_run());
        [run]
            .iter()
            .chain(&far)
            .try_for_each(|run| interrupt::remove(run).doing(|| format!("removing {}", run.display())))
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        drop(self.ceph.take());
        if self.mounted {
            if unmount(&self.top, UnmountFlags::empty()).is_err() {
                let _ = unmount(&self.top, UnmountFlags::DETACH);
            }
            interrupt::unregister(&self.top);
        }
        if let Err(error) = interrupt::remove(&self.outer) {
            eprintln!("vellum-bench: removing {}: {error}", self.outer.display());
        }
    }
}

/// What has a name in `place`: made unless a process has made it, and there only when it is whole.
fn make_once(place: &Path, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let whole = place.join(name);
    if !whole.exists() {
        let new = place.join(format!("{name}.new"));
        make(&new)?;
        fs::rename(&new, &whole).doing(|| format!("renaming {}", new.display()))?;
    }
    Ok(whole)
}

/// Asks ext4 to put the directories in `dir` far from each other (chattr +T).
///
/// ext4 does not take an inode again soon after it was freed. Where the run before has just removed thousands of
/// files, it would search among their inodes for every file that this run creates, and every run would be slower
/// than the one before. Other filesystems may not know the flag.
fn spread(dir: &Path) {
    if let Ok(dir) = fs::File::open(dir)
        && let Ok(flags) = rustix::fs::ioctl_getflags(&dir)
    {
        let _ = rustix::fs::ioctl_setflags(&dir, flags | rustix::fs::IFlags::TOPDIR);
    }
}

/// Space that the files below `dir` take, in bytes.
#[must_use]
pub fn space(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut to_list = vec![dir.to_owned()];
    while let Some(dir) = to_list.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => to_list.push(entry.path()),
                Ok(meta) => bytes += meta.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Writes everything that is dirty, and empties the kernel's caches of data, names and attributes.
pub fn drop_caches() -> Result<()> {
    drop_some("3")
}

/// Writes everything that is dirty, and empties the kernel's caches of names and attributes only: what the disk has said of them
/// stays in memory.
pub fn drop_names() -> Result<()> {
    drop_some("2")
}

fn drop_some(which: &str) -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", which).doing(|| "dropping caches (root may)")
}

/// `count` at a scale, at least 1.
pub(crate) fn scaled(count: usize, scale: f64) -> usize {
    ((count as f64 * scale).round() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_testbed_creates_its_layers_and_removes_them() {
        let dir = std::env::temp_dir();
        let testbed = Testbed::new(&dir, None, 0.01).unwrap();
        let outer = testbed.outer.clone();
        let layers = testbed.layers(Lower::Tree).unwrap();
        for (file, size) in &testbed.tree.files {
            let meta = fs::metadata(layers.lower.join(TREE_NAME).join(file)).unwrap();
            assert_eq!(meta.len(), *size as u64);
        }
        fs::write(layers.upper.join("left"), "over").unwrap();
        let again = testbed.layers(Lower::Empty).unwrap();
        assert_eq!(fs::read_dir(&again.upper).unwrap().count(), 0);
        assert!(testbed.archive().unwrap().exists());
        let other = Testbed::of_other_process(testbed.top(), 0.01);
        let (mine, others) = (testbed.lower(Lower::Tree).unwrap(), other.lower(Lower::Tree).unwrap());
        assert_eq!((mine, testbed.archive().unwrap()), (others, other.archive().unwrap()));
        let made_there = other.lower(Lower::Empty).unwrap();
        drop(other);
        assert_eq!(testbed.lower(Lower::Empty).unwrap(), made_there);
        assert!(made_there.exists());
        drop(testbed);
        assert!(!outer.exists());
    }

    #[test]
    fn a_missing_directory_is_bad_input() {
        let dir = tempfile::tempdir().unwrap();
        let failure = Testbed::new(&dir.path().join("missing"), None, 1.0).unwrap_err();
        assert!(failure.bad_input && failure.to_string().contains("--dir"));
    }
}
