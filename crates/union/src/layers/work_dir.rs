//! The work directory: where things are made before they get their name, and where removed directories go.

use crate::config::{Squash, UpperConfig};
use crate::extents;
use crate::layers::layer::{aufs_name, c_string};
use crate::layers::marks::Space;
use crate::layers::orphans::OrphanNames;
use crate::layers::overrides::Format;
use crate::nodes::recovery::ledger::Ledger;
use crate::sync::Mutex;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use vellum_vfs::{Branch, BranchDir, Errno, FileKind, Name, RenameFlags, Result};

/// The directory in the work directory that is ours; the kernel's overlayfs uses and clears the same name.
const WORK_NAME: &CStr = c"work";
/// The whiteout of which all others are hard links.
const WHITEOUT_NAME: &CStr = c"whiteout";
/// Made and removed at once, to see whose it is.
const PROBE_NAME: &CStr = c"#probe";
/// Removed directories that may wait for the cleaner; beyond that they are cleared at once. All of the queue is memory of a mount at
/// rest, 32 bytes each.
const CLEANER_QUEUE: usize = 128;
/// How long the cleaner waits for something to do.
const CLEANER_LINGERS: Duration = Duration::from_secs(10);
/// Deepest nesting of what is cleared from the work directory.
const CLEAR_DEPTH: usize = 4096;

/// How whiteouts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    /// Character devices 0:0, hard links of one inode.
    Device,
    /// Empty files `.wh.NAME`.
    Aufs,
}

/// The queue and the thread that clear removed directories.
type Cleaner = (SyncSender<Waste>, JoinHandle<()>);

pub(crate) struct Work {
    dir: Arc<dyn BranchDir>,
    serial: AtomicU64,
    /// Owner and group of what the service makes.
    pub(crate) ids: (u32, u32),
    /// What is shown of owners.
    squash: Squash,
    /// Where marks are written.
    pub(crate) space: Space,
    /// How owner, mode and type are recorded.
    pub(crate) overrides: Format,
    /// How whiteouts are written.
    pub(crate) whiteouts: Whiteouts,
    /// Two names of the upper layer can change places. Where they cannot, whiteouts stand beside the names that they hide, so that
    /// one is there before another thing goes.
    pub(crate) exchanges: bool,
    /// Removed files that may be open keep a name here: objects have no descriptors, and a process may come after this one.
    pub(crate) orphan: Option<Arc<OrphanNames>>,
    /// Most names that a file can have here, as far as its filesystem is known.
    pub(crate) links_max: u32,
    /// Remaking the shared whiteout, when its inode has too many links.
    remake: Mutex<()>,
    /// Files without a name can be made.
    unnamed: AtomicBool,
    /// Files can be made to share blocks, as far as has been seen.
    clones: AtomicBool,
    /// Binary logarithm of the block in which holes are reported, once that was tried.
    hole_shift: Arc<OnceLock<Option<u8>>>,
    /// Removed directories are cleared by a thread.
    background: bool,
    cleaner: Mutex<Option<Cleaner>>,
}

/// Most names of a file, by f_type.
const LINKS_MAX: [(u64, u32); 4] = [(EXT4, 65_000), (BTRFS, 65_535), (NILFS2, 32_000), (NTFS3, 1024)];
const EXT4: u64 = 0xef53;
const BTRFS: u64 = 0x9123_683e;
const NILFS2: u64 = 0x3434;
const NTFS3: u64 = 0x7366_746e;

/// Most names that a file of a layer can have. One that is no directory of this host has no such limit, and is not asked.
fn links_max(branch: &dyn Branch) -> Result<u32> {
    if branch.directory().is_none() {
        return Ok(u32::MAX);
    }
    let kind = branch.statfs()?.fstype;
    Ok(LINKS_MAX.iter().find(|(known, _)| *known == kind).map_or(u32::MAX, |(_, most)| *most))
}

impl Work {
    /// Gives something its owner by `set`. False: the service may not do that, and the mount shows another owner in any case.
    pub(crate) fn give_owner(
        &self,
        (uid, gid): (u32, u32),
        set: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        let is_shown = |id, own, squashed: Option<u32>| id != own && squashed.is_none();
        match set() {
            Err(e)
                if e.errno() == Errno::PERM
                    && !is_shown(uid, self.ids.0, self.squash.uid)
                    && !is_shown(gid, self.ids.1, self.squash.gid) =>
            {
                Ok(false)
            }
            set => set.map(|()| true),
        }
    }
}

impl Work {
    /// Prepares the work directory: clears what an earlier service left, and finds out what the filesystem can do.
    pub(crate) fn open(
        config: &UpperConfig,
        (overrides, squash): (Format, Squash),
        background: bool,
        ledger: Option<&Ledger>,
    ) -> Result<Self> {
        let root = config.work.root();
        let name = Name::new(WORK_NAME)?;
        match root.make_dir(name, 0o700) {
            Err(e) if e.errno() != Errno::EXIST => return Err(e.doing("making the work directory")),
            _ => {}
        }
        let dir = root.open_dir(name).map_err(|e| e.doing("opening the work directory"))?;
        let orphan = match (ledger, dir.as_descriptor()) {
            (Some(ledger), None) => Some(OrphanNames::open(&dir, ledger)?),
            _ => None,
        };
        clear(&*dir, 0, &orphan.as_ref().map(|orphan| orphan.names()).unwrap_or_default())?;
        // What is made here must inherit nothing: no ACL, no group.
        for acl in [c"system.posix_acl_default", c"system.posix_acl_access"] {
            match dir.remove_xattr(acl) {
                Err(e) if !matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP) => {
                    return Err(e.doing("clearing the work directory's ACL"));
                }
                _ => {}
            }
        }
        dir.set_mode(0o700).map_err(|e| e.doing("the work directory's mode"))?;
        let probe = Name::new(PROBE_NAME)?;
        let made = dir
            .create(probe, 0o600)
            .and_then(|file| file.stat())
            .map_err(|e| e.doing("the work directory"))?;
        dir.remove(probe)?;
        let space = if dir.set_xattr(Space::Trusted.opaque(), b"n", 0).is_ok() {
            Space::Trusted
        } else {
            Space::User
        };
        let whiteout = Name::new(WHITEOUT_NAME)?;
        let exchanges = config.branch.exchanges();
        let device = exchanges && dir.make_node(whiteout, FileKind::CharDevice.mode_bits(), 0).is_ok();
        Ok(Self {
            dir,
            serial: AtomicU64::new(1),
            space,
            overrides,
            whiteouts: if device { Whiteouts::Device } else { Whiteouts::Aufs },
            exchanges,
            links_max: links_max(&*config.branch)?,
            orphan,
            remake: Mutex::new(()),
            unnamed: AtomicBool::new(true),
            clones: AtomicBool::new(true),
            hole_shift: Arc::default(),
            ids: (made.uid, made.gid),
            squash,
            background,
            cleaner: Mutex::new(None),
        })
    }

    /// Starts the thread that clears removed directories. Not before somebody is served: a thread keeps the privileges that it was
    /// started with, and the service gives its own up in between.
    pub(crate) fn begin(&self) {
        if self.background {
            self.cleaner.lock().get_or_insert_with(|| start_cleaner(&self.dir, Arc::clone(&self.hole_shift)));
        }
    }

    /// The directory itself.
    pub(crate) fn dir(&self) -> &dyn BranchDir {
        &*self.dir
    }

    /// A name that is free in the work directory.
    pub(crate) fn temp_name(&self) -> Box<CStr> {
        c_string(format!("#{:x}", self.serial.fetch_add(1, Relaxed)).into_bytes())
    }

    /// Whether files without a name have worked so far.
    pub(crate) fn can_unnamed(&self) -> bool {
        self.unnamed.load(Relaxed)
    }

    /// Whether sharing blocks between files has worked so far.
    pub(crate) fn may_clone(&self) -> bool {
        self.clones.load(Relaxed)
    }

    /// Sharing blocks does not work here.
    pub(crate) fn no_clone(&self) {
        self.clones.store(false, Relaxed);
    }

    /// Binary logarithm of the size of the blocks in which the filesystem reports holes exactly; None: it does not.
    pub(crate) fn hole_shift(&self) -> Option<u8> {
        *self.hole_shift.get_or_init(|| extents::hole_shift(&*self.dir))
    }

    /// Files without a name do not work here.
    pub(crate) fn no_unnamed(&self) {
        self.unnamed.store(false, Relaxed);
    }

    /// Puts a whiteout under a name that does not exist in `dir`.
    pub(crate) fn whiteout(&self, dir: &dyn BranchDir, name: Name<'_>) -> Result<()> {
        match self.whiteouts {
            Whiteouts::Device => self.link_whiteout(dir, name),
            Whiteouts::Aufs => {
                let whiteout = aufs_name(name).ok_or(Errno::NAMETOOLONG)?;
                match dir.create(Name::new(&whiteout)?, 0o600) {
                    Err(e) if e.errno() != Errno::EXIST => Err(e.doing("whiteout")),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Makes a whiteout that stands under the name itself one beside it, so that the name is free.
    pub(crate) fn free_name(&self, dir: &dyn BranchDir, name: Name<'_>) -> Result<()> {
        self.whiteout(dir, name)?;
        dir.remove(name)
    }

    /// Replaces an entry of `dir` that is not a directory by a whiteout, in one step.
    pub(crate) fn replace_by_whiteout(&self, dir: &dyn BranchDir, name: Name<'_>) -> Result<()> {
        match self.whiteouts {
            Whiteouts::Device => {
                let temp = self.temp_name();
                let temp = Name::new(&temp)?;
                self.link_whiteout(&*self.dir, temp)?;
                self.dir.rename(temp, dir, name, RenameFlags::empty()).inspect_err(|_| {
                    let _ = self.dir.remove(temp);
                })
            }
            Whiteouts::Aufs => self.free_name(dir, name),
        }
    }

    /// Takes a directory out of `dir`, whatever it still holds in the layer, and leaves a whiteout if asked.
    pub(crate) fn take_dir(&self, dir: &dyn BranchDir, name: Name<'_>, whiteout: bool) -> Result<()> {
        let temp = self.temp_name();
        let temp = Name::new(&temp)?;
        if whiteout && self.whiteouts == Whiteouts::Device {
            self.link_whiteout(&*self.dir, temp)?;
            self.dir.rename(temp, dir, name, RenameFlags::EXCHANGE).inspect_err(|_| {
                let _ = self.dir.remove(temp);
            })?;
        } else {
            if whiteout {
                self.whiteout(dir, name)?;
            }
            dir.rename(name, &*self.dir, temp, RenameFlags::empty())?;
        }
        self.discard_dir(temp);
        Ok(())
    }

    /// Clears and removes a directory in the work directory, soon.
    pub(crate) fn discard_dir(&self, name: Name<'_>) {
        if self.dir.remove_dir(name).is_ok() {
            return;
        }
        let waste = Waste { dir: Arc::clone(&self.dir), name: name.as_c_str().into() };
        let mut cleaner = self.cleaner.lock();
        let Some((queue, _)) = &*cleaner else {
            drop(cleaner);
            return drop(waste);
        };
        let refused = match queue.try_send(waste) {
            Ok(()) => None,
            Err(TrySendError::Full(waste)) => Some(waste),
            // It has had nothing to do for long, and has ended.
            Err(TrySendError::Disconnected(waste)) => {
                let (queue, thread) = start_cleaner(&self.dir, Arc::clone(&self.hole_shift));
                let refused = queue.try_send(waste).err().map(|error| match error {
                    TrySendError::Full(waste) | TrySendError::Disconnected(waste) => waste,
                });
                *cleaner = Some((queue, thread));
                refused
            }
        };
        drop(cleaner);
        drop(refused);
    }

    /// Takes away an AUFS whiteout of `name`, if there is one.
    pub(crate) fn remove_aufs_whiteout(&self, dir: &dyn BranchDir, name: Name<'_>) -> Result<()> {
        let Some(whiteout) = aufs_name(name) else { return Ok(()) };
        match dir.remove(Name::new(&whiteout)?) {
            Err(e) if e.errno() != Errno::NOENT => Err(e),
            _ => Ok(()),
        }
    }

    fn link_whiteout(&self, dir: &dyn BranchDir, name: Name<'_>) -> Result<()> {
        let shared = Name::new(WHITEOUT_NAME)?;
        match self.dir.link(shared, dir, name) {
            Err(e) if matches!(e.errno(), Errno::MLINK | Errno::NOENT) => {
                let _guard = self.remake.lock();
                // Another thread may have remade it meanwhile.
                if self.dir.link(shared, dir, name).is_ok() {
                    return Ok(());
                }
                match self.dir.remove(shared) {
                    Err(e) if e.errno() != Errno::NOENT => return Err(e.doing("whiteout")),
                    _ => {}
                }
                self.dir.make_node(shared, FileKind::CharDevice.mode_bits(), 0)?;
                self.dir.link(shared, dir, name)
            }
            Err(e) if matches!(e.errno(), Errno::PERM | Errno::XDEV | Errno::OPNOTSUPP) => {
                dir.make_node(name, FileKind::CharDevice.mode_bits(), 0)
            }
            other => other,
        }
    }

    /// Waits for the cleaner and ends it.
    pub(crate) fn finish(&self) {
        if let Some((queue, thread)) = self.cleaner.lock().take() {
            drop(queue);
            let _ = thread.join();
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Starts the thread that clears removed directories, and that finds out about holes meanwhile: the first one to ask would have
/// to wait for that otherwise.
fn start_cleaner(dir: &Arc<dyn BranchDir>, hole_shift: Arc<OnceLock<Option<u8>>>) -> Cleaner {
    let (queue, work) = sync_channel::<Waste>(CLEANER_QUEUE);
    let dir = Arc::clone(dir);
    let thread = std::thread::spawn(move || {
        hole_shift.get_or_init(|| extents::hole_shift(&*dir));
        while let Ok(waste) = work.recv_timeout(CLEANER_LINGERS) {
            drop(waste);
        }
    });
    (queue, thread)
}

/// An entry of the work directory that is cleared and removed when this is dropped, by whoever has it then.
struct Waste {
    dir: Arc<dyn BranchDir>,
    name: Box<CStr>,
}

impl Drop for Waste {
    fn drop(&mut self) {
        clear_entry(&*self.dir, &self.name);
    }
}

/// Removes one entry of the work directory with everything in it. What cannot be removed stays for the next mount.
fn clear_entry(dir: &dyn BranchDir, name: &CStr) {
    let result = Name::new(name).map_err(Into::into).and_then(|name| {
        if let Ok(inner) = dir.open_dir(name) {
            clear(&*inner, 0, &BTreeSet::new())?;
            dir.remove_dir(name)
        } else {
            dir.remove(name)
        }
    });
    if let Err(error) = result {
        tracing::warn!(%error, name = %name.to_string_lossy(), "clearing the work directory");
    }
}

/// Removes everything in a directory but what is spared.
fn clear(dir: &dyn BranchDir, depth: usize, spared: &BTreeSet<Box<CStr>>) -> Result<()> {
    if depth > CLEAR_DEPTH {
        return Err(vellum_vfs::Error::new(Errno::LOOP, "clearing the work directory"));
    }
    let mut names: Vec<Box<CStr>> = Vec::new();
    dir.list(&mut |item| {
        if !spared.contains(item.name.as_c_str()) {
            names.push(item.name.as_c_str().into());
        }
        Ok(())
    })?;
    for name in names {
        let name = Name::new(&name)?;
        match dir.remove(name) {
            Ok(()) => {}
            Err(e) if matches!(e.errno(), Errno::ISDIR | Errno::PERM) => {
                let inner = dir.open_dir(name)?;
                clear(&*inner, depth + 1, &BTreeSet::new())?;
                drop(inner);
                dir.remove_dir(name)?;
            }
            Err(e) => return Err(e.doing("clearing the work directory")),
        }
    }
    Ok(())
}
