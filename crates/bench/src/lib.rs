//! Workloads, and comparisons of Vellum with other filesystems in one run.
//!
//! `compare` runs the same [`tasks`] on several [`subject`]s, round by round, in a [`ground`] of its own, and states
//! times as ratios to kernel overlayfs in the same round; [`bars`] are what Vellum has to reach. `roundtrip` takes
//! single requests apart.
#![forbid(unsafe_code)]

pub mod bars;
pub mod charge;
pub mod compare;
pub mod cores;
pub mod counts;
pub mod failure;
pub mod figure;
pub mod ground;
pub mod grounds;
pub mod guard;
pub mod keep;
pub mod kernel;
pub mod lines;
pub mod machine;
pub mod measure;
pub mod page;
pub mod player;
pub(crate) mod pools;
pub mod report;
pub mod requests;
pub mod roundtrip;
pub mod service;
pub mod stage;
pub mod statistics;
pub mod stop;
pub mod subject;
pub mod syscalls;
pub mod tasks;
pub(crate) mod trace;
pub mod tree;
pub mod workload;
