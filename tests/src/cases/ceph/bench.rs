//! `vellum bench compare --ceph`: others are measured by ceph-fuse, which is gone afterwards, however the command ends.

use super::cluster::Cluster;
use crate::cases::comparison::{bench, check_no_leftovers, mounted, mounted_like, report};
use crate::harness::PATIENCE;
use crate::harness::outcome::{Outcome, ensure, ensure_eq, fail, wait_while};
use crate::harness::{Cx, shell, skip};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(20);
/// How long a cluster has not answered before the command is told to end.
const UNANSWERED: Duration = Duration::from_secs(3);
/// Seconds after which a measurement is given up: enough for one that is answered.
const LIMIT: &str = "20";

/// The command, with all layers on the cluster.
fn far(cx: &Cx, cluster: &Cluster, more: &[&str]) -> Outcome<Command> {
    far_at(cx, cluster, ("untar", "0.01"), more)
}

fn far_at(cx: &Cx, cluster: &Cluster, (task, scale): (&str, &str), more: &[&str]) -> Outcome<Command> {
    if !shell::have("ceph-fuse") {
        return skip("ceph-fuse is missing: run make deps");
    }
    let mut command = bench(cx)?;
    command.args(["--ceph", "both", "--tasks", task, "--scale", scale, "--no-counts"]).args(more);
    command.env("CEPH_CONF", &cluster.conf);
    Ok(command)
}

fn check_no_clients(cluster: &Cluster) -> Outcome {
    let left = cluster.process("ceph-fuse")?;
    ensure!(left.is_none(), "still there: ceph-fuse, process {left:?}");
    Ok(())
}

/// What is unpacked by ceph-fuse alone, too, is timed.
pub(super) fn compared(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let json = cx.dir.join("r.json");
    let mut command = far(cx, cluster, &["--subjects", "host,vellum-cached", "--rounds", "2"])?;
    let said = shell::run(command.arg("--json").arg(&json))?;
    let report = report(&json)?;
    let results = report["tasks"][0]["results"].as_array().cloned().unwrap_or_default();
    ensure_eq!(results.len(), 2, "subjects");
    for result in &results {
        let timed = result["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0);
        ensure!(timed, "{}: not timed: {said}", result["subject"]);
    }
    check_no_clients(cluster)?;
    check_no_leftovers(cx)
}

/// Tenants have a client each, of ceph-fuse or of Vellum, which may write behind; with layers here there is no such subject.
pub(super) fn tenants(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let json = cx.dir.join("r.json");
    let fuse = if shell::have("fuse-overlayfs") { "fuse-overlayfs-own," } else { "" };
    let subjects = format!("host,host-own,{fuse}vellum-cached-back,vellum-passthrough-back");
    let task = ("s2-scale-out-2,lstat", "0.01");
    let mut command = far_at(cx, cluster, task, &["--subjects", &subjects, "--rounds", "1"])?;
    let said = shell::run(command.arg("--json").arg(&json))?;
    let report = report(&json)?;
    for (task, own) in [(0, true), (1, false)] {
        let results = report["tasks"][task]["results"].as_array().cloned().unwrap_or_default();
        let is_own = |name: &&str| name.ends_with("-own");
        let wanted: Vec<&str> = subjects.split(',').filter(|name| own || !is_own(name)).collect();
        let timed = results.iter().filter(|result| result["seconds"].as_f64().is_some());
        let timed: Vec<&str> = timed.filter_map(|result| result["subject"].as_str()).collect();
        ensure_eq!(timed, wanted, "{said}");
    }
    check_no_clients(cluster)?;
    check_no_leftovers(cx)?;
    let mut near = bench(cx)?;
    let output = near.args(["--tasks", "lstat", "--subjects", "host-own,vellum-cached-back"]).output()?;
    let says = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1) && says.contains("--ceph"), "{output:?}");
    Ok(())
}

/// Nor is it left by a command that was interrupted, or killed.
pub(super) fn ended(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let rounds = ["--subjects", "host", "--rounds", "1000"];
    for signal in [Signal::INT, Signal::KILL] {
        let mut child = far(cx, cluster, &rounds)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let status = at_work(cx, cluster).and_then(|()| end(&mut child, signal));
        if status.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let left = (0..).map(|_| std::thread::sleep(PAUSE)).map(|()| cluster.process("ceph-fuse"));
        let begin = Instant::now();
        let left = left.take_while(|_| begin.elapsed() < PATIENCE).find(|left| !matches!(left, Ok(Some(_))));
        if signal == Signal::KILL {
            // Nobody was there to unmount.
            let places = mounted(cx)?;
            let place = places.as_deref().and_then(|line| line.split(' ').nth(1));
            place.map_or(Ok(()), |at| unmount(Path::new(at), UnmountFlags::DETACH))?;
            shell::run(&mut shell::bash(&format!(
                "rm -rf --one-file-system {}/vellum-bench-*",
                cx.dir.display()
            )))?;
        }
        ensure!(left.is_some(), "{signal:?}: ceph-fuse lives on");
        let status = status?;
        ensure_eq!(status.code(), (signal == Signal::INT).then_some(130), "{signal:?}: exit status");
        check_no_leftovers(cx)?;
    }
    Ok(())
}

/// It ends at a signal while the cluster answers nothing, too: whoever waits for that is taken away.
pub(super) fn away(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    // Preparing and clearing up are ceph-fuse's there, too.
    let mut command = far(cx, cluster, &["--subjects", "vellum-cached", "--rounds", "1000"])?;
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let status = at_work(cx, cluster).and_then(|()| {
        let _stopped = (cluster.stop_storage()?, cluster.stop_server()?);
        std::thread::sleep(UNANSWERED);
        ensure!(child.try_wait()?.is_none(), "ended by itself");
        end(&mut child, Signal::TERM)
    });
    if status.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    ensure_eq!(status?.code(), Some(130), "exit status");
    check_no_clients(cluster)?;
    check_no_leftovers(cx)
}

/// What the cluster does not answer in time is given up and named; what comes after it is timed, and waits for no client that was taken away.
pub(super) fn given_up(cx: &Cx, cluster: &mut Cluster) -> Outcome {
    let json = cx.dir.join("r.json");
    let more = ["--subjects", "vellum-cached,host", "--rounds", "2", "--limit", LIMIT];
    let mut command = far_at(cx, cluster, ("untar", "0.2"), &more)?;
    let mut child = command.arg("--json").arg(&json).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let given_up = (|| {
        let waited = |until: &dyn Fn() -> Outcome<bool>, what: &str| {
            wait_while!(!until()?, "{what}");
            Outcome::Ok(())
        };
        let unpacks = || {
            let line = mounted_like(cx, "/merged ")?;
            let place = line.as_deref().and_then(|line| line.split(' ').nth(1));
            Ok(place.is_some_and(|place| Path::new(place).join("tree").exists()))
        };
        waited(&unpacks, "nothing is unpacked")
            .or_else(|why| fail(format!("{why:?}; ended: {:?}", child.try_wait())))?;
        let _stopped = (cluster.stop_storage()?, cluster.stop_server()?);
        waited(&|| Ok(mounted_like(cx, "/merged ")?.is_none()), "it is mounted still")
    })();
    let begin = Instant::now();
    while given_up.is_ok() && child.try_wait()?.is_none() && begin.elapsed() < 2 * PATIENCE {
        std::thread::sleep(PAUSE);
    }
    let _ = child.kill();
    let status = child.wait()?;
    given_up?;
    ensure_eq!(status.code(), Some(1), "exit status");
    let results = &report(&json)?["tasks"][0]["results"];
    ensure_eq!(results[0]["failure"], format!("did not finish within {LIMIT} s"), "{results}");
    ensure!(results[1]["seconds"].as_f64().is_some() && results[1]["failure"].is_null(), "{results}");
    check_no_clients(cluster)?;
    check_no_leftovers(cx)
}

/// Waits until the command is at work.
fn at_work(cx: &Cx, cluster: &Cluster) -> Outcome {
    wait_while!(
        mounted(cx)?.is_none() || cluster.process("ceph-fuse")?.is_none(),
        "ceph-fuse has mounted nothing"
    );
    Ok(())
}

/// Sends a signal to a command, and waits for its end.
fn end(child: &mut Child, signal: Signal) -> Outcome<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.ok_or(rustix::io::Errno::SRCH)?, signal)?;
    let asked = Instant::now();
    while asked.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(PAUSE);
    }
    fail(format!("{signal:?}: not ended within {} s", PATIENCE.as_secs()))
}
