//! Processes of the program `vellum` that do one thing for another process, and say as data how it went.
//!
//! What has to begin in a process with one thread, and with little memory, is not done in one that has more.

use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use vellum_service::Failure;

/// Longest outcome in bytes.
const OUTCOME_MAX: u64 = 1 << 20;

/// What a helper says on its standard output before it ends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Outcome {
    Done,
    Failed(Failure),
}

/// Says how it went, for the process that has started this one.
pub fn report(outcome: &Result<(), Failure>) -> Result<(), Failure> {
    let said = match outcome {
        Ok(()) => Outcome::Done,
        Err(failure) => Outcome::Failed(failure.clone()),
    };
    let text = serde_json::to_vec(&said).map_err(|e| Failure::system("an outcome").because(e))?;
    let written = std::io::stdout().write_all(&text);
    written.map_err(|e| Failure::system("cannot write to stdout").because(e))
}

/// Runs a helper that is given `input` on its standard input, and waits for its outcome. An error without one: what became of it.
pub fn run(command: &mut Command, input: &[u8]) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |e: std::io::Error| Failure::system(program.as_str()).because(e);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut to) = child.stdin.take()
        && let Err(error) = to.write_all(input)
    {
        // It has ended, and says why.
        tracing::debug!(%error, "a helper that does not listen");
    }
    let mut said = Vec::new();
    let heard = child.stdout.take().map_or(Ok(0), |from| from.take(OUTCOME_MAX).read_to_end(&mut said));
    let status = child.wait().map_err(failed)?;
    heard.map_err(failed)?;
    match serde_json::from_slice(&said) {
        Ok(Outcome::Done) => Ok(()),
        Ok(Outcome::Failed(failure)) => Err(failure),
        Err(_) => Err(Failure::system(format!("{program}: it did not say how it went: {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helper(script: &str) -> Result<(), Failure> {
        run(Command::new("sh").args(["-c", script]).stderr(Stdio::null()), b"asked")
    }

    #[test]
    fn the_helper_outcome_is_its_output() {
        let bad = Failure::input("a line\nof a path");
        let said = serde_json::to_string(&Outcome::Failed(bad.clone())).unwrap();
        assert_eq!(helper(&format!("cat > /dev/null; printf '%s' '{said}'; exit 1")), Err(bad));
        let done = serde_json::to_string(&Outcome::Done).unwrap();
        assert_eq!(helper(&format!("[ \"$(cat)\" = asked ] && printf '%s' '{done}'")), Ok(()));
    }

    #[test]
    fn a_silent_helper_has_failed() {
        for script in ["true", "kill -9 $$", "echo mounted", "echo '{\"Failed\":{\"line\":\"x\"}}'"] {
            let why = helper(script).unwrap_err();
            assert!(why.exit_status() == 1 && why.to_string().contains("did not say"), "{script}: {why}");
        }
        let dir = tempfile::tempdir().unwrap();
        let none = run(&mut Command::new(dir.path().join("vellum")), b"").unwrap_err();
        assert!(none.to_string().contains("No such file"), "{none}");
    }
}
