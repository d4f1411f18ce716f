//! Questions about a tree, asked through the tree itself by extended attributes. The service answers them.

use std::ffi::CStr;
use vellum_vfs::{Context, NodeId, Result};

/// How the names of the questions begin.
pub const QUESTION: &str = "vellum.";

/// Answers questions about a tree.
pub trait Questions: Send + Sync {
    /// The value of the attribute `question`. ENODATA: there is no such question, or not for this caller.
    fn answer(&self, cx: &Context<'_>, node: NodeId, question: &CStr) -> Result<Vec<u8>>;
    /// A caller sets the attribute `question`.
    fn set(&self, cx: &Context<'_>, node: NodeId, question: &CStr, value: &[u8]) -> Result<()>;
}
