//! What a program has made past the mount, and the kernel has not heard of since: nothing of it is believed anywhere else, and nothing can
//! be mounted over it.

use crate::direct::{Directory, Refused, Wanted};
use crate::nodes::node::{At, Body, Node};
use crate::union::{Core, Union};
use std::sync::Arc;
use vellum_vfs::{Attr, Context, Name, SetAttr};

impl Core {
    /// Whether the kernel has never heard of a node, or has forgotten it.
    pub(crate) fn is_unknown_to_kernel(&self, node: &Node) -> bool {
        self.table.lookups(node.id) == 0
    }
}

impl Union {
    /// A directory in another one, if it is known here and not to the kernel. [`Refused::Known`]: it is to be looked for by way of the mount.
    pub fn unseen_below(&self, directory: &Directory, name: Name<'_>) -> Result<Directory, Refused> {
        let core = &self.0;
        let dir = core.shared_dir(directory)?;
        let node = dir.children.lock().node(name);
        match node {
            Some(node) if node.as_dir().is_some() && core.is_unknown_to_kernel(&node) => Ok(Directory(node)),
            _ => Err(Refused::Known),
        }
    }

    /// Changes attributes, but no size, of something in the upper layer that the kernel does not know. `lets` says whether the
    /// program may do that, by what the attributes are.
    pub fn set_direct(
        &self,
        wanted: &Wanted<'_>,
        cx: &Context<'_>,
        set: &SetAttr,
        lets: impl FnOnce(&Attr) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let core = &self.0;
        let (parent, dir) = core.shared_dir_of(wanted)?;
        // Dropped after the lock.
        let node: Arc<Node>;
        {
            // Exclusively: the kernel is told attributes with it held, and must not be told the old ones from here on.
            let _ops = dir.ops.write();
            if core.inherit_of(parent)?.acl {
                return Err(Refused::Front);
            }
            node = core.child(parent, wanted.name)?.ok_or(Refused::Front)?;
            if !core.is_unknown_to_kernel(&node) {
                return Err(Refused::Known);
            }
            let is_upper = match &node.body {
                Body::Dir(dir) => dir.upper.lock().is_some(),
                Body::File(file) => matches!(file.state.read().at, At::Upper),
            };
            if !is_upper {
                return Err(Refused::Front);
            }
            lets(&core.attr_of(&node)?)?;
            let _changing = core.changes(parent, dir);
            core.change_node(cx, &node, set)?;
        }
        Ok(())
    }
}
