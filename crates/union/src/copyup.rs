//! Copy-up: a lower object gets a copy of its own in the upper layer, in one step that is there or not.
//!
//! Everything is prepared without a name, or in the work directory, and then appears under its name at once. When
//! only attributes change, only attributes are copied: the file says that its data are below, and that needs no
//! waiting for the disk. Data are copied when the file is first written to or cut; they are made durable before
//! the copy replaces the original, for a copy that a crash leaves empty would lose what nobody has touched.

use crate::copyup_data;
use crate::extents::Record;
use crate::layer::{c_string, join};
use crate::marks::{DirMarks, Own};
use crate::node::{At, Below, Dir, File, FileState, LowerAt, Node, UpperDir};
use crate::overrides::Override;
use crate::partial;
use crate::union::{Core, path_of};
use crate::work::Work;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vellum_vfs::{
    Attr, BranchDir, BranchFile, Errno, Error, FileKind, Name, Object, OpenMode, RenameFlags, Result, SetTime,
};

/// What an operation needs in the upper layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The inode.
    Attrs,
    /// The inode, and its first bytes of data (`u64::MAX`: all of them).
    Data(u64),
}

/// What a copy does not have itself and takes from below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// It is whole.
    Nothing,
    /// All its data: only attributes were copied.
    All,
    /// The blocks that are not written to.
    Blocks(Record),
}

impl Missing {
    const fn record(&self) -> Option<&Record> {
        match self {
            Self::Blocks(record) => Some(record),
            Self::Nothing | Self::All => None,
        }
    }
}

/// A copy that has no name in the union yet.
enum Copy {
    /// A regular file without a name.
    Unnamed(Arc<dyn BranchFile>),
    /// Anything, by its name in the work directory.
    Named(Box<CStr>),
}

impl Core {
    /// The directory's handle in the upper layer; copies it, and its parents, up.
    pub(crate) fn ensure_upper_dir(&self, node: &Arc<Node>) -> Result<Arc<dyn BranchDir>> {
        let dir = node.as_dir().ok_or(Errno::NOTDIR)?;
        if let Some(handle) = self.upper_of(dir)? {
            return Ok(handle);
        }
        let work = self.work()?;
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
            self.copy_up_dir(work, dir).map_err(|e| e.doing("copy-up of a directory").at(path_of(&next)))?;
        }
        self.upper_of(dir)?.ok_or(Error::new(Errno::IO, "copy-up of a directory"))
    }

    fn copy_up_dir(&self, work: &Work, dir: &Dir) -> Result<()> {
        let _one = dir.copy.lock();
        if dir.upper.lock().is_some() {
            return Ok(());
        }
        let gone = || Error::new(Errno::NOENT, "the directory was removed");
        let place = dir.place.read().clone().ok_or_else(gone)?;
        let parent = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
        let parent = self.upper_of(parent)?.ok_or_else(gone)?;
        let lower = dir.lowers.first().ok_or_else(gone)?;
        let from = lower.open(&self.layers, &self.budget)?;
        let attr = self.recorded(lower.layer, from.stat()?, |x, buf| from.get_xattr(x, buf))?;
        let temp = work.temp_name();
        let temp = Name::new(&temp)?;
        work.dir().make_dir(temp, 0o700)?;
        let made = (|| {
            let copy = work.dir().open_dir(temp)?;
            self.dress(&*copy, &*from, &attr, false)?;
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

    /// Copies the attributes of a file up.
    pub(crate) fn copy_up_attrs(&self, node: &Arc<Node>, file: &Arc<File>) -> Result<()> {
        self.copy_up(node, file, Need::Attrs)
    }

    /// Brings a file into the upper layer as far as is needed. Never call it with a directory's `ops` held.
    pub(crate) fn copy_up(&self, node: &Arc<Node>, file: &Arc<File>, need: Need) -> Result<()> {
        if is_enough(&file.state.read(), need) {
            return Ok(());
        }
        let work = self.work()?;
        let _one = file.copy.lock();
        let (lower, below) = {
            let state = file.state.read();
            if is_enough(&state, need) {
                return Ok(());
            }
            let lower = if let At::Lower(at) = &state.at { Some(at.clone()) } else { None };
            // The data of a lower file that has some of its own begin there.
            let below = match (&lower, state.below.clone()) {
                (Some(at), None) => Some(Arc::new(Below { at: at.clone(), next: None })),
                (Some(at), next) if state.partial => Some(Arc::new(Below { at: at.clone(), next })),
                (_, below) => below,
            };
            (lower, below)
        };
        let result = match (lower, below) {
            (Some(at), Some(below)) => self.copy_up_lower(work, node, file, &at, &below, need),
            (None, Some(below)) => self.fill(work, node, file, &below, need),
            (_, None) => Ok(()),
        };
        result.map_err(|e| e.doing("copy-up").at(path_of(node)))
    }

    fn copy_up_lower(
        &self,
        work: &Work,
        node: &Arc<Node>,
        file: &Arc<File>,
        at: &LowerAt,
        data: &Arc<Below>,
        need: Need,
    ) -> Result<()> {
        let dir = at.dir.open(&self.layers, &self.budget)?;
        let name = Name::new(&at.name)?;
        let from = dir.hold(name)?;
        let raw = from.stat()?;
        let attr = self.recorded(at.dir.layer, raw, |x, buf| from.get_xattr(x, buf))?;
        if raw.nlink > 1 {
            self.find_other_names(at.dir.layer, raw.ino)?;
        }
        let mut missing = Missing::Nothing;
        if raw.is_file() && raw.size > 0 {
            if need == Need::Attrs && self.config.metacopy {
                missing = Missing::All;
            } else if let Some(record) = self.wanted_record(work, raw.size, need) {
                missing = Missing::Blocks(record);
            }
        }
        let chained = missing != Missing::Nothing && below_is_elsewhere(&data.at, at);
        let own = self.origin_mark(at, chained.then_some(&data.at), &raw, &dir)?;
        let copy = if attr.is_file() && raw.is_file() {
            let to = self.new_file(work, file, attr.perm())?;
            let open = to.open(work)?;
            if matches!(missing, Missing::Blocks(_)) && self.try_clone(work, &*open, data)? {
                missing = Missing::Nothing;
                self.mark_whole(open.as_ref(), &own)?;
            } else {
                if missing != Missing::Nothing {
                    let redirect = if raw.nlink > 1 { self.origin_path(file) } else { None };
                    missing = self.mark_below(&*open, &own, redirect.as_deref(), raw.size, missing)?;
                }
                if missing == Missing::Nothing {
                    let limit = if let Need::Data(limit) = need { limit } else { u64::MAX };
                    self.copy_data(&*open, data, limit)?;
                    self.mark_whole(open.as_ref(), &own)?;
                }
            }
            to
        } else {
            let named = self.copy_special(work, &*from, (&raw, &attr), name)?;
            self.mark_whole(named.object(work)?.as_ref(), &own)?;
            named
        };
        let result = (|| {
            self.dress(&*copy.object(work)?, &*from, &attr, matches!(copy, Copy::Unnamed(_)))?;
            self.publish(work, node, file, &copy, (data, missing), raw.nlink > 1)
        })();
        if result.is_err()
            && let Copy::Named(name) = &copy
        {
            let _ = work.dir().remove(Name::new(name)?);
        }
        result
    }

    /// The mark of a copy of the lower file at `at`.
    fn origin_mark(
        &self,
        at: &LowerAt,
        data: Option<&LowerAt>,
        raw: &Attr,
        dir: &Arc<dyn BranchDir>,
    ) -> Result<Own> {
        // A copy of a copy shows the first origin's number.
        let before = self.own_mark_at(at.dir.layer, &**dir, Name::new(&at.name)?)?.unwrap_or_default();
        let layer = self.layers.get(usize::from(at.dir.layer)).ok_or(Errno::IO)?;
        let (fsid, ino) = if before.origin { (before.fsid, before.ino) } else { (layer.fsid, raw.ino) };
        let mtime = match data {
            Some(data) => {
                let handle = data.dir.open(&self.layers, &self.budget)?;
                handle.stat_at(Name::new(&data.name)?)?.mtime
            }
            None => raw.mtime,
        };
        Ok(Own {
            origin: true,
            below: false,
            partial: false,
            fsid,
            ino,
            mtime,
            null_device: before.null_device,
            literal: before.literal,
        })
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
                    (!inherit.setgid && !inherit.default_acl).then_some(handle)
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

    /// A copy of a symbolic link, device, fifo or socket.
    fn copy_special(
        &self,
        work: &Work,
        from: &dyn Object,
        (raw, attr): (&Attr, &Attr),
        name: Name<'_>,
    ) -> Result<Copy> {
        let temp = work.temp_name();
        let to = Name::new(&temp)?;
        if raw.kind() == FileKind::Symlink {
            let mut target = vec![0; 4096];
            let n = from.read_link(&mut target)?;
            target.truncate(n);
            work.dir().make_symlink(to, &c_string(target))?;
        } else if raw.is_file() && self.layers.first().is_some_and(|l| l.overrides.xattr().is_some()) {
            // Recorded as something else in an override attribute, there as here.
            work.dir().create(to, 0o600)?;
        } else {
            work.dir().make_node(to, attr.mode, attr.rdev).map_err(|e| e.at(name.bytes()))?;
        }
        Ok(Copy::Named(temp))
    }

    /// Says on a new file that data of it are below, and returns which: none if the layer takes no such mark.
    fn mark_below(
        &self,
        to: &dyn BranchFile,
        own: &Own,
        redirect: Option<&CStr>,
        size: u64,
        missing: Missing,
    ) -> Result<Missing> {
        match partial::mark(to, self.space(), own, redirect, missing.record()) {
            Ok(()) => {
                to.truncate(size)?;
                Ok(missing)
            }
            Err(e) if matches!(e.errno(), Errno::OPNOTSUPP | Errno::PERM | Errno::RANGE | Errno::TOOBIG) => {
                partial::unmark_all(to, self.space())?;
                Ok(Missing::Nothing)
            }
            Err(e) => Err(e),
        }
    }

    /// Notes the origin of a whole copy. Mostly it only keeps the inode number: without it the file is still right.
    fn mark_whole(&self, to: &dyn Object, own: &Own) -> Result<()> {
        match to.set_xattr(self.space().own(), &own.encode(), 0) {
            Err(error) if own.null_device || own.literal => Err(error.doing("marking a copy")),
            Err(error) => {
                tracing::debug!(%error, "no mark of the origin; the inode number may change with a remount");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// The path that leads to a lower file in the union of the lower layers.
    fn origin_path(&self, file: &File) -> Option<Box<CStr>> {
        let state = file.state.read();
        let place = state.names.first()?;
        let parent = place.parent.as_dir()?.lower_path.clone()?;
        Some(absolute(&join(&parent, Name::new(&place.name).ok()?)))
    }

    fn copy_data(&self, to: &dyn BranchFile, from: &Below, limit: u64) -> Result<()> {
        if limit > 0 {
            let file = self.open_below(from)?;
            copyup_data::copy(to, &*file, limit)?;
            to.truncate(to.stat()?.size.max(file.stat()?.size.min(limit)))?;
            if self.config.sync_copy_up && !self.config.volatile {
                to.sync(true)?;
            }
        }
        Ok(())
    }

    /// Gives a copy everything that its original has, except data: attributes, owner, mode, times. `has_mode`: it was
    /// made with its mode, apart from set-id bits.
    fn dress(&self, to: &dyn Object, from: &dyn Object, attr: &Attr, has_mode: bool) -> Result<()> {
        let symlink = attr.kind() == FileKind::Symlink;
        if let Some(xattr) = self.layers.first().and_then(|l| l.overrides.xattr()) {
            let real = to.stat()?;
            let kind = (real.kind() != attr.kind()).then_some((attr.kind(), attr.rdev));
            let value = Override { uid: attr.uid, gid: attr.gid, mode: attr.perm(), kind };
            match to.set_xattr(xattr, value.format().as_bytes(), 0) {
                Err(e) if symlink && matches!(e.errno(), Errno::PERM | Errno::OPNOTSUPP) => {}
                other => other?,
            }
        } else {
            let chown = self.service_ids() != (attr.uid, attr.gid);
            if chown {
                to.set_owner(Some(attr.uid), Some(attr.gid))?;
            }
            if !symlink && (chown || !has_mode || attr.perm() & !0o777 != 0) {
                to.set_mode(attr.perm())?;
            }
        }
        // After the owner, whose change takes file capabilities away.
        copy_xattrs(to, from)?;
        to.set_times(Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime)))
    }

    /// Looks up all names of a lower inode that show in the union, so that its node knows them.
    fn find_other_names(&self, layer: u16, ino: u64) -> Result<()> {
        let at = usize::from(layer);
        let Some((links, holder)) = self.links.get(at).zip(self.layers.get(at)) else { return Ok(()) };
        let mut paths: Vec<Vec<u8>> =
            links.paths(&*holder.branch, ino)?.iter().map(|path| path.to_bytes().to_vec()).collect();
        // On the way up, each layer may have moved the directories in which the names are.
        for (links, layer) in self.links.iter().zip(&self.layers).take(at).rev() {
            let moved = links.moved(&*layer.branch)?;
            let elsewhere: Vec<_> =
                moved.iter().flat_map(|moved| paths.iter().filter_map(|path| moved.apply(path))).collect();
            paths.extend(elsewhere);
        }
        for path in paths {
            self.walk(&path)?;
        }
        Ok(())
    }

    /// The node at a path of the union, if there is one. Takes directories' `ops`, one at a time.
    pub(crate) fn walk(&self, path: &[u8]) -> Result<Option<Arc<Node>>> {
        let Some(mut node) = self.root.get().cloned() else { return Ok(None) };
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            let Some(dir) = node.as_dir() else { return Ok(None) };
            let name = c_string(name.to_vec());
            let child = {
                let _ops = dir.ops.read();
                self.child(&node, Name::new(&name)?)?
            };
            match child {
                Some(child) => node = child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// Puts a finished copy under all names of the file, and makes the file live there.
    fn publish(
        &self,
        work: &Work,
        node: &Arc<Node>,
        file: &Arc<File>,
        copy: &Copy,
        (data, missing): (&Arc<Below>, Missing),
        linked: bool,
    ) -> Result<()> {
        loop {
            // The parents may change until the state is ours, so they are checked again under it.
            let parents: Vec<_> = file.state.read().names.iter().map(|p| Arc::clone(&p.parent)).collect();
            for parent in &parents {
                self.ensure_upper_dir(parent)?;
            }
            let mut state = file.state.write();
            let ready =
                state.names.iter().all(|p| p.parent.as_dir().is_some_and(|d| d.upper.lock().is_some()));
            if !ready {
                continue;
            }
            let object = copy.object(work)?;
            let mut first = true;
            for place in &state.names {
                let parent = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
                let parent = self.upper_of(parent)?.ok_or(Errno::STALE)?;
                let name = Name::new(&place.name)?;
                let before = parent.stat()?;
                match copy {
                    Copy::Named(temp) if first => {
                        work.dir().rename(Name::new(temp)?, &*parent, name, RenameFlags::empty())?;
                    }
                    _ => parent.link_object(&*object, name)?,
                }
                restore_times(&*parent, &before);
                first = false;
            }
            if first {
                // It has no name any more: it lives on in the open descriptors. Times that it was given so far are its own.
                if let Some((atime, mtime)) = state.orphan_times.take() {
                    object.set_times(Some(SetTime::At(atime)), Some(SetTime::At(mtime)))?;
                }
                state.at = At::Held(object);
                if let Copy::Named(temp) = copy {
                    work.dir().remove(Name::new(temp)?)?;
                }
            } else {
                if linked {
                    self.inodes.set((0, object.stat()?.ino), node);
                    if let At::Lower(_) = state.at
                        && let Some(key) = state.inode
                    {
                        self.inodes.remove(key);
                    }
                }
                state.at = At::Upper;
            }
            let data_moved = missing != Missing::All;
            state.inode = None;
            state.below = (missing != Missing::Nothing).then(|| Arc::clone(data));
            state.partial = matches!(missing, Missing::Blocks(_));
            if state.partial {
                self.record_lowers();
            }
            // What is open of a partial lower is the lower's.
            *file.partial.lock() = std::sync::Weak::new();
            state.lost = 0;
            if data_moved {
                file.io.replace(None);
            }
            if data_moved && node.lower_passthrough.load(Relaxed) {
                self.register_swapped(&state, node)?;
                let last = self.swap_node(node, file);
                drop(state);
                drop(last);
            }
            return Ok(());
        }
    }

    /// Makes sure that further names of a swapped file lead to the same file.
    fn register_swapped(&self, state: &FileState, node: &Arc<Node>) -> Result<()> {
        let (_, target) = self.target_of(state)?;
        self.inodes.set((0, target.stat()?.ino), node);
        Ok(())
    }

    /// Brings the data of a file into the upper layer of which only the attributes are there.
    fn fill(&self, work: &Work, node: &Arc<Node>, file: &Arc<File>, below: &Below, need: Need) -> Result<()> {
        let Need::Data(limit) = need else { return Ok(()) };
        let object = {
            let state = file.state.read();
            self.target_of(&state)?.1.hold()?
        };
        let before = object.stat()?;
        let to = object.reopen(OpenMode::READ | OpenMode::WRITE)?;
        if let Some(record) = self.wanted_record(work, before.size, need)
            && !self.try_clone(work, &*to, below)?
        {
            // The blocks follow as they are written.
            let mut value = [0u8; 64];
            let own = object.get_xattr(self.space().own(), &mut value).ok();
            let own = own.and_then(|n| Own::decode(value.get(..n)?).ok()).unwrap_or_default();
            partial::mark(&*object, self.space(), &own, None, Some(&record))?;
            return self.live_there(node, file, true);
        }
        // First the data, which nobody sees as long as the file has its size and its marks; then, if it is to be shorter,
        // the size, from which on the file counts as whole; then the marks.
        self.copy_data(&*to, below, limit)?;
        if limit < before.size {
            to.truncate(limit)?;
        }
        to.set_times(Some(SetTime::At(before.atime)), Some(SetTime::At(before.mtime)))?;
        partial::unmark(&*object, self.space())?;
        self.live_there(node, file, false)
    }

    /// The data of a file are in its inode now, all or (`partial`) in blocks.
    fn live_there(&self, node: &Arc<Node>, file: &Arc<File>, partial: bool) -> Result<()> {
        let mut state = file.state.write();
        if !partial {
            state.below = None;
        }
        state.partial = partial;
        if partial {
            self.record_lowers();
        }
        file.io.replace(None);
        if node.lower_passthrough.load(Relaxed) {
            self.register_swapped(&state, node)?;
            let last = self.swap_node(node, file);
            drop(state);
            drop(last);
        }
        Ok(())
    }
}

impl Copy {
    /// The copy, held.
    fn object(&self, work: &Work) -> Result<Arc<dyn Object>> {
        match self {
            Self::Unnamed(file) => Ok(as_object(Arc::clone(file))),
            Self::Named(name) => work.dir().hold(Name::new(name)?),
        }
    }

    /// The copy, opened for writing.
    fn open(&self, work: &Work) -> Result<Arc<dyn BranchFile>> {
        match self {
            Self::Unnamed(file) => Ok(Arc::clone(file)),
            Self::Named(name) => work.dir().open_file(Name::new(name)?, OpenMode::READ | OpenMode::WRITE),
        }
    }
}

/// Whether a lower file's data are another file's: it is itself a copy without data.
fn below_is_elsewhere(data: &LowerAt, at: &LowerAt) -> bool {
    !Arc::ptr_eq(&data.dir, &at.dir) || data.name != at.name
}

fn as_object(file: Arc<dyn BranchFile>) -> Arc<dyn Object> {
    file
}

fn is_enough(state: &FileState, need: Need) -> bool {
    match &state.at {
        At::Lower(_) => false,
        At::Upper | At::Held(_) => need == Need::Attrs || state.below.is_none() || state.partial,
    }
}

/// A copy-up changes a directory without anybody having changed the tree: its times stay. Failing to set them is
/// no reason to fail a copy-up that is already there.
pub(crate) fn restore_times(dir: &dyn BranchDir, before: &Attr) {
    if let Err(error) = dir.set_times(Some(SetTime::At(before.atime)), Some(SetTime::At(before.mtime))) {
        tracing::debug!(%error, "restoring a directory's times");
    }
}

/// A path below the root as a redirect records it.
pub(crate) fn absolute(path: &CStr) -> Box<CStr> {
    c_string([b"/", path.to_bytes()].concat())
}

/// Copies all extended attributes that are not the union's own: ACLs, capabilities, users' attributes.
fn copy_xattrs(to: &dyn Object, from: &dyn Object) -> Result<()> {
    let mut small = [0u8; 1024];
    let mut large;
    let list: &[u8] = match from.list_xattr(&mut small) {
        Ok(n) => small.get(..n).unwrap_or_default(),
        Err(e) if e.errno() == Errno::RANGE => {
            large = vec![0; crate::marks::XATTR_MAX];
            let n = from.list_xattr(&mut large)?;
            large.get(..n).unwrap_or_default()
        }
        Err(e) if e.errno() == Errno::OPNOTSUPP => return Ok(()),
        Err(e) => return Err(e),
    };
    for name in list.split_inclusive(|b| *b == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let bytes = name.to_bytes();
        if crate::marks::is_private(bytes) {
            continue;
        }
        let value = match crate::marks::read_value(from, name, crate::marks::XATTR_MAX) {
            Ok(Some(value)) => value,
            Ok(None) => continue,
            // An attribute that the kernel lists and refuses to read, such as empty file capabilities, says nothing.
            Err(e) if e.errno() == Errno::INVAL && bytes.starts_with(b"security.") => continue,
            Err(e) => return Err(e.doing("copying an extended attribute")),
        };
        match to.set_xattr(name, &value, 0) {
            Ok(()) => {}
            // What an unprivileged service may not set (labels, trusted attributes) it cannot keep.
            Err(e)
                if matches!(e.errno(), Errno::PERM | Errno::OPNOTSUPP)
                    && (bytes.starts_with(b"security.") || bytes.starts_with(b"trusted.")) =>
            {
                tracing::debug!(name = %name.to_string_lossy(), error = %e, "attribute not copied up");
            }
            Err(e) => return Err(e.doing("copying an extended attribute")),
        }
    }
    Ok(())
}
