//! Workloads of published systems, written anew from what was published about them.

pub mod disk;
pub mod filebench;
pub mod fxmark;
pub mod names;
pub mod neighbour;
pub mod personality;
pub mod probe;
pub mod rocksdb;
pub mod server;
pub mod worker;
