//! Flags of files, as lsattr(1) shows them.
//!
//! They are those of the file in its layer. Immutable and append-only cannot be set: a front that caches writes would not ask before
//! it takes one, so they would protect nothing; nor what changes how the layer stores or finds things.

use crate::layers::Layers;
use crate::nodes::node::{Body, File, InodeLocation, Node};
use crate::union::Core;
use std::sync::Arc;
use vellum_vfs::{Errno, Error, FileKind, OpenMode, Result};

const SECURE_REMOVAL: u32 = 0x1;
const UNDELETE: u32 = 0x2;
const COMPRESSED: u32 = 0x4;
const SYNC: u32 = 0x8;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NO_DUMP: u32 = 0x40;
const NO_ATIME: u32 = 0x80;
const NOT_COMPRESSED: u32 = 0x400;
const NO_TAIL: u32 = 0x8000;
const DIR_SYNC: u32 = 0x1_0000;
const TOP_DIR: u32 = 0x2_0000;
const NO_COW: u32 = 0x80_0000;

/// What can be changed through a mount.
const CHANGEABLE: u32 = SECURE_REMOVAL
    | UNDELETE
    | COMPRESSED
    | SYNC
    | NO_DUMP
    | NO_ATIME
    | NOT_COMPRESSED
    | NO_TAIL
    | DIR_SYNC
    | TOP_DIR
    | NO_COW;

impl Layers {
    /// Flags of a regular file or a directory.
    pub(crate) fn flags(&self, node: &Node) -> Result<u32> {
        let (in_upper, flags) = match &node.body {
            Body::Dir(dir) => {
                let (_, handle) = self.top_of(dir)?;
                (dir.upper.lock().is_some(), handle.flags()?)
            }
            Body::File(file) => {
                require_regular(file)?;
                let state = file.state.read();
                let lower = matches!(state.at, InodeLocation::Lower(_));
                (
                    self.config.upper.is_some() && !lower,
                    self.target_of(&state)?.1.open(OpenMode::READ)?.flags()?,
                )
            }
        };
        // In a lower layer these say nothing of what may be done here.
        Ok(if in_upper { flags } else { flags & !(IMMUTABLE | APPEND) })
    }
}

impl Core {
    pub(crate) fn set_flags(&self, node: &Arc<Node>, flags: u32) -> Result<()> {
        let changed = self.layers.flags(node)? ^ flags;
        if changed & !CHANGEABLE != 0 {
            return Err(Error::new(Errno::OPNOTSUPP, "a flag that cannot be changed here"));
        }
        if changed == 0 {
            return Ok(());
        }
        let wanted = |now: u32| now & !CHANGEABLE | flags & CHANGEABLE;
        match &node.body {
            Body::Dir(_) => {
                self.upper.work()?;
                let handle = self.ensure_upper_dir(node)?;
                handle.set_flags(wanted(handle.flags()?))?;
            }
            Body::File(file) => {
                self.copy_up_attrs(node, file)?;
                let state = file.state.read();
                let open = self.layers.target_of(&state)?.1.open(OpenMode::READ)?;
                open.set_flags(wanted(open.flags()?))?;
            }
        }
        // The time of the last change is another.
        let _ = self.coherence.recall_attributes(node.id);
        Ok(())
    }
}

fn require_regular(file: &File) -> Result<()> {
    if file.kind == FileKind::Regular { Ok(()) } else { Err(Error::new(Errno::NOTTY, "not a regular file")) }
}
