//! `vellum bench`: hands over to the program `vellum-bench`, which is not needed for serving and so not part of this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use vellum_service::Failure;

const PROGRAM: &str = "vellum-bench";

/// Becomes that program: the one beside this one, or else one that the shell would find. Comes back only when there is none.
pub fn run(args: &[OsString]) -> Failure {
    let beside =
        std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM)).filter(|path| path.exists());
    let program = beside.unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).args(args).exec();
    let remedy =
        "cargo build --release --package vellum-bench makes it, make install then puts it beside vellum";
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::input(format!("bench: there is no program {PROGRAM}; {remedy}"))
        }
        _ => Failure::system(format!("cannot run {}", program.display())).because(error),
    }
}
