//! What people and programs are told of services: `vellum stats`, `vellum top`, `vellum metrics`.

use super::Case;
use crate::harness::mount::MountKind;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail, skip, wait_while};
use crate::harness::{Cx, Mount, PATIENCE, shell};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(super) const CASES: &[Case] = &[
    Case::mounted("monitoring/stats", 60, stats),
    Case::once("monitoring/top", 120, top),
    Case::once("monitoring/metrics", 120, metrics),
    Case::once("monitoring/a-hung-service", 120, a_hung_service),
    Case::once("monitoring/bad-input", 60, bad_input),
];

fn command(arguments: &[&str]) -> Outcome<Command> {
    let MountKind::Program(program, true) = MountKind::under_test() else {
        return skip("only Vellum can be asked");
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    Ok(command)
}

/// A mount with something done in it: ten files made, one of them read with its own service.
fn busy(cx: &Cx) -> Outcome<Mount> {
    let mount = cx.mount(&cx.layers("l", 1)?)?;
    for number in 0..10 {
        fs::write(mount.path(&number.to_string()), "some words")?;
    }
    fs::File::open(mount.path("1"))?.sync_all()?;
    Ok(mount)
}

/// What a command says as soon as it names what is looked for. It waits 2 s for the answers of all mounts and leaves out whoever is later,
/// which on a busy machine may be anybody.
fn wait_for_output(
    mut say: impl FnMut() -> Outcome<String>,
    names_it: impl Fn(&str) -> bool,
) -> Outcome<String> {
    let begin = Instant::now();
    loop {
        let said = say()?;
        if names_it(&said) || begin.elapsed() > PATIENCE {
            return Ok(said);
        }
    }
}

pub(super) fn stats_of(mount: &Mount) -> Outcome<Value> {
    let said = shell::run(command(&["stats", "--json"])?.arg(mount.root()))?;
    let all: Value = serde_json::from_str(&said).doing("stats --json")?;
    ensure_eq!(all.as_array().map(Vec::len), Some(1), "mounts in {said}");
    Ok(all[0].clone())
}

fn every_request_has_a_class(stats: &Value) -> Outcome {
    for (name, operation) in stats["operations"].as_object().into_iter().flatten() {
        let classes: u64 =
            operation["classes"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
        // The one that asks is still being answered.
        let open = u64::from(name == "GETXATTR");
        ensure_eq!(operation["count"].as_u64(), Some(classes + open), "{name}: classes");
        ensure!(classes == 0 || operation["seconds"].as_f64() > Some(0.0), "{name}: no time: {operation}");
    }
    Ok(())
}

/// Every request is counted once, with a time, and stands in one class.
fn stats(cx: &Cx) -> Outcome {
    let mount = busy(cx)?;
    let before = stats_of(&mount)?;
    ensure_eq!(before["operations"]["CREATE"]["count"].as_u64(), Some(10), "files made: {before}");
    ensure!(before["operations"]["FSYNC"]["count"].as_u64() >= Some(1), "no fsync: {before}");
    // A worker counts the time of a request after its answer: another may be asked in between.
    let begin = Instant::now();
    while let Err(stop) = every_request_has_a_class(&stats_of(&mount)?) {
        if begin.elapsed() > PATIENCE {
            return Err(stop);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(before["figures"]["nodes"].as_u64() >= Some(11), "nodes: {before}");
    for number in 10..15 {
        fs::write(mount.path(&number.to_string()), "more")?;
    }
    let after = stats_of(&mount)?;
    ensure_eq!(after["operations"]["CREATE"]["count"].as_u64(), Some(15), "files made: {after}");
    let text = shell::run(command(&["stats"])?.arg(mount.root()))?;
    ensure!(text.contains("CREATE") && text.contains(&*mount.root().to_string_lossy()), "{text}");
    // Without a name it finds the mount by itself.
    let root = mount.root().to_string_lossy().into_owned();
    let all = wait_for_output(|| shell::run(&mut command(&["stats", "--json"])?), |all| all.contains(&root))?;
    ensure!(all.contains(&root), "{all}");
    Ok(())
}

fn top(cx: &Cx) -> Outcome {
    let mount = busy(cx)?;
    let root = mount.root().to_string_lossy().into_owned();
    let top = || shell::run(&mut command(&["top", "--interval", "0.2", "--times", "3"])?);
    let text = wait_for_output(top, |text| text.matches(&root).count() == 3)?;
    ensure_eq!(text.matches(&root).count(), 3, "looks at {root} in {text}");
    ensure_eq!(text.matches("REQ/S").count(), 3, "tables in {text}");
    Ok(())
}

/// A process that is killed at the end.
struct Exporter(Child);

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(socket: &Path, what: &str) -> Outcome<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(format!("{what} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Prometheus is told once or whenever it asks; who asks for nonsense, or says nothing, disturbs nobody.
fn metrics(cx: &Cx) -> Outcome {
    let mount = busy(cx)?;
    let root = mount.root().to_string_lossy().into_owned();
    let made = |text: &str| {
        let wanted = format!("vellum_request_seconds_count{{mount=\"{root}\"");
        let mut lines = text.lines().filter(|line| line.starts_with(&wanted));
        lines.any(|line| line.contains("operation=\"CREATE\"") && line.ends_with(" 10"))
    };
    let once = wait_for_output(|| shell::run(&mut command(&["metrics"])?), made)?;
    ensure!(made(&once) && once.ends_with("# EOF\n"), "{once}");
    let socket = cx.dir.join("metrics.sock");
    let listen = format!("unix:{}", socket.display());
    let exporter = Exporter(command(&["metrics", "--listen", &listen])?.stdout(Stdio::null()).spawn()?);
    wait_while!(UnixStream::connect(&socket).is_err(), "nobody listens at {listen}");
    // Connections that say nothing, or nonsense.
    let _silent = UnixStream::connect(&socket)?;
    let nonsense = get(&socket, "\u{1}\u{2}\u{3}").unwrap_or_default();
    ensure!(!nonsense.contains(" 200 "), "{nonsense}");
    ensure!(get(&socket, "GET /other")?.contains(" 404 "), "another path");
    ensure!(get(&socket, "POST /metrics")?.contains(" 404 "), "another method");
    let answer = wait_for_output(|| get(&socket, "GET /metrics"), made)?;
    ensure!(answer.contains(" 200 ") && answer.contains("openmetrics-text") && made(&answer), "{answer}");
    drop(exporter);
    // The socket that it has left is in nobody's way.
    let again = Exporter(command(&["metrics", "--listen", &listen])?.stdout(Stdio::null()).spawn()?);
    wait_while!(
        !get(&socket, "GET /metrics").is_ok_and(|answer| answer.contains(" 200 ")),
        "nobody listens at {listen} again"
    );
    drop(again);
    Ok(())
}

/// Whether all threads of a process are stopped.
fn is_stopped(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).into_iter().flatten();
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:\tT"))
    })
}

/// One service that does not answer is named, and the others are shown.
fn a_hung_service(cx: &Cx) -> Outcome {
    let (hung, well) = (cx.mount(&cx.layers("hung", 1)?)?, cx.mount(&cx.layers("well", 1)?)?);
    let pids: Vec<Pid> = hung.daemons().into_iter().filter_map(Pid::from_raw).collect();
    ensure!(!pids.is_empty(), "no service");
    pids.iter().try_for_each(|pid| kill_process(*pid, Signal::STOP))?;
    let begin = Instant::now();
    // A signal is sent, and comes later.
    while !pids.iter().all(|pid| is_stopped(*pid)) && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    let asked = || {
        let begin = Instant::now();
        let output = command(&["stats"])?.output()?;
        let (took, said) = (begin.elapsed(), String::from_utf8_lossy(&output.stderr));
        let is_in_time = output.status.success() && took < Duration::from_secs(20);
        ensure!(is_in_time, "{took:?}, {}: {said}", output.status);
        ensure!(said.contains(&*hung.root().to_string_lossy()), "it does not say who is silent: {said}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let well = well.root().to_string_lossy();
    let text = wait_for_output(asked, |text| text.contains(&*well));
    pids.iter().try_for_each(|pid| kill_process(*pid, Signal::CONT))?;
    let text = text?;
    ensure!(text.contains(&*well), "the other one is missing: {text}");
    Ok(())
}

fn bad_input(cx: &Cx) -> Outcome {
    for (arguments, cause) in [
        (&["stats", "/"][..], "/"),
        (&["stats", "--pool", "no-such-pool"], "no-such-pool"),
        (&["stats", "--pool", "a/b"], "a/b"),
        (&["top", "--interval", "0"], "--interval 0"),
        (&["top", "--interval", "NaN"], "--interval NaN"),
        (&["metrics", "--listen", "0.0.0.0:9000"], "--listen 0.0.0.0:9000"),
        (&["metrics", "--listen", "here"], "--listen here"),
    ] {
        shell::refused(command(arguments)?.env("VELLUM_POOLS", cx.dir.join("pools")), cause)?;
    }
    let file = cx.dir.join("file");
    fs::write(&file, "x")?;
    let done = command(&["metrics", "--listen", &format!("unix:{}", file.display())])?.output()?;
    if done.status.success() || fs::read(&file)? != b"x" {
        return fail("a file in the way of a socket was taken for one");
    }
    Ok(())
}
