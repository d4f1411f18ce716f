//! `vellum run` as it is typed at a terminal.

use super::support::Runs;
use crate::harness::Cx;
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use std::io::Write;
use std::process::{Command, Stdio};

/// With `-it` the command has a terminal of its own, as large as the one that it is shown in, and what is typed reaches it. Without
/// one, or when none is wanted, standard input is passed on.
pub(super) fn terminal(cx: &Cx) -> Outcome {
    let runs = Runs::new(cx)?;
    let typed = |options: &str, line: &str| -> Outcome<String> {
        let (program, state, image) = (runs.program.display(), runs.state.display(), runs.image.display());
        let command = format!(
            "stty rows 31 cols 97; {program} run --state {state} {options} --image '{image}' sh -c '{line}'"
        );
        let mut script = Command::new("timeout");
        script
            .args(["60", "script", "-qec", &command, "/dev/null"])
            .env("VELLUM_POOLS", cx.dir.join("pools"));
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(b"words\n")?;
        }
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{options}: {}: {said}", output.status);
        runs.check_no_leftovers()?;
        Ok(said)
    };
    // Runtimes pass the size on a moment after the start.
    let line =
        "until busybox stty size 2>/dev/null | busybox grep .; do sleep 0.1; done; tty; read x; echo got-$x";
    for options in ["--rm -it", "-ti --name typed", "-i -t", "--interactive --tty", "--tty=true", ""] {
        let said = typed(options, line)?;
        for word in ["31 97", "/dev/pts/0", "got-words"] {
            ensure!(said.contains(word), "with {options:?} there is no {word} in {said}");
        }
    }
    let said = typed("-i --tty=false", "tty; read x; echo got-$x")?;
    ensure!(said.contains("not a tty") && said.contains("got-words"), "with --tty=false: {said}");
    let mut command = runs.command(&["--rm", "-i", "sh", "-c", "tty; cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(b"from a pipe\n")?;
    }
    let output = child.wait_with_output()?;
    ensure_eq!(String::from_utf8_lossy(&output.stdout), "not a tty\nfrom a pipe\n", "without a terminal");
    runs.check_no_leftovers()
}
