//! The union as a front sees it. Each operation finds its nodes, calls, and answers; nothing else.

use crate::layers::layer_object::Target;
use crate::nodes::node::Node;
use crate::ops::create::{NewObject, check_target};
use crate::ops::io::regular;
use crate::ops::readdir::parent_of;
use crate::union::Union;
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;
use vellum_vfs::{
    AttrReply, BranchFile, Connection, Context, DirSink, Duties, Entry, Errno, Error, FileKind, Filesystem,
    Handle, Name, NodeId, OpenFlags, OpenIo, OpenReply, OwnOpens, Profile, RenameFlags, Result, Seek,
    SetAttr, StatFs, UNKNOWN, WriteFlags, XattrFlags,
};

const NO_HANDLE: Handle = Handle(0);
/// In passthrough: a file that is not handed to the kernel. These opens are counted.
const CACHED: Handle = Handle(1);
/// In passthrough: a file that is, and that can be mapped to write. These are, too.
const MAPPABLE: Handle = Handle(2);
/// Bytes that are copied for one request: a client that is killed meanwhile waits for the answer, and asks for the rest otherwise.
const COPY_MAX: u64 = 16 << 20;

impl Union {
    /// What the front does itself.
    #[must_use]
    pub fn duties(&self) -> Duties {
        self.0.coherence.kernel().map_or(Duties::empty(), |kernel| kernel.duties)
    }

    /// The node of an id that must be a directory.
    fn dir(&self, id: NodeId) -> Result<Arc<Node>> {
        let node = self.0.node(id)?;
        if node.as_dir().is_none() {
            return Err(Error::new(Errno::NOTDIR, ""));
        }
        Ok(node)
    }

    /// How a file that was just created is to be used.
    fn opened(&self, node: &Arc<Node>, flags: OpenFlags) -> Result<OpenReply> {
        match self.0.layers.config.profile {
            Profile::Cached => Ok(OpenReply { handle: NO_HANDLE, io: OpenIo::Cached { keep: true } }),
            // O_TRUNC has been done, or there was nothing to cut.
            Profile::Passthrough => self.open_passthrough(node, flags - OpenFlags::TRUNC, false),
        }
    }

    /// The answer to an open, in passthrough; `known`: the kernel may know the file's attributes already.
    fn open_passthrough(&self, node: &Arc<Node>, flags: OpenFlags, known: bool) -> Result<OpenReply> {
        let io = self.0.open(node, flags)?;
        let handle = match (&io, node.as_file()) {
            (OpenIo::Passthrough(_), Some(file)) if flags & OpenFlags::ACCMODE == OpenFlags::RDWR => {
                self.0.coherence.note_mappable_open(node, file, known);
                MAPPABLE
            }
            (OpenIo::Passthrough(_) | OpenIo::Lent(_), _) => NO_HANDLE,
            _ => CACHED,
        };
        Ok(OpenReply { handle, io })
    }

    fn look(&self, parent: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        let parent = self.dir(parent)?;
        let dir = parent.as_dir().ok_or(Errno::NOTDIR)?;
        let _names = dir.entries.share();
        match self.0.child_with_attr(&parent, name)? {
            Some((node, attr)) => self.0.entry(&node, attr).map(Some),
            None => Ok(None),
        }
    }

    fn writable(&self, id: NodeId) -> Result<Arc<dyn BranchFile>> {
        let node = self.0.node(id)?;
        self.0.writable(&node, regular(&node)?, u64::MAX)
    }

    /// After a change of data by `cx` that the kernel does not qualify. It says beforehand that set-id bits are to go, where it is new
    /// enough: so who does not say his name is believed.
    fn finish_write(&self, cx: &Context<'_>, id: NodeId, open: &dyn BranchFile) -> Result<()> {
        let node = self.0.node(id)?;
        match node.as_file() {
            Some(file) if cx.uid != 0 && cx.uid != UNKNOWN => self.0.kill_set_ids(cx, &node, file, open),
            _ => Ok(()),
        }
    }

    fn readable(&self, id: NodeId) -> Result<Arc<crate::nodes::node::Io>> {
        self.0.layers.readable(regular(&*self.0.node(id)?)?)
    }
}

impl Filesystem for Union {
    fn start(&self, connection: Connection) {
        self.0.coherence.start(connection);
        self.0.recall_replaced();
        self.0.recall_shared();
        if let Ok(work) = self.0.upper.work() {
            work.begin();
        }
    }

    fn stop(&self) {
        self.0.forget_all();
        if let Ok(work) = self.0.upper.work() {
            work.finish();
        }
    }

    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        self.look(parent, name)
    }

    fn negative_ttl(&self, parent: NodeId, name: Name<'_>) -> Duration {
        if self.0.note_negative_sent(parent, name) { self.0.layers.config.ttl } else { Duration::ZERO }
    }

    fn lookup_node(&self, _: &Context<'_>, node: NodeId) -> Result<Entry> {
        let node = self.0.recall(node)?;
        self.0.entry(&node, None)
    }

    fn lookup_parent(&self, _: &Context<'_>, node: NodeId) -> Result<Entry> {
        let parent = parent_of(&self.0.recall(node)?)?;
        self.0.entry(&parent, None)
    }

    fn forget(&self, node: NodeId, count: u64) {
        self.0.forget(node, count);
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        self.0.attr_reply(&*self.0.node(node)?)
    }

    fn setattr(&self, cx: &Context<'_>, node: NodeId, _: Option<Handle>, set: &SetAttr) -> Result<AttrReply> {
        self.0.change(cx, node, set)
    }

    fn readlink(&self, _: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        let node = self.0.node(node)?;
        let file = node.as_file().ok_or(Error::new(Errno::INVAL, ""))?;
        let state = file.state.read();
        match &self.0.layers.target_of(&state)?.1 {
            Target::Entry(dir, name) => dir.read_link_at(Name::new(name)?, buf),
            Target::Object(object) => object.read_link(buf),
        }
    }

    fn mknod(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry> {
        let what = match FileKind::from_mode(mode) {
            Some(FileKind::Regular) | None => NewObject::File,
            Some(FileKind::Directory | FileKind::Symlink) => return Err(Error::new(Errno::INVAL, "mknod")),
            Some(kind) => NewObject::Node(kind, rdev),
        };
        let parent = self.dir(parent)?;
        Ok(self.0.make(cx, &parent, name, what, mode)?.1)
    }

    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32) -> Result<Entry> {
        let parent = self.dir(parent)?;
        Ok(self.0.make(cx, &parent, name, NewObject::Dir, mode)?.1)
    }

    fn symlink(&self, cx: &Context<'_>, parent: NodeId, name: Name<'_>, target: &CStr) -> Result<Entry> {
        let target = check_target(target)?;
        let parent = self.dir(parent)?;
        Ok(self.0.make(cx, &parent, name, NewObject::Symlink(&target), 0o777)?.1)
    }

    fn link(&self, cx: &Context<'_>, node: NodeId, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        let (node, parent) = (self.0.node(node)?, self.dir(parent)?);
        self.0.make_link(cx, &node, &parent, name)?;
        self.0.entry(&node, None)
    }

    fn unlink(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        self.0.unlink(&self.dir(parent)?, name)
    }

    fn rmdir(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        self.0.rmdir(&self.dir(parent)?, name)
    }

    fn rename(
        &self,
        cx: &Context<'_>,
        from: (NodeId, Name<'_>),
        to: (NodeId, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        let (from_dir, to_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        let (from, to) = ((&from_dir, from.1), (&to_dir, to.1));
        if flags.contains(RenameFlags::WHITEOUT) {
            self.0.rename_leaving_whiteout(cx, from, to, flags)
        } else {
            self.0.rename(from, to, flags)
        }
    }

    fn open(&self, _: &Context<'_>, node: NodeId, flags: OpenFlags) -> Result<OpenReply> {
        if self.0.layers.is_passthrough() {
            return self.open_passthrough(&self.0.node(node)?, flags, true);
        }
        if self.duties().contains(Duties::OPENS_FILES) {
            return Err(Error::new(Errno::NOSYS, "open"));
        }
        if flags.contains(OpenFlags::TRUNC) {
            self.0.truncate(&self.0.node(node)?, 0)?;
        }
        Ok(OpenReply { handle: NO_HANDLE, io: OpenIo::Cached { keep: true } })
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, OpenReply)> {
        let dir = self.dir(parent)?;
        let (node, mut entry) = match self.0.make(cx, &dir, name, NewObject::File, mode) {
            // Another client was faster.
            Err(e) if e.errno() == Errno::EXIST && !flags.contains(OpenFlags::EXCL) => {
                let entry = self.look(parent, name)?.ok_or(e)?;
                (self.0.node(entry.node)?, entry)
            }
            made => made?,
        };
        // An error must not leave a lookup counted.
        let opened = self.opened(&node, flags).inspect_err(|_| self.0.forget(entry.node, 1))?;
        // Open, it may come to be mapped.
        let has_writers = self.0.has_writers(&node);
        entry.attr_ttl = entry.attr_ttl.min(self.0.attr_ttl(&node, &entry.attr, has_writers));
        Ok((entry, opened))
    }

    fn tmpfile(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, OpenReply)> {
        let made = self.0.make_unnamed(cx, &self.dir(parent)?, mode)?;
        let opened = self.opened(&made.node, flags)?;
        Ok((self.0.entry(&made.node, Some(made.attr))?, opened))
    }

    fn read(&self, _: &Context<'_>, node: NodeId, _: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.layers.read(&*self.0.node(node)?, offset, buf)
    }

    fn write(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.0.write(cx, &self.0.node(node)?, offset, data, flags)
    }

    fn release(&self, node: NodeId, handle: Handle) {
        if !matches!(handle, CACHED | MAPPABLE) {
            return;
        }
        if let Ok(node) = self.0.node(node)
            && let Some(file) = node.as_file()
        {
            match handle {
                CACHED => self.0.nodes.count_cached(&node, file, -1),
                _ => self.0.coherence.closes_to_map(&node, file),
            }
        }
    }

    fn fsync(&self, _: &Context<'_>, node: NodeId, _: Handle, datasync: bool) -> Result<()> {
        self.0.fsync(&*self.0.node(node)?, datasync)
    }

    fn opendir(&self, _: &Context<'_>, node: NodeId, _: OpenFlags) -> Result<OpenReply> {
        // What the kernel keeps of a directory it does not ask for again.
        let keeps = !self.0.layers.config.ttl.is_zero();
        if keeps && self.duties().intersects(Duties::OPENS_DIRS | Duties::OPENS_FILES) {
            return Err(Error::new(Errno::NOSYS, "opendir"));
        }
        self.dir(node)?;
        let io = if keeps { OpenIo::Cached { keep: true } } else { OpenIo::Direct };
        Ok(OpenReply { handle: NO_HANDLE, io })
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.0.read_dir(&self.dir(node)?, offset, false, sink)
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.0.read_dir(&self.dir(node)?, offset, true, sink)
    }

    fn fsyncdir(&self, _: &Context<'_>, node: NodeId, _: Handle, _: bool) -> Result<()> {
        let node = self.dir(node)?;
        let dir = node.as_dir().ok_or(Errno::NOTDIR)?;
        match self.0.layers.upper_of(dir)? {
            Some(handle) if !self.0.layers.config.volatile => handle.sync_dir(),
            _ => Ok(()),
        }
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatFs> {
        let layer = self.0.layers.first().ok_or(Error::new(Errno::IO, "no layers"))?;
        layer.branch.statfs()
    }

    fn setxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &CStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        match self.questions(name) {
            Some(questions) => questions.set(cx, node, name, value),
            None => self.0.set_xattr(&self.0.node(node)?, name, value, flags),
        }
    }

    fn getxattr(&self, cx: &Context<'_>, node: NodeId, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        if let Some(questions) = self.questions(name) {
            let answer = questions.answer(cx, node, name)?;
            if !buf.is_empty() {
                buf.get_mut(..answer.len()).ok_or(Errno::RANGE)?.copy_from_slice(&answer);
            }
            return Ok(answer.len());
        }
        self.0.layers.get_xattr(&*self.0.node(node)?, name, buf)
    }

    fn listxattr(&self, cx: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        self.0.layers.list_xattr(cx, &*self.0.node(node)?, buf)
    }

    fn removexattr(&self, _: &Context<'_>, node: NodeId, name: &CStr) -> Result<()> {
        match self.questions(name) {
            Some(_) => Err(Errno::NODATA.into()),
            None => self.0.remove_xattr(&self.0.node(node)?, name),
        }
    }

    fn fallocate(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> Result<()> {
        let open = self.writable(node)?;
        let held = self.0.node(node)?;
        // Blocks that are copied for it leave the file's time of change as it was.
        let times = held.as_file().map(|file| file.times.read());
        open.allocate(mode, offset, len)?;
        drop(times);
        // The request does not say what a write would: that the caller has no privilege.
        self.finish_write(cx, node, &*open)
    }

    fn lseek(&self, _: &Context<'_>, node: NodeId, _: Handle, offset: u64, whence: Seek) -> Result<u64> {
        // With write-back the kernel may hold data that are not in the file yet, and does not write them first: only
        // it could say where the holes are. ENOSYS makes it answer "all data", which is never wrong.
        if self.0.layers.config.profile == Profile::Cached && self.duties().contains(Duties::COLLECTS_WRITES)
        {
            return Err(Error::new(Errno::NOSYS, "lseek"));
        }
        self.readable(node)?.file.seek(offset, whence)
    }

    fn copy_file_range(
        &self,
        cx: &Context<'_>,
        from: (NodeId, Handle, u64),
        to: (NodeId, Handle, u64),
        len: u64,
    ) -> Result<u64> {
        // The target first: if both are one file, the source must be seen after its copy-up.
        let target = self.writable(to.0)?;
        let source = self.readable(from.0)?;
        let copied = target.copy_range(to.2, &*source.file, from.2, len.min(COPY_MAX))?;
        self.finish_write(cx, to.0, &*target)?;
        Ok(copied)
    }

    fn flags(&self, _: &Context<'_>, node: NodeId) -> Result<u32> {
        self.0.layers.flags(&*self.0.node(node)?)
    }

    fn set_flags(&self, _: &Context<'_>, node: NodeId, flags: u32) -> Result<()> {
        self.0.set_flags(&self.0.node(node)?, flags)
    }

    fn own_opens(&self, node: NodeId) -> OwnOpens {
        self.0.nodes.ledger().map(|ledger| ledger.own_opens(node)).unwrap_or_default()
    }

    fn keep_own_opens(&self, node: NodeId, opens: OwnOpens) {
        if let Some(ledger) = self.0.nodes.ledger() {
            ledger.set_own_opens(node, opens);
        }
    }

    fn each_own_opens(&self, each: &mut dyn FnMut(NodeId, OwnOpens)) {
        if let Some(ledger) = self.0.nodes.ledger() {
            let kept = ledger.kernel_nodes().map(|node| (node, ledger.own_opens(node)));
            kept.filter(|(_, opens)| *opens != OwnOpens::default())
                .for_each(|(node, opens)| each(node, opens));
        }
    }
}

impl Drop for Union {
    /// Nodes hold their parents; emptying the table ends them all.
    fn drop(&mut self) {
        self.0.forget_all();
    }
}
