//! What sharing the kernel's page cache by weight costs: four control groups at work on a local filesystem, with `vellum balance` and
//! without, in turn.
//!
//! The source (a weight-aware page cache, in the kernel) has four containers of the weights 100, 200, 400 and 800 that write two units each
//! and read one, and runs Filebench's file, web, mail and video servers; it loses 5.8 and at most 5.9 % of throughput in all, and
//! 0.6 points of hits.

mod command;
mod groups;
mod load;
mod report;

pub use command::{Args, run};
pub use load::{Load, ProcessResult, SUBCOMMAND, serve};
pub use report::{Report, Row};

use crate::compare::style;
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::machine::Machine;
use groups::Groups;
use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const WEIGHTS: [u32; 4] = [100, 200, 400, 800];
/// What all together may have: half of their files.
const MEMORY: u64 = 512 << 20;
/// Seconds between two looks of `vellum balance`.
const INTERVAL: &str = "0.5";

const EXPERIMENTS: [(&str, [Load; 4]); 6] = [
    ("four write 2 units and read 1", [Load::InOrder; 4]),
    ("Filebench's file server in each", [Load::Fileserver; 4]),
    ("its web server in each", [Load::Webserver; 4]),
    ("its mail server in each", [Load::Varmail; 4]),
    ("its video server in each", [Load::Videoserver; 4]),
    ("one of them in each", [Load::Fileserver, Load::Webserver, Load::Varmail, Load::Videoserver]),
];

/// What to try.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where files are made.
    pub directory: PathBuf,
    /// Vellum's program.
    pub program: PathBuf,
    /// How often each, with and without.
    pub rounds: usize,
    /// How long each runs at a time.
    pub seconds: f64,
    /// A factor for sizes.
    pub scale: f64,
    /// Only experiments with this in their names, if any.
    pub only: Option<String>,
}

/// The experiments whose names have this text.
fn chosen(only: Option<&str>) -> impl Iterator<Item = (&'static str, [Load; 4])> {
    EXPERIMENTS.into_iter().filter(move |(name, _)| only.is_none_or(|only| name.contains(only)))
}

/// Tries all experiments that were chosen.
pub fn balance(plan: &Plan) -> Result<Report> {
    let machine = Machine::here(&plan.directory);
    let memory = (MEMORY as f64 * plan.scale) as u64;
    let progress = ProgressBar::new((chosen(plan.only.as_deref()).count() * plan.rounds * 2) as u64);
    progress.set_style(style());
    let mut rows = Vec::new();
    for (name, loads) in chosen(plan.only.as_deref()) {
        progress.set_message(name);
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 0..plan.rounds {
            for turn in 0..2 {
                let is_balanced = (round + turn) % 2 == 1;
                let done = once(plan, memory, loads, is_balanced)?;
                if is_balanced {
                    with.push(done)
                } else {
                    without.push(done)
                }
                progress.inc(1);
            }
        }
        rows.extend(report::rows(name, loads, WEIGHTS, &without, &with));
    }
    progress.finish_and_clear();
    Ok(Report { machine, load_after: crate::machine::load(), memory_bytes: memory, rows })
}

/// All four, once, on files that are made anew.
fn once(plan: &Plan, memory: u64, loads: [Load; 4], is_balanced: bool) -> Result<[ProcessResult; 4]> {
    interrupt::check()?;
    // Together twice what the memory holds.
    let bytes = memory / 2;
    let places: [PathBuf; 4] = std::array::from_fn(|number| plan.directory.join(number.to_string()));
    for (place, load) in places.iter().zip(loads) {
        fs::create_dir(place).doing(|| format!("making {}", place.display()))?;
        load.prepare(place, bytes)?;
    }
    rustix::fs::sync();
    // Pages belong to the group that has brought them.
    fs::write("/proc/sys/vm/drop_caches", "1").doing(|| "emptying the page cache")?;
    let groups = Groups::new(memory, &WEIGHTS)?;
    let _balance = is_balanced.then(|| BalanceProcess::balance(plan, &groups)).transpose()?;
    let mut clients = Vec::new();
    for (number, (place, load)) in places.iter().zip(loads).enumerate() {
        clients
            .push(BalanceProcess::client(plan, place, load, bytes, |process| groups.put(number, process))?);
    }
    clients.iter_mut().try_for_each(BalanceProcess::go)?;
    let mut done = [ProcessResult::default(); 4];
    for (to, client) in done.iter_mut().zip(&mut clients) {
        *to = client.outcome()?;
    }
    drop(clients);
    places.iter().try_for_each(|place| fs::remove_dir_all(place).doing(|| "removing files"))?;
    Ok(done)
}

/// A process that ends with this, by this signal.
struct BalanceProcess(Child, Signal);

impl BalanceProcess {
    fn balance(plan: &Plan, groups: &Groups) -> Result<Self> {
        let mut command = Command::new(&plan.program);
        command.args(["balance", "--interval", INTERVAL, groups.name()]).stdin(Stdio::null());
        let child = command.spawn().doing(|| format!("starting {}", plan.program.display()))?;
        // It gives limits back before the groups are removed.
        Ok(Self(child, Signal::TERM))
    }

    fn client(
        plan: &Plan,
        place: &Path,
        load: Load,
        bytes: u64,
        put: impl FnOnce(u32) -> Result<()>,
    ) -> Result<Self> {
        let program = std::env::current_exe().doing(|| "finding this program")?;
        let mut command = Command::new(program);
        command
            .arg(SUBCOMMAND)
            .arg(load.name())
            .arg(place)
            .arg(bytes.to_string())
            .arg(plan.seconds.to_string());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let client = Self(child.doing(|| "starting a process for a workload")?, Signal::KILL);
        put(client.0.id())?;
        Ok(client)
    }

    fn go(&mut self) -> Result<()> {
        let input = self.0.stdin.as_mut().ok_or_else(|| Failure::new("a workload has no input"))?;
        input.write_all(b"go\n").doing(|| "starting a workload")
    }

    fn outcome(&mut self) -> Result<ProcessResult> {
        let mut text = String::new();
        let output = self.0.stdout.as_mut().ok_or_else(|| Failure::new("a workload has no output"))?;
        output.read_to_string(&mut text).doing(|| "waiting for a workload")?;
        let status = self.0.wait().doing(|| "waiting for a workload")?;
        if !status.success() {
            return Err(Failure::new(format!("a workload has failed: {status}")));
        }
        serde_json::from_str(&text).doing(|| "what a workload says")
    }
}

impl Drop for BalanceProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process(Pid::from_child(&self.0), self.1);
        }
        let _ = self.0.wait();
    }
}
