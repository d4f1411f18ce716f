//! Programs that are to be run while somebody writes to them past the mount, which the kernel refuses only of writers by way of it; and
//! programs that are to be cut while they run.

use crate::nodes::node::Node;
use crate::union::Core;
use std::time::Duration;
use vellum_vfs::Result;

/// The bits of a mode that let somebody run a file.
pub(crate) const ANY_EXECUTE: u32 = 0o111;

/// How often it is looked, and what is between two looks: the service itself may be opening the file to write, for a moment.
const LOOKS: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(1);

impl Core {
    /// Whether a program may be running from a file: it can be run, and is open by way of the mount. More is not known here: the kernel's
    /// count of those who run it is of its own inode.
    pub(crate) fn may_be_running(&self, node: &Node) -> Result<bool> {
        let own = self.nodes.ledger().map(|ledger| ledger.own_opens(node.id)).unwrap_or_default();
        // The others are of what the kernel has no file of the layer for: partial files, and layers that are no directories of the host.
        let is_open = own.opens > 0 || node.as_file().is_some_and(|file| file.count_of_cached_opens() > 0);
        Ok(is_open && self.attr_of(node)?.mode & ANY_EXECUTE != 0)
    }

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
            if node.marks().alias || ledger.own_opens(node.id).opens > 0 || !self.has_writers(node) {
                return false;
            }
        }
        true
    }
}
