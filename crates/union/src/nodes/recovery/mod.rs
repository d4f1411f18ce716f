//! What outlives the process: the ledger of nodes, and how a successor makes them again.

pub(crate) mod ledger;
pub(crate) mod lost_forgets;
pub(crate) mod pending_nodes;
pub(crate) mod restore;
pub(crate) mod search;
