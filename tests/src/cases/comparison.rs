//! `vellum-bench compare`: what it measures and counts is there, what it cannot have is said, and nothing is left behind, also when
//! it is interrupted.

use super::{Case, Turn};
use crate::harness::mount::MountKind;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail, skip, wait_while};
use crate::harness::{Cx, shell};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Alone: it empties the kernel's caches, and has to be let do its work in time.
pub(super) const CASES: &[Case] = &[
    Case { turn: Turn::Alone, ..Case::once("bench/compare", 120, compare) },
    Case { turn: Turn::Alone, ..Case::once("bench/tenants", 120, tenants) },
    Case { turn: Turn::Alone, ..Case::once("bench/rocksdb", 120, rocksdb) },
    Case { turn: Turn::Alone, ..Case::once("bench/shares", 120, shares) },
    Case { turn: Turn::Alone, ..Case::once("bench/balance", 120, balance) },
    Case::once("bench/library", 240, library),
    Case::once("bench/work", 400, work),
    Case { turn: Turn::Alone, ..Case::once("bench/interrupted", 180, interrupted) },
    Case::once("bench/limit", 120, limit),
    Case::once("bench/held", 300, held),
    Case::once("bench/bad-input", 30, bad_input),
];

const SUBJECTS: [&str; 5] = ["host", "overlayfs", "overlayfs-xfs", "vellum-cached", "vellum-passthrough"];
/// How long an interrupted run may take to end. The command gives itself 15 s, and then takes away by force what is left.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many mounts of an interrupted run have come and gone before: some rounds of two subjects.
const GONE: usize = 8;

/// Four servers of Filebench that share the page cache by weight, and what is no experiment.
fn balance(cx: &Cx) -> Outcome {
    let MountKind::Program(vellum, _) = MountKind::under_test() else {
        return skip("another filesystem is under test");
    };
    let groups = ["/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    if !groups.iter().any(|file| Path::new(file).exists()) {
        return skip("no control groups with memory are mounted here");
    }
    let json = cx.dir.join("balance.json");
    let mut command = Command::new(super::bench::program()?);
    command.args(["balance", "--rounds", "1", "--seconds", "3", "--scale", "0.4", "--dir"]).arg(&cx.dir);
    command.arg("--program").arg(vellum).arg("--json").arg(&json);
    shell::run(command.args(["--only", "one of them"]))?;
    let report = report(&json)?;
    let rows = report["rows"].as_array().ok_or("no rows").doing("the report")?;
    let loads: Vec<&str> = rows.iter().filter_map(|row| row["load"].as_str()).collect();
    ensure_eq!(loads, ["fileserver", "webserver", "varmail", "videoserver"], "one in each group");
    ensure_eq!(rows.len(), 5, "each, and all together");
    for row in rows {
        let rates = [&row["without"][0], &row["with"][0]].map(|rate| rate.as_f64().unwrap_or(0.0));
        ensure!(rates.iter().all(|rate| *rate > 0.0), "nothing was done: {row}");
    }
    check_no_leftovers(cx)?;
    let refused = Command::new(super::bench::program()?).args(["balance", "--only", "chess"]).output()?;
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(2) && says.contains("its mail server"), "{refused:?}");
    Ok(())
}

/// The command, on the program that is under test.
pub(super) fn bench(cx: &Cx) -> Outcome<Command> {
    let MountKind::Program(vellum, _) = MountKind::under_test() else {
        return skip("another filesystem is under test");
    };
    let mut command = bench_without_dir()?;
    command.arg("--dir").arg(&cx.dir);
    command.arg("--program").arg(format!("vellum={}", vellum.display()));
    Ok(command)
}

pub(super) fn report(path: &Path) -> Outcome<Value> {
    serde_json::from_slice(&fs::read(path)?).doing("the results")
}

/// One of its mounts in the case's directory; somebody else may be at work with this program elsewhere.
pub(super) fn mounted(cx: &Cx) -> Outcome<Option<String>> {
    mounted_like(cx, "")
}

/// One of them whose line has some words in it.
pub(super) fn mounted_like(cx: &Cx, words: &str) -> Outcome<Option<String>> {
    let begins = begin_of_mounts(cx)?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    Ok(mounts.lines().find(|line| line.contains(&begins) && line.contains(words)).map(str::to_owned))
}

/// What the paths of mounts in the case's directory begin with.
fn begin_of_mounts(cx: &Cx) -> Outcome<String> {
    Ok(format!("{}/vellum-bench-", fs::canonicalize(&cx.dir)?.display()))
}

/// Whatever it made in the case's directory is gone, and so are its mounts.
pub(super) fn check_no_leftovers(cx: &Cx) -> Outcome {
    let left = mounted(cx)?;
    ensure!(left.is_none(), "still mounted: {left:?}");
    for entry in fs::read_dir(&cx.dir)? {
        let name = entry?.file_name();
        ensure!(!name.to_string_lossy().starts_with("vellum-bench-"), "left behind: {name:?}");
    }
    Ok(())
}

/// All subjects are timed, and each kind of count is there for who has it.
fn compare(cx: &Cx) -> Outcome {
    let json = cx.dir.join("r.json");
    let mut command = bench(cx)?;
    command.args(["--tasks", "grep,block-first-16m", "--scale", "0.02", "--rounds", "3"]);
    command.args(["--subjects", &SUBJECTS.join(",")]).arg("--json").arg(&json);
    let said = shell::run(&mut command)?;
    let report = report(&json)?;
    ensure_eq!(report["interrupted"], false, "interrupted");
    ensure_eq!(report["tasks"].as_array().map(Vec::len), Some(2), "tasks");
    for task in report["tasks"].as_array().into_iter().flatten() {
        let results = task["results"].as_array().cloned().unwrap_or_default();
        ensure_eq!(results.len(), SUBJECTS.len(), "subjects");
        for result in &results {
            let name = result["subject"].as_str().unwrap_or_default();
            let number = |key: &str| result[key].as_f64();
            ensure!(number("seconds").is_some_and(|seconds| seconds > 0.0), "{name}: not timed: {said}");
            ensure!(result["ratio_confidence"].is_array(), "{name}: no interval");
            ensure!(number("client_faults_per_operation").is_some(), "{name}: no page faults");
            let charged = &result["charged"];
            ensure!(charged["client_bytes"].as_u64().is_some(), "{name}: no memory was charged: {charged}");
            let served = name.starts_with("vellum-");
            ensure_eq!(result["requests"].is_object(), served, "{name}: requests");
            ensure_eq!(
                number("service_faults_per_operation").is_some(),
                served,
                "{name}: the service's faults"
            );
            let of_service = charged["service_bytes"].as_u64().unwrap_or(0);
            ensure!(!served || of_service > 1 << 20, "{name}: charged {of_service} bytes for a service");
        }
    }
    check_no_leftovers(cx)
}

/// Tenants with pools are measured beside those without, and their pools are gone afterwards.
fn tenants(cx: &Cx) -> Outcome {
    let json = cx.dir.join("r.json");
    let mut command = bench(cx)?;
    // Groups are the host's, and outlive a run that was killed there.
    let before = groups_of_pools()?;
    command.args(["--tasks", "s2-scale-out-2,s2-isolation-cpu,lstat", "--scale", "0.01", "--rounds", "1"]);
    command.args(["--subjects", "overlayfs,vellum-cached,vellum-cached-pools", "--no-counts"]);
    let said = shell::run(command.arg("--json").arg(&json))?;
    let report = report(&json)?;
    for task in report["tasks"].as_array().into_iter().flatten() {
        let name = task["name"].as_str().unwrap_or_default();
        let results = task["results"].as_array().cloned().unwrap_or_default();
        let timed = results.iter().filter(|result| result["seconds"].as_f64().is_some()).count();
        // One tenant alone needs no pool.
        ensure_eq!(timed, if name == "lstat" { 2 } else { 3 }, "{name}: {said}");
    }
    let left: Vec<String> = groups_of_pools()?.into_iter().filter(|group| !before.contains(group)).collect();
    ensure!(left.is_empty(), "pools that are left behind: {left:?}");
    check_no_leftovers(cx)
}

/// The control groups of all pools that benchmarks have made on this host.
fn groups_of_pools() -> Outcome<Vec<String>> {
    let find = "find /sys/fs/cgroup -maxdepth 4 -type d -path '*/vellum/bench-*' 2> /dev/null || true";
    Ok(shell::run(&mut shell::bash(find))?.lines().map(str::to_owned).collect())
}

/// Mounts of one pool share its cache by weight, as the experiments on that see it.
fn shares(cx: &Cx) -> Outcome {
    let json = cx.dir.join("r.json");
    let mut command = bench(cx)?;
    command.args([
        "--tasks",
        "s3",
        "--subjects",
        "vellum-cached,vellum-shares",
        "--scale",
        "0.1",
        "--rounds",
        "1",
    ]);
    let said = shell::run(command.args(["--no-counts", "--json"]).arg(&json))?;
    let report = report(&json)?;
    let tasks = report["tasks"].as_array().cloned().unwrap_or_default();
    ensure_eq!(tasks.len(), 7, "tasks");
    for task in &tasks {
        let name = task["name"].as_str().unwrap_or_default();
        let results = task["results"].as_array().cloned().unwrap_or_default();
        ensure_eq!(results.len(), 1, "{name}: subjects");
        let result = results.first().cloned().unwrap_or_default();
        ensure!(result["seconds"].as_f64().is_some(), "{name}: not timed: {said}");
        let off = result["off_share"].as_f64();
        let is_share = name.starts_with("s3-shares-");
        ensure_eq!(off.is_some(), is_share || name == "s3-misses-four", "{name}: a distance");
        // The lightest has 17 blocks of 64 KiB at this scale, so that a block or two are as many hundredths of its share.
        ensure!(!is_share || off.is_some_and(|off| off < 0.2), "{name}: {off:?} off");
    }
    check_no_leftovers(cx)
}

/// RocksDB writes, and reads from a lower database, in two trees at once; where there is none, that is said, and is no failure.
fn rocksdb(cx: &Cx) -> Outcome {
    let nowhere = cx.dir.join("nowhere");
    fs::create_dir(&nowhere)?;
    let mut without = bench(cx)?;
    without.args(["--tasks", "s2-rocksdb-put-2,s2-rocksdb-get-2", "--scale", "0.01"]);
    let output = without.args(["--subjects", "host"]).env("PATH", &nowhere).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure_eq!(output.status.code(), Some(0), "without db_bench: {said}");
    let named = said.lines().filter(|line| line.starts_with("left out: s2-rocksdb-"));
    ensure_eq!(named.filter(|line| line.contains("rocksdb-tools")).count(), 2, "without db_bench: {said}");
    if !shell::have("db_bench") {
        return skip("db_bench is missing: run make deps");
    }
    let json = cx.dir.join("r.json");
    let mut command = bench(cx)?;
    command.args(["--tasks", "s2-rocksdb-put-2,s2-rocksdb-get-2", "--scale", "0.01", "--rounds", "1"]);
    command.args(["--subjects", "host,vellum-cached"]).arg("--json").arg(&json);
    let said = shell::run(&mut command)?;
    let report = report(&json)?;
    ensure_eq!(report["tasks"].as_array().map(Vec::len), Some(2), "tasks");
    // 4,096 puts and 8,192 gets at scale 1, twice.
    for (task, operations) in report["tasks"].as_array().into_iter().flatten().zip([82, 164]) {
        let name = task["name"].as_str().unwrap_or_default();
        ensure_eq!(task["operations"].as_u64(), Some(operations), "{name}: operations");
        let results = task["results"].as_array().cloned().unwrap_or_default();
        ensure_eq!(results.len(), 2, "{name}: subjects");
        for result in &results {
            let timed = result["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0);
            ensure!(timed, "{name}: not timed: {said}");
            let served = result["subject"].as_str() == Some("vellum-cached");
            ensure_eq!(result["requests"].is_object(), served, "{name}: requests");
        }
    }
    check_no_leftovers(cx)
}

/// The library's subject takes part in what the library can be in, with it at work; one that is not there, or that does nothing, is
/// named.
fn library(cx: &Cx) -> Outcome {
    let MountKind::Program(vellum, _) = MountKind::under_test() else {
        return skip("another filesystem is under test");
    };
    let dir = cx.dir.join("program");
    fs::create_dir(&dir)?;
    let (program, library) = (dir.join("vellum"), dir.join("libvellum.so"));
    fs::copy(vellum, &program)?;
    let run = |tasks: &str| {
        let json = cx.dir.join("r.json");
        let mut command = bench_without_dir()?;
        command.arg("--dir").arg(&cx.dir).arg("--program").arg(format!("vellum={}", program.display()));
        command.args([
            "--tasks",
            tasks,
            "--scale",
            "0.01",
            "--rounds",
            "1",
            "--subjects",
            "overlayfs,vellum-library",
        ]);
        let said = shell::run(command.arg("--json").arg(&json))?;
        Outcome::Ok((said, report(&json)?))
    };
    let missing = |why: &str| {
        let (said, report) = run("s1-create-1")?;
        let line = said.lines().find(|line| line.starts_with("missing: vellum-library: "));
        ensure!(line.is_some_and(|line| line.contains(why)), "not said: {why}: {said}");
        ensure_eq!(report["tasks"][0]["results"].as_array().map(Vec::len), Some(1), "{why}: subjects");
        Outcome::Ok(())
    };
    missing("no libvellum.so beside")?;
    // A library that programs have loaded anyway.
    let copy = "cp $(ldd vellum | awk '/libgcc_s/ { print $3 }') libvellum.so";
    shell::run(shell::bash(copy).current_dir(&dir))?;
    missing("the library reads nothing from memory")?;
    fs::copy(super::library::library()?, &library)?;
    let (said, report) =
        run("s1-drbl-1,s1-create-2,s1-stat-1,s1-unlink-1,untar-warm,lstat,s2-append,s2-fileserver")?;
    for task in report["tasks"].as_array().into_iter().flatten() {
        let name = task["name"].as_str().unwrap_or_default();
        let results = task["results"].as_array().cloned().unwrap_or_default();
        let timed = results.iter().filter(|result| result["seconds"].as_f64().is_some()).count();
        // Clones are in several pools, and the library knows one.
        ensure_eq!(timed, if name == "s2-append" { 1 } else { 2 }, "{name}: {said}");
        let Some(result) = results.iter().find(|result| result["subject"] == "vellum-library") else {
            continue;
        };
        let calls = &result["client_calls"];
        if name == "s1-drbl-1" && calls.is_object() {
            let reads = calls["pread64"].as_u64().unwrap_or(0);
            ensure!(reads < 100, "{name}: {reads} of 4,000 reads are system calls");
        }
    }
    fs::remove_dir_all(&dir)?;
    check_no_leftovers(cx)
}

/// Pieces of work are done in a Debian tree, by programs of the tree, in a union and on the host; what they need is there.
fn work(cx: &Cx) -> Outcome {
    let json = cx.dir.join("r.json");
    let mut command = bench(cx)?;
    if !tree().join("complete").exists() {
        return skip("there is no Debian tree for benchmarks: run make deps");
    }
    let tasks = "work-dpkg,work-cp,work-tar-static,work-rm,work-rm-lower,work-git,work-sqlite,work-make";
    command.args(["--tasks", tasks, "--scale", "0.01", "--rounds", "1", "--no-counts"]);
    command.args(["--subjects", "host,vellum-cached"]);
    let said = shell::run(command.arg("--json").arg(&json))?;
    let report = report(&json)?;
    let results = report["tasks"].as_array().into_iter().flatten().flat_map(|task| {
        let name = task["name"].as_str().unwrap_or_default().to_owned();
        task["results"].as_array().cloned().unwrap_or_default().into_iter().map(move |of| (name.clone(), of))
    });
    let mut done = 0;
    for (name, result) in results {
        let timed = result["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0);
        ensure!(timed, "{name} on {}: not timed: {said}", result["subject"]);
        done += 1;
    }
    ensure_eq!(done, 2 * tasks.split(',').count(), "tasks and subjects: {said}");
    check_no_leftovers(cx)
}

/// Where `scripts/deps` has the tree made.
fn tree() -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || named("HOME").unwrap_or_else(|| "/root".into()).join(".cache");
    named("VELLUM_BENCH_TREE")
        .unwrap_or_else(|| named("XDG_CACHE_HOME").unwrap_or_else(home).join("vellum/bench-tree-1"))
}

/// A filesystem that mounts and then answers nothing is given up in time, and named; the others are timed.
fn limit(cx: &Cx) -> Outcome {
    if !shell::have("fuse-overlayfs") {
        return skip("fuse-overlayfs is missing: run make deps");
    }
    let stuck = cx.dir.join("stuck");
    let script = "fuse-overlayfs \"$@\" || exit; [ \"$1\" = -o ] || exit 0; for last; do :; done
        for pid in $(pgrep -x fuse-overlayfs); do
          tr '\\0' '\\n' < /proc/$pid/cmdline | grep -Fxq -- \"$last\" && kill -STOP $pid
        done; true";
    fs::write(&stuck, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&stuck, fs::Permissions::from_mode(0o755))?;
    let json = cx.dir.join("r.json");
    let mut command = bench(cx)?;
    command.args(["--tasks", "lstat", "--scale", "0.01", "--rounds", "2", "--no-counts", "--limit", "10"]);
    command.args(["--subjects", "fuse-overlayfs,vellum-cached"]);
    command.arg("--program").arg(format!("fuse-overlayfs={}", stuck.display())).arg("--json").arg(&json);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure_eq!(output.status.code(), Some(1), "exit status: {output:?}");
    let results = &report(&json)?["tasks"][0]["results"];
    ensure_eq!(results[0]["failure"], "did not finish within 10 s", "{said}");
    ensure!(results[1]["seconds"].as_f64().is_some(), "not timed: {said}");
    ensure!(said.contains("did not finish within 10 s"), "not said: {said}");
    check_no_leftovers(cx)
}

/// Services that live on, for another mount namespace has a copy of their mounts, are waited for half a minute, and not each for one.
fn held(cx: &Cx) -> Outcome {
    let json = cx.dir.join("r.json");
    let mut command = bench(cx)?;
    // The mounts are there for less than half a second in a round. Once they are held no other round comes.
    command.args(["--tasks", "s2-scale-out-4", "--scale", "0.01", "--rounds", "50", "--no-counts"]);
    command.args(["--subjects", "vellum-cached"]).arg("--json").arg(&json);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut holder = loop {
        while mounted_like(cx, "/3/merged ")?.is_none() && child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut holder = Command::new("unshare").args(["-m", "sleep", "600"]).spawn()?;
        if has_all(cx, holder.id())? || child.try_wait()?.is_some() {
            break holder;
        }
        holder.kill()?;
        holder.wait()?;
    };
    let begin = Instant::now();
    while child.try_wait()?.is_none() && begin.elapsed() < Duration::from_secs(200) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = begin.elapsed();
    let _ = child.kill();
    let status = child.wait();
    holder.kill()?;
    holder.wait()?;
    ensure_eq!(status?.code(), Some(1), "exit status");
    ensure!(took < Duration::from_secs(120), "{took:?} for one that lives on");
    let failure = report(&json)?["tasks"][0]["results"][0]["failure"].clone();
    ensure!(failure.as_str().is_some_and(|why| why.contains("lives on")), "{failure}");
    check_no_leftovers(cx)
}

/// Whether a process that is about to sleep in a mount namespace of its own has the mounts of all four tenants there.
fn has_all(cx: &Cx, process: u32) -> Outcome<bool> {
    wait_while!(
        fs::read_to_string(format!("/proc/{process}/comm"))?.trim() != "sleep",
        "no other mount namespace"
    );
    let mounts = fs::read_to_string(format!("/proc/{process}/mounts"))?;
    let begins = begin_of_mounts(cx)?;
    let has = |words: &str| mounts.lines().any(|line| line.contains(&begins) && line.contains(words));
    Ok(["/0/merged ", "/1/merged ", "/2/merged ", "/3/merged "].into_iter().all(has))
}

/// After Ctrl-C what has been measured is kept, and it says so; the exit status is that of SIGINT.
fn interrupted(cx: &Cx) -> Outcome {
    let json = cx.dir.join("r.json");
    let mut command = bench(cx)?;
    command.args(["--tasks", "lstat,random-read", "--scale", "0.02", "--rounds", "1000", "--no-counts"]);
    command.args(["--subjects", "overlayfs,vellum-cached"]).arg("--json").arg(&json);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let started = Instant::now();
    // A few rounds are to be done. A mount is made for each measurement.
    let (mut before, mut gone) = (None, 0);
    while gone < GONE && child.try_wait()?.is_none() && started.elapsed() < PATIENCE {
        let now = mounted(cx)?;
        gone += usize::from(before.is_some() && now != before);
        before = now;
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.ok_or(rustix::io::Errno::SRCH)?, Signal::INT)?;
    let asked = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if asked.elapsed() > PATIENCE => {
                let _ = child.kill();
                return fail(format!("not ended {} s after SIGINT", PATIENCE.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    ensure_eq!(status.code(), Some(130), "exit status");
    let report = report(&json)?;
    ensure_eq!(report["interrupted"], true, "interrupted");
    let timed = report["tasks"][0]["results"][0]["seconds"].as_f64();
    ensure!(timed.is_some_and(|seconds| seconds > 0.0), "nothing of what was measured is kept: {report}");
    check_no_leftovers(cx)
}

/// One line that names the cause, exit status 2, and nothing done.
fn bad_input(cx: &Cx) -> Outcome {
    let missing = cx.dir.join("missing").display().to_string();
    for (arguments, cause) in [
        (&["--tasks", "nothing"][..], "--tasks nothing"),
        (&["--subjects", "nothing"], "--subjects nothing"),
        (&["--rounds", "0"], "--rounds 0"),
        (&["--scale", "1e9"], "--scale"),
        (&["--scale", "NaN"], "--scale"),
        (&["--dir", &missing], "--dir"),
        (&["--format", "xfs"], "--image"),
        (&["--program", "vellum"], "--program vellum"),
        (&["--mount-options", "x"], "--mount-options x"),
    ] {
        let mut command = bench_without_dir()?;
        shell::refused(command.args(arguments).current_dir(&cx.dir).env("TMPDIR", &cx.dir), cause)?;
    }
    check_no_leftovers(cx)
}

fn bench_without_dir() -> Outcome<Command> {
    let mut command = Command::new(super::bench::program()?);
    command.arg("compare").stdin(Stdio::null());
    Ok(command)
}
