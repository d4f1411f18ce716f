//! Data of regular files.

use crate::copyup::full_copy::Need;
use crate::copyup::privileges::Privileges;
use crate::layers::Layers;
use crate::layers::attrs::without_set_ids;
use crate::layers::read_file::read_full;
use crate::nodes::Nodes;
use crate::nodes::node::{File, InodeLocation, Io, Node};
use crate::nodes::recovery::ledger::Flags;
use crate::nodes::text_busy::ANY_EXECUTE;
use crate::ops::forget::is_gone;
use crate::union::Core;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use vellum_vfs::{
    Attr, BranchFile, Context, Duties, Errno, Error, FileKind, OpenFlags, OpenIo, OpenMode, Result, SetAttr,
    SetTime, WriteFlags,
};

/// Whether a file of a lower layer is read through the kernel's page cache even in `passthrough`: a small one
/// that is no program. It stays one file for the kernel then, whoever writes to it: who has it open sees
/// that, and locks exclude each other.
const fn is_read_through_cache(lower: &Attr, passthrough_from: u64) -> bool {
    lower.size < passthrough_from && lower.mode & ANY_EXECUTE == 0
}

impl Layers {
    /// The open file to read from.
    pub(crate) fn readable(&self, file: &File) -> Result<Arc<Io>> {
        if let Some(io) = file.open_io() {
            return Ok(io);
        }
        // Under the state's lock, so that a copy-up does not come between opening and keeping.
        let state = file.state.read();
        if state.lost_data {
            return Err(Error::new(Errno::IO, "the file's data below are lost").damage());
        }
        let io = match (&state.below, &state.at) {
            (Some(below), _) if state.partial => self.open_partial(file, &state, below)?,
            (Some(below), _) => self.below_io(self.open_below(below)?)?,
            (None, InodeLocation::Lower(at)) => self.below_io(self.open_lower(at)?)?,
            (None, InodeLocation::Upper | InodeLocation::Orphan(_)) => {
                let (_, target) = self.target_of(&state)?;
                match state.open(&target, OpenMode::READ | OpenMode::WRITE) {
                    Ok(file) => Io::new(file, true),
                    // An upper that an unprivileged service may only read.
                    Err(e) if matches!(e.errno(), Errno::ACCESS | Errno::ROFS | Errno::PERM) => {
                        Io::new(state.open(&target, OpenMode::READ)?, false)
                    }
                    Err(e) => return Err(e),
                }
            }
        };
        let (io, filled) = file.io.fill(Arc::new(io));
        drop(state);
        if filled {
            self.watch(&**file, io.file.as_descriptor());
        }
        Ok(io)
    }

    /// A file of a lower layer, opened.
    fn below_io(&self, file: Arc<dyn BranchFile>) -> Result<Io> {
        let from = self.config.passthrough_from;
        let through_cache = from > 0 && self.is_passthrough() && is_read_through_cache(&file.stat()?, from);
        Ok(Io { through_cache, ..Io::new(file, false) })
    }

    pub(crate) fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let io = self.readable(regular(node)?)?;
        read_full(&*io.file, buf, offset)
    }

    /// Before a file is given to somebody who writes to it and syncs it past the union (by msync, RWF_DSYNC, or a descriptor
    /// of his own): a copy gets its names, and loses its marks, for good. What was made here is new, and its name is as
    /// durable as on any filesystem; unless (`strictly`) every write is to be.
    pub(crate) fn sync_names(
        &self,
        node: &Node,
        file: &File,
        open: &dyn BranchFile,
        strictly: bool,
    ) -> Result<()> {
        let config = &self.config;
        let unsynced = &file.unsynced;
        if config.volatile || !config.sync_copy_up || unsynced.is_data_sync_enough() {
            return Ok(());
        }
        // A copy shows the number of its origin.
        if !unsynced.is_original() && self.shown_ino(0, open.stat()?.ino) == node.ino {
            unsynced.note_original();
        }
        if strictly || !unsynced.is_original() { unsynced.sync_metadata(|| open.sync(false)) } else { Ok(()) }
    }
}

impl Core {
    /// The open file to write to; its first `keep` bytes are there.
    pub(crate) fn writable(
        &self,
        node: &Arc<Node>,
        file: &Arc<File>,
        keep: u64,
    ) -> Result<Arc<dyn BranchFile>> {
        if let Some(io) = file.open_io()
            && io.writable
        {
            return Ok(Arc::clone(&io.file));
        }
        self.copy_up(node, file, Need::Data(keep))?;
        let io = self.layers.readable(file)?;
        if io.partial.is_some() {
            self.upper.note_partial(node);
        }
        if !io.writable {
            return Err(Error::new(Errno::ACCESS, "the upper layer's file cannot be opened for writing"));
        }
        Ok(Arc::clone(&io.file))
    }

    pub(crate) fn write(
        &self,
        cx: &Context<'_>,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        let file = regular(node)?;
        let open = self.writable(node, file, u64::MAX)?;
        // The kernel is the authority on the time of what it writes back, and states a new one itself.
        // With its write-back cache the kernel keeps the time of the last change and sends it; without, a page that was
        // changed through a mapping is a write like any other.
        let written_back = flags.contains(WriteFlags::WRITEBACK);
        let kept = written_back
            && !self.layers.is_passthrough()
            && self.coherence.kernel().is_none_or(|kernel| kernel.duties.contains(Duties::COLLECTS_WRITES));
        let times = written_back.then(|| file.times.read());
        let before = match (kept, written_back) {
            (true, _) => Some(self.coherence.before_writing(file, || open.stat())?),
            (false, true) => Some(open.stat()?),
            (false, false) => None,
        };
        // Whoever wrote it has lost them then, and may have been given others since.
        let privileges = before.map(|attr| Privileges::read_unless_none(&*open, &attr, &file.no_capability));
        let written = open.write_at(data, offset);
        if let Some(privileges) = privileges {
            privileges.restore(&*open);
        }
        let written = written?;
        if let Some(attr) = before.filter(|_| kept) {
            open.set_times(None, Some(SetTime::At(attr.mtime)))?;
            self.coherence.record_ctime(file, None, || open.stat())?;
        }
        drop(times);
        if flags.contains(WriteFlags::KILL_SUIDGID) {
            self.kill_set_ids(cx, node, file, &*open)?;
        }
        Ok(written)
    }

    /// Takes set-id bits away, as a write by somebody without privilege does.
    pub(crate) fn kill_set_ids(
        &self,
        cx: &Context<'_>,
        node: &Node,
        file: &File,
        open: &dyn BranchFile,
    ) -> Result<()> {
        let _times = file.times.write();
        let killed = if self.layers.first().is_some_and(|l| l.overrides.xattr().is_some()) {
            let state = file.state.read();
            let (_, target) = self.layers.target_of(&state)?;
            let set = SetAttr { kill_suidgid: true, ..SetAttr::default() };
            self.layers.apply(cx, &target, file.kind, &set)?
        } else {
            let attr = open.stat()?;
            let in_group = cx.in_group(self.layers.config.gid_map.to_mount(attr.gid));
            let without = without_set_ids(attr.perm(), in_group);
            if without != attr.perm() {
                open.set_mode(without)?;
            }
            without != attr.perm()
        };
        if killed {
            self.coherence.notify_attributes_changed(node);
        }
        Ok(())
    }

    /// Cuts or extends a file; of a lower file no more is copied than stays.
    pub(crate) fn truncate(&self, node: &Arc<Node>, size: u64) -> Result<()> {
        let file = regular(node)?;
        let _under_way = self.coherence.truncates(node, file);
        self.writable(node, file, size)?.truncate(size)?;
        if let Some(io) = file.open_io() {
            self.check_completion(node, &io);
        }
        Ok(())
    }

    /// Opens a file for a front that hands it to the kernel. ESTALE: look the name up again.
    pub(crate) fn open(&self, node: &Arc<Node>, flags: OpenFlags) -> Result<OpenIo> {
        let file = regular(node)?;
        let stale = || Error::new(Errno::STALE, "the file has a new node");
        if node.marks().stale.load(Relaxed) {
            return Err(stale());
        }
        // The kernel knows who writes through it; of those who write to the upper layer's file only this side can know.
        if flags.contains(OpenFlags::EXEC) && self.is_being_written(node) {
            return Err(Error::new(Errno::TXTBSY, "a program is writing to it"));
        }
        let truncate = flags.contains(OpenFlags::TRUNC);
        // Of an open to write the kernel finds out beforehand that the file is being run; of one to read that cuts it, only afterwards.
        if truncate && !flags.intersects(OpenFlags::ACCMODE) && self.may_be_running(node)? {
            return Err(Error::new(Errno::TXTBSY, "a program may be running from it"));
        }
        let writes = flags.intersects(OpenFlags::ACCMODE) || truncate;
        // Nothing is done for an open that must fail: a file without a name has no other node to be found by. One that has lost the names
        // which are known is found by the others, and that at the first try: the kernel makes one more.
        if writes
            && node.marks().lower_passthrough.load(Relaxed)
            && !self.layers.readable(file)?.writable
            && is_gone(file)
        {
            return Err(stale());
        }
        let io = if writes {
            let _under_way = if truncate { self.coherence.truncates(node, file) } else { None };
            let keep = if truncate { 0 } else { u64::MAX };
            let open = self.writable(node, file, keep)?;
            // The kernel may hold the lower file through this node; the upper must come through another.
            if node.marks().stale.load(Relaxed) {
                return Err(stale());
            }
            if truncate {
                open.truncate(0)?;
                if let Some(io) = file.open_io() {
                    self.check_completion(node, &io);
                }
            }
            let io = self.layers.readable(file)?;
            if io.file.descriptor().is_some() {
                self.layers.sync_names(node, file, &*io.file, flags.contains(OpenFlags::DSYNC))?;
            }
            io
        } else {
            let io = self.layers.readable(file)?;
            // Replaced since: the kernel may hold the lower file through this node.
            if io.writable && node.marks().stale.load(Relaxed) {
                return Err(stale());
            }
            if io.through_cache {
                self.nodes.count_cached(node, file, 1);
                // One who copies it up at the same time sees the count, or this one sees the copy: the kernel
                // takes one kind of open at a time.
                fence(SeqCst);
                if !self.layers.readable(file)?.writable {
                    return Ok(OpenIo::Cached { keep: !node.marks().alias });
                }
                self.nodes.count_cached(node, file, -1);
                return Err(stale());
            }
            if !io.writable && (io.file.descriptor().is_some() || io.file.lent_descriptor().is_some()) {
                node.marks().lower_passthrough.store(true, Relaxed);
                self.nodes.write_flags(node, Flags::LOWER_OPEN);
                // A copy-up that did not see the mark has replaced the file by now.
                let now = self.layers.readable(file)?;
                if now.writable {
                    let state = file.state.write();
                    if !node.marks().stale.load(Relaxed) {
                        let key = state.inode;
                        self.swap_node(state, (node, file), key);
                    }
                    return Err(stale());
                }
            }
            io
        };
        if writes {
            // The other half of that: the copy is there, and who reads the file is counted.
            fence(SeqCst);
        }
        // A file that is partial, or was when it was opened, goes through the kernel's cache until all its opens have ended.
        // Counted before looking, so that one who finds it whole at the same time sees the count.
        let Some(descriptor) = io.file.descriptor() else {
            let copy = if io.writable { None } else { io.file.lent_descriptor() };
            self.nodes.count_cached(node, file, 1);
            // An open beside this one that goes through the cache has been counted, or will find the copy.
            if let Some(copy) = copy
                && self.nodes.uncount_alone(node, file)
            {
                return Ok(OpenIo::Lent(copy));
            }
            return Ok(OpenIo::Cached { keep: !node.marks().alias });
        };
        if file.count_of_cached_opens() == 0 {
            return Ok(OpenIo::Passthrough(descriptor));
        }
        self.nodes.count_cached(node, file, 1);
        Ok(OpenIo::Cached { keep: !node.marks().alias })
    }

    /// Makes a file durable.
    pub(crate) fn fsync(&self, node: &Node, datasync: bool) -> Result<()> {
        let Some(file) = node.as_file() else { return Ok(()) };
        if self.layers.config.volatile || file.kind != FileKind::Regular {
            return Ok(());
        }
        if let Some(io) = file.open_io()
            && io.writable
        {
            file.unsynced.sync(datasync, |datasync| io.file.sync(datasync))?;
            self.check_completion(node, &io);
            return Ok(());
        }
        let state = file.state.read();
        if let InodeLocation::Lower(_) = state.at {
            return Ok(());
        }
        let (_, target) = self.layers.target_of(&state)?;
        let open = target.hold()?.reopen(OpenMode::READ)?;
        file.unsynced.sync(datasync, |datasync| open.sync(datasync))
    }
}

impl Nodes {
    /// Counts opens through the kernel's cache.
    pub(crate) fn count_cached(&self, node: &Node, file: &File, change: i32) {
        let next = |opens: u32| Some(opens.saturating_add_signed(change));
        let _ = file.cached_opens.fetch_update(Relaxed, Relaxed, next);
        if let Some(ledger) = self.ledger() {
            ledger.count_cached_opens(node.id, change);
        }
    }

    /// Takes back the count of an open through the kernel's cache, if it is the only one.
    fn uncount_alone(&self, node: &Node, file: &File) -> bool {
        let alone = file.cached_opens.compare_exchange(1, 0, Relaxed, Relaxed).is_ok();
        if alone && let Some(ledger) = self.ledger() {
            ledger.count_cached_opens(node.id, -1);
        }
        alone
    }
}

/// The regular file that a node is. EISDIR, EINVAL: it is none.
pub(crate) fn regular(node: &Node) -> Result<&Arc<File>> {
    match node.as_file() {
        Some(file) if file.kind == FileKind::Regular => Ok(file),
        Some(_) => Err(Error::new(Errno::INVAL, "not a regular file")),
        None => Err(Error::new(Errno::ISDIR, "")),
    }
}
