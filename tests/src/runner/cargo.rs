//! Running cargo's checks and unit tests, and reading what they say.

use super::{Line, Verdict, add_whole, libtest, wait};
use crate::harness::source_root;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs cargo with the words of `line`; each unit test becomes a result, or the whole when there are none.
pub(crate) fn run(name: &str, line: &str, log: &Path, limit: Duration) -> Vec<Line> {
    let whole = |result| vec![Line { name: name.to_owned(), result }];
    let prepared = File::create(log).and_then(|out| Ok((out.try_clone()?, out)));
    let (out, err) = match prepared {
        Ok(both) => both,
        Err(error) => return whole(Verdict::Failed(format!("cannot write the log: {error}"))),
    };
    // What a passing test has printed is shown under its name: one that could not be tried has said so there.
    let shown: &[&str] = if line.starts_with("test ") { &["--", "--show-output"] } else { &[] };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let child = Command::new(cargo)
        .args(line.split_whitespace())
        .args(shown)
        .current_dir(source_root())
        .env("CARGO_TERM_COLOR", "never")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return whole(Verdict::Failed(format!("cannot run cargo: {error}"))),
    };
    let status = wait(&mut child, limit);
    if status.is_none() {
        if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
    }
    let text = std::fs::read(log).unwrap_or_default();
    let mut lines = libtest::read(name, &String::from_utf8_lossy(&text));
    let result = match status {
        None => Verdict::Failed(format!("not done after {} s", limit.as_secs())),
        Some(status) if status.success() => Verdict::Passed,
        Some(status) => Verdict::Failed(format!("cargo {line}: {status}")),
    };
    add_whole(&mut lines, name, result);
    lines
}
