//! What outlives the process: the ledger of nodes, and how a successor makes them again.

pub(crate) mod ledger;
pub(crate) mod lost;
pub(crate) mod pending;
pub(crate) mod recover;
pub(crate) mod search;
