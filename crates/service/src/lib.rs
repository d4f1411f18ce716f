//! The filesystem service: one process that serves a mounted tree.
#![forbid(unsafe_code)]

pub mod config;
