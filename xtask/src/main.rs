//! Checks that a linter cannot make.
fn main() {}
