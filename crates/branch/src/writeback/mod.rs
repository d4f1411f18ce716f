//! An upper layer that is written behind: changes of files are answered when they stand in memory that outlives the process ([`log`]), and
//! the storage has them later.
//!
//! Beneath is a branch whose own process may keep what is written to files, and changed of their size, owner, mode and times, until they are
//! synced, and loses that when it dies; all else it does at once. A change is written to the log first and made then, so reads see it at once
//! and need to know nothing of the log. A file's changes leave the log when the file was synced. A process after this one makes what is in it
//! again, in order, before it serves anything.
//!
//! Order: the changes of a file stand in the log as they were made, for both is done under the file's `order`. Names come at once, so a
//! file that gets another name is synced before; whatever the log does not know (attributes, holes, files with several names) goes past it,
//! when the file's changes have left it.

mod dir;
mod file;
mod file_state;
mod hostile_log;
mod limits;
mod log;
mod record;

pub use self::hostile_log::parse_hostile_log;
pub use self::limits::WritebackLimits;

use self::dir::WritebackDir;
use self::file_state::{Failure, TrackedFile};
use self::log::Log;
use self::record::Change;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use vellum_sys::crash_point;
use vellum_vfs::{
    AdoptedObject, Attr, Branch, BranchDir, BranchFile, Errno, Object, OpenMode, Result, SetTime, Timestamp,
};

/// The attribute that a file's access-control list is; to set it changes the file's mode.
const ACCESS_ACL: &CStr = c"system.posix_acl_access";
/// Most files of which something is in the log: each is open.
const FILES_MAX: usize = 4096;
/// As many due files are synced together.
const TOGETHER: usize = 8;
/// Most files that are remembered for their several names. With more, all files are written through.
const SEVERAL_MAX: usize = 1 << 16;

/// What has become of what a predecessor has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayOutcome {
    /// Changes that were made again.
    pub changes: u64,
    /// Changes of files that are not there any more.
    pub gone: u64,
    /// Files of which something could not be written. Who syncs one is told.
    pub failed: u64,
    /// Bytes of the log that make no sense: what was answered is lost.
    pub unread: u64,
}

/// What is to be written of an upper layer and its work directory.
pub struct Writeback {
    log: Log,
    limits: WritebackLimits,
    upper: Arc<dyn Branch>,
    work: Arc<dyn Branch>,
    files: Mutex<HashMap<u64, Arc<TrackedFile>>>,
    /// Files that have had several names since this process began: the storage may find them by none of them for a while.
    several: Mutex<HashSet<u64>>,
    /// Failures so far.
    failures: AtomicU64,
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.write_all();
    }
}

/// The time of this machine.
fn now() -> Timestamp {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: passed.as_secs().cast_signed(), nanos: passed.subsec_nanos() }
}

impl Writeback {
    /// With an empty log. EINVAL: limits that cannot be.
    pub fn create(
        upper: Arc<dyn Branch>,
        work: Arc<dyn Branch>,
        limits: WritebackLimits,
    ) -> Result<Arc<Self>> {
        Ok(Self::new(Log::create(limits.bytes)?, upper, work, limits))
    }

    /// With the log of a predecessor, what is in it made again. EBADMSG: it is no log.
    pub fn resume(
        upper: Arc<dyn Branch>,
        work: Arc<dyn Branch>,
        limits: WritebackLimits,
        memory: OwnedFd,
    ) -> Result<(Arc<Self>, ReplayOutcome)> {
        let writeback = Self::new(Log::open(memory)?, upper, work, limits);
        let replayed = writeback.replay()?;
        Ok((writeback, replayed))
    }

    fn new(log: Log, upper: Arc<dyn Branch>, work: Arc<dyn Branch>, limits: WritebackLimits) -> Arc<Self> {
        Arc::new(Self {
            log,
            limits,
            upper,
            work,
            files: Mutex::default(),
            several: Mutex::default(),
            failures: AtomicU64::new(0),
        })
    }

    /// What no other log is called: as long as somebody has this one, nothing that was answered is lost.
    #[must_use]
    pub fn run(&self) -> [u8; 16] {
        self.log.run()
    }

    /// The memory of the log, for a successor.
    #[must_use]
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.log.memory()
    }

    /// Bytes that are in the log, and how many it takes.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.log.used(), self.log.size())
    }

    /// The upper layer and the work directory, written behind.
    #[must_use]
    pub fn branches(self: &Arc<Self>) -> (Arc<dyn Branch>, Arc<dyn Branch>) {
        let of = |inner: &Arc<dyn Branch>, is_work| {
            let way = LogAccess { writeback: Arc::clone(self), is_work };
            Arc::new(WritebackBranch { inner: Arc::clone(inner), way }) as Arc<dyn Branch>
        };
        (of(&self.upper, false), of(&self.work, true))
    }

    /// Starts the thread that writes what is due, as long as somebody uses this.
    pub fn begin(self: &Arc<Self>) -> std::io::Result<()> {
        let writeback = Arc::downgrade(self);
        let pause = (self.limits.age / 4).clamp(Duration::from_millis(50), Duration::from_secs(1));
        std::thread::Builder::new().name("vellum-behind".into()).spawn(move || {
            while let Some(writeback) = Weak::upgrade(&writeback) {
                writeback.write_due(Instant::now());
                drop(writeback);
                std::thread::sleep(pause);
            }
        })?;
        Ok(())
    }

    /// Writes what is too old at a time, and the oldest while the log is more than half full.
    pub fn write_due(&self, now: Instant) {
        let is_due = |since: Instant| now.saturating_duration_since(since) >= self.limits.age;
        let due = |writeback: &Self| {
            writeback
                .log
                .oldest()
                .filter(|(_, since)| is_due(*since) || writeback.log.used() > writeback.log.size() / 2)
        };
        if due(self).is_none() {
            return;
        }
        let files = self.log.files();
        let old = files.into_iter().filter(|ino| self.log.since(*ino).is_some_and(is_due));
        if old.count() >= TOGETHER {
            // All at once: each by itself waits for the cluster. Whether it is done each is asked below.
            let _ = self.upper.sync();
        }
        while let Some((ino, _)) = due(self) {
            self.write_file(ino);
        }
        self.forget_clean();
    }

    /// Writes everything.
    pub fn write_all(&self) {
        let files = self.log.files();
        if files.len() >= TOGETHER {
            let _ = self.upper.sync();
        }
        files.into_iter().for_each(|ino| self.write_file(ino));
    }

    fn write_file(&self, ino: u64) {
        let tracked = self.files.lock().get(&ino).map(Arc::clone);
        match tracked {
            Some(tracked) => self.write(&tracked),
            None => self.log.done(ino, u64::MAX),
        }
    }

    /// Has the storage have what was changed of a file before now. A failure is noted, and told by the next sync.
    fn write(&self, file: &TrackedFile) {
        let _one = file.writing.lock();
        let (before, open) = {
            let mut order = file.order.lock();
            // Everything before this position has been made, for both is done under this lock.
            (self.log.head(), order.open.take())
        };
        let Some(open) = open else { return };
        crash_point::reach();
        let outcome = open.sync(false).and_then(|()| open.close());
        if let Err(error) = outcome {
            tracing::warn!(ino = file.ino, %error, "written data of a file are lost");
            self.fail(file, error.errno());
        }
        self.log.done(file.ino, before);
    }

    fn fail(&self, file: &TrackedFile, errno: Errno) {
        let number = self.failures.fetch_add(1, Ordering::SeqCst) + 1;
        *file.failure.lock() = Some(Failure { number, errno, told: false });
    }

    /// The state of a file.
    fn tracked(&self, ino: u64) -> Arc<TrackedFile> {
        Arc::clone(self.files.lock().entry(ino).or_insert_with(|| Arc::new(TrackedFile::new(ino))))
    }

    /// Forgets files of which there is nothing to be known.
    fn forget_clean(&self) {
        self.files.lock().retain(|_, file| Arc::strong_count(file) > 1 || !file.is_clean());
    }

    /// Room in the log for so much data. EIO: there is none, however long one waits.
    fn room(&self, data: usize) -> Result<log::Room<'_>> {
        loop {
            if self.log.count_files() < FILES_MAX
                && let Some(room) = self.log.reserve(data)
            {
                return Ok(room);
            }
            // Others may have room that they are about to use.
            match self.log.oldest() {
                Some((ino, _)) => self.write_file(ino),
                None => std::thread::yield_now(),
            }
        }
    }

    /// Makes a change of a file that `object` is, by `make`, so that a process after this one makes it again.
    fn change<T>(
        &self,
        file: &TrackedFile,
        object: &dyn Object,
        change: Change<'_>,
        make: impl FnOnce() -> Result<T>,
        is_whole: impl FnOnce(&T) -> bool,
    ) -> Result<T> {
        let room = self.room(change.len())?;
        let mut order = file.order.lock();
        if order.open.is_none() {
            if !self.is_logged(&object.stat()?) {
                drop((order, room));
                return self.past(file, make, || object.reopen(OpenMode::READ)?.sync(false));
            }
            order.open = Some(object.reopen(OpenMode::READ)?);
        }
        let position = self.log.append(room, file.ino, change, now())?;
        crash_point::reach();
        let made = make();
        crash_point::reach();
        match &made {
            Ok(made) if is_whole(made) => {
                // It stays when the change is made again: somebody may have seen it.
                if matches!(change, Change::Write(..) | Change::Truncate(_))
                    && let Ok(attr) = object.stat()
                {
                    self.log.dated(position, attr.mtime);
                }
            }
            // A part of it: what is there is synced, and the rest not made again.
            Ok(_) => {
                drop(order);
                self.write(file);
            }
            Err(_) => self.log.cancel(file.ino, position),
        }
        made
    }

    /// Whether a process after this one finds the file: by its number, which leads to a directory.
    fn is_logged(&self, attr: &Attr) -> bool {
        let several = self.several.lock();
        attr.is_file() && attr.nlink == 1 && !several.contains(&attr.ino) && several.len() < SEVERAL_MAX
    }

    /// Makes a change that the log does not know of, when the file's other changes have left it.
    fn past<T>(
        &self,
        file: &TrackedFile,
        make: impl FnOnce() -> Result<T>,
        sync: impl FnOnce() -> Result<()>,
    ) -> Result<T> {
        loop {
            self.write(file);
            let order = file.order.lock();
            if order.open.is_none() {
                // No change comes between.
                let made = make()?;
                crash_point::reach();
                sync()?;
                return Ok(made);
            }
        }
    }

    /// A file with such attributes has lost a name.
    fn note_unlinked(&self, attr: &Attr) {
        if !attr.is_file() {
            return;
        }
        if attr.nlink > 1 {
            self.several.lock().insert(attr.ino);
            return;
        }
        let file = self.files.lock().get(&attr.ino).map(Arc::clone);
        if let Some(file) = file {
            // It goes with the process at the latest.
            let mut order = file.order.lock();
            order.open = None;
            self.log.done(file.ino, u64::MAX);
        }
    }

    /// A file is about to get another name.
    fn before_another_name(&self, attr: &Attr) {
        if attr.is_file() {
            self.write_file(attr.ino);
        }
    }

    /// Makes again what a predecessor has left.
    fn replay(&self) -> Result<ReplayOutcome> {
        let mut replayed = ReplayOutcome::default();
        let mut files: HashMap<u64, RecoveredFile> = HashMap::new();
        let reading = self.log.replay_log(|ino, change, when| {
            let again = files.entry(ino).or_insert_with(|| RecoveredFile::from_open(self.find(ino)));
            let RecoveredFile::Found(file, changed, failed) = again else {
                replayed.gone += 1;
                return;
            };
            match change {
                Change::Write(..) | Change::Truncate(_) => *changed = Some(when),
                Change::Times(_, Some(_)) => *changed = None,
                Change::Times(..) | Change::Mode(_) | Change::Owner(..) | Change::Acl(_) => {}
            }
            crash_point::reach();
            if let Err(error) = replay_change(&**file, change) {
                tracing::warn!(ino, %error, "written data of a file are lost");
                failed.get_or_insert(error.errno());
            }
            replayed.changes += 1;
        });
        for (ino, again) in &mut files {
            let (file, changed, failed) = match again {
                RecoveredFile::Found(file, changed, failed) => (file, changed, failed),
                RecoveredFile::Gone => continue,
                RecoveredFile::Failed(errno) => {
                    replayed.failed += 1;
                    self.fail(&self.tracked(*ino), *errno);
                    continue;
                }
            };
            let dated = changed.map_or(Ok(()), |when| file.set_times(None, Some(SetTime::At(when))));
            crash_point::reach();
            if let Err(error) = dated.and_then(|()| file.sync(false)) {
                tracing::warn!(ino, %error, "written data of a file are lost");
                failed.get_or_insert(error.errno());
            }
            if let Some(errno) = *failed {
                replayed.failed += 1;
                self.fail(&self.tracked(*ino), errno);
            }
        }
        replayed.unread = reading.unread;
        if reading.unread == 0 {
            self.log.finish_replay();
        }
        Ok(replayed)
    }

    /// The file of a number in one of the two directories.
    fn find(&self, ino: u64) -> Result<Arc<dyn BranchFile>> {
        match self.upper.find_file(ino) {
            Err(error) if error.errno() == Errno::NOENT => self.work.find_file(ino),
            found => found,
        }
    }
}

/// A file of which a predecessor has left something.
enum RecoveredFile {
    /// When its data were last changed, where no time was set since; what could not be made.
    Found(Arc<dyn BranchFile>, Option<Timestamp>, Option<Errno>),
    /// It was removed, or never was one of these.
    Gone,
    Failed(Errno),
}

impl RecoveredFile {
    fn from_open(found: Result<Arc<dyn BranchFile>>) -> Self {
        match found {
            Ok(file) => Self::Found(file, None, None),
            Err(error) if error.errno() == Errno::NOENT => Self::Gone,
            Err(error) => Self::Failed(error.errno()),
        }
    }
}

fn replay_change(file: &dyn BranchFile, change: Change<'_>) -> Result<()> {
    match change {
        Change::Write(offset, data) => match file.write_at(data, offset)? {
            all if all == data.len() => Ok(()),
            _ => Err(Errno::NOSPC.into()),
        },
        Change::Truncate(size) => file.truncate(size),
        Change::Mode(mode) => file.set_mode(mode),
        Change::Owner(uid, gid) => file.set_owner(uid, gid),
        Change::Acl(Some(list)) => file.set_xattr(ACCESS_ACL, list, 0),
        Change::Acl(None) => match file.remove_xattr(ACCESS_ACL) {
            Err(error) if error.errno() == Errno::NODATA => Ok(()),
            removed => removed,
        },
        Change::Times(atime, mtime) => file.set_times(atime.map(SetTime::At), mtime.map(SetTime::At)),
    }
}

/// By what objects reach the log.
#[derive(Clone)]
struct LogAccess {
    writeback: Arc<Writeback>,
    /// They are in the work directory.
    is_work: bool,
}

/// A branch that is written behind.
struct WritebackBranch {
    inner: Arc<dyn Branch>,
    way: LogAccess,
}

impl Branch for WritebackBranch {
    fn inner(&self) -> Result<&dyn Branch> {
        Ok(&*self.inner)
    }

    fn root(&self) -> Arc<dyn BranchDir> {
        WritebackDir::wrap(self.inner.root(), &self.way)
    }

    fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
        Ok(WritebackDir::wrap(self.inner.open_dir_path(path)?, &self.way))
    }

    fn sync(&self) -> Result<()> {
        self.way.writeback.write_all();
        self.inner.sync()
    }

    fn adopt(&self, descriptor: OwnedFd) -> Result<AdoptedObject> {
        Ok(match self.inner.adopt(descriptor)? {
            AdoptedObject::Dir(dir) => AdoptedObject::Dir(WritebackDir::wrap(dir, &self.way)),
            AdoptedObject::Other(object) => AdoptedObject::Other(file::wrap_object(object, &self.way)),
        })
    }

    fn find_file(&self, ino: u64) -> Result<Arc<dyn BranchFile>> {
        Ok(file::wrap_file(self.inner.find_file(ino)?, &self.way))
    }
}

#[cfg(test)]
mod tests;
