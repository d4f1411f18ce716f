//! What a program has made past the mount, and the kernel has not heard of since: nothing of it is believed anywhere else, and nothing can
//! be mounted over it.

use crate::nodes::node::Node;
use crate::union::Core;

impl Core {
    /// Whether the kernel has never heard of a node, or has forgotten it.
    pub(crate) fn is_unknown_to_kernel(&self, node: &Node) -> bool {
        self.table.lookups(node.id) == 0
    }
}
