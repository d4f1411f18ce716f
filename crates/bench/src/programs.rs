//! Other programs: where they are, run to their end, and what they have said.

use crate::failure::{Failure, Result, While};
use crate::interrupt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Every program of this name on PATH.
pub(crate) fn on_path(name: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).filter(|program| program.is_file()).collect()
}

/// Runs a command to its end; what it says on stderr is part of the failure, what it prints is lost.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdout(Stdio::null()).output().doing(|| name.clone())?;
    if output.status.success() {
        return Ok(());
    }
    interrupt::check()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("no message");
    Err(Failure::new(format!("{name}: {}: {said}", output.status)))
}

/// The last line of what a program has said that names an error, or else the last that has anything in it. What it prints on its
/// way out comes after the error. Lines may be written over each other.
pub(crate) fn last_words(text: &str) -> Option<&str> {
    let lines = || text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty());
    lines().rfind(|line| line.to_ascii_lowercase().contains("error")).or_else(|| lines().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_error() {
        let said = "... finished 100 ops   \rput error: IO error: No space left\nDB path: [/x]\n\n";
        assert_eq!(last_words(said), Some("put error: IO error: No space left"));
        assert_eq!((last_words("one\ntwo \n"), last_words(" \n")), (Some("two"), None));
    }
}
