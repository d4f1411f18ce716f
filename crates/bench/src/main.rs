//! The vellum-bench command.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use vellum_bench::archive_report;
use vellum_bench::arguments::{check_rounds, check_scale, directory, directory_in, write_json};
use vellum_bench::balance;
use vellum_bench::ceph::CephLayers;
use vellum_bench::compare::{self, Plan};
use vellum_bench::contender::{self, Contender, Kind};
use vellum_bench::descendants;
use vellum_bench::failure::{Failure, Result, While};
use vellum_bench::interrupt;
use vellum_bench::isolation;
use vellum_bench::machine::{self, Machine};
use vellum_bench::mounts::Mounts;
use vellum_bench::regression_guard;
use vellum_bench::report::{self, MissingSubject, Report, SubjectNote, TaskReport};
use vellum_bench::store;
use vellum_bench::table;
use vellum_bench::tasks::{self, TASKS, Task};
use vellum_bench::testbed::Format;
use vellum_bench::testbeds::Testbeds;
use vellum_bench::worker_loop;
use vellum_bench::workload::job;

/// Bad input to the command.
const EXIT_BAD_INPUT: u8 = 2;
/// What the first thread has, too.
const STACK: usize = 8 << 20;

#[derive(Parser)]
#[command(
    name = "vellum-bench",
    version,
    about = "Workloads, and comparisons of Vellum with other filesystems"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the same tasks on several filesystems, and state ratios to kernel overlayfs.
    Compare(Compare),
    /// Compare what operations cost in requests, system calls and space with what they cost before.
    Guard(Guard),
    /// Print a table of Markdown of what `compare --json` has written, for documents.
    Table(Table),
    /// Keep what `compare --json` has written beside the documents: what tables and figures are made of, in a file that is named after
    /// date and machine, and whose name is printed.
    Keep(Keep),
    /// Show how reads and writes fare on emulated zoned devices while images of checkpoints are written, in virtual time.
    Isolation(Isolation),
    /// Compare the zoned store with direct I/O and a file on the disk of a directory, and count how often a block is written in the end.
    Store(StoreArgs),
    /// Show what sharing the page cache by weight (`vellum balance`) costs four control groups at work on a local filesystem; as root.
    Balance(balance::Args),
    /// Do a part of a task, as a process that `compare` has started.
    #[command(hide = true, name = job::SUBCOMMAND)]
    Worker,
}

#[derive(Args)]
struct Compare {
    /// Tasks to run, by name [default: all but the long ones; `blocks` is those on blocks of a large file, `s1` and `s2` are the experiments of Enhanced OverlayFS (with small files made, looked at and removed) and of Danaus, `s3` those on shares of the service's cache, `private` is those of two threads on a file each, `work` is whole pieces of work in a Debian tree, `all` is all].
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    tasks: Vec<String>,
    /// Filesystems to compare, by name [default: all that are there].
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    subjects: Vec<String>,
    /// How often each task is timed on each filesystem.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// A filesystem that a task has taken longer than so many seconds on, is not timed with it again, and nothing is counted there; what was measured stays [default: all rounds].
    #[arg(long, value_name = "SECONDS")]
    patience: Option<u32>,
    /// A measurement that has not finished after so many seconds is given up: its processes and mounts are taken away, and the run goes on.
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// A factor for the number of files and for sizes; the bars are for 1.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    scale: f64,
    /// Where layers and mounts are made; best on ext4 [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Put all layers on a new ext4 filesystem of that many MiB, in a file in DIR.
    #[arg(long, value_name = "MIB")]
    image: Option<u64>,
    /// The filesystem of the image.
    #[arg(long, value_enum, default_value = "ext4", requires = "image")]
    format: Format,
    /// Have layers on CephFS, in the cluster of CEPH_CONF: shown by ceph-fuse to all but Vellum, which reads them through its cache. Vellum's clones are in one pool then, `host` is ceph-fuse alone, `-own` has a ceph-fuse for each tenant, and `-back` is Vellum with ceph.write=back. No bars are judged.
    #[arg(long, value_enum)]
    ceph: Option<CephLayers>,
    /// Write everything that was measured to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program of a filesystem: SUBJECT=PATH; `vellum` stands for all of Vellum's.
    #[arg(long, value_name = "SUBJECT=PATH")]
    program: Vec<String>,
    /// More mount options for a filesystem: SUBJECT:OPTIONS.
    #[arg(long, value_name = "SUBJECT:OPTIONS")]
    mount_options: Vec<String>,
    /// Do not count requests, system calls and memory (which takes a round more).
    #[arg(long)]
    no_counts: bool,
    /// List tasks and filesystems, and what is missing.
    #[arg(long)]
    list: bool,
}

#[derive(Args)]
struct Guard {
    /// The file with the counts so far.
    #[arg(long, value_name = "FILE")]
    baseline: PathBuf,
    /// Write the counts of now to that file.
    #[arg(long)]
    update: bool,
    /// Where layers and mounts are made [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Vellum's program: vellum=PATH.
    #[arg(long, value_name = "SUBJECT=PATH")]
    program: Vec<String>,
}

#[derive(Args)]
struct Table {
    /// What `compare --json` has written; tasks of later files replace those of earlier ones on the same filesystem.
    #[arg(required = true, value_name = "RESULTS.json")]
    from: Vec<PathBuf>,
    /// Tasks, by how their names begin [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    tasks: Vec<String>,
    /// Which numbers.
    #[arg(long, value_enum, default_value_t)]
    of: table::TableKind,
}

#[derive(Args)]
struct Keep {
    /// What `compare --json` has written.
    from: PathBuf,
    /// The directory.
    to: PathBuf,
}

#[derive(Args)]
struct Isolation {
    /// Emulated devices, by name: small-zone, large-zone [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    devices: Vec<String>,
    /// A factor for the size of an image, which is 1 GiB.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    scale: f64,
    /// Write everything that was found to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct StoreArgs {
    /// Where files are made, 4 GiB of them; best on ext4 [default: the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How often; the best is shown.
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// A factor for sizes and counts; the bars are for 1.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    scale: f64,
    /// Write everything that was found to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let text = error.to_string();
            // The first paragraph: which arguments are missing stands below its first line.
            let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            let line = lines.join(" ");
            let line = line.trim_start_matches("error: ");
            eprintln!("vellum-bench: {line}; vellum-bench --help lists what there is");
            return ExitCode::from(EXIT_BAD_INPUT);
        }
        Err(help) => {
            print!("{help}");
            return ExitCode::SUCCESS;
        }
    };
    match cli.command {
        command @ Command::Worker => perform(command),
        // The kernel gives a signal to the first thread of a process, if that has not blocked it; one that waits for a filesystem never takes it.
        command => match std::thread::Builder::new().stack_size(STACK).spawn(move || perform(command)) {
            Ok(work) => work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => {
                eprintln!("vellum-bench: starting a thread: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

fn perform(command: Command) -> ExitCode {
    let done = match command {
        Command::Compare(args) => run_compare(&args),
        Command::Guard(args) => match run_guard(&args) {
            Ok(regression_guard::GuardOutcome::NotCompared(why)) if !interrupt::is_requested() => {
                println!("SKIPPED: NOT COMPARED: {why}");
                return ExitCode::from(regression_guard::EXIT_NOT_COMPARED);
            }
            done => done.map(drop),
        },
        Command::Table(args) => table::make(&args.from, &args.tasks, args.of).map(|table| print!("{table}")),
        Command::Keep(args) => {
            archive_report::make(&args.from, &args.to).map(|kept| println!("{}", kept.display()))
        }
        Command::Worker => worker_loop::serve(std::io::stdin().lock(), std::io::stdout()),
        Command::Isolation(args) => run_isolation(&args),
        Command::Store(args) => run_store(&args),
        Command::Balance(args) => balance::run(&args),
    };
    match done {
        _ if interrupt::is_requested() => ExitCode::from(interrupt::EXIT_INTERRUPTED),
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("vellum-bench: {failure}");
            ExitCode::from(if failure.bad_input { EXIT_BAD_INPUT } else { 1 })
        }
    }
}

fn run_isolation(args: &Isolation) -> Result<()> {
    check_scale(args.scale)?;
    let plan = isolation::Plan::named(&args.devices, args.scale)?;
    interrupt::watch()?;
    print!("{}", isolation::heading());
    let report = isolation::isolation(&plan, |row| println!("{}", row.line()));
    print!("\n{}", isolation::table(&report));
    write_json(args.json.as_deref(), &report)
}

fn run_store(args: &StoreArgs) -> Result<()> {
    check_scale(args.scale)?;
    check_rounds(args.rounds)?;
    let directory = directory(args.dir.as_deref())?;
    interrupt::watch()?;
    let directory = directory_in(&directory)?;
    interrupt::register_dir(&directory);
    let plan = store::Plan { directory: directory.clone(), rounds: args.rounds, scale: args.scale };
    let report = store::store(&plan);
    let _ = interrupt::remove(&directory);
    let report = report?;
    print!("{}", report.tables());
    write_json(args.json.as_deref(), &report)
}

fn run_compare(args: &Compare) -> Result<()> {
    let programs = args.program.iter().map(|text| contender::program(text)).collect::<Result<Vec<_>>>()?;
    let kinds = chosen_kinds(&args.subjects, args.ceph.is_some())?;
    let options = args.mount_options.iter().map(|text| mount_options(text)).collect::<Result<Vec<_>>>()?;
    let (mut subjects, mut missing) = (Vec::new(), Vec::new());
    for kind in kinds {
        let found = match args.ceph {
            Some(far) => Contender::find_remote(kind, &programs, far),
            None if kind.is_remote() => Err("it is on CephFS only: --ceph".to_owned()),
            None => Contender::find(kind, &programs),
        };
        match found {
            Ok(mut subject) => {
                subject.options = options.iter().find(|(k, _)| *k == kind).map(|(_, more)| more.clone());
                subjects.push(subject);
            }
            Err(why) => missing.push(MissingSubject { name: kind.name(), why }),
        }
    }
    let tasks = chosen_tasks(&args.tasks)?;
    if args.list {
        list(&subjects, &missing);
        return Ok(());
    }
    check_rounds(args.rounds)?;
    check_scale(args.scale)?;
    check_any(&subjects, &missing)?;
    measure(args, tasks, subjects, missing)
}

fn check_any(subjects: &[Contender], missing: &[MissingSubject]) -> Result<()> {
    if !subjects.is_empty() {
        return Ok(());
    }
    let why: Vec<&str> = missing.iter().map(|missing| missing.why.as_str()).collect();
    Err(Failure::new(format!("nothing to compare: {}", why.join("; "))))
}

/// The subjects without those whose library does nothing, which are missing.
fn usable_subjects(
    subjects: Vec<Contender>,
    testbeds: &Testbeds,
    missing: &mut Vec<MissingSubject>,
) -> Vec<Contender> {
    let check = |subject: &Contender| match Mounts::check_library(subject, testbeds.main()) {
        Ok(()) => true,
        Err(failure) => {
            missing.push(MissingSubject { name: subject.kind.name(), why: failure.to_string() });
            false
        }
    };
    subjects.into_iter().filter(check).collect()
}

fn measure(
    args: &Compare,
    tasks: Vec<&'static Task>,
    subjects: Vec<Contender>,
    mut missing: Vec<MissingSubject>,
) -> Result<()> {
    let (tasks, unable): (Vec<&'static Task>, Vec<&'static Task>) =
        tasks.into_iter().partition(|task| task.missing_requirement().is_none());
    for task in unable {
        eprintln!("left out: {}: {}", task.name, task.missing_requirement().unwrap_or_default());
    }
    interrupt::watch()?;
    descendants::adopt()?;
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let image = args.image.map(|mib| (args.format, mib));
    let testbeds = Testbeds::new(&dir, image, args.scale, args.ceph)?;
    let subjects = usable_subjects(subjects, &testbeds, &mut missing);
    interrupt::check()?;
    check_any(&subjects, &missing)?;
    let denominator = report::denominator(&subjects);
    let mut report = Report {
        schema_version: report::SCHEMA_VERSION,
        machine: Machine::detect(testbeds.main().top()),
        rounds: args.rounds,
        scale: args.scale,
        denominator: denominator.map(Kind::name),
        subjects: subjects.iter().map(note).collect(),
        missing,
        interrupted: false,
        load_after: 0.0,
        tasks: Vec::new(),
    };
    print!("{}", report::heading(&report));
    let patience = args.patience.map(|seconds| Duration::from_secs(seconds.into()));
    let limit = Duration::from_secs(args.limit.into());
    let plan = Plan { tasks, subjects, rounds: args.rounds, patience, limit, counts: !args.no_counts };
    let done = compare::compare(&plan, &testbeds, |done| {
        let mut task = TaskReport::summarize(done, denominator, &report.tasks);
        if args.ceph.is_some() {
            // The bars are for layers on a disk of this host.
            task.results.iter_mut().for_each(|result| (result.bar, result.bar_met) = (None, None));
        }
        print!("{}", report::table(&task));
        report.tasks.push(task);
    });
    report.interrupted = interrupt::is_requested();
    report.load_after = machine::load();
    if let Some(path) = &args.json {
        let file = std::fs::File::create(path).doing(|| format!("option --json: {}", path.display()))?;
        serde_json::to_writer_pretty(file, &report).doing(|| format!("writing {}", path.display()))?;
    }
    let failed: usize = done?
        .iter()
        .map(|done| done.outcomes.iter().filter(|outcome| outcome.has_failed(done.task)).count())
        .sum();
    match failed {
        0 => Ok(()),
        _ => Err(Failure::new(format!("{failed} measurements failed; the tables say why"))),
    }
}

fn run_guard(args: &Guard) -> Result<regression_guard::GuardOutcome> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("counting requests and system calls needs root"));
    }
    let programs = args.program.iter().map(|text| contender::program(text)).collect::<Result<Vec<_>>>()?;
    let kinds = [Kind::VellumCached, Kind::VellumPassthrough];
    let subjects = kinds.map(|kind| {
        let mut subject = Contender::find(kind, &programs).map_err(Failure::new)?;
        // When processors are kept awake, by opening and closing a device, depends on how fast requests come.
        subject.options = Some("keep_awake=off".into());
        Ok(subject)
    });
    let subjects = subjects.into_iter().collect::<Result<Vec<_>>>()?;
    interrupt::watch()?;
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    regression_guard::run(&regression_guard::Plan {
        subjects: &subjects,
        dir: &dir,
        baseline: &args.baseline,
        update: args.update,
    })
}

fn note(subject: &Contender) -> SubjectNote {
    SubjectNote {
        name: subject.kind.name(),
        version: subject.version.clone(),
        options: subject.options.clone(),
    }
}

/// `far`: layers lie on CephFS.
fn chosen_kinds(names: &[String], far: bool) -> Result<Vec<Kind>> {
    if names.is_empty() {
        return Ok(Kind::ALL.into_iter().filter(|kind| far || !kind.is_remote()).collect());
    }
    let kind = |name: &String| {
        Kind::named(name).ok_or_else(|| {
            let all: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            Failure::bad_input(format!(
                "option --subjects {name}: no such filesystem; there are {}",
                all.join(", ")
            ))
        })
    };
    names.iter().map(kind).collect()
}

fn chosen_tasks(names: &[String]) -> Result<Vec<&'static Task>> {
    if names.is_empty() {
        return Ok(TASKS.iter().filter(|task| !task.long).collect());
    }
    let tasks = |name: &String| {
        if let Some(group) = tasks::group_named(name) {
            return Ok(group.collect());
        }
        tasks::named(name).map(|task| vec![task]).ok_or_else(|| {
            let all: Vec<&str> = TASKS.iter().map(|task| task.name).collect();
            Failure::bad_input(format!("option --tasks {name}: no such task; there are {}", all.join(", ")))
        })
    };
    let chosen = names.iter().map(tasks).collect::<Result<Vec<_>>>()?;
    Ok(chosen.into_iter().flatten().collect())
}

fn mount_options(text: &str) -> Result<(Kind, String)> {
    text.split_once(':')
        .and_then(|(name, options)| Some((Kind::named(name)?, options.to_owned())))
        .filter(|(_, options)| !options.is_empty())
        .ok_or_else(|| {
            Failure::bad_input(format!(
                "option --mount-options {text}: write SUBJECT:OPTIONS with a subject that --list names"
            ))
        })
}

fn list(subjects: &[Contender], missing: &[MissingSubject]) {
    println!("tasks:");
    for task in TASKS {
        let long = if task.long { " [long: only by name]" } else { "" };
        println!("  {:<20}{} ({}){long}", task.name, task.title, task.state);
    }
    println!("subjects:");
    for subject in subjects {
        let program = subject.program.as_ref().map(|program| format!(": {}", program.display()));
        let version = subject.version.as_ref().map(|version| format!(" ({version})"));
        let (program, version) = (program.unwrap_or_default(), version.unwrap_or_default());
        let library = subject.library.as_ref().map(|library| format!(", {}", library.display()));
        let library = library.unwrap_or_default();
        println!("  {:<20}{}{program}{library}{version}", subject.kind.name(), subject.kind.title());
    }
    for missing in missing {
        println!("  {:<20}MISSING: {}", missing.name, missing.why);
    }
}
