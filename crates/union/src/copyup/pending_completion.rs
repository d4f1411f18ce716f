//! Partial files of which the rest may be copied when there is time.

use crate::nodes::node::{Dentry, Node};
use std::sync::Weak;

/// A partial file that may be completed when there is nothing else to do.
pub(crate) struct PendingCompletion {
    pub(crate) node: Weak<Node>,
    /// Where it was; the kernel may forget its node.
    pub(super) place: Dentry,
}
