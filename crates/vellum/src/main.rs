//! The vellum command.
#![forbid(unsafe_code)]

#[cfg(feature = "containers")]
mod containers;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use vellum::cli::{self, Cli, Command};
#[cfg(feature = "metrics")]
use vellum::metrics;
use vellum::mounts::Choice;
use vellum::options::BadInput;
use vellum::options::argv::{self, Classic};
use vellum::{bench, doctor, flatten, help, inspect, mount, pool, stats, top, umount, weight};
use vellum_service::Failure;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let outcome = if argv::is_subcommand(&args) {
        subcommand(&args)
    } else {
        classic(&args).map(|()| ExitCode::SUCCESS)
    };
    match outcome {
        Ok(status) => status,
        Err(failure) => {
            say(&failure.to_string());
            vellum_service::layers::ceph::end_visitor(failure.exit_status());
            ExitCode::from(failure.exit_status())
        }
    }
}

/// One line on stderr.
fn say(line: &str) {
    // A caller that has closed it still gets the status.
    let _ = std::io::stderr().write_all(format!("vellum: {line}\n").as_bytes());
}

fn classic(args: &[OsString]) -> Result<(), Failure> {
    match argv::parse(args).map_err(refused)? {
        Classic::Help => print(&help::text()),
        Classic::Version => print(&help::version()),
        Classic::Pretend => Ok(()),
        Classic::Mount(request) => mount::run(&request),
    }
}

fn subcommand(args: &[OsString]) -> Result<ExitCode, Failure> {
    let command = match Cli::try_parse_from(args) {
        Ok(cli) => cli.command,
        Err(e) if !e.use_stderr() => return print(&e.to_string()).map(|()| ExitCode::SUCCESS),
        Err(e) => return Err(Failure::input(explained(&e))),
    };
    let done = match command {
        Command::Mount(arguments) => mount::run(&arguments.request().map_err(refused)?),
        Command::MountForAnother { .. } => mount::run_for_another(),
        Command::Umount(arguments) => arguments.paths.iter().try_for_each(|path| {
            umount::run(path, arguments.lazy).map(|said| said.iter().for_each(|line| say(line)))
        }),
        Command::Flatten(arguments) => {
            let printed = print(&flatten::run(&arguments)?);
            if printed.is_ok() {
                vellum_service::layers::ceph::end_visitor(0);
            }
            printed
        }
        Command::Sync(arguments) => {
            arguments.paths.iter().try_for_each(|path| vellum_service::instance::sync::sync(path))
        }
        Command::Stats(arguments) => {
            let choice = chosen(arguments.pool.as_deref(), arguments.mountpoint)?;
            print(&stats::run(&choice, arguments.json)?)
        }
        Command::Top(arguments) => {
            let choice = chosen(arguments.pool.as_deref(), Vec::new())?;
            top::run(&choice, interval(arguments.interval)?, arguments.times)
        }
        Command::Weight(arguments) => weight::run(&arguments.mountpoint, &arguments.weight),
        #[cfg(feature = "metrics")]
        Command::Metrics(arguments) => match arguments.listen {
            Some(listen) => metrics::serve(&listen.parse()?),
            None => print(&metrics::text()?),
        },
        Command::Pool(arguments) => print(&pool::run(arguments)?),
        Command::Bench(arguments) => Err(bench::run(&arguments.args)),
        Command::Inspect(arguments) => {
            let findings = inspect::find(&arguments.path)?;
            print(&if arguments.json { findings.json() } else { findings.text() })
        }
        Command::Doctor(arguments) => {
            let (text, any) = doctor::run(arguments.json)?;
            print(&text)?;
            return Ok(if any { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        Command::Completions { shell } => print(&cli::completions(shell)),
        Command::Version => print(&help::version()),
        #[cfg(feature = "containers")]
        Command::Container(command) => return containers::perform(command),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// What is wrong with a command line, as one line.
fn explained(e: &clap::Error) -> String {
    // Of several suggestions the last is the nearest.
    let text = |kind| match e.get(kind)? {
        ContextValue::Strings(all) => all.last().cloned(),
        other => Some(other.to_string()),
    };
    if let (ErrorKind::InvalidSubcommand, Some(word)) = (e.kind(), text(ContextKind::InvalidSubcommand)) {
        if cli::is_left_out(&word) {
            return format!(
                "{word}: not part of this build; build it with cargo build --release --package vellum"
            );
        }
        return match text(ContextKind::SuggestedSubcommand) {
            Some(near) => format!("{word}: no such subcommand; did you mean {near}?"),
            None => format!(
                "{word}: no such subcommand; see vellum --help, or mount with -o lowerdir=DIR[:DIR...] MOUNTPOINT"
            ),
        };
    }
    let said = e.to_string();
    let line = said.lines().next().unwrap_or_default().trim_start_matches("error: ").trim_end_matches(':');
    let missing: Vec<&str> =
        said.lines().skip(1).take_while(|line| line.starts_with("  ")).map(str::trim).collect();
    let missing = if missing.is_empty() { String::new() } else { format!(" {}", missing.join(" ")) };
    let near =
        text(ContextKind::SuggestedArg).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("{line}{missing}{near}; see vellum --help")
}

fn chosen(pool: Option<&str>, mountpoints: Vec<PathBuf>) -> Result<Choice, Failure> {
    Ok(Choice { pool: pool.map(str::parse).transpose()?, mountpoints })
}

/// Seconds between two looks.
fn interval(seconds: f64) -> Result<Duration, Failure> {
    let fit = (0.1..=3600.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds));
    fit.ok_or_else(|| Failure::input(format!("option --interval {seconds}: give 0.1 to 3600 seconds")))
}

fn refused(bad: BadInput) -> Failure {
    Failure::input(bad.to_string())
}

fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::system("cannot write to stdout").because(e))
        }
        _ => Ok(()),
    }
}
