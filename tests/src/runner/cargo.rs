//! Running cargo's checks and unit tests, and reading what they say.

use super::{Line, Verdict, wait};
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
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let child = Command::new(cargo)
        .args(line.split_whitespace())
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
    let mut lines = unit_tests(name, &String::from_utf8_lossy(&text));
    let result = match status {
        None => Verdict::Failed(format!("not done after {} s", limit.as_secs())),
        Some(status) if status.success() => Verdict::Passed,
        Some(status) => Verdict::Failed(format!("cargo {line}: {status}")),
    };
    let some_failed = lines.iter().any(|line| matches!(line.result, Verdict::Failed(_)));
    if lines.is_empty() || (matches!(result, Verdict::Failed(_)) && !some_failed) {
        lines.push(Line { name: name.to_owned(), result });
    }
    lines
}

/// The unit tests that a log of `cargo test` names.
fn unit_tests(case: &str, text: &str) -> Vec<Line> {
    let mut unit = String::new();
    let mut lines = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("Running ") {
            // "unittests src/lib.rs (target/debug/deps/vellum_vfs-0123)" or "tests/x.rs (target/...)"
            let file = rest.rsplit('/').next().unwrap_or(rest).trim_end_matches(')');
            unit = file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned();
        } else if let Some(rest) = line.strip_prefix("Doc-tests ") {
            unit = format!("{rest} (doc)");
        } else if let Some((test, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            let result = match result.split_whitespace().next() {
                Some("ok") => Verdict::Passed,
                Some("ignored,") => Verdict::Skipped(result["ignored,".len()..].trim().to_owned()),
                Some("ignored") => Verdict::Skipped("marked #[ignore]".to_owned()),
                _ => Verdict::Failed("see the log".to_owned()),
            };
            lines.push(Line { name: format!("{case} {unit}::{test}"), result });
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_test_says_is_read() {
        let log = "   Compiling x\n     Running unittests src/lib.rs (target/debug/deps/vellum_vfs-01ab)\n\
                   running 3 tests\ntest idmap::tests::a ... ok\ntest b ... FAILED\ntest c ... ignored, needs root\n\
                   test result: FAILED. 1 passed\n   Doc-tests vellum_sys\n";
        let lines = unit_tests("unit", log);
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[0],
            Line { name: "unit vellum_vfs::idmap::tests::a".into(), result: Verdict::Passed }
        );
        assert!(matches!(lines[1].result, Verdict::Failed(_)));
        assert_eq!(lines[2].result, Verdict::Skipped("needs root".into()));
    }
}
