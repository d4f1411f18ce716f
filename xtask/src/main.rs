//! Chores of the source tree: `cargo xtask tidy`, `cargo xtask reference`.
#![forbid(unsafe_code)]

mod reference;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy [ROOT-OF-THE-SOURCE-TREE]
       cargo xtask reference    writes docs/src/reference/{options,commands}.md and docs/man/vellum.8";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match (args.next().as_ref().and_then(|arg| arg.to_str()), args.next(), args.next()) {
        (Some("tidy"), root, None) => tidy::run(&root.map_or_else(source_root, PathBuf::from)),
        (Some("reference"), None, None) => match reference::write(&source_root()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("reference: {error}");
                ExitCode::FAILURE
            }
        },
        (Some("help" | "--help" | "-h"), ..) => {
            println!("{USAGE}\n\n{}", tidy::HELP);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The directory above this package, as cargo tells at run time; else the current one.
fn source_root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package.and_then(|dir| dir.parent().map(PathBuf::from)).unwrap_or_else(|| PathBuf::from("."))
}
