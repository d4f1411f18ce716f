//! Hands in a process with the preload library: the test program once more, which makes the plan from the same seed, and is told by a pipe
//! which of its operations to do.

use super::executor::Executor;
use super::ops::{self, Kind, Step};
use crate::cases::library::library;
use crate::cases::pool::Pools;
use crate::harness::outcome::{DuringContext, Outcome, ensure, fail};
use crate::harness::{Cx, Layers, Mount, Rng};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

/// As few calls by a ring as a run may have, or it has compared nothing.
pub(super) const FEWEST: u64 = 50;

/// A pool to mount in, and the library.
pub(super) struct Pool<'a> {
    pools: Pools<'a>,
    library: PathBuf,
}

impl<'a> Pool<'a> {
    pub(super) fn new(cx: &'a Cx) -> Outcome<Self> {
        let pools = Pools::new(cx)?;
        pools.run("create", &[])?;
        Ok(Self { pools, library: library()? })
    }

    pub(super) fn mount(&self, layers: &Layers, options: &[&str]) -> Outcome<Mount> {
        let pool = format!("pool={}", self.pools.name());
        self.pools.mount_with(layers, &[&[pool.as_str()], options].concat())
    }

    /// Hands for a mount of this pool.
    pub(super) fn program(&self, mount: &Mount, seed: u64, steps: usize, since: i64) -> Outcome<Program> {
        let socket = self.pools.session_socket()?;
        // The ordinary user is to reach it, too.
        if let Some(around) = socket.ancestors().nth(2) {
            fs::set_permissions(around, Permissions::from_mode(0o711))?;
        }
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("internal-hands")
            .arg(mount.root())
            .args([seed.to_string(), steps.to_string(), since.to_string()])
            .env("LD_PRELOAD", &self.library)
            .envs([("VELLUM_SOCKET", socket.as_os_str()), ("VELLUM_REPORT", "1".as_ref())])
            .env("VELLUM_RING", "on")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(Program { child: LibraryProcess::begin(&mut command)?, command, by_ring: 0 })
    }
}

/// A program that does operations, in one process after the other.
pub(super) struct Program {
    command: Command,
    child: LibraryProcess,
    /// Calls by rings, of those that have ended.
    by_ring: u64,
}

impl Program {
    /// Does the operation that has this number in the plan.
    pub(super) fn act(&mut self, number: usize) -> Outcome<String> {
        self.child.act(number)
    }

    /// Lets it end, and begins it once more: with nothing open, and knowing nothing.
    pub(super) fn begin_again(&mut self) -> Outcome {
        let before = std::mem::replace(&mut self.child, LibraryProcess::begin(&mut self.command)?);
        self.by_ring += before.end()?;
        Ok(())
    }

    /// Lets it end. How many calls went by rings.
    pub(super) fn end(self) -> Outcome<u64> {
        Ok(self.by_ring + self.child.end()?)
    }
}

struct LibraryProcess {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl LibraryProcess {
    fn begin(command: &mut Command) -> Outcome<Self> {
        let mut process = command.spawn()?;
        let (Some(to), Some(from)) = (process.stdin.take(), process.stdout.take()) else {
            return fail("a program without pipes");
        };
        Ok(Self { process, to, from: BufReader::new(from) })
    }

    fn act(&mut self, number: usize) -> Outcome<String> {
        let mut answer = String::new();
        writeln!(self.to, "{number}").doing("asking the program with the library")?;
        self.from.read_line(&mut answer)?;
        if !answer.ends_with('\n') {
            let mut said = String::new();
            if let Some(err) = &mut self.process.stderr {
                err.read_to_string(&mut said)?;
            }
            return fail(format!("ended: the program with the library, {said:?}"));
        }
        Ok(answer.trim_end().to_owned())
    }

    /// Lets it end. How many calls went by rings, by its report.
    fn end(self) -> Outcome<u64> {
        drop(self.to);
        let output = self.process.wait_with_output()?;
        let report = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the program with the library: {}\n{report}", output.status);
        let counts = report.lines().filter_map(|line| {
            let (_, rest) = line.strip_prefix("vellum: ")?.split_once(" by the ring: ")?;
            rest.split(',').next()?.parse::<u64>().ok()
        });
        Ok(counts.sum())
    }
}

/// The process: `internal-hands ROOT SEED STEPS SINCE`.
pub(crate) fn serve_hands(args: &[String]) -> ExitCode {
    match args {
        [_, root, seed, steps, since] => match (seed.parse(), steps.parse(), since.parse()) {
            (Ok(seed), Ok(steps), Ok(since)) => {
                let plan = ops::run(&mut Rng::new(seed), steps, Kind::Library);
                match serve(Executor::new(root.into(), since, true, true), &plan) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(_) => ExitCode::FAILURE,
                }
            }
            _ => ExitCode::from(2),
        },
        _ => ExitCode::from(2),
    }
}

fn serve(mut hands: Executor, plan: &[Step]) -> std::io::Result<()> {
    for line in std::io::stdin().lines() {
        let step = line?.parse().ok().and_then(|number: usize| plan.get(number));
        let Some(Step::Do(op, as_user)) = step else { break };
        println!("{}", hands.act(op, *as_user));
    }
    Ok(())
}
