//! A branch around another one that reads through a cache.
//!
//! Regular files that are opened to be read only are read in blocks of 64 KiB from one copy for all who share the cache; everything else
//! is the other branch's. Contents are called by filesystem, inode, size, and the storage's count of the inode's changes, or where it has
//! none the time of the last; these are asked when a file is opened, and after each fetch. So a change by others is seen by the next open at the latest (close-to-open), and
//! one through this branch at once: it takes what is cached of the file away. Renames and removals need nothing of the kind, for no
//! name is part of what contents are called by.
//!
//! A file's descriptor is the other branch's: the kernel, which reads by it in `passthrough`, has its own cache.

mod file;
mod objects;

use self::file::DataCacheFile;
use self::objects::{DataCacheDir, DataCacheObject};
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use vellum_cache::{FileReader, Key, Member, SlabMemory, Version};
use vellum_vfs::{AdoptedObject, Attr, Branch, BranchDir, BranchFile, Object, OpenMode, Result, Timestamp};

/// Who may change the files of a branch, and so how often their versions are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionCheck {
    /// Nobody, as long as they are open: asked when they are opened.
    Immutable,
    /// Others, too: asked after each fetch as well. A file that has changed within the last `settle` is not cached: a storage whose
    /// clock is coarse ([`SETTLE`]) may give a further change the same time, and a write moves it when it begins.
    Shared {
        /// How long a file has to have been left alone.
        settle: Duration,
    },
}

/// The coarsest clock of a filesystem in use: two seconds (FAT), one (ext4 with small inodes, NFS), some milliseconds (Linux before
/// 6.13).
pub const SETTLE: Duration = Duration::from_secs(2);

/// A branch that reads through a cache.
pub struct DataCacheBranch {
    inner: Arc<dyn Branch>,
    way: Arc<CacheAccess>,
}

/// The way by which files are read.
struct CacheAccess {
    member: Arc<Member<SlabMemory>>,
    sharing: VersionCheck,
}

impl DataCacheBranch {
    /// Reads `inner` through the cache that `member` is in, at that container's expense.
    #[must_use]
    pub fn new(inner: Arc<dyn Branch>, member: Arc<Member<SlabMemory>>, sharing: VersionCheck) -> Arc<Self> {
        Arc::new(Self { inner, way: Arc::new(CacheAccess { member, sharing }) })
    }
}

impl CacheAccess {
    /// How the other branch is to open what is opened in `mode`: one copy in memory is enough.
    fn below(mode: OpenMode) -> OpenMode {
        if is_read_only(mode) { mode | OpenMode::KEPT_ABOVE } else { mode }
    }

    /// A file that was opened in `mode`.
    fn opened(self: &Arc<Self>, inner: Arc<dyn BranchFile>, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        let contents = if is_read_only(mode) { self.contents(&*inner) } else { None };
        let file = DataCacheFile::new(inner, contents, self);
        if mode.contains(OpenMode::TRUNCATE) {
            file.changed()?;
        }
        Ok(Arc::new(file))
    }

    /// The file's contents as they are now. None: they are not cached.
    fn contents(&self, file: &dyn BranchFile) -> Option<FileReader<SlabMemory>> {
        // Where this fails, it fails again for who reads.
        let (attr, count) = file.version().ok()?;
        // A count has no clock that could be coarse.
        let trusted = count.is_some() || self.sharing.trusts(attr.ctime);
        trusted.then(|| self.member.open(version(&attr, count))).flatten()
    }

    fn invalidate(&self, object: vellum_cache::Object) {
        self.member.shared().invalidate(object);
    }

    fn wrap_dir(self: &Arc<Self>, inner: Arc<dyn BranchDir>) -> Arc<dyn BranchDir> {
        Arc::new(DataCacheDir { inner, way: Arc::clone(self) })
    }

    fn wrap_object(self: &Arc<Self>, inner: Arc<dyn Object>) -> Arc<dyn Object> {
        Arc::new(DataCacheObject { inner, way: Arc::clone(self) })
    }
}

const fn is_read_only(mode: OpenMode) -> bool {
    !mode.intersects(OpenMode::WRITE.union(OpenMode::TRUNCATE))
}

impl VersionCheck {
    /// Whether a change that comes now would have another time.
    fn trusts(self, changed: Timestamp) -> bool {
        let Self::Shared { settle } = self else { return true };
        if settle.is_zero() {
            return true;
        }
        let at = u64::try_from(changed.secs).map(|secs| Duration::new(secs, changed.nanos));
        let since = at.ok().and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at)).map(|at| at.elapsed());
        // A time to come is that of another clock.
        matches!(since, Some(Ok(since)) if since >= settle)
    }
}

/// What the cache calls the contents of a file with such attributes. `count`: of its changes, where the storage has one.
const fn version(attr: &Attr, count: Option<u64>) -> Version {
    const NANOS_A_SECOND: i64 = 1_000_000_000;
    // Each change of contents changes this time, and nobody can set it.
    let changed = attr.ctime.secs.wrapping_mul(NANOS_A_SECOND).wrapping_add(attr.ctime.nanos as i64);
    let version = match count {
        Some(count) => count,
        None => changed.cast_unsigned(),
    };
    Version { key: Key { object: object(attr), version }, size: attr.size }
}

/// What the cache calls a file.
const fn object(attr: &Attr) -> vellum_cache::Object {
    vellum_cache::Object { filesystem: attr.dev, inode: attr.ino }
}

impl Branch for DataCacheBranch {
    fn inner(&self) -> Result<&dyn Branch> {
        Ok(&*self.inner)
    }

    fn root(&self) -> Arc<dyn BranchDir> {
        self.way.wrap_dir(self.inner.root())
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        Ok(self.way.wrap_dir(self.inner.open_dir_path(path)?))
    }

    fn adopt(&self, descriptor: OwnedFd) -> Result<AdoptedObject> {
        Ok(match self.inner.adopt(descriptor)? {
            AdoptedObject::Dir(dir) => AdoptedObject::Dir(self.way.wrap_dir(dir)),
            AdoptedObject::Other(object) => AdoptedObject::Other(self.way.wrap_object(object)),
        })
    }

    fn find_file(&self, ino: u64) -> Result<Arc<dyn BranchFile>> {
        self.way.opened(self.inner.find_file(ino)?, OpenMode::READ | OpenMode::WRITE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recently_changed_version_is_not_trusted() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let ago = |secs: i64| Timestamp { secs: now.as_secs().cast_signed() - secs, nanos: 0 };
        let shared = VersionCheck::Shared { settle: SETTLE };
        assert_eq!([60, 1, -60, i64::MAX].map(|secs| shared.trusts(ago(secs))), [true, false, false, false]);
        assert!(VersionCheck::Immutable.trusts(ago(0)));
    }
}
