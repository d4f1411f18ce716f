//! Workloads: those of published systems, written anew from what was published about them, and real programs.

pub mod chroot;
pub mod debian;
pub mod disk;
pub mod filebench;
pub mod fxmark;
pub mod job;
pub mod names;
pub mod neighbour;
pub mod personality;
pub mod probe;
pub mod rocksdb;
pub mod server;
pub mod worker;
