//! Directories are listed.

use crate::nodes::listing::{DOT, DOT_DOT};
use crate::nodes::node::{Dir, Node};
use crate::union::Core;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{DirEntry, DirSink, Errno, FileKind, NAME_MAX, Name, Result};

impl Core {
    /// Lists a directory from an offset until the sink is full.
    pub(crate) fn read_dir(
        &self,
        node: &Arc<Node>,
        offset: u64,
        plus: bool,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let dir = node.as_dir().ok_or(Errno::NOTDIR)?;
        for (cookie, name) in [(DOT, &b"."[..]), (DOT_DOT, b"..")] {
            if offset < cookie {
                if !sink.fits(name.len()) {
                    return Ok(());
                }
                let ino = if cookie == DOT { node.ino } else { parent_of(node)?.ino };
                sink.push(DirEntry { ino, cookie, kind: Some(FileKind::Directory), name }, None);
            }
        }
        let _names = dir.entries.share();
        self.coherence.note_names_sent(dir);
        self.layers.ensure_listing(dir)?;
        if plus {
            self.read_dir_plus(node, dir, offset, sink)
        } else {
            self.read_dir_names(node, dir, offset, sink)
        }
    }

    fn read_dir_names(&self, node: &Arc<Node>, dir: &Dir, offset: u64, sink: &mut dyn DirSink) -> Result<()> {
        let mut at = offset;
        loop {
            // Names whose numbers are certain go out under one lock; another is looked up, which takes it too.
            let doubtful = dir.entries.listed(|listing| {
                for (cookie, listed) in listing.iter_after(at) {
                    let name = listed.name.to_bytes();
                    if !sink.fits(name.len()) {
                        return None;
                    }
                    if !listed.exact {
                        return Some(listed.name.clone());
                    }
                    sink.push(DirEntry { ino: listed.ino, cookie, kind: listed.kind, name }, None);
                    at = cookie;
                }
                None
            });
            let Some(Some(name)) = doubtful else { return Ok(()) };
            // Only the number is kept: dropping a child's node takes the lock below.
            let found = self.child(node, Name::new(&name)?).ok().flatten().map(|child| child.ino);
            dir.entries.is_exactly(&name, found);
        }
    }

    fn read_dir_plus(&self, node: &Arc<Node>, dir: &Dir, offset: u64, sink: &mut dyn DirSink) -> Result<()> {
        let mut at = offset;
        let mut buffer = [0u8; NAME_MAX + 1];
        loop {
            // The name is copied out, since looking it up takes the same lock.
            let next = dir.entries.listed(|listing| {
                let (cookie, listed) = listing.after(at)?;
                let name = listed.name.to_bytes_with_nul();
                buffer.get_mut(..name.len())?.copy_from_slice(name);
                Some((cookie, name.len(), listed.ino, listed.kind))
            });
            let Some((cookie, len, ino, kind)) = next.flatten() else { return Ok(()) };
            let Ok(c_name) = CStr::from_bytes_with_nul(buffer.get(..len).unwrap_or_default()) else {
                return Ok(());
            };
            if !sink.fits(c_name.to_bytes().len()) {
                return Ok(());
            }
            at = cookie;
            let name = Name::new(c_name)?;
            // Where there are too many nodes, only names that have one already: the kernel asks for what it wants to know.
            let is_wanted = !self.layers.config.nodes.is_short() || dir.entries.node(name).is_some();
            // An entry that cannot be looked up is listed all the same; its error shows when it is used.
            let found = if is_wanted { self.child_with_attr(node, name).ok().flatten() } else { None };
            let entry = found.and_then(|(child, attr)| self.entry(&child, attr).ok());
            let ino = entry.as_ref().map_or(ino, |e| e.attr.ino);
            let kind = entry.as_ref().map_or(kind, |e| Some(e.attr.kind()));
            sink.push(DirEntry { ino, cookie, kind, name: c_name.to_bytes() }, entry.as_ref());
        }
    }
}

/// The parent of a directory, and itself for the root.
pub(crate) fn parent_of(node: &Arc<Node>) -> Result<Arc<Node>> {
    let dir = node.as_dir().ok_or(Errno::NOTDIR)?;
    let place = dir.place.read().clone();
    Ok(place.map_or_else(|| Arc::clone(node), |place| place.parent))
}
