//! `vellum ps`: the containers that are there.

use crate::checkpoint::{age, single_line};
use crate::cli::PsArgs;
use crate::json::pretty;
use std::fmt::Write;
use vellum_container::{ContainerEntry, list};
use vellum_service::Failure;

/// What is printed.
pub fn run(arguments: &PsArgs) -> Result<String, Failure> {
    let all = list(arguments.state.as_deref())?;
    if arguments.json { pretty(&all) } else { Ok(table(&all)) }
}

fn table(all: &[ContainerEntry]) -> String {
    let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:width$}  {:>7}  {:<12}  {:<10}  COMMAND\n", "NAME", "PID", "CREATED", "STATE");
    for ContainerEntry { name, state, pid, created, command } in all {
        let pid = pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let command = single_line(command.as_deref().unwrap_or("-"));
        let (created, state) = (age(*created), state.word());
        let _ = writeln!(text, "{name:width$}  {pid:>7}  {created:<12}  {state:<10}  {command}");
    }
    text
}
