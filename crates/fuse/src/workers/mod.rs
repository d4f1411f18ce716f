//! What is kept of a session's workers beside the pool that they are in: each one's slot, how many clients there are, and whether
//! waiting awake pays.

pub(crate) mod client_count;
pub(crate) mod slot;
pub(crate) mod spin;
pub(crate) mod thread_state;
