//! Running a case in a mount and a process namespace of its own.

use super::{Line, Verdict, add_whole, command, wait};
use crate::cases::{self, Case, Kind};
use crate::harness::{Cx, MountKind, Profile, Stop};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Exit status of a case that could not be tried.
const SKIPPED: u8 = 77;

/// Most characters of a reason in the list of results; the log has all.
const FIRST: usize = 300;

/// Environment variable with the file that takes the results of a case's parts.
pub(crate) const RESULTS: &str = "VELLUM_TEST_RESULTS";

/// Runs the case `name` and returns its results, or those of its parts.
pub(crate) fn run(name: &str, work: &Path, log: &Path, case: &Case) -> Vec<Line> {
    let whole = |result| vec![Line { name: name.to_owned(), result }];
    // Short, since the address of a socket has room for 107 bytes of path.
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let dir = work.join(COUNT.fetch_add(1, Ordering::Relaxed).to_string());
    let results = dir.with_extension("results");
    let prepared = std::fs::create_dir_all(&dir)
        .and_then(|()| File::create(&results).map(drop))
        .and_then(|()| File::create(log))
        .and_then(|out| Ok((out.try_clone()?, out)));
    let (out, err) = match prepared {
        Ok(both) => both,
        Err(error) => return whole(Verdict::Failed(format!("cannot prepare: {error}"))),
    };
    let me = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let mut command = if rustix::process::geteuid().is_root() {
        let mut unshare = command(case, OsStr::new("unshare"));
        unshare.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ]);
        unshare.arg(&me);
        unshare
    } else {
        command(case, me.as_os_str())
    };
    command.args(["internal-init", name]).arg(&dir).env(RESULTS, &results);
    if let MountKind::Program(program, _) = MountKind::under_test()
        && let Some(file) = program.file_name()
    {
        command.env("VELLUM", work.join("bin").join(file));
    }
    let mut child = match command.stdin(Stdio::null()).stdout(out).stderr(err).spawn() {
        Ok(child) => child,
        Err(error) => return whole(Verdict::Failed(format!("cannot start: {error}"))),
    };
    // Long runs are asked for.
    let long = std::env::var_os("VELLUM_KILLS").map(|_| Duration::from_secs(7200));
    let status = wait(&mut child, long.unwrap_or(case.limit));
    if status.is_none() {
        // With the first process of its namespace all others end too.
        let _ = child.kill();
        let _ = child.wait();
    }
    let mut parts = read_results(name, &results);
    let result = match status.map(|status| status.code()) {
        None => Verdict::Failed(format!("not done after {} s", case.limit.as_secs())),
        Some(Some(0)) => Verdict::Passed,
        Some(Some(code)) if code == i32::from(SKIPPED) => Verdict::Skipped(last_line(log)),
        Some(code) => Verdict::Failed(code.map_or_else(
            || "killed".to_owned(),
            |_| why(log).unwrap_or_else(|| "it ended with an error; see its log".to_owned()),
        )),
    };
    add_whole(&mut parts, name, result);
    if std::env::var_os("VELLUM_TEST_KEEP").is_none_or(|keep| keep.is_empty()) {
        if std::fs::remove_dir_all(&dir).is_err() {
            // Something immutable was left behind.
            let _ = Command::new("chattr").args(["-R", "-f", "-ia"]).arg(&dir).status();
            let _ = std::fs::remove_dir_all(&dir);
        }
        let _ = std::fs::remove_file(&results);
    }
    parts
}

fn read_results(case: &str, file: &Path) -> Vec<Line> {
    let text = std::fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().map(|line| part(case, line)).collect()
}

/// One result of a part. A line that says none of the three words is no result to pass over.
fn part(case: &str, line: &str) -> Line {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (name, why) = rest.split_once(": ").unwrap_or((rest.trim_end_matches(':'), ""));
    let result = match word {
        "ok" => Verdict::Passed,
        "fail" => Verdict::Failed(why.to_owned()),
        "skip" => Verdict::Skipped(why.to_owned()),
        _ => Verdict::Failed(format!("no result: {line:?}")),
    };
    Line { name: format!("{case} {name}"), result }
}

/// Notes the result of a part of the running case: `word` is ok, fail or skip.
pub(crate) fn note(word: &str, name: &str, why: &str) {
    let Some(path) = std::env::var_os(RESULTS) else { return };
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(path) {
        let _ = writeln!(file, "{word} {name}: {}", why.replace('\n', " | "));
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().next_back().unwrap_or_default().trim_start_matches("SKIPPED: ").to_owned()
}

fn why(log: &Path) -> Option<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().rev().find_map(|line| line.strip_prefix("FAILED: ")).map(str::to_owned)
}

/// The first process of the namespace: starts the case and reaps whatever is left to it.
pub(crate) fn init(args: &[String]) -> ExitCode {
    use rustix::process::{WaitOptions, wait as wait_any};
    let Ok(me) = std::env::current_exe() else { return ExitCode::from(2) };
    let Ok(child) = Command::new(me).arg("internal-case").args(&args[1..]).spawn() else {
        return ExitCode::from(2);
    };
    loop {
        match wait_any(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() as u32 == child.id() => {
                return ExitCode::from(status.exit_status().map_or(1, |code| code as u8));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return ExitCode::from(2),
        }
    }
}

/// The case itself.
pub(crate) fn case(args: &[String]) -> ExitCode {
    let (Some(full), Some(dir)) = (args.get(1), args.get(2)) else { return ExitCode::from(2) };
    let (name, profile) = match full.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((name, word)) => (name, Profile::ALL.into_iter().find(|profile| profile.to_string() == word)),
        None => (full.as_str(), None),
    };
    let Some(case) = cases::all().find(|case| case.name == name) else { return ExitCode::from(2) };
    let Kind::Test(test) = case.kind else { return ExitCode::from(2) };
    crate::harness::raw::umask(0o022);
    let cx = Cx { dir: PathBuf::from(dir), profile };
    if case.root && !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root");
        return ExitCode::from(SKIPPED);
    }
    match test(&cx) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop @ Stop::Skip(_)) => {
            println!("{stop}");
            ExitCode::from(SKIPPED)
        }
        Err(Stop::Fail(why)) => {
            println!("{why}");
            let first: String = why.lines().next().unwrap_or_default().chars().take(FIRST).collect();
            println!("FAILED: {first}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_results_is_one() {
        for (line, name, result) in [
            ("ok chown: ", "c chown", Verdict::Passed),
            ("fail chown: EIO: twice", "c chown", Verdict::Failed("EIO: twice".into())),
            ("skip chown: no users", "c chown", Verdict::Skipped("no users".into())),
            ("okay chown: ", "c chown", Verdict::Failed("no result: \"okay chown: \"".into())),
            ("fail", "c ", Verdict::Failed(String::new())),
        ] {
            assert_eq!(part("c", line), Line { name: name.into(), result });
        }
    }
}
