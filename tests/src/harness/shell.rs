//! Running commands.

use super::outcome::{Outcome, ensure, ensure_eq, fail};
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// A command with the words of one line as its arguments (no quoting).
pub(crate) fn words(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("true"));
    command.args(words).stdin(Stdio::null());
    command
}

/// A line for bash.
pub(crate) fn bash(line: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", line]).stdin(Stdio::null());
    command
}

/// Runs it; its standard output. Fails, with its output, when it does.
pub(crate) fn run(command: &mut Command) -> Outcome<String> {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return fail(format!("cannot run {:?}: {error}", command.get_program())),
    };
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(out);
    }
    let args: Vec<&OsStr> = command.get_args().collect();
    fail(format!(
        "{:?} {:?}: {}\n{}{}",
        command.get_program(),
        args,
        output.status,
        out,
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// It is refused as bad input: exit status 2, and one line on stderr that names `cause`.
pub(crate) fn refused(command: &mut Command, cause: &str) -> Outcome {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let shown: Vec<&OsStr> = command.get_args().collect();
    ensure_eq!(output.status.code(), Some(2), "{shown:?}: exit status; {said}");
    ensure_eq!(said.lines().count(), 1, "{shown:?}: lines of {said}");
    ensure!(said.contains(cause), "{shown:?}: {said} does not name {cause}");
    Ok(())
}

/// Whether a program of this name is in PATH.
pub(crate) fn have(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}
