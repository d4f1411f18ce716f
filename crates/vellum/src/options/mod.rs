//! What can be said on the command line, and what it means. Pure: nothing here touches the system.
//!
//! `split` cuts the text of `-o`, `model` gives each option its meaning, `argv` finds the options in the argument
//! lists that mount programs are called with.

pub mod argv;
mod bad;
mod model;
pub mod split;

pub use bad::BadInput;
pub use model::{LogTarget, Options, Request};
