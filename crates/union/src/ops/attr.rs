//! Attributes: how a layer's become the union's, and how they are changed.

use crate::coherence::mapped;
use crate::layers::overrides::{LEN_MAX, Override};
use crate::nodes::node::{At, Below, Body, File, FileState, Node, Place};
use crate::union::Core;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use vellum_vfs::{
    Attr, AttrReply, BranchDir, BranchFile, Context, Errno, Error, FileKind, Name, NodeId, Object, OpenMode,
    Result, SetAttr, SetTime, Timestamp,
};

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;

/// Something in a layer that can be changed: an entry of a directory, or a held object.
pub(crate) enum Target<'a> {
    /// An entry.
    At(Arc<dyn BranchDir>, &'a CStr),
    /// A held object.
    Held(Arc<dyn Object>),
}

impl Target<'_> {
    pub(crate) fn stat(&self) -> Result<Attr> {
        match self {
            Self::At(dir, name) => dir.stat_at(Name::new(name)?),
            Self::Held(object) => object.stat(),
        }
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        match self {
            Self::At(dir, name) => dir.set_mode_at(Name::new(name)?, mode),
            Self::Held(object) => object.set_mode(mode),
        }
    }

    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        match self {
            Self::At(dir, name) => dir.set_owner_at(Name::new(name)?, uid, gid),
            Self::Held(object) => object.set_owner(uid, gid),
        }
    }

    fn set_times(&self, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
        match self {
            Self::At(dir, name) => dir.set_times_at(Name::new(name)?, atime, mtime),
            Self::Held(object) => object.set_times(atime, mtime),
        }
    }

    pub(crate) fn get_xattr(&self, attr: &CStr, buf: &mut [u8]) -> Result<usize> {
        match self {
            Self::At(dir, name) => dir.get_xattr_at(Name::new(name)?, attr, buf),
            Self::Held(object) => object.get_xattr(attr, buf),
        }
    }

    /// Opens the regular file that it is.
    pub(crate) fn open(&self, mode: OpenMode) -> Result<Arc<dyn BranchFile>> {
        match self {
            Self::At(dir, name) => dir.open_file(Name::new(name)?, mode),
            Self::Held(object) => object.reopen(mode),
        }
    }

    /// The object itself, held.
    pub(crate) fn hold(&self) -> Result<Arc<dyn Object>> {
        match self {
            Self::At(dir, name) => dir.hold(Name::new(name)?),
            Self::Held(object) => Ok(Arc::clone(object)),
        }
    }
}

impl Core {
    /// A place in the upper layer.
    pub(crate) fn target_at<'a>(&self, place: &'a Place) -> Result<Target<'a>> {
        let parent = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
        let handle = self.upper_of(parent)?.ok_or(Error::new(Errno::STALE, "parent is not in the upper"))?;
        Ok(Target::At(handle, &place.name))
    }

    /// Where a file's inode is, and in which layer. The caller holds the file's state.
    pub(crate) fn target_of<'a>(&self, state: &'a FileState) -> Result<(u16, Target<'a>)> {
        match &state.at {
            At::Lower(at) => {
                let handle = at.dir.open(&self.layers, &self.budget)?;
                Ok((at.dir.layer, Target::At(handle, &at.name)))
            }
            At::Upper => {
                let place = state.names.first().ok_or(Error::new(Errno::STALE, "file without a name"))?;
                Ok((0, self.target_at(place)?))
            }
            At::Held(object) => Ok((0, Target::Held(Arc::clone(object)))),
        }
    }

    /// A directory's uppermost part, and its layer.
    pub(crate) fn top_of(&self, dir: &crate::nodes::node::Dir) -> Result<(u16, Arc<dyn BranchDir>)> {
        if let Some(handle) = self.upper_of(dir)? {
            return Ok((0, handle));
        }
        let part = dir.lowers.first().ok_or(Error::new(Errno::STALE, "directory without parts"))?;
        Ok((part.layer, part.open(&self.layers, &self.budget)?))
    }

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
        let mut attr = self.recorded(layer, attr, get)?;
        if let Some(ctimes) = &self.ctimes
            && layer == 0
            && attr.is_file()
        {
            attr.ctime = ctimes.of(attr.ino, attr.ctime).unwrap_or(attr.ctime);
        }
        attr.uid = self.config.squash.uid.unwrap_or_else(|| self.config.uid_map.to_mount(attr.uid));
        attr.gid = self.config.squash.gid.unwrap_or_else(|| self.config.gid_map.to_mount(attr.gid));
        Ok(attr)
    }

    /// Attributes as a layer records them, in the inode or in an override attribute.
    pub(crate) fn recorded(
        &self,
        layer: u16,
        mut attr: Attr,
        get: impl FnOnce(&CStr, &mut [u8]) -> Result<usize>,
    ) -> Result<Attr> {
        let format = self.layers.get(usize::from(layer)).map(|l| l.overrides).unwrap_or_default();
        if let Some(xattr) = format.xattr() {
            let mut value = [0u8; LEN_MAX];
            match get(xattr, &mut value) {
                Ok(n) => {
                    if let Some(recorded) = Override::parse(value.get(..n).unwrap_or_default()) {
                        recorded.apply(&mut attr);
                    }
                }
                Err(e)
                    if matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::RANGE) => {
                }
                Err(e) => return Err(e),
            }
        }
        Ok(attr)
    }

    /// A node's attributes as the union shows them.
    pub(crate) fn attr_of(&self, node: &Node) -> Result<Attr> {
        let mut attr = match &node.body {
            Body::Dir(dir) => {
                let (layer, handle) = self.top_of(dir)?;
                let mut attr = self.present_with(layer, handle.stat()?, |x, buf| handle.get_xattr(x, buf))?;
                // Links of a merged directory would have to be counted in all layers; 1 says "not counted".
                if dir.removed.load(Relaxed) {
                    attr.nlink = 0;
                } else if !dir.lowers.is_empty() || self.config.static_nlink {
                    attr.nlink = 1;
                }
                attr
            }
            Body::File(file) => self.attr_of_file(&file.state.read())?,
        };
        attr.ino = node.ino;
        Ok(attr)
    }

    fn attr_of_file(&self, state: &FileState) -> Result<Attr> {
        let (layer, target) = self.target_of(state)?;
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
        if matches!(state.at, At::Lower(_)) {
            attr.nlink = attr.nlink.saturating_sub(state.lost);
        }
        if let Some(data) = &state.below {
            let own = if state.partial { attr.blocks } else { 0 };
            attr.blocks = self.blocks_below(data, attr.size)?.max(own);
        }
        if let Some((atime, mtime)) = state.orphan_times {
            (attr.atime, attr.mtime) = (atime, mtime);
        }
        if state.null_device {
            attr.mode = FileKind::CharDevice.mode_bits() | attr.perm();
            attr.rdev = 0;
        }
        Ok(attr)
    }

    /// Blocks (of 512 bytes) of data that are below a file of `size` bytes: at most what it has room for.
    fn blocks_below(&self, data: &Below, size: u64) -> Result<u64> {
        let mut blocks = 0_u64;
        let mut next = Some(data);
        while let Some(data) = next {
            let handle = data.at.dir.open(&self.layers, &self.budget)?;
            blocks = blocks.saturating_add(handle.stat_at(Name::new(&data.at.name)?)?.blocks);
            next = data.next.as_deref();
        }
        // Whole blocks of 4 KiB; several files of a chain may hold the same ones.
        Ok(blocks.min(size.div_ceil(4096).saturating_mul(8)))
    }

    pub(crate) fn attr_reply(&self, node: &Node) -> Result<AttrReply> {
        self.tells_attributes(node);
        let has_writers = self.has_writers(node);
        let attr = self.attr_of(node)?;
        Ok(AttrReply { attr, ttl: self.attr_ttl(node, &attr, has_writers) })
    }

    /// How long the kernel may believe attributes. Not at all where it may hold the file through a second node: after a swap,
    /// and in passthrough, where a swap may come, for files with several names. What is changed through one node would
    /// not be seen to change through the other. Nor where a program may be writing to the file itself, which was found out before they
    /// were read: one that has ended since may have written after that; and not for long where somebody may have it mapped.
    pub(crate) fn attr_ttl(&self, node: &Node, attr: &Attr, has_writers: bool) -> Duration {
        let second = node.alias || node.stale.load(Relaxed);
        let linked = self.is_passthrough() && attr.nlink > 1 && !attr.is_dir();
        if second || linked || has_writers {
            Duration::ZERO
        } else if self.may_be_mapped(node, attr) {
            self.config.ttl.min(mapped::TTL)
        } else {
            self.config.ttl
        }
    }

    /// Changes attributes; copies up what has to be.
    pub(crate) fn change(&self, cx: &Context<'_>, id: NodeId, set: &SetAttr) -> Result<AttrReply> {
        let node = self.node(id)?;
        match self.change_node(cx, &node, set)? {
            // A front that states times of change writes back: nobody else writes to the file.
            Some(attr) => Ok(AttrReply { ttl: self.attr_ttl(&node, &attr, false), attr }),
            None => self.attr_reply(&node),
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
        let stated = set.ctime.take();
        if self.config.squash.uid.is_some() {
            set.uid = None;
        }
        if self.config.squash.gid.is_some() {
            set.gid = None;
        }
        match &node.body {
            Body::Dir(dir) => {
                set.kill_suidgid = false;
                if !set.is_empty() {
                    let handle = self.ensure_upper_dir(node)?;
                    let done = self.apply(cx, &Target::Held(as_object(handle)), FileKind::Directory, &set);
                    // Half of it may have been done.
                    dir.inherit.lock().take();
                    done?;
                }
            }
            Body::File(file) => {
                if let Some(size) = set.size {
                    self.truncate(node, file, size)?;
                    set.size = None;
                }
                if !set.is_empty() && !self.is_vain(node, file, &set)? {
                    self.copy_up_attrs(node, file)?;
                    let sets_times = set.atime.is_some() || set.mtime.is_some();
                    let _times = sets_times.then(|| file.times.write());
                    let state = file.state.read();
                    let (_, target) = self.target_of(&state)?;
                    if self.apply(cx, &target, file.kind, &set)? {
                        self.tell_attributes_changed(node);
                    }
                }
                if stated.is_some() && file.kind == FileKind::Regular && self.ctimes.is_some() {
                    let state = file.state.read();
                    if !matches!(state.at, At::Lower(_)) {
                        let (layer, target) = self.target_of(&state)?;
                        if let Some(raw) = self.keep_ctime(file, stated, || target.stat())? {
                            let attr = self.attr_of_target(&state, (layer, &target), raw)?;
                            return Ok(Some(Attr { ino: node.ino, ..attr }));
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// Permission bits of a file.
    fn perm_of(&self, file: &File) -> Result<u32> {
        let state = file.state.read();
        let (layer, target) = self.target_of(&state)?;
        Ok(self.recorded(layer, target.stat()?, |xattr, buf| target.get_xattr(xattr, buf))?.perm())
    }

    /// Has the kernel forget what it knows of a file's attributes. Where set-id bits have gone, before it is answered: it does not expect
    /// that of a write or an open, and would go on to run the file with them.
    pub(crate) fn tell_attributes_changed(&self, node: &Node) {
        if let Some(kernel) = self.kernel.get()
            && let Err(error) = kernel.notifier.inval_inode(node.id, -1, 0)
        {
            tracing::warn!(%error, "the kernel was not told of changed attributes");
        }
    }

    /// Whether a change is not worth a copy-up: that of set-id bits that are not there, or of times. A kernel with write-back states the
    /// times of a file after every change of its inode: also of a lower file that has just lost its last name, and also when they are as they were.
    fn is_vain(&self, node: &Node, file: &File, set: &SetAttr) -> Result<bool> {
        if *set == (SetAttr { kill_suidgid: true, ..SetAttr::default() }) {
            return Ok(file.kind != FileKind::Regular || self.perm_of(file)? & (S_ISUID | S_ISGID) == 0);
        }
        let times_only = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
        if *set != times_only {
            return Ok(false);
        }
        {
            let mut state = file.state.write();
            if !matches!(state.at, At::Lower(_)) {
                return Ok(false);
            }
            if state.names.is_empty() {
                let now = self.attr_of_file(&state)?;
                state.orphan_times = Some((known(set.atime, now.atime), known(set.mtime, now.mtime)));
                return Ok(true);
            }
        }
        let now = self.attr_of(node)?;
        let same = |set: Option<SetTime>, now| set.is_none() || set == Some(SetTime::At(now));
        Ok(same(set.atime, now.atime) && same(set.mtime, now.mtime))
    }

    /// Applies a change to an object in the upper layer; true: it has taken set-id bits away. Owner before mode: changing the owner
    /// clears set-id bits.
    pub(crate) fn apply(
        &self,
        cx: &Context<'_>,
        target: &Target<'_>,
        kind: FileKind,
        set: &SetAttr,
    ) -> Result<bool> {
        let mut killed = false;
        if self.layers.first().is_some_and(|l| l.overrides.xattr().is_some()) {
            killed = self.apply_override(cx, target, set)?;
        } else {
            let uid = set.uid.map(|id| self.config.uid_map.to_layer(id));
            let gid = set.gid.map(|id| self.config.gid_map.to_layer(id));
            let mut mode = set.mode.map(|m| m & 0o7777);
            // A change of owner takes the set-id bits away by itself, in the layer as here.
            if mode.is_none()
                && set.kill_suidgid
                && kind == FileKind::Regular
                && uid.is_none()
                && gid.is_none()
            {
                let stat = target.stat()?;
                let in_group = cx.in_group(self.config.gid_map.to_mount(stat.gid));
                let after = without_set_ids(stat.perm(), in_group);
                killed = after != stat.perm();
                mode = killed.then_some(after);
            }
            if uid.is_some() || gid.is_some() {
                target.set_owner(uid, gid)?;
            }
            if let Some(mode) = mode
                && kind != FileKind::Symlink
            {
                target.set_mode(mode)?;
            }
        }
        if set.atime.is_some() || set.mtime.is_some() {
            target.set_times(set.atime, set.mtime)?;
        }
        Ok(killed)
    }

    /// Records a change of owner or mode in the override attribute; true: it has taken set-id bits away.
    fn apply_override(&self, cx: &Context<'_>, target: &Target<'_>, set: &SetAttr) -> Result<bool> {
        if set.uid.is_none() && set.gid.is_none() && set.mode.is_none() && !set.kill_suidgid {
            return Ok(false);
        }
        let Some(xattr) = self.layers.first().and_then(|l| l.overrides.xattr()) else { return Ok(false) };
        let held = target.hold()?;
        let attr = held.stat()?;
        let mut value = [0u8; LEN_MAX];
        let stored = held.get_xattr(xattr, &mut value).ok().and_then(|n| Override::parse(value.get(..n)?));
        let mut now =
            stored.unwrap_or(Override { uid: attr.uid, gid: attr.gid, mode: attr.perm(), kind: None });
        if let Some(uid) = set.uid {
            now.uid = self.config.uid_map.to_layer(uid);
        }
        if let Some(gid) = set.gid {
            now.gid = self.config.gid_map.to_layer(gid);
        }
        let before = now.mode;
        if let Some(mode) = set.mode {
            now.mode = mode & 0o7777;
        } else if set.kill_suidgid {
            now.mode = without_set_ids(now.mode, cx.in_group(self.config.gid_map.to_mount(now.gid)));
        }
        let killed = set.mode.is_none() && now.mode != before;
        match held.set_xattr(xattr, now.format().as_bytes(), 0) {
            // Symbolic links take no user attributes; they stay as they are.
            Err(e)
                if attr.kind() == FileKind::Symlink
                    && matches!(e.errno(), Errno::PERM | Errno::OPNOTSUPP) =>
            {
                Ok(false)
            }
            other => other.map(|()| killed),
        }
    }
}

/// Mode after a write by somebody without privilege: without set-user-id, and without set-group-id where the group
/// may execute or the writer is outside the group.
pub(crate) const fn without_set_ids(mode: u32, in_group: bool) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & S_IXGRP != 0 || !in_group { mode & !S_ISGID } else { mode }
}

/// A time that is to be set, as far as it is known.
fn known(set: Option<SetTime>, before: Timestamp) -> Timestamp {
    match set {
        None => before,
        Some(SetTime::At(time)) => time,
        Some(SetTime::Now) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Timestamp { secs: now.as_secs().cast_signed(), nanos: now.subsec_nanos() }
        }
    }
}

/// A directory seen as an object.
pub(crate) fn as_object(dir: Arc<dyn BranchDir>) -> Arc<dyn Object> {
    dir
}
