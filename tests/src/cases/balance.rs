//! The kernel's page cache by weight: `vellum balance` on real control groups, of this host and, of version 2, in a virtual machine.

use super::Case;
use crate::harness::mount::MountKind;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, skip};
use crate::harness::{Cx, shell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const CASES: &[Case] = &[
    Case::once("balance/host", 300, host),
    Case::once("balance/nothing", 60, nothing),
    Case::once("balance/growth", 300, growth),
    Case::once("balance/small-shares", 300, small_shares),
    Case::once("balance/version-2", 300, version_2),
    Case::once("balance/generations", 300, generations),
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

/// Where a share is smaller than what a limit of version 1 leaves at least, nobody is thought to be short of memory again and again.
fn small_shares(cx: &Cx) -> Outcome {
    if !Path::new("/sys/fs/cgroup/memory/memory.oom_control").exists() {
        return skip(
            "control groups of version 1 are not mounted here, and in version 2 shares are no limits",
        );
    }
    let dir = cx.dir.join("files");
    std::fs::create_dir(&dir)?;
    let text = shell::run(Command::new(SCRIPT).arg(program()?).arg(dir).arg("120").env("SHARES", "1"))?;
    judge_shares(&text, true)
}

/// Where there is nothing to share, that is said, once.
fn nothing(cx: &Cx) -> Outcome {
    let name = format!("vellum-nothing-{}", std::process::id());
    let tops = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
    let Some(group) = tops.iter().map(|top| top.join(&name)).find(|group| std::fs::create_dir(group).is_ok())
    else {
        return skip("no control groups with memory can be made here");
    };
    let mut command = Command::new(program()?);
    command.args(["balance", "--interval", "0.1", "-n", "3", &name]).current_dir(&cx.dir);
    let output = command.output();
    std::fs::remove_dir(&group)?;
    let output = output?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.lines().count() == 1, "{said}");
    ensure!(said.contains(&name) && said.contains("no group below it yet"), "{said}");
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

/// Version 2 with the multi-generational LRU, which does not keep to protection where nothing above has a limit: with Debian 13's kernel.
fn generations(cx: &Cx) -> Outcome {
    let text = shell::run(
        Command::new(VM)
            .args(["--kernel", "6.12", "--mem", "512M", "--disk", "1200M", "--limit", "280", "--program"])
            .arg(program()?)
            .args(["--add", &format!("{SCRIPT}:balance.sh"), "--"])
            .arg(
                "mount -t cgroup2 none /sys/fs/cgroup && grep -q 0x.*[1357]$ /sys/kernel/mm/lru_gen/enabled && \
                 OPEN=1 SHARES=1 WARM=20 sh /balance.sh /bin/vellum /disk 260",
            )
            .current_dir(&cx.dir),
    )?;
    judge_shares(&text, true)
}

/// What the script has printed. A guard takes back what a killed process leaves, where that could keep somebody waiting.
fn judge(text: &str, is_guarded: bool) -> Outcome {
    judge_shares(text, is_guarded)?;
    let said = ScriptOutput::of(text);
    for weight in [100, 200, 400, 800] {
        let (back, ideal) = (said.share("back", weight)?, weight * 1000 / 1500);
        ensure!(back.abs_diff(ideal) < 50, "weight {weight}: {back} of 1000 when all read again\n{text}");
    }
    let (lent, kept) = (said.share("idle", 400)?, said.share("idle", 800)?);
    ensure!(lent > 450, "an idle share is lent: weight 400 has {lent} of 1000, the idle one {kept}\n{text}");
    Ok(())
}

/// The lines of the script.
struct ScriptOutput<'a> {
    text: &'a str,
    shares: BTreeMap<&'a str, BTreeMap<u64, u64>>,
    limits: BTreeMap<&'a str, String>,
}

impl<'a> ScriptOutput<'a> {
    fn of(text: &'a str) -> Self {
        let mut said = Self { text, shares: BTreeMap::new(), limits: BTreeMap::new() };
        for line in text.lines() {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["read", ..] => {}
                ["limits", when, all @ ..] => drop(said.limits.insert(*when, all.join(" "))),
                [when, weight, bytes] => {
                    let (Ok(weight), Ok(bytes)) = (weight.parse(), bytes.parse()) else { continue };
                    said.shares.entry(when).or_default().insert(weight, bytes);
                }
                _ => {}
            }
        }
        said
    }

    /// In thousandths of all that the groups have.
    fn share(&self, when: &str, weight: u64) -> Outcome<u64> {
        let all = self.shares.get(when).ok_or("no such line").doing(self.text)?;
        let part = all.get(&weight).ok_or("no such weight").doing(self.text)?;
        Ok(part * 1000 / all.values().sum::<u64>().max(1))
    }
}

fn judge_shares(text: &str, is_guarded: bool) -> Outcome {
    let said = ScriptOutput::of(text);
    for weight in [100, 200, 400, 800] {
        let (with, ideal) = (said.share("with", weight)?, weight * 1000 / 1500);
        ensure!(with.abs_diff(ideal) < 20, "weight {weight}: {with} of 1000, {ideal} is ideal\n{text}");
    }
    // The kernel alone gives more to those that read faster, which a weight for processors decides; but not by weight.
    let without = said.share("without", 800)?;
    ensure!(without < 460, "weight 800: {without} of 1000 without it\n{text}");
    let limits = &said.limits;
    ensure_eq!(limits.get("after"), limits.get("before"), "limits are as they were\n{text}");
    ensure!(limits.get("with") != limits.get("before"), "they were others in between\n{text}");
    let is_left = limits.get("killed") != limits.get("before");
    ensure_eq!(is_left, !is_guarded, "limits that a killed process has left\n{text}");
    Ok(())
}
