//! Integration tests of Vellum through real mounts, and the runner that `make test` calls.
//!
//! `vellum-tests` runs everything, `vellum-tests WORD...` what has one of the words in its name, `vellum-tests
//! --list` names the cases. Every case runs in a mount and process namespace of its own, so that whatever it
//! leaves behind goes with it.

mod cases;
mod harness;
mod runner;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        // What the runner starts in the namespaces: a reaper, and below it the case.
        Some("internal-init") => runner::child::init(&args),
        Some("internal-case") => runner::child::case(&args),
        Some("internal-worker") => cases::stress::worker(&args),
        Some("internal-hands") => cases::differential::serve_hands(&args),
        Some("internal-program") => cases::direct::program(&args),
        Some("--help" | "-h") => {
            println!("{}", runner::USAGE);
            ExitCode::SUCCESS
        }
        _ => runner::main(&args),
    }
}
