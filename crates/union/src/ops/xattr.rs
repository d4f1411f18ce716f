//! Extended attributes of the union's files, without the union's own.

use crate::copyup::privileges::CAPABILITY;
use crate::layers::Layers;
use crate::layers::layer_object::as_object;
use crate::layers::marks::{XATTR_MAX, escape, is_private, unescape};
use crate::nodes::node::{Body, Node};
use crate::union::Core;
use std::borrow::Cow;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{Context, Errno, Error, FileKind, IdMap, Object, Result, XattrFlags};

const TRUSTED_PREFIX: &[u8] = b"trusted.";
const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// Tags of ACL entries that carry an id, in the on-disk form (4 bytes version, then 8 per entry).
const ACL_USER: u16 = 0x02;
const ACL_GROUP: u16 = 0x08;

impl Layers {
    /// The name by which a layer has an attribute. EOPNOTSUPP: there are none of this name.
    fn stored_name<'a>(&self, name: &'a CStr) -> Result<Cow<'a, CStr>> {
        if let Some(stored) = escape(name).filter(|_| !self.config.no_xattr) {
            return Ok(Cow::Owned(stored.into_c_string()));
        }
        let bytes = name.to_bytes();
        if self.config.no_xattr || is_private(bytes) || self.config.no_acl && bytes.starts_with(ACL_PREFIX) {
            return Err(Error::new(Errno::OPNOTSUPP, ""));
        }
        Ok(Cow::Borrowed(name))
    }

    fn maps_ids(&self) -> bool {
        self.config.uid_map != IdMap::default() || self.config.gid_map != IdMap::default()
    }

    /// The object that holds a node's attributes.
    fn holder(&self, node: &Node) -> Result<Arc<dyn Object>> {
        match &node.body {
            Body::Dir(dir) => Ok(as_object(self.top_of(dir)?.1)),
            Body::File(file) => {
                let state = file.state.read();
                self.target_of(&state)?.1.hold()
            }
        }
    }

    pub(crate) fn get_xattr(&self, node: &Node, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        let name = &*self.stored_name(name)?;
        let n = match &node.body {
            Body::Dir(dir) => self.top_of(dir)?.1.get_xattr(name, buf)?,
            Body::File(file) => {
                let is_capability = name == CAPABILITY;
                let _times = is_capability.then(|| file.times.read());
                let state = file.state.read();
                let found = self.target_of(&state)?.1.get_xattr(name, buf);
                if is_capability && matches!(&found, Err(e) if e.errno() == Errno::NODATA) {
                    file.no_capability.note();
                }
                found?
            }
        };
        if self.maps_ids() && name.to_bytes().starts_with(ACL_PREFIX) {
            let value = buf.get_mut(..n).unwrap_or_default();
            map_acl(value, |id| self.config.uid_map.to_mount(id), |id| self.config.gid_map.to_mount(id));
        }
        Ok(n)
    }

    /// Names of attributes. Those for administrators alone are listed to root alone, as filesystems do: the kernel lists what it is told.
    pub(crate) fn list_xattr(&self, cx: &Context<'_>, node: &Node, buf: &mut [u8]) -> Result<usize> {
        if self.config.no_xattr {
            return Ok(0);
        }
        let holder = self.holder(node)?;
        let mut all = vec![0; 1024];
        let len = loop {
            match holder.list_xattr(&mut all) {
                Ok(len) => break len,
                Err(e) if e.errno() == Errno::RANGE && all.len() < XATTR_MAX => {
                    all.resize(XATTR_MAX, 0);
                }
                Err(e) if e.errno() == Errno::OPNOTSUPP && node.kind() != FileKind::Directory => break 0,
                Err(e) => return Err(e),
            }
        };
        let mut used = 0;
        // Asked only if there is such a name: the request may not say.
        let mut root = None;
        let mut is_root = || *root.get_or_insert_with(|| cx.ids().0 == 0);
        for name in all.get(..len).unwrap_or_default().split_inclusive(|b| *b == 0) {
            let bare = name.strip_suffix(&[0]).unwrap_or(name);
            if is_private(bare) || self.config.no_acl && bare.starts_with(ACL_PREFIX) {
                continue;
            }
            if bare.starts_with(TRUSTED_PREFIX) && !is_root() {
                continue;
            }
            for part in unescape(bare).into_iter().chain([&[0_u8][..]]) {
                if !buf.is_empty() {
                    let place = buf.get_mut(used..used + part.len()).ok_or(Error::new(Errno::RANGE, ""))?;
                    place.copy_from_slice(part);
                }
                used += part.len();
            }
        }
        Ok(used)
    }
}

impl Core {
    pub(crate) fn set_xattr(
        &self,
        node: &Arc<Node>,
        name: &CStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let name = &*self.layers.stored_name(name)?;
        let mapped;
        let mut value = value;
        if self.layers.maps_ids() && name.to_bytes().starts_with(ACL_PREFIX) {
            let mut copy = value.to_vec();
            let config = &self.layers.config;
            map_acl(&mut copy, |id| config.uid_map.to_layer(id), |id| config.gid_map.to_layer(id));
            mapped = copy;
            value = &mapped;
        }
        let holder = self.upper_holder(node)?;
        let _times = node.as_file().map(|file| file.times.write());
        if name == CAPABILITY
            && let Some(file) = node.as_file()
        {
            file.no_capability.ends();
        }
        let done = holder.set_xattr(name, value, flags.bits());
        inherit_changed(node);
        self.recall_successor(node);
        done
    }

    pub(crate) fn remove_xattr(&self, node: &Arc<Node>, name: &CStr) -> Result<()> {
        let name = &*self.layers.stored_name(name)?;
        match self.layers.holder(node)?.get_xattr(name, &mut []) {
            // A file without an ACL of its own: there is nothing to do, and nothing to complain about.
            Err(e) if e.errno() == Errno::NODATA && name.to_bytes().starts_with(ACL_PREFIX) => return Ok(()),
            other => other?,
        };
        let holder = self.upper_holder(node)?;
        let _times = node.as_file().map(|file| file.times.write());
        let done = holder.remove_xattr(name);
        inherit_changed(node);
        self.recall_successor(node);
        done
    }

    /// The node's object in the upper layer, to which it is copied if it is not there.
    fn upper_holder(&self, node: &Arc<Node>) -> Result<Arc<dyn Object>> {
        match &node.body {
            Body::Dir(_) => Ok(as_object(self.ensure_upper_dir(node)?)),
            Body::File(file) => {
                self.copy_up_attrs(node, file)?;
                self.layers.holder(node)
            }
        }
    }
}

fn inherit_changed(node: &Node) {
    if let Some(dir) = node.as_dir() {
        dir.inherit.lock().take();
    }
}

/// Maps the ids of named users and groups in an ACL. What is not an ACL stays as it is; the layer will judge it.
fn map_acl(value: &mut [u8], uid: impl Fn(u32) -> u32, gid: impl Fn(u32) -> u32) {
    for entry in value.get_mut(4..).unwrap_or_default().chunks_exact_mut(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let id = match tag {
            ACL_USER => uid(id),
            ACL_GROUP => gid(id),
            _ => continue,
        };
        entry[4..8].copy_from_slice(&id.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::map_acl;

    #[test]
    fn only_named_ids_are_mapped() {
        let mut acl = vec![2, 0, 0, 0];
        for (tag, id) in [(1u16, u32::MAX), (2, 7), (4, u32::MAX), (8, 9)] {
            acl.extend_from_slice(&tag.to_le_bytes());
            acl.extend_from_slice(&6u16.to_le_bytes());
            acl.extend_from_slice(&id.to_le_bytes());
        }
        map_acl(&mut acl, |id| id + 100, |id| id + 200);
        let ids: Vec<u32> =
            acl[4..].chunks(8).map(|e| u32::from_le_bytes([e[4], e[5], e[6], e[7]])).collect();
        assert_eq!(ids, [u32::MAX, 107, u32::MAX, 209]);
    }
}
