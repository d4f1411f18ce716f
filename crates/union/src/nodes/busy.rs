//! Programs that are to be run while somebody writes to them past the mount: the kernel refuses that only of who writes by way of it.

use crate::nodes::node::Node;
use crate::union::Core;
use std::time::Duration;

/// How often it is looked, and what is between two looks: the service itself may be opening the file to write, for a moment.
const LOOKS: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(1);

impl Core {
    /// Whether a program certainly writes to a file past the mount. While somebody has it open by way of the mount that cannot be told, for
    /// the kernel has the layer's file open to write then; nor of what a predecessor had open.
    pub(crate) fn is_being_written(&self, node: &Node) -> bool {
        let Some(ledger) = self.nodes.ledger().filter(|_| !self.nodes.is_recovering()) else {
            return false;
        };
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(BETWEEN);
            }
            let [opens, ..] = ledger.note(node.id);
            if node.alias || opens > 0 || !self.has_writers(node) {
                return false;
            }
        }
        true
    }
}
