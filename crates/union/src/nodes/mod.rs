//! What a kernel holds: nodes, their table, their names and numbers, and the open directories behind them.

pub(crate) mod busy;
pub(crate) mod handle_ids;
pub(crate) mod ids;
pub(crate) mod ino;
pub(crate) mod listing;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod recovery;
pub(crate) mod table;
