//! The command.

use super::Plan;
use crate::arguments::{check_rounds, check_scale, directory, directory_in, write_json};
use crate::contender;
use crate::failure::{Failure, Result};
use crate::interrupt;
use std::path::{Path, PathBuf};

/// Longest time of a run.
const SECONDS_MAX: f64 = 3600.0;

/// What `balance` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where files are made, 1 GiB of them; best on ext4 [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How often each, with and without, in turn; medians are shown.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// How long each runs at a time.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
    /// A factor for sizes; the bars are for 1.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    scale: f64,
    /// Only experiments with this in their names, e.g. `mail server`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Vellum's program [default: the one beside this program, or in PATH].
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Write everything that was found to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs it.
///
/// # Errors
/// An argument is of no use, or something cannot be done.
pub fn run(args: &Args) -> Result<()> {
    check_scale(args.scale)?;
    check_rounds(args.rounds)?;
    let seconds = args.seconds;
    if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
        return Err(Failure::bad_input(format!(
            "option --seconds {seconds}: give up to {SECONDS_MAX} seconds"
        )));
    }
    if super::chosen(args.only.as_deref()).next().is_none() {
        let all = super::EXPERIMENTS.map(|(name, _)| name).join("; ");
        let only = args.only.as_deref().unwrap_or_default();
        return Err(Failure::bad_input(format!(
            "option --only {only}: no such experiment; there are: {all}"
        )));
    }
    let directory = directory(args.dir.as_deref())?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::bad_input("balance makes control groups; run it as root"));
    }
    let program = program(args.program.as_deref())?;
    interrupt::watch()?;
    let directory = directory_in(&directory)?;
    interrupt::register_dir(&directory);
    let plan = Plan {
        directory: directory.clone(),
        program,
        rounds: args.rounds,
        seconds,
        scale: args.scale,
        only: args.only.clone(),
    };
    let report = super::balance(&plan);
    let _ = interrupt::remove(&directory);
    let report = report?;
    print!("{}", report.table());
    write_json(args.json.as_deref(), &report)
}

fn program(given: Option<&Path>) -> Result<PathBuf> {
    let Some(program) = given else { return contender::vellum().map_err(Failure::bad_input) };
    if program.is_file() {
        return Ok(program.to_owned());
    }
    let shown = program.display();
    Err(Failure::bad_input(format!("option --program {shown}: no such program; name Vellum's")))
}
