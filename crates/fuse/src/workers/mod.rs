//! A session's workers: the threads, the pool that says how many of them read, and what is kept of each: its slot and its buffers, how
//! many clients there are, and whether waiting awake pays.

pub(crate) mod buffer;
pub(crate) mod client_count;
pub(crate) mod pool;
pub(crate) mod slot;
pub(crate) mod spin;
pub(crate) mod thread_state;
pub(crate) mod worker;
