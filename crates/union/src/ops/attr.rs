//! Attributes: how a layer's become the union's, and how they are changed.

use crate::coherence::mmap_files;
use crate::layers::Layers;
use crate::layers::attrs::{S_ISGID, S_ISUID};
use crate::layers::layer_object::{Target, as_object};
use crate::nodes::node::{Body, File, FileState, InodeLocation, Node};
use crate::union::Core;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use vellum_vfs::{
    Attr, AttrReply, BranchDir, Context, FileKind, Name, NodeId, Result, SetAttr, SetTime, Timestamp,
};

impl Core {
    /// A layer's attributes as the union shows them, except for the inode number.
    pub(crate) fn present(
        &self,
        layer: u16,
        dir: &dyn BranchDir,
        name: Name<'_>,
        attr: Attr,
    ) -> Result<Attr> {
        self.present_with(layer, attr, |xattr, buf| dir.get_xattr_at(name, xattr, buf))
    }

    fn present_with(
        &self,
        layer: u16,
        attr: Attr,
        get: impl FnOnce(&CStr, &mut [u8]) -> Result<usize>,
    ) -> Result<Attr> {
        let mut attr = self.layers.recorded(layer, attr, get)?;
        if layer == 0
            && attr.is_file()
            && let Some(kernel_ctime) = self.coherence.ctime(attr.ino, attr.ctime)
        {
            attr.ctime = kernel_ctime;
        }
        self.layers.map_owner(&mut attr);
        Ok(attr)
    }

    /// A node's attributes as the union shows them.
    pub(crate) fn attr_of(&self, node: &Node) -> Result<Attr> {
        let mut attr = match &node.body {
            Body::Dir(dir) => {
                let (layer, handle) = self.layers.top_of(dir)?;
                let mut attr = self.present_with(layer, handle.stat()?, |x, buf| handle.get_xattr(x, buf))?;
                // Links of a merged directory would have to be counted in all layers; 1 says "not counted".
                if dir.removed.load(Relaxed) {
                    attr.nlink = 0;
                } else if !dir.lowers.is_empty() || self.layers.config.static_nlink {
                    attr.nlink = 1;
                }
                attr
            }
            Body::File(file) => {
                let state = file.state.read();
                let attr = self.attr_of_file(&state)?;
                return Ok(Attr { ino: self.layers.number(node, &state, attr.ino), ..attr });
            }
        };
        attr.ino = node.ino;
        Ok(attr)
    }

    fn attr_of_file(&self, state: &FileState) -> Result<Attr> {
        let (layer, target) = self.layers.target_of(state)?;
        self.attr_of_target(state, (layer, &target), target.stat()?)
    }

    /// Attributes of a file of which the layer has said `raw`.
    fn attr_of_target(
        &self,
        state: &FileState,
        (layer, target): (u16, &Target<'_>),
        raw: Attr,
    ) -> Result<Attr> {
        let mut attr = self.present_with(layer, raw, |x, buf| target.get_xattr(x, buf))?;
        attr.nlink = state.links(attr.nlink);
        if matches!(state.at, InodeLocation::Lower(_)) {
            attr.nlink = attr.nlink.saturating_sub(state.lost);
        }
        if let Some(data) = &state.below {
            let own = if state.partial { attr.blocks } else { 0 };
            attr.blocks = self.layers.blocks_below(data, attr.size)?.max(own);
        }
        if let Some((atime, mtime)) = state.orphan_times() {
            (attr.atime, attr.mtime) = (atime, mtime);
        }
        if state.null_device {
            attr.mode = FileKind::CharDevice.mode_bits() | attr.perm();
            attr.rdev = 0;
        }
        Ok(attr)
    }

    pub(crate) fn attr_reply(&self, node: &Node) -> Result<AttrReply> {
        self.coherence.note_attributes_sent(node);
        let has_writers = self.has_writers_now(node);
        let attr = self.attr_of(node)?;
        Ok(AttrReply { attr, ttl: self.attr_ttl(node, &attr, has_writers) })
    }

    /// How long the kernel may believe attributes. Not at all where it may hold the file through a second node: after a swap,
    /// and in passthrough, where a swap may come, for files with several names. What is changed through one node would
    /// not be seen to change through the other. Nor where a program may be writing to the file itself, which was found out before they
    /// were read: one that has ended since may have written after that; and not for long where somebody may have it mapped.
    pub(crate) fn attr_ttl(&self, node: &Node, attr: &Attr, has_writers: bool) -> Duration {
        let second = node.marks().alias || node.marks().stale.load(Relaxed);
        let linked = self.layers.is_passthrough() && attr.nlink > 1 && !attr.is_dir();
        if second || linked || has_writers {
            Duration::ZERO
        } else if self.may_be_mapped(node, attr) {
            self.layers.config.ttl.min(mmap_files::TTL)
        } else {
            self.layers.config.ttl
        }
    }

    /// Changes attributes; copies up what has to be.
    pub(crate) fn change(&self, cx: &Context<'_>, id: NodeId, set: &SetAttr) -> Result<AttrReply> {
        let node = self.node(id)?;
        let changed = self.change_node(cx, &node, set)?;
        self.recall_successor(&node);
        match changed {
            // A front that states times of change writes back: nobody else writes to the file.
            Some(attr) => Ok(AttrReply { ttl: self.attr_ttl(&node, &attr, false), attr }),
            None => self.attr_reply(&node),
        }
    }

    /// A file was changed through a node to which no name leads any more: the kernel forgets what it believes of the one to which they do.
    pub(crate) fn recall_successor(&self, node: &Node) {
        if (node.marks().alias || node.marks().stale.load(Relaxed))
            && let Some(next) = node.successor()
            && let Err(error) = self.coherence.recall_attributes(next.id)
        {
            tracing::debug!(%error, "a file's other node");
        }
    }

    /// Changes attributes of a node; says what they are if they were read anyway.
    pub(crate) fn change_node(
        &self,
        cx: &Context<'_>,
        node: &Arc<Node>,
        set: &SetAttr,
    ) -> Result<Option<Attr>> {
        let mut set = *set;
        let kernel_ctime = set.ctime.take();
        if self.layers.config.squash.uid.is_some() {
            set.uid = None;
        }
        if self.layers.config.squash.gid.is_some() {
            set.gid = None;
        }
        match &node.body {
            Body::Dir(dir) => {
                set.kill_suidgid = false;
                if !set.is_empty() {
                    let handle = self.ensure_upper_dir(node)?;
                    let target = Target::Object(as_object(handle));
                    let done = self.layers.apply(cx, &target, FileKind::Directory, &set);
                    // Half of it may have been done.
                    dir.inherit.lock().take();
                    done?;
                }
            }
            Body::File(file) => {
                if let Some(size) = set.size {
                    self.truncate(node, size)?;
                    set.size = None;
                }
                if !set.is_empty() && !self.is_negligible(node, file, &set)? {
                    self.copy_up_attrs(node, file)?;
                    let _times = file.times.write();
                    let state = file.state.read();
                    let (_, target) = self.layers.target_of(&state)?;
                    if self.layers.apply(cx, &target, file.kind, &set)? {
                        self.coherence.notify_attributes_changed(node);
                    }
                }
                if kernel_ctime.is_some() && file.kind == FileKind::Regular && self.coherence.records_ctimes()
                {
                    let state = file.state.read();
                    if !matches!(state.at, InodeLocation::Lower(_)) {
                        let (layer, target) = self.layers.target_of(&state)?;
                        if let Some(raw) =
                            self.coherence.record_ctime(file, kernel_ctime, || target.stat())?
                        {
                            let attr = self.attr_of_target(&state, (layer, &target), raw)?;
                            let ino = self.layers.number(node, &state, raw.ino);
                            return Ok(Some(Attr { ino, ..attr }));
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether a change is not worth a copy-up: that of set-id bits that are not there, or of times. A kernel with write-back states the
    /// times of a file after every change of its inode: also of a lower file that has just lost its last name, and also when they are as they were.
    fn is_negligible(&self, node: &Node, file: &File, set: &SetAttr) -> Result<bool> {
        if *set == (SetAttr { kill_suidgid: true, ..SetAttr::default() }) {
            return Ok(
                file.kind != FileKind::Regular || self.layers.perm_of(file)? & (S_ISUID | S_ISGID) == 0
            );
        }
        let times_only = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
        if *set != times_only {
            return Ok(false);
        }
        {
            let mut state = file.state.write();
            if !matches!(state.at, InodeLocation::Lower(_)) {
                return Ok(false);
            }
            if state.names.is_empty() {
                let now = self.attr_of_file(&state)?;
                state.set_orphan_times(Some((
                    known_time(set.atime, now.atime),
                    known_time(set.mtime, now.mtime),
                )));
                return Ok(true);
            }
        }
        let now = self.attr_of(node)?;
        let same = |set: Option<SetTime>, now| set.is_none() || set == Some(SetTime::At(now));
        Ok(same(set.atime, now.atime) && same(set.mtime, now.mtime))
    }
}

impl Layers {
    /// The number that a file shows whose inode has the number `raw` in its layer.
    fn number(&self, node: &Node, state: &FileState, raw: u64) -> u64 {
        let has_own = state.apart && !matches!(state.at, InodeLocation::Lower(_));
        if has_own { self.shown_ino(0, raw) } else { node.ino }
    }
}

/// A time that is to be set, as far as it is known.
fn known_time(set: Option<SetTime>, before: Timestamp) -> Timestamp {
    match set {
        None => before,
        Some(SetTime::At(time)) => time,
        Some(SetTime::Now) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Timestamp { secs: now.as_secs().cast_signed(), nanos: now.subsec_nanos() }
        }
    }
}
