//! Attributes as the layers have them, in the inode or beside it.

use crate::layers::Layers;
use crate::layers::layer_object::Target;
use crate::layers::overrides::{LEN_MAX, Override};
use crate::nodes::node::{File, LowerData};
use std::ffi::CStr;
use vellum_vfs::{Attr, Context, Errno, FileKind, Name, Result, SetAttr};

pub(crate) const S_ISUID: u32 = 0o4000;
pub(crate) const S_ISGID: u32 = 0o2000;
pub(crate) const SET_IDS: u32 = S_ISUID | S_ISGID;
pub(crate) const S_IXGRP: u32 = 0o0010;

impl Layers {
    /// Attributes as a layer records them, in the inode or in an override attribute.
    pub(crate) fn recorded(
        &self,
        layer: u16,
        mut attr: Attr,
        get: impl FnOnce(&CStr, &mut [u8]) -> Result<usize>,
    ) -> Result<Attr> {
        let format = self.layer(layer).map(|l| l.overrides).unwrap_or_default();
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

    /// Owner and group as the mount shows them.
    pub(crate) fn map_owner(&self, attr: &mut Attr) {
        let config = &self.config;
        attr.uid = config.squash.uid.unwrap_or_else(|| config.uid_map.to_mount(attr.uid));
        attr.gid = config.squash.gid.unwrap_or_else(|| config.gid_map.to_mount(attr.gid));
    }

    /// Blocks (of 512 bytes) of data that are below a file of `size` bytes: at most what it has room for.
    pub(crate) fn blocks_below(&self, data: &LowerData, size: u64) -> Result<u64> {
        let mut blocks = 0_u64;
        let mut next = Some(data);
        while let Some(data) = next {
            let handle = data.at.dir.open(self)?;
            blocks = blocks.saturating_add(handle.stat_at(Name::new(&data.at.name)?)?.blocks);
            next = data.next.as_deref();
        }
        // Whole blocks of 4 KiB; several files of a chain may hold the same ones.
        Ok(blocks.min(size.div_ceil(4096).saturating_mul(8)))
    }

    /// Permission bits of a file.
    pub(crate) fn perm_of(&self, file: &File) -> Result<u32> {
        let state = file.state.read();
        let (layer, target) = self.target_of(&state)?;
        Ok(self.recorded(layer, target.stat()?, |xattr, buf| target.get_xattr(xattr, buf))?.perm())
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
        if self.first().is_some_and(|l| l.overrides.xattr().is_some()) {
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
        let Some(xattr) = self.first().and_then(|l| l.overrides.xattr()) else { return Ok(false) };
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
