//! `vellum-bench`, as cases call it.

use crate::harness::outcome::{Outcome, skip};
use std::path::PathBuf;

/// `vellum-bench`, which is built beside this program.
pub(super) fn program() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name("vellum-bench");
    if program.is_file() {
        Ok(program)
    } else {
        skip("vellum-bench is missing: cargo build --package vellum-bench")
    }
}
