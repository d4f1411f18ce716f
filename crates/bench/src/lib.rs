//! Workloads, and comparisons of Vellum with other filesystems in one run.
//!
//! `compare` runs the same [`tasks`] on several [`contender`]s, round by round, in a [`testbed`] of its own, and states
//! times as ratios to kernel overlayfs in the same round; [`targets`] are what Vellum has to reach.
#![forbid(unsafe_code)]

pub mod archive_report;
pub mod arguments;
pub mod balance;
pub mod cacheline;
pub mod ceph;
pub mod compare;
pub mod contender;
pub mod counts;
pub mod descendants;
pub mod failure;
pub mod filesystem_kind;
pub mod interrupt;
pub mod isolation;
pub mod machine;
pub mod memcg;
pub mod mounts;
mod numbers;
pub(crate) mod pools;
mod programs;
pub mod regression_guard;
pub mod report;
pub mod requests;
pub mod resource_meter;
pub mod service;
pub mod statistics;
pub mod store;
pub mod syscalls;
pub mod table;
pub mod targets;
pub mod task_process;
pub mod tasks;
pub mod tenant_cpus;
pub mod testbed;
pub mod testbeds;
pub(crate) mod trace;
pub mod tree;
pub mod worker_loop;
pub mod workload;
