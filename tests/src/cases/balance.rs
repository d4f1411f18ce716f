//! The kernel's page cache by weight: `vellum balance` on real control groups, of this host and, of version 2, in a virtual machine.

use super::Case;
use crate::harness::mount::MountKind;
use crate::harness::outcome::{Doing, Outcome, ensure, ensure_eq, skip};
use crate::harness::{Cx, shell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const CASES: &[Case] = &[
    Case::once("balance/host", 300, host),
    Case::once("balance/nothing", 60, nothing),
    Case::once("balance/growth", 300, growth),
    Case::once("balance/version-2", 300, version_2),
];

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/balance.sh");
const GROWTH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/balance-growth.sh");
const VM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/vm");

fn program() -> Outcome<PathBuf> {
    match MountKind::under_test() {
        MountKind::Program(program, _) => Ok(program),
        _ => skip("only Vellum shares the page cache"),
    }
}

/// In whatever version of control groups this host has.
fn host(cx: &Cx) -> Outcome {
    let groups = ["/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    if !groups.iter().any(|file| Path::new(file).exists()) {
        return skip("no control groups with memory are mounted here");
    }
    let dir = cx.dir.join("files");
    std::fs::create_dir(&dir)?;
    let text = shell::run(Command::new(SCRIPT).arg(program()?).arg(dir).arg("160"))?;
    judge(&text, !Path::new(groups[0]).exists())
}

/// Where nothing shares, that is said once.
fn nothing(_: &Cx) -> Outcome {
    let tops = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
    let memory = |top: &&Path| {
        top.join("memory.limit_in_bytes").exists()
            || std::fs::read_to_string(top.join("cgroup.controllers")).is_ok_and(|all| all.contains("memory"))
    };
    let Some(top) = tops.into_iter().find(memory) else {
        return skip("no control groups with memory are mounted here");
    };
    let name =
        format!("vellum-test-{}", rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec);
    let group = top.join(&name);
    std::fs::create_dir(&group)?;
    let output = Command::new(program()?).args(["balance", "-n", "3", "-i", "0.1"]).arg(&group).output();
    std::fs::remove_dir(&group)?;
    let output = output?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.contains("nothing shares yet"), "{said}");
    ensure_eq!(said.lines().count(), 1, "lines of {said}");
    Ok(())
}

/// Who needs more memory than a share leaves, all at once, is not killed for it where shares are limits.
fn growth(cx: &Cx) -> Outcome {
    if !Path::new("/sys/fs/cgroup/memory/memory.oom_control").exists() {
        return skip(
            "control groups of version 1 are not mounted here, and in version 2 shares are no limits",
        );
    }
    let dir = cx.dir.join("files");
    std::fs::create_dir(&dir)?;
    let text = shell::run(Command::new(GROWTH).arg(program()?).arg(dir))?;
    let limits = |when: &str| text.lines().find_map(|line| line.strip_prefix("limits ")?.strip_prefix(when));
    ensure!(text.lines().any(|line| line == "grown"), "it was killed, or could not read\n{text}");
    ensure_eq!(limits("after"), limits("before"), "limits, and what happens at them\n{text}");
    Ok(())
}

/// Of version 2, with a kernel of Debian's in a virtual machine, wherever this host has version 1.
fn version_2(cx: &Cx) -> Outcome {
    let text = shell::run(
        Command::new(VM)
            .args(["--mem", "512M", "--disk", "600M", "--limit", "280", "--program"])
            .arg(program()?)
            .args(["--add", &format!("{SCRIPT}:balance.sh"), "--"])
            .arg("mount -t cgroup2 none /sys/fs/cgroup && WARM=8 IDLE=16 sh /balance.sh /bin/vellum /disk 96")
            .current_dir(&cx.dir),
    )?;
    judge(&text, false)
}

/// What the script has printed. A guard takes back what a killed process leaves, where that could keep somebody waiting.
fn judge(text: &str, is_guarded: bool) -> Outcome {
    let mut shares: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    let mut limits = BTreeMap::new();
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["read", ..] => {}
            ["limits", when, all @ ..] => drop(limits.insert(*when, all.join(" "))),
            [when, weight, bytes] => {
                let (Ok(weight), Ok(bytes)) = (weight.parse(), bytes.parse()) else { continue };
                shares.entry(when).or_default().insert(weight, bytes);
            }
            _ => {}
        }
    }
    // In thousandths of all that the groups have.
    let share = |when: &str, weight: u64| -> Outcome<u64> {
        let all = shares.get(when).ok_or("no such line").doing(text)?;
        let part = all.get(&weight).ok_or("no such weight").doing(text)?;
        Ok(part * 1000 / all.values().sum::<u64>().max(1))
    };
    for weight in [100, 200, 400, 800] {
        let (with, ideal) = (share("with", weight)?, weight * 1000 / 1500);
        ensure!(with.abs_diff(ideal) < 20, "weight {weight}: {with} of 1000, {ideal} is ideal\n{text}");
        let back = share("back", weight)?;
        ensure!(back.abs_diff(ideal) < 50, "weight {weight}: {back} of 1000 when all read again\n{text}");
    }
    // The kernel alone gives more to those that read faster, which a weight for processors decides; but not by weight.
    let without = share("without", 800)?;
    ensure!(without < 460, "weight 800: {without} of 1000 without it\n{text}");
    let (lent, kept) = (share("idle", 400)?, share("idle", 800)?);
    ensure!(lent > 450, "an idle share is lent: weight 400 has {lent} of 1000, the idle one {kept}\n{text}");
    ensure_eq!(limits.get("after"), limits.get("before"), "limits are as they were\n{text}");
    ensure!(limits.get("with") != limits.get("before"), "they were others in between\n{text}");
    let is_left = limits.get("killed") != limits.get("before");
    ensure_eq!(is_left, !is_guarded, "limits that a killed process has left\n{text}");
    Ok(())
}
