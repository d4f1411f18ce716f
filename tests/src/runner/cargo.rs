//! Running cargo's checks and unit tests, and tools of the source tree, and reading what they say.

use super::{Line, Verdict, add_whole, command, libtest, wait};
use crate::cases::Case;
use crate::harness::{MountKind, source_root};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Exit status of a program that could not do what it was asked to, and has said why.
const SKIPPED: i32 = 77;

/// Runs cargo with the words of `line`; each unit test becomes a result, or the whole when there are none.
pub(crate) fn run(name: &str, line: &str, log: &Path, case: &Case) -> Vec<Line> {
    // What a passing test has printed is shown under its name: one that could not be tried has said so there.
    let shown: &[&str] = if line.starts_with("test ") { &["--", "--show-output"] } else { &[] };
    let mut cargo = command(case, &std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(line.split_whitespace()).args(shown).env("CARGO_TERM_COLOR", "never");
    finish(name, &format!("cargo {line}"), cargo, log, case.limit)
}

/// Runs a program of the source tree with the words of `line`, of which `PROGRAM` stands for the one under test.
pub(crate) fn tool(name: &str, line: &str, log: &Path, case: &Case) -> Vec<Line> {
    let words = match MountKind::under_test() {
        MountKind::Program(program, true) => line.replace("PROGRAM", &program.to_string_lossy()),
        _ if line.contains("PROGRAM") => {
            let result = Verdict::Skipped("only for Vellum itself".to_owned());
            return vec![Line { name: name.to_owned(), result }];
        }
        _ => line.to_owned(),
    };
    let mut words = words.split_whitespace();
    let mut command = command(case, source_root().join(words.next().unwrap_or_default()).as_os_str());
    command.args(words);
    finish(name, line, command, log, case.limit)
}

fn finish(name: &str, line: &str, mut command: Command, log: &Path, limit: Duration) -> Vec<Line> {
    let whole = |result| vec![Line { name: name.to_owned(), result }];
    let prepared = File::create(log).and_then(|out| Ok((out.try_clone()?, out)));
    let (out, err) = match prepared {
        Ok(both) => both,
        Err(error) => return whole(Verdict::Failed(format!("cannot write the log: {error}"))),
    };
    let child = command
        .current_dir(source_root())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return whole(Verdict::Failed(format!("cannot run {line}: {error}"))),
    };
    let status = wait(&mut child, limit);
    if status.is_none() {
        if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
    }
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines = libtest::read(name, &text);
    let result = match status {
        None => Verdict::Failed(format!("not done after {} s", limit.as_secs())),
        Some(status) if status.success() => Verdict::Passed,
        Some(status) if status.code() == Some(SKIPPED) && some_skipped(&lines) => return lines,
        Some(status) => Verdict::Failed(format!("{line}: {status}")),
    };
    add_whole(&mut lines, name, result);
    lines
}

fn some_skipped(lines: &[Line]) -> bool {
    lines.iter().any(|line| matches!(line.result, Verdict::Skipped(_)))
}
