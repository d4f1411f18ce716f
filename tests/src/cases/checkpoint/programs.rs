//! Programs of others under load: a database, and a web server with clients. Their sockets are of the kind AF_UNIX, for CRIU before 4.2 keeps no
//! others on newer kernels.

use super::support::{Scene, eventually};
use crate::harness::outcome::{DuringContext, Outcome, ensure, skip};
use crate::harness::{Cx, shell};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// Whom the database runs as.
const USER: u32 = 5432;
/// The first one that keeps its statistics in shared memory, and not by a UDP socket.
const OLDEST: u32 = 15;

/// CAP_SYS_RESOURCE.
const SYS_RESOURCE: u32 = 24;

/// Whether this process has it.
fn has_capability(number: u32) -> Outcome<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    Ok(u64::from_str_radix(set.trim(), 16).doing("the capabilities")? & (1 << number) != 0)
}

/// A library by which PostgreSQL, which does not run as root, takes root for somebody else.
fn take_root_for_another(image: &Path) -> Outcome {
    let source = image.join("srv/user.c");
    let text = ["getuid", "geteuid"].map(|name| format!("unsigned {name}(void) {{ return {USER}; }}\n"));
    fs::write(&source, text.concat())?;
    let library = image.join("srv/user.so");
    shell::run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(source)).map(drop)
}

/// All that was acknowledged before a checkpoint is there after it, and the client's connection goes on: from the one that left it running, and
/// from the one that ended it.
pub(super) fn postgresql(cx: &Cx) -> Outcome {
    restores_postgresql(&Scene::with_host_programs(cx)?)
}

/// In a store.
pub(super) fn zoned_postgresql(cx: &Cx) -> Outcome {
    restores_postgresql(&Scene::with_host_programs(cx)?.in_a_store(1024)?)
}

fn restores_postgresql(scene: &Scene<'_>) -> Outcome {
    shell::run(Command::new(crate::harness::source_root().join("scripts/apt")).arg("postgresql"))?;
    let newest = shell::run(&mut shell::bash("ls /usr/lib/postgresql | sort -n | tail -1"))?;
    if newest.trim().parse::<u32>().doing("the version of PostgreSQL")? < OLDEST {
        return skip(format!("PostgreSQL {} has a UDP socket", newest.trim()));
    }
    let image = scene.image();
    fs::write(image.join("srv/postgres.py"), include_str!("postgres.py"))?;
    fs::create_dir_all(image.join("etc"))?;
    fs::write(image.join("etc/passwd"), format!("vellum:x:{USER}:{USER}::/srv/pg:/bin/sh\n"))?;
    fs::create_dir(image.join("srv/pg"))?;
    chown(image.join("srv/pg"), Some(USER), Some(USER))?;
    // CRIU asks for the limits of processes of other users, which takes this capability.
    let user = if has_capability(SYS_RESOURCE)? {
        format!("{USER}:{USER}")
    } else {
        take_root_for_another(image)?;
        "0:0".to_owned()
    };
    let command = ["--name", "pg", "--user", &user, "-v", "/usr:/usr:ro", "python3", "/srv/postgres.py"];
    let first = scene.start(&command)?;
    first.says_more()?;
    scene.checkpoint(&["pg", "--name", "running", "--leave-running"])?;
    first.says_more()?;
    scene.checkpoint(&["pg", "--name", "ended"])?;
    first.ends()?;
    let acknowledged = first.last_number();
    ensure!(acknowledged > 0, "nothing was acknowledged");
    for (checkpoint, least) in [("ended", acknowledged), ("running", 1)] {
        let restored = scene.restore(checkpoint, &[])?;
        restored.says_more()?;
        ensure!(restored.last_number() > least, "{checkpoint}: lost what was acknowledged");
        restored.signal(Signal::TERM)?;
        eventually("it looks at its data", || {
            Ok(restored.has_ended()? || restored.output_text()?.contains("whole"))
        })?;
        let said = restored.output_text()?;
        ensure!(said.contains("whole"), "{checkpoint}: {said}");
        restored.ends()?;
    }
    scene.check_no_leftovers()
}

/// Connections go on where they were, with what is under way in them.
pub(super) fn web(cx: &Cx) -> Outcome {
    let scene = Scene::with_host_programs(cx)?;
    fs::write(scene.image().join("srv/web.py"), include_str!("web.py"))?;
    let first = scene.start(&["--name", "web", "-v", "/usr:/usr:ro", "python3", "/srv/web.py"])?;
    first.says_more()?;
    for _ in 0..3 {
        scene.checkpoint(&["web", "--name", "running", "--leave-running"])?;
        first.says_more()?;
    }
    scene.checkpoint(&["web"])?;
    first.ends()?;
    let served = first.last_number();
    for checkpoint in ["web", "running"] {
        let restored = scene.restore(checkpoint, &[])?;
        restored.says_more()?;
        restored.says_more()?;
        ensure!(checkpoint == "running" || restored.last_number() > served, "requests were lost");
    }
    scene.check_no_leftovers()
}
