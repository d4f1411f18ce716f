//! What sharing the kernel's page cache by weight costs: four control groups at work on a local filesystem, with `vellum balance` and
//! without, in turn.
//!
//! The source (a weight-aware page cache, in the kernel) has four containers of the weights 100, 200, 400 and 800 that write two units each
//! and read one, and runs Filebench's file, web, mail and video servers; it loses 5.8 and at most 5.9 % of throughput in all, and
//! 0.6 points of hits.

mod groups;
mod load;
mod report;

pub(crate) use load::measure;
pub use load::{Load, ProcessResult};
pub use report::{Report, Row};

use crate::arguments::{check_rounds, check_scale, directory, directory_in, write_json};
use crate::compare::style;
use crate::contender;
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::machine::Machine;
use crate::workload::job::Job;
use crate::workload::worker::{Variables, Worker};
use groups::Groups;
use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
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

/// Longest time of a run.
const SECONDS_MAX: f64 = 3600.0;

/// What `balance` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where files are made, 1 GiB of them; best on ext4 [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How often each, with and without, in turn; medians are shown.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// How long each runs at a time.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
    /// A factor for sizes; the bars are for 1.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    scale: f64,
    /// Only experiments with this in their names, e.g. `mail server`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Vellum's program [default: the one beside this program, or in PATH].
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Write everything that was found to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs it.
///
/// # Errors
/// An argument is of no use, or something cannot be done.
pub fn run(args: &Args) -> Result<()> {
    check_scale(args.scale)?;
    check_rounds(args.rounds)?;
    let seconds = args.seconds;
    if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
        return Err(Failure::bad_input(format!(
            "option --seconds {seconds}: give up to {SECONDS_MAX} seconds"
        )));
    }
    if chosen(args.only.as_deref()).next().is_none() {
        let all = EXPERIMENTS.map(|(name, _)| name).join("; ");
        let only = args.only.as_deref().unwrap_or_default();
        return Err(Failure::bad_input(format!(
            "option --only {only}: no such experiment; there are: {all}"
        )));
    }
    let directory = directory(args.dir.as_deref())?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::bad_input("balance makes control groups; run it as root"));
    }
    let program = program(args.program.as_deref())?;
    interrupt::watch()?;
    let directory = directory_in(&directory)?;
    interrupt::register_dir(&directory);
    let plan = Plan {
        directory: directory.clone(),
        program,
        rounds: args.rounds,
        seconds,
        scale: args.scale,
        only: args.only.clone(),
    };
    let report = balance(&plan);
    let _ = interrupt::remove(&directory);
    let report = report?;
    print!("{}", report.table());
    write_json(args.json.as_deref(), &report)
}

fn program(given: Option<&Path>) -> Result<PathBuf> {
    let Some(program) = given else { return contender::vellum().map_err(Failure::bad_input) };
    if program.is_file() {
        return Ok(program.to_owned());
    }
    let shown = program.display();
    Err(Failure::bad_input(format!("option --program {shown}: no such program; name Vellum's")))
}

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
    let machine = Machine::detect(&plan.directory);
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
    let _balance = is_balanced.then(|| BalanceProcess::start(plan, &groups)).transpose()?;
    let mut clients = Vec::new();
    for (number, (place, load)) in places.iter().zip(loads).enumerate() {
        let job = Job::Load { load, directory: place.clone(), bytes, seconds: plan.seconds };
        let client = Worker::ready(job, &Variables::new())?;
        groups.put(number, client.pid())?;
        clients.push(client);
    }
    clients.iter_mut().try_for_each(Worker::go)?;
    let mut done = [ProcessResult::default(); 4];
    for (to, client) in done.iter_mut().zip(&mut clients) {
        *to = client.wait_result()?;
    }
    drop(clients);
    places.iter().try_for_each(|place| fs::remove_dir_all(place).doing(|| "removing files"))?;
    Ok(done)
}

/// `vellum balance`, which ends with this.
struct BalanceProcess(Child);

impl BalanceProcess {
    fn start(plan: &Plan, groups: &Groups) -> Result<Self> {
        let mut command = Command::new(&plan.program);
        command.args(["balance", "--interval", INTERVAL, groups.name()]).stdin(Stdio::null());
        command.spawn().map(Self).doing(|| format!("starting {}", plan.program.display()))
    }
}

impl Drop for BalanceProcess {
    fn drop(&mut self) {
        // It gives limits back before the groups are removed.
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        let _ = self.0.wait();
    }
}
