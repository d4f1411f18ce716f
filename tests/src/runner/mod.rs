//! The runner: which cases there are, in which order, and what came of them.

pub(crate) mod cargo;
pub(crate) mod child;
mod libtest;
mod report;
mod times;

use crate::cases::{self, Case, Kind, Turn};
use crate::harness::{MountKind, Profile, source_root};
use report::Report;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use times::Forecast;

/// What `--help` says.
pub(crate) const USAGE: &str = "\
vellum-tests [--list] [--quick] [--jobs N] [WORD]...
Runs the tests whose name has one of the WORDs in it, or all of them.
  --list      names them and ends
  --quick     only unit tests, models, and comparisons with the kernel's overlayfs
  --jobs N    so many side by side (default 2); those that need the machine for themselves run alone
Environment:
  VELLUM            the program to test (default target/release/vellum); overlay: the kernel's overlayfs
  VELLUM_TEST_DIR   where layers lie (default /var/tmp): a local filesystem with extended attributes
  VELLUM_TEST_SEED  repeats a random test
  VELLUM_TEST_KEEP  keeps the directories of tests, when not empty
  VELLUM_DEBIAN13   the Debian 13 tree for the engine tests (default ~/.cache/vellum/debian13)";

/// One case under one profile.
struct Job {
    case: &'static Case,
    profile: Option<Profile>,
}

impl Job {
    fn name(&self) -> String {
        match self.profile {
            Some(profile) => format!("{}[{profile}]", self.case.name),
            None => self.case.name.to_owned(),
        }
    }
}

/// Where things go.
struct Places {
    logs: PathBuf,
    work: PathBuf,
}

/// Runs what the arguments ask for.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let mut list = false;
    let mut quick = false;
    let mut width = 2;
    let mut words = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => list = true,
            "--quick" => quick = true,
            "--jobs" => match args.next().and_then(|number| number.parse().ok()) {
                Some(number) if number > 0 => width = number,
                _ => return refuse("--jobs needs a number of at least 1"),
            },
            word if word.starts_with('-') => return refuse(&format!("unknown option {word}; see --help")),
            word => words.push(word),
        }
    }
    let mut jobs: Vec<Job> = all_jobs()
        .into_iter()
        .filter(|job| words.is_empty() || words.iter().any(|word| job.name().contains(word)))
        .filter(|job| !quick || job.case.is_quick())
        .collect();
    if jobs.is_empty() {
        return refuse("no test has such a name; see --list");
    }
    // A fault that a quick test finds is seen within minutes.
    jobs.sort_by_key(|job| !job.case.is_quick());
    if list {
        jobs.iter().for_each(|job| println!("{}", job.name()));
        return ExitCode::SUCCESS;
    }
    match prepare() {
        Ok(places) => run(&jobs, width, &places),
        Err(why) => refuse(&why),
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("vellum-tests: {why}");
    ExitCode::from(2)
}

fn all_jobs() -> Vec<Job> {
    let vellum = MountKind::under_test().is_vellum();
    cases::all()
        .flat_map(|case| {
            let profiles: Vec<Option<Profile>> = match (case.profiles, vellum) {
                (true, true) => {
                    let all =
                        Profile::ALL.into_iter().filter(|one| case.only.is_none_or(|only| only == *one));
                    all.map(Some).collect()
                }
                _ => vec![None],
            };
            profiles.into_iter().map(move |profile| Job { case, profile })
        })
        .collect()
}

/// Makes the directories, and keeps a copy of the program, which a build in between must not change.
fn prepare() -> Result<Places, String> {
    let target = source_root().join("target");
    let logs = target.canonicalize().unwrap_or(target).join("test-logs");
    let base = std::env::var_os("VELLUM_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let work = base.join(format!("vt{}", std::process::id()));
    let make =
        |dir: &Path| std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()));
    make(&logs)?;
    make(&work.join("bin"))?;
    if let MountKind::Program(program, _) = MountKind::under_test()
        && let Some(name) = program.file_name()
        && program.is_file()
    {
        let copy = work.join("bin").join(name);
        std::fs::copy(&program, &copy).map_err(|error| format!("{}: {error}", program.display()))?;
        // Changing the environment is only unsound once there are threads; children are told instead.
        return Ok(Places { logs, work });
    }
    Ok(Places { logs, work })
}

fn run(jobs: &[Job], width: usize, places: &Places) -> ExitCode {
    let begin = Instant::now();
    let forecast = Forecast::new(jobs.iter().map(|job| (job.name(), job.case.turn)), width, &places.logs);
    println!("{} test cases, about {} on two processors", jobs.len(), forecast.all());
    let report = Mutex::new(Report::new(forecast));
    let of = |turn: Turn| jobs.iter().filter(move |job| job.case.turn == turn);
    // With nothing beside them: what is quick comes first, and what measures comes last, when all else has ended.
    let alone = |quick: bool| {
        of(Turn::Alone).filter(|job| job.case.is_quick() == quick).for_each(|job| one(job, places, &report));
    };
    alone(true);
    let (together, aside) = (Mutex::new(of(Turn::Together)), Mutex::new(of(Turn::Aside)));
    let next_together = || together.lock().map_or(None, |mut queue| queue.next());
    let next_aside = || aside.lock().map_or(None, |mut queue| queue.next());
    let run = |job: &Job| one(job, places, &report);
    std::thread::scope(|scope| {
        scope.spawn(|| std::iter::from_fn(next_aside).for_each(run));
        for _ in 0..width {
            // In the end the processors are free for what else runs aside.
            scope.spawn(|| {
                std::iter::from_fn(next_together).chain(std::iter::from_fn(next_aside)).for_each(run)
            });
        }
    });
    alone(false);
    if std::env::var_os("VELLUM_TEST_KEEP").is_none_or(|keep| keep.is_empty()) {
        let _ = std::fs::remove_dir_all(&places.work);
    } else {
        println!("kept: {}", places.work.display());
    }
    let report = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.close(begin.elapsed(), &places.logs)
}

fn one(job: &Job, places: &Places, report: &Mutex<Report>) {
    let name = job.name();
    let begin = Instant::now();
    let log = places.logs.join(format!("{}.log", name.replace(['/', '[', ']', ' '], "_")));
    let results = match job.case.kind {
        Kind::Cargo(line) => cargo::run(&name, line, &log, job.case),
        Kind::Tool(line) => cargo::tool(&name, line, &log, job.case),
        Kind::Test(_) => child::run(&name, &places.work, &log, job.case),
    };
    if let Ok(mut report) = report.lock() {
        report.add(&name, results, begin.elapsed(), &log);
    }
}

/// One line of results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The test's name.
    pub(crate) name: String,
    /// What came of it.
    pub(crate) result: Verdict,
}

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// It failed, and why.
    Failed(String),
    /// It could not be tried, and why.
    Skipped(String),
}

/// What runs aside takes what others leave of the processors.
fn command(case: &Case, program: &OsStr) -> Command {
    if case.turn != Turn::Aside {
        return Command::new(program);
    }
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(program);
    nice
}

/// Adds what came of a whole case to the results of its parts: alone when it has none, and always when it says something
/// that no part of it says.
fn add_whole(parts: &mut Vec<Line>, name: &str, result: Verdict) {
    let says = |wanted: fn(&Verdict) -> bool| parts.iter().any(|line| wanted(&line.result));
    let is_said = match result {
        Verdict::Passed => !parts.is_empty(),
        Verdict::Failed(_) => says(|result| matches!(result, Verdict::Failed(_))),
        Verdict::Skipped(_) => false,
    };
    if !is_said {
        parts.push(Line { name: name.to_owned(), result });
    }
}

/// Waits for a child to end, for at most `limit`; None: it has not.
pub(crate) fn wait(child: &mut std::process::Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let begin = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if begin.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_the_worst_verdict_of_its_parts() {
        let line = |result: &Verdict| Line { name: "p".into(), result: result.clone() };
        let (good, bad) = (Verdict::Passed, Verdict::Failed("why".into()));
        let left_out = Verdict::Skipped("why".into());
        for (parts, whole, added) in [
            (vec![], &good, true),
            (vec![&good], &good, false),
            (vec![&good], &bad, true),
            (vec![&good, &bad], &bad, false),
            (vec![&left_out], &bad, true),
            (vec![&good], &left_out, true),
            (vec![&bad], &good, false),
        ] {
            let mut lines: Vec<Line> = parts.iter().map(|result| line(result)).collect();
            add_whole(&mut lines, "case", whole.clone());
            assert_eq!(lines.len(), parts.len() + usize::from(added), "{parts:?} {whole:?}");
            if added {
                assert_eq!(lines.last(), Some(&Line { name: "case".into(), result: whole.clone() }));
            }
        }
    }
}
