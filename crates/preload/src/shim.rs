//! What stands between the program and its libc: the functions whose place is taken, those that they take the place of, and what
//! both need of the process.

pub mod api;
pub(crate) mod attributes;
pub(crate) mod copy;
pub(crate) mod detach;
pub(crate) mod environment;
pub(crate) mod hook_macros;
pub mod hooks;
pub(crate) mod mountinfo;
pub(crate) mod paths;
pub(crate) mod process;
pub(crate) mod raw;
pub(crate) mod signals;
pub(crate) mod single_thread;
pub(crate) mod symbols;
