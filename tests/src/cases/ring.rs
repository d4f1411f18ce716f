//! The rings under Miri, which a toolchain may not have.

use super::Case;
use crate::harness::outcome::{Outcome, fail, skip};
use crate::harness::{Cx, source_root};
use std::process::Command;

pub(super) const CASES: &[Case] = &[Case { root: false, ..Case::once("ring/miri", 300, miri).aside() }];

/// The protocol on ordinary memory: no undefined behaviour, and no ordering that is too weak in what it happens to try.
fn miri(_: &Cx) -> Outcome {
    let cargo = || {
        let mut cargo = Command::new("cargo");
        cargo.args(["+nightly", "miri"]).current_dir(source_root()).env("CARGO_TERM_COLOR", "never");
        cargo
    };
    if !cargo().arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("no Miri here: rustup toolchain install nightly --component miri --component rust-src");
    }
    let status = cargo().args(["test", "--package", "vellum-ring", "--lib", "--test", "heap"]).status()?;
    if status.success() { Ok(()) } else { fail(format!("cargo miri test: {status}")) }
}
