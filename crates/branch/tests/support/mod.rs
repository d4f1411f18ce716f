//! What the tests of branches share.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod cluster;
pub mod fault;

use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vellum_branch::{
    DataCacheBranch, LocalBranch, MemoryBranch, VersionCheck, Writeback, WritebackLimits, ZonedBranch,
    ZonedTree,
};
use vellum_cache::{Config, S3Fifo, Shared, SlabMemory};
use vellum_vfs::{Branch, BranchDir, BranchFile, Errno, Name, OpenMode, Result};
use vellum_zoned::device::emulator::{LARGE_ZONE, SMALL_ZONE};
use vellum_zoned::device::{Conventional, Emulated, ZonedDevice};
use vellum_zoned::store::{Placement, Store};

/// A name from a literal.
pub fn n(name: &CStr) -> Name<'_> {
    Name::new(name).expect("a good name in a test")
}

/// The errno of a failure. Panics on success.
#[track_caller]
pub fn errno<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("should have failed"),
        Err(error) => error.errno(),
    }
}

/// When this variable is set, local branches do without the calls that are new in Linux.
pub const OLD_CALLS: &str = "VELLUM_TEST_OLD_CALLS";

/// A new directory beside the build, not in /tmp, which may be a filesystem of another kind; or where
/// VELLUM_TEST_DIR says, to test other filesystems and as other users.
pub fn scratch() -> tempfile::TempDir {
    let base = std::env::var_os("VELLUM_TEST_DIR").unwrap_or(env!("CARGO_TARGET_TMPDIR").into());
    tempfile::tempdir_in(base).expect("a temporary directory")
}

/// A branch, and what keeps it alive.
pub struct Fixture {
    pub branch: Arc<dyn Branch>,
    pub dir: Option<tempfile::TempDir>,
}

impl Fixture {
    pub fn local() -> Self {
        // The modes that tests ask for are those that they expect.
        vellum_sys::clear_umask();
        if std::env::var_os(OLD_CALLS).is_some() {
            vellum_sys::avoid_new_calls();
        }
        let dir = scratch();
        let branch = LocalBranch::open(dir.path()).expect("open it as a branch");
        Self { branch, dir: Some(dir) }
    }

    pub fn ceph(client: &Arc<vellum_branch::CephClient>) -> Self {
        Self { branch: cluster::directory(client), dir: None }
    }

    pub fn memory() -> Self {
        Self { branch: MemoryBranch::new(), dir: None }
    }

    /// A new store on a device.
    pub fn zoned(device: Arc<dyn ZonedDevice>) -> Self {
        let store = Store::format(device, Placement::NONE).expect("a store");
        let tree = ZonedTree::open(store).expect("its tree");
        let branch = ZonedBranch::open(&tree, c"", "zoned:test".to_owned()).expect("open it as a branch");
        Self { branch, dir: None }
    }

    /// On an emulated device with small zones, on one with large zones, and on a file without zones; with blocks of 4096 bytes.
    pub fn all_zoned() -> [Self; 3] {
        let small = SMALL_ZONE.scaled(64, 32).with_limits(12, 12);
        let large = LARGE_ZONE.scaled(32, 128).with_limits(14, 14);
        let emulated =
            [small, large].map(|profile| Arc::new(Emulated::in_memory(profile, 1).expect("a device")));
        let file = tempfile::tempfile().expect("a file");
        let file = Arc::new(Conventional::create(file, 4096, 32, 64).expect("a device"));
        let [small, large] = emulated.map(|device| Self::zoned(device));
        [small, large, Self::zoned(file)]
    }

    /// The branch, read through a small cache.
    pub fn cached(self) -> Self {
        let member = cache().join(100).expect("join a new cache");
        // Tests do not wait for files to settle: all their changes go through the branch.
        let sharing = VersionCheck::Shared { settle: Duration::ZERO };
        Self { branch: DataCacheBranch::new(self.branch, member, sharing), dir: self.dir }
    }

    /// The branch, written behind, with a log of its own.
    pub fn writeback(self) -> Self {
        let limits = WritebackLimits { bytes: WritebackLimits::BYTES_MIN, age: Duration::from_secs(3600) };
        let work = MemoryBranch::new();
        let writeback = Writeback::create(self.branch, work, limits).expect("a log");
        Self { branch: writeback.branches().0, dir: self.dir }
    }

    /// A directory and memory, by themselves and read through a cache.
    pub fn all() -> [Self; 4] {
        [Self::local(), Self::memory(), Self::local().cached(), Self::memory().cached()]
    }

    pub fn root(&self) -> Arc<dyn BranchDir> {
        self.branch.root()
    }

    pub fn path(&self) -> &Path {
        self.dir.as_ref().expect("a local branch").path()
    }
}

/// A cache with room for 16 blocks of 64 KiB.
pub fn cache() -> Arc<Shared<SlabMemory>> {
    Shared::new(Config { capacity: 1 << 20, files: 100, policy: S3Fifo::queue }, SlabMemory::default())
}

pub const RW: OpenMode = OpenMode::READ.union(OpenMode::WRITE);

/// Makes a file with contents.
pub fn put(dir: &dyn BranchDir, name: &CStr, data: &[u8]) -> Arc<dyn BranchFile> {
    let file = dir.create(n(name), 0o644).expect("create");
    assert_eq!(file.write_at(data, 0).expect("write"), data.len());
    file
}

pub fn get(file: &dyn BranchFile) -> Vec<u8> {
    let mut buf = vec![0; usize::try_from(file.stat().expect("stat").size).expect("small")];
    let count = file.read_at(&mut buf, 0).expect("read");
    buf.truncate(count);
    buf
}

/// All of a file by name.
pub fn get_at(dir: &dyn BranchDir, name: &CStr) -> Vec<u8> {
    get(&*dir.open_file(n(name), OpenMode::READ).expect("open"))
}

/// The names in a directory, sorted.
pub fn names(dir: &dyn BranchDir) -> Vec<String> {
    let mut names = Vec::new();
    dir.list(&mut |item| {
        names.push(item.name.to_string());
        Ok(())
    })
    .expect("list");
    names.sort();
    names
}

pub fn subdir(dir: &dyn BranchDir, name: &CStr) -> Arc<dyn BranchDir> {
    dir.make_dir(n(name), 0o755).expect("mkdir");
    dir.open_dir(n(name)).expect("open directory")
}

pub fn long_name(len: usize) -> CString {
    CString::new(vec![b'l'; len]).expect("no NUL")
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Takes a result that does not matter.
pub fn done<T>(_: T) {}

/// Whether a branch lies on ext4, whose limits the memory branch imitates.
pub fn is_ext4(fixture: &Fixture) -> bool {
    const MAGIC: u64 = 0xef53;
    fixture.branch.statfs().expect("statfs").fstype == MAGIC
}

/// Whether a branch has files without a name.
pub fn makes_unnamed(fixture: &Fixture) -> bool {
    fixture.root().create_unnamed(0o600).is_ok()
}

/// Whether space can be reserved for a file of a branch.
pub fn reserves(fixture: &Fixture) -> bool {
    let root = fixture.root();
    let reserved = put(&*root, c"probe", b"").allocate(0, 0, 1).is_ok();
    root.remove(n(c"probe")).expect("remove");
    reserved
}
