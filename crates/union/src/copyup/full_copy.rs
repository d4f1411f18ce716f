//! Copy-up: a lower object gets a copy of its own in the upper layer, in one step that is there or not.
//!
//! Everything is prepared without a name, or in the work directory, and then appears under its name at once. When
//! only attributes change, only attributes are copied: the file says that its data are below, and that needs no
//! waiting for the disk. Data are copied when the file is first written to or cut; they are made durable before
//! the copy replaces the original, for a copy that a crash leaves empty would lose what nobody has touched.

use crate::copyup::copy_metadata::restore_times;
use crate::copyup::data as copyup_data;
use crate::copyup::partial_file;
use crate::copyup::privileges::Privileges;
use crate::copyup::publication::{Copy, LowerParts};
use crate::extents::Record;
use crate::layers::Layers;
use crate::layers::layer::{c_string, join};
use crate::layers::marks::{DirMarks, OwnMark, Space};
use crate::layers::work_dir::Work;
use crate::nodes::node::{Dir, File, FileState, InodeLocation, LowerData, LowerLocation, Node, UpperDir};
use crate::union::{Core, path_of};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{
    Attr, BranchDir, BranchFile, Errno, Error, FileKind, Name, Object, OpenMode, RenameFlags, Result, Seek,
    SetTime,
};

/// What an operation needs in the upper layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The inode.
    Attrs,
    /// The inode, and its first bytes of data (`u64::MAX`: all of them).
    Data(u64),
}

/// Whether the upper's filesystem takes a size is tried before so many bytes and more are copied.
const TRIED_FROM: u64 = 1 << 30;

/// What is to be heard of a file that the upper layer cannot hold, whoever asked for the change.
fn too_large(error: Error) -> Error {
    if error.errno() != Errno::FBIG {
        return error;
    }
    error.doing("larger than the upper's filesystem allows (CephFS: max_file_size)").failure()
}

impl Core {
    /// The directory's handle in the upper layer; copies it, and its parents, up.
    pub(crate) fn ensure_upper_dir(&self, node: &Arc<Node>) -> Result<Arc<dyn BranchDir>> {
        let dir = node.as_dir().ok_or(Errno::NOTDIR)?;
        if let Some(handle) = self.layers.upper_of(dir)? {
            return Ok(handle);
        }
        let work = self.upper.work()?;
        let mut chain = vec![Arc::clone(node)];
        while let Some(last) = chain.last() {
            let last = last.as_dir().ok_or(Errno::NOTDIR)?;
            let Some(place) = last.place.read().clone() else {
                return Err(Error::new(Errno::NOENT, "the directory was removed"));
            };
            let above = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
            if above.upper.lock().is_some() {
                break;
            }
            chain.push(place.parent);
        }
        while let Some(next) = chain.pop() {
            let dir = next.as_dir().ok_or(Errno::NOTDIR)?;
            let copied = self.layers.copy_up_dir(work, dir);
            copied.map_err(|e| e.doing("copy-up of a directory").at(path_of(&next)))?;
        }
        self.layers.upper_of(dir)?.ok_or(Error::new(Errno::IO, "copy-up of a directory"))
    }

    /// Copies the attributes of a file up.
    pub(crate) fn copy_up_attrs(&self, node: &Arc<Node>, file: &Arc<File>) -> Result<()> {
        self.copy_up(node, file, Need::Attrs)
    }

    /// Brings a file into the upper layer as far as is needed. Never call it with a directory's `ops` held.
    pub(crate) fn copy_up(&self, node: &Arc<Node>, file: &Arc<File>, need: Need) -> Result<()> {
        if is_enough(&file.state.read(), need) {
            return Ok(());
        }
        let work = self.upper.work()?;
        let _one = file.copy.lock();
        let (lower, below) = {
            let state = file.state.read();
            if is_enough(&state, need) {
                return Ok(());
            }
            let lower = if let InodeLocation::Lower(at) = &state.at { Some(at.clone()) } else { None };
            // The data of a lower file that has some of its own begin there.
            let below = match (&lower, state.below.clone()) {
                (Some(at), None) => Some(Arc::new(LowerData { at: at.clone(), next: None })),
                (Some(at), next) if state.partial => Some(Arc::new(LowerData { at: at.clone(), next })),
                (_, below) => below,
            };
            (lower, below)
        };
        let result = match (lower, below) {
            (Some(at), Some(below)) => self.copy_up_lower(work, node, file, &at, &below, need),
            (None, Some(below)) => self.fill(work, node, file, &below, need),
            (_, None) => Ok(()),
        };
        result.map_err(|e| too_large(e).doing("copy-up").at(path_of(node)))
    }

    fn copy_up_lower(
        &self,
        work: &Work,
        node: &Arc<Node>,
        file: &Arc<File>,
        at: &LowerLocation,
        data: &Arc<LowerData>,
        need: Need,
    ) -> Result<()> {
        let dir = at.dir.open(&self.layers)?;
        let name = Name::new(&at.name)?;
        let from = dir.hold(name)?;
        let raw = from.stat()?;
        let attr = self.layers.recorded(at.dir.layer, raw, |x, buf| from.get_xattr(x, buf))?;
        let apart = file.state.read().apart;
        let linked = raw.nlink > 1 && !apart;
        if apart {
            let (path, names) = (path_of(node), raw.nlink);
            tracing::warn!(%path, names, "more names than the upper layer gives to a file: this one leaves the others");
        }
        if linked {
            // So that its node knows all names of it that show in the union.
            for path in self.layers.paths_to(at.dir.layer, raw.ino, self.nodes.ledger())? {
                self.walk(&path)?;
            }
        }
        let mut missing = LowerParts::Nothing;
        // What has no name any more has nothing by which a successor would find the rest.
        let is_last = work.orphan.is_some() && file.state.read().names.is_empty();
        if raw.is_file() && raw.size > 0 && !is_last {
            if need == Need::Attrs && self.layers.config.metacopy {
                missing = LowerParts::All;
            } else if let Some(record) = self.layers.wanted_record(work, raw.size, need) {
                missing = LowerParts::Blocks(record);
            }
        }
        let chained = missing != LowerParts::Nothing && has_separate_data(&data.at, at);
        let own = self.layers.origin_mark(at, chained.then_some(&data.at), &raw, &dir)?;
        let own = OwnMark { origin: !apart, ..own };
        let regular = attr.is_file() && raw.is_file();
        let copy = if regular {
            self.new_file(work, file, attr.perm())?
        } else {
            work.copy_special(&*from, (&raw, &attr), name)?
        };
        let result = (|| {
            if regular {
                let redirect = if linked { origin_path(file) } else { None };
                let open = copy.open(work)?;
                missing = self.layers.copy_or_mark_data(
                    work,
                    &open,
                    data,
                    (&own, redirect.as_deref(), raw.size),
                    (missing, need),
                )?;
            } else {
                work.mark_whole(&*copy.object(work)?, &own)?;
            }
            let cut = missing == LowerParts::Nothing && matches!(need, Need::Data(limit) if limit < raw.size);
            work.copy_metadata(&*copy.object(work)?, &*from, &attr, matches!(copy, Copy::Unnamed(_)), cut)?;
            self.publish(work, node, file, &copy, (data, missing), linked)
        })();
        if result.is_err()
            && let Copy::Named(name) = &copy
        {
            let _ = work.dir().remove(Name::new(name)?);
        }
        result
    }

    /// A new empty file, without a name where the filesystem can do that. It is made where it will be, since filesystems
    /// put files of one directory together, unless it would inherit something there.
    fn new_file(&self, work: &Work, file: &File, mode: u32) -> Result<Copy> {
        if work.can_unnamed() {
            let parent = file.state.read().names.first().map(|place| Arc::clone(&place.parent));
            let near = match &parent {
                Some(parent) => {
                    let handle = self.ensure_upper_dir(parent)?;
                    let inherit = self.inherit_of(parent)?;
                    (!inherit.is_setgid() && !inherit.default_acl).then_some(handle)
                }
                None => None,
            };
            match near.as_deref().unwrap_or(work.dir()).create_unnamed(mode & 0o777) {
                Ok(file) => return Ok(Copy::Unnamed(file)),
                Err(e) if matches!(e.errno(), Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                    work.no_unnamed()
                }
                Err(e) => return Err(e),
            }
        }
        let temp = work.temp_name();
        work.dir().create(Name::new(&temp)?, 0o600)?;
        Ok(Copy::Named(temp))
    }

    /// The node at a path of the union, if there is one. Takes directories' `ops`, one at a time.
    pub(crate) fn walk(&self, path: &[u8]) -> Result<Option<Arc<Node>>> {
        let mut node = Arc::clone(self.nodes.root());
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            let Some(dir) = node.as_dir() else { return Ok(None) };
            let name = c_string(name.to_vec());
            let child = {
                let _names = dir.entries.share();
                self.child(&node, Name::new(&name)?)?
            };
            match child {
                Some(child) => node = child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// Brings the data of a file into the upper layer of which only the attributes are there.
    fn fill(
        &self,
        work: &Work,
        node: &Arc<Node>,
        file: &Arc<File>,
        below: &LowerData,
        need: Need,
    ) -> Result<()> {
        let Need::Data(limit) = need else { return Ok(()) };
        let object = {
            let state = file.state.read();
            self.layers.target_of(&state)?.1.hold()?
        };
        let _times = file.times.read();
        let before = object.stat()?;
        let to = object.reopen(OpenMode::READ | OpenMode::WRITE)?;
        let is_empty = self.layers.free_blocks(work, &*to, &before)?;
        if let Some(record) = self.layers.wanted_record(work, before.size, need).filter(|_| is_empty)
            && !self.layers.try_clone(work, &*to, below)?
        {
            // The blocks follow as they are written.
            let own = self.layers.own_or_new(&*object, work.space, below)?;
            let record = self.layers.with_origin(record, below)?;
            partial_file::mark(&*object, work.space, &own, None, Some(&record))?;
            self.set_data_location(node, file, before.ino, true);
            return Ok(());
        }
        let cut = limit < before.size;
        // Whoever cuts it takes them away.
        let privileges = (!cut).then(|| Privileges::read(&*object, &before));
        // First the data, which nobody sees as long as the file has its size and its marks; then, if it is to be shorter, a word of
        // that and the size; then the marks. So each size has one meaning by what the marks say.
        let mut announced = None;
        let done = (|| {
            self.layers.copy_data(&*to, below, limit)?;
            if cut {
                let own = self.layers.own_or_new(&*object, work.space, below)?;
                partial_file::mark_cut(&*object, work.space, &own, &Record::of_cut(limit, before.size))?;
                announced = Some(own);
                to.truncate(limit)?;
            }
            partial_file::unmark(&*object, work.space)
        })();
        if let Some(privileges) = privileges {
            privileges.restore(&*object);
        }
        // What is cut is changed now, whatever comes of the rest of the operation.
        let mtime = if cut && done.is_ok() { SetTime::Now } else { SetTime::At(before.mtime) };
        let times = to.set_times(Some(SetTime::At(before.atime)), Some(mtime));
        if let Err(error) = done {
            if !cut && to.stat()?.size != before.size {
                to.truncate(before.size)?;
            }
            if let Some(own) = announced {
                // The old size says that it was not cut.
                to.truncate(before.size)?;
                let own = OwnMark { below: true, cut: false, ..own };
                object.set_xattr(work.space.own(), &own.encode(), 0)?;
            }
            return Err(error);
        }
        if let Err(error) = times {
            tracing::debug!(%error, "restoring a file's times");
        }
        self.set_data_location(node, file, before.ino, false);
        Ok(())
    }
}

impl Layers {
    fn copy_up_dir(&self, work: &Work, dir: &Dir) -> Result<()> {
        let _one = dir.copy.lock();
        if dir.upper.lock().is_some() {
            return Ok(());
        }
        let gone = || Error::new(Errno::NOENT, "the directory was removed");
        let place = dir.place.read().clone().ok_or_else(gone)?;
        let parent = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
        let parent = self.upper_of(parent)?.ok_or_else(gone)?;
        let lower = dir.described().ok_or_else(gone)?;
        let from = lower.open(self)?;
        let attr = self.recorded(lower.layer, from.stat()?, |x, buf| from.get_xattr(x, buf))?;
        let temp = work.temp_name();
        let temp = Name::new(&temp)?;
        work.dir().make_dir(temp, 0o700)?;
        let made = (|| {
            let copy = work.dir().open_dir(temp)?;
            work.copy_metadata(&*copy, &*from, &attr, false, false)?;
            let before = parent.stat()?;
            work.dir().rename(temp, &*parent, Name::new(&place.name)?, RenameFlags::empty())?;
            restore_times(&*parent, &before);
            let ino = copy.stat()?.ino;
            Ok(UpperDir::new(ino, copy, &DirMarks::default()))
        })();
        match made {
            Ok(upper) => {
                self.set_upper(dir, upper);
                Ok(())
            }
            Err(error) => {
                let _ = work.dir().remove_dir(temp);
                Err(error)
            }
        }
    }

    /// Gives a new file its data, or marks that say where they are. Returns what is missing in the end.
    fn copy_or_mark_data(
        &self,
        work: &Work,
        to: &Arc<dyn BranchFile>,
        data: &LowerData,
        (own, redirect, size): (&OwnMark, Option<&CStr>, u64),
        (mut missing, need): (LowerParts, Need),
    ) -> Result<LowerParts> {
        if matches!(missing, LowerParts::Blocks(_)) && self.try_clone(work, &**to, data)? {
            missing = LowerParts::Nothing;
        } else {
            if let LowerParts::Blocks(record) = missing {
                missing = LowerParts::Blocks(self.with_origin(record, data)?);
            }
            if missing != LowerParts::Nothing {
                missing = work.mark_below(&**to, own, redirect, size, missing)?;
            }
            if missing == LowerParts::Nothing {
                let limit = if let Need::Data(limit) = need { limit } else { u64::MAX };
                self.copy_data(&**to, data, limit)?;
            }
        }
        if missing == LowerParts::Nothing {
            work.mark_whole(to.as_ref(), own)?;
        }
        Ok(missing)
    }

    /// The mark of a copy of the lower file at `at`.
    fn origin_mark(
        &self,
        at: &LowerLocation,
        data: Option<&LowerLocation>,
        raw: &Attr,
        dir: &Arc<dyn BranchDir>,
    ) -> Result<OwnMark> {
        // A copy of a copy shows the first origin's number.
        let before = self.own_mark_at(at.dir.layer, &**dir, Name::new(&at.name)?)?.unwrap_or_default();
        let layer = self.layer(at.dir.layer).ok_or(Errno::IO)?;
        let (fsid, ino) = if before.origin { (before.fsid, before.ino) } else { (layer.fsid, raw.ino) };
        let mtime = match data {
            Some(data) => {
                let handle = data.dir.open(self)?;
                handle.stat_at(Name::new(&data.name)?)?.mtime
            }
            None => raw.mtime,
        };
        Ok(OwnMark {
            origin: true,
            below: false,
            partial: false,
            cut: false,
            fsid,
            ino,
            mtime,
            null_device: before.null_device,
            literal: before.literal,
        })
    }

    /// The mark of a file of which only the attributes are in the upper layer; a new one, where the kernel's overlayfs has copied it.
    fn own_or_new(&self, object: &dyn Object, space: Space, below: &LowerData) -> Result<OwnMark> {
        match partial_file::own_mark(object, space)? {
            Some(own) => Ok(own),
            None => {
                let dir = below.at.dir.open(self)?;
                let mtime = dir.stat_at(Name::new(&below.at.name)?)?.mtime;
                Ok(OwnMark { below: true, mtime, ..OwnMark::default() })
            }
        }
    }

    /// Frees the blocks of a file that says that all its data are below: an interrupted copy has left them, or a write that a loss of power
    /// has undone. As a partial file's own blocks they would count as its data. False: they are still there.
    fn free_blocks(&self, work: &Work, to: &dyn BranchFile, attr: &Attr) -> Result<bool> {
        const PUNCH_HOLE_KEEP_SIZE: u32 = 3;
        // Where holes cannot be seen, a sidecar says which blocks are the file's own.
        if attr.blocks == 0 || work.hole_shift().is_none() {
            return Ok(true);
        }
        match to.seek(0, Seek::Data) {
            Err(error) if error.errno() == Errno::NXIO => return Ok(true),
            other => drop(other?),
        }
        let privileges = Privileges::read(to, attr);
        let freed = to.allocate(PUNCH_HOLE_KEEP_SIZE, 0, attr.size);
        privileges.restore(to);
        match freed {
            Err(error) if error.errno() == Errno::OPNOTSUPP => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn copy_data(&self, to: &dyn BranchFile, from: &LowerData, limit: u64) -> Result<()> {
        if limit > 0 {
            let file = self.open_below(from)?;
            let size = file.stat()?.size.min(limit);
            // A copy without a name: the size of a file that has one says what its marks mean.
            if size > TRIED_FROM && to.stat()?.size == 0 {
                to.truncate(size)?;
                to.truncate(0)?;
            }
            copyup_data::copy(to, &*file, limit)?;
            to.truncate(to.stat()?.size.max(size))?;
            if self.config.sync_copy_up && !self.config.volatile {
                to.sync(true)?;
            }
        }
        Ok(())
    }
}

impl Work {
    /// A copy of a symbolic link, device, fifo or socket.
    fn copy_special(&self, from: &dyn Object, (raw, attr): (&Attr, &Attr), name: Name<'_>) -> Result<Copy> {
        let temp = self.temp_name();
        let to = Name::new(&temp)?;
        if raw.kind() == FileKind::Symlink {
            let mut target = vec![0; 4096];
            let n = from.read_link(&mut target)?;
            target.truncate(n);
            self.dir().make_symlink(to, &c_string(target))?;
        } else if raw.is_file() && self.overrides.xattr().is_some() {
            // Recorded as something else in an override attribute, there as here.
            self.dir().create(to, 0o600)?;
        } else {
            self.dir().make_node(to, attr.mode, attr.rdev).map_err(|e| e.at(name.bytes()))?;
        }
        Ok(Copy::Named(temp))
    }

    /// Says on a new file that data of it are below, and returns which: none if the layer takes no such mark.
    fn mark_below(
        &self,
        to: &dyn BranchFile,
        own: &OwnMark,
        redirect: Option<&CStr>,
        size: u64,
        missing: LowerParts,
    ) -> Result<LowerParts> {
        match partial_file::mark(to, self.space, own, redirect, missing.record()) {
            Ok(()) => {
                to.truncate(size)?;
                Ok(missing)
            }
            Err(e) if matches!(e.errno(), Errno::OPNOTSUPP | Errno::PERM | Errno::RANGE | Errno::TOOBIG) => {
                partial_file::unmark_all(to, self.space)?;
                Ok(LowerParts::Nothing)
            }
            Err(e) => Err(e),
        }
    }

    /// Notes the origin of a whole copy. Mostly it only keeps the inode number: without it the file is still right.
    fn mark_whole(&self, to: &dyn Object, own: &OwnMark) -> Result<()> {
        match to.set_xattr(self.space.own(), &own.encode(), 0) {
            Err(error) if own.null_device || own.literal => Err(error.doing("marking a copy")),
            Err(error) => {
                tracing::debug!(%error, "no mark of the origin; the inode number may change with a remount");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// The path that leads to a lower file in the union of the lower layers.
fn origin_path(file: &File) -> Option<Box<CStr>> {
    let state = file.state.read();
    let place = state.names.first()?;
    let parent = place.parent.as_dir()?.lower_path.clone()?;
    Some(absolute(&join(&parent, Name::new(&place.name).ok()?)))
}

/// Whether a lower file's data are another file's: it is itself a copy without data.
fn has_separate_data(data: &LowerLocation, at: &LowerLocation) -> bool {
    !Arc::ptr_eq(&data.dir, &at.dir) || data.name != at.name
}

fn is_enough(state: &FileState, need: Need) -> bool {
    match &state.at {
        InodeLocation::Lower(_) => false,
        InodeLocation::Upper | InodeLocation::Orphan(_) => {
            need == Need::Attrs || state.below.is_none() || state.partial
        }
    }
}

/// A path below the root as a redirect records it.
pub(crate) fn absolute(path: &CStr) -> Box<CStr> {
    c_string([b"/", path.to_bytes()].concat())
}
