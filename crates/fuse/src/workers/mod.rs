//! What a session's workers have beside the pool that they are in.

pub(crate) mod cpu_latency;
