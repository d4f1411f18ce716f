//! Whether another program can go on with what this one leaves.

use super::FORMAT;
use crate::failure::Failure;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a program is asked: it prints [`FORMAT`], and ends.
const QUESTION: [&str; 2] = ["pool", "format"];
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// Longest answer in bytes.
const ANSWER_MAX: u64 = 64;

/// Why something that another process has said is not read.
#[derive(Debug)]
pub enum FormatError {
    /// It is said in this format, and not in [`FORMAT`].
    Format(u32),
    /// It is not what is expected.
    Unclear(serde_json::Error),
}

/// Reads something with a field `format`. Of what has another one nothing else is known.
pub fn parse_text<T: DeserializeOwned>(text: &[u8]) -> Result<T, FormatError> {
    /// What all formats have.
    #[derive(Deserialize)]
    struct Any {
        format: u32,
    }
    match serde_json::from_slice(text) {
        Ok(Any { format: FORMAT }) => serde_json::from_slice(text).map_err(FormatError::Unclear),
        Ok(Any { format }) => Err(FormatError::Format(format)),
        Err(error) => Err(FormatError::Unclear(error)),
    }
}

/// Refuses a program that cannot be run, or reads another format than `ours`.
pub(super) fn agree(program: &Path, ours: u32) -> Result<(), Failure> {
    let shown = program.display();
    let refused = |why: String| {
        Failure::input(format!(
            "{shown}: {why}; install a program that can go on with the mounts, or unmount them first"
        ))
    };
    let answer = ask(program)
        .map_err(|why| refused(format!("it does not say which state it can go on with: {why}")))?;
    match answer.trim().parse::<u32>() {
        Ok(theirs) if theirs == ours => Ok(()),
        Ok(theirs) => Err(refused(format!("it takes over state of format {theirs}, the service has {ours}"))),
        Err(_) => Err(refused(format!("it does not say which state it can go on with, but {answer:?}"))),
    }
}

fn ask(program: &Path) -> Result<String, String> {
    let text = |e: std::io::Error| e.to_string();
    let mut child = Command::new(program)
        .args(QUESTION)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(text)?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(text)? {
            Some(status) => break status,
            None if begun.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("it does not end".into());
            }
            None => std::thread::sleep(LOOK),
        }
    };
    if !status.success() {
        return Err(status.to_string());
    }
    let mut answer = Vec::new();
    // Without waiting: what it has started may hold the pipe open.
    if let Some(said) = child.stdout.take() {
        rustix::io::ioctl_fionbio(&said, true).map_err(|e| e.to_string())?;
        let _ = said.take(ANSWER_MAX).read_to_end(&mut answer);
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// What a program of this version answers.
#[must_use]
pub fn answer() -> String {
    format!("{FORMAT}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_program_with_the_same_format_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        let try_with = |script: &str, mode: u32| {
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
            agree(&program, FORMAT)
        };
        try_with(&format!("echo {FORMAT}"), 0o755).unwrap();
        let other = FORMAT + 1;
        for (script, mode, word) in [
            (format!("echo {other}"), 0o755, format!("format {other}")),
            ("exit 2".into(), 0o755, "exit status: 2".into()),
            ("echo vellum".into(), 0o755, "vellum".into()),
            ("kill -9 $$".into(), 0o755, "signal: 9".into()),
            ("true".into(), 0o644, "ermission denied".into()),
        ] {
            let failure = try_with(&script, mode).unwrap_err();
            assert_eq!(failure.exit_status(), 2);
            assert!(failure.to_string().contains(&word), "{failure}");
        }
        std::fs::remove_file(&program).unwrap();
        let failure = agree(&program, FORMAT).unwrap_err();
        assert!(failure.to_string().contains("No such file"), "{failure}");
    }
}
