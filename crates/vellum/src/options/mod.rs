//! What can be said on the command line, and what it means. Pure: nothing here touches the system.
//!
//! `tokenizer` cuts the text of `-o`, `table` has each option and its meaning, with `values` that read what stands behind the `=`, `model`
//! the mount that they ask for, and `cluster` for what several say together of layers on CephFS; `argv` finds the options in the
//! argument lists that mount programs are called with.

pub mod argv;
mod bad_input;
mod cluster;
mod model;
pub mod table;
pub mod tokenizer;
mod values;

pub use bad_input::BadInput;
#[cfg(feature = "containers")]
pub(crate) use bad_input::quote;
pub use model::{LogTarget, Options, Request};
