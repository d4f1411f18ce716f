//! `vellum pool`: what the tenants of this host may use.

use crate::cli::{PoolArgs, PoolCommand, PoolSettings};
use crate::{json, pool_service};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;
use vellum_pool::bytes::Bytes;
use vellum_pool::pool::Member;
use vellum_pool::{Pool, PoolName, Settings, Store, helper};
use vellum_service::Failure;
use vellum_service::pool::{KEEPERS, Status, restart};

/// The word that takes a setting back.
const NONE: &str = "none";

/// Does it; what is to be printed.
pub fn run(arguments: PoolArgs) -> Result<String, Failure> {
    if matches!(arguments.command, PoolCommand::Format) {
        return Ok(vellum_service::pool::format());
    }
    let store = Store::of_user()?;
    match arguments.command {
        PoolCommand::Format => Ok(String::new()),
        PoolCommand::Create { name, settings } => {
            let name: PoolName = name.parse()?;
            let settings = changed(&name, Settings::default(), settings)?;
            Pool::create(&store, &name, settings)?;
            Ok(String::new())
        }
        PoolCommand::Set { name, settings } => {
            let name = name.parse()?;
            let mut pool = Pool::open(&store, &name)?;
            if settings.is_empty() {
                return Err(Failure::input(format!(
                    "pool {name}: nothing to set; vellum pool set --help lists what there is"
                )));
            }
            let settings = changed(&name, pool.settings().clone(), settings)?;
            pool.set(&store, settings)?;
            Ok(String::new())
        }
        PoolCommand::Delete { name } => {
            Pool::open(&store, &name.parse()?)?.delete(&store)?;
            Ok(String::new())
        }
        PoolCommand::Restart { name } => {
            let pool = Pool::open(&store, &name.parse()?)?;
            match restart(pool.socket())? {
                Some(status) => {
                    Ok(format!("process {} now serves {}\n", status.service, many(status.mounts)))
                }
                None => Err(Failure::input(format!("pool {name}: nothing is mounted in it"))),
            }
        }
        PoolCommand::Serve { name, background, outcome, inherit } => {
            let done = pool_service::run(&store, &name.parse()?, background, inherit.as_deref());
            if outcome { helper::report(&done) } else { done }.map(|()| String::new())
        }
        PoolCommand::List { json } => {
            let pools = store.all()?.into_iter();
            let of = |(name, settings)| Ok(PoolReport::from_pool(&Pool::with(&store, name, settings)?));
            let all = pools.map(of).collect::<Result<Vec<_>, Failure>>()?;
            if json { json::pretty(&all) } else { Ok(table(&all)) }
        }
        PoolCommand::Show { name, json } => {
            let report = PoolReport::from_pool(&Pool::open(&store, &name.parse()?)?);
            if json { json::pretty(&report) } else { Ok(report.text()) }
        }
    }
}

/// Settings with what was given on the command line.
fn changed(name: &PoolName, mut settings: Settings, given: PoolSettings) -> Result<Settings, Failure> {
    take(name, "cpus", given.cpus, &mut settings.cpus)?;
    take(name, "cpuset-cpus", given.cpuset_cpus, &mut settings.cpuset_cpus)?;
    take(name, "memory", given.memory, &mut settings.memory)?;
    take(name, "cache", given.cache, &mut settings.cache)?;
    take(name, "read-limit", given.read_limit, &mut settings.read_limit)?;
    take(name, "write-limit", given.write_limit, &mut settings.write_limit)?;
    take(name, "uid-range", given.uid_range, &mut settings.uid_range)?;
    for (option, given, setting) in [
        ("weight", given.weight, &mut settings.weight),
        ("mount-weight", given.mount_weight, &mut settings.mount_weight),
    ] {
        let Some(text) = given else { continue };
        let weight = text.parse().map(Some).or_else(|_| if text == NONE { Ok(None) } else { Err(()) });
        *setting = weight.map_err(|()| {
            Failure::input(format!("pool {name}: option --{option} {text}: give a number from 1 to 10000"))
        })?;
    }
    let mut says_cluster = false;
    if let Some(conf) = given.ceph_conf {
        settings.ceph_conf =
            if conf.as_os_str() == NONE { None } else { Some(canonical(name, "ceph-conf", conf)?) };
        says_cluster = settings.ceph_conf.is_some();
    }
    for (given, setting) in [(given.ceph_id, &mut settings.ceph_id), (given.ceph_fs, &mut settings.ceph_fs)] {
        if let Some(text) = given {
            *setting = Some(text).filter(|text| text != NONE);
            says_cluster |= setting.is_some();
        }
    }
    settings.ceph = match given.ceph.as_deref() {
        None => settings.ceph || says_cluster,
        Some("on") => true,
        Some(NONE) => false,
        Some(text) => {
            return Err(Failure::input(format!("pool {name}: option --ceph {text}: write on or {NONE}")));
        }
    };
    if !given.storage.is_empty() {
        let none = given.storage.iter().all(|dir| dir.as_os_str() == NONE);
        let found = |dir| canonical(name, "storage", dir);
        settings.storage =
            if none { Vec::new() } else { given.storage.into_iter().map(found).collect::<Result<_, _>>()? };
    }
    Ok(settings)
}

fn take<T: FromStr<Err = String>>(
    name: &PoolName,
    option: &str,
    given: Option<String>,
    setting: &mut Option<T>,
) -> Result<(), Failure> {
    match given.as_deref() {
        None => {}
        Some(NONE) => *setting = None,
        Some(text) => {
            let value = text
                .parse()
                .map_err(|why| Failure::input(format!("pool {name}: option --{option} {why}")))?;
            *setting = Some(value);
        }
    }
    Ok(())
}

/// A directory or file as it is without links, so that it can be found in the paths of layers, and means the same everywhere.
fn canonical(name: &PoolName, option: &str, path: PathBuf) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|e| {
        let path = path.display();
        let failure = Failure::input(format!("pool {name}: option --{option} {path}"));
        failure.because(e).remedy("give one that exists")
    })
}

/// A pool, for people and programs.
#[derive(Debug, Serialize)]
struct PoolReport {
    name: PoolName,
    #[serde(flatten)]
    settings: Settings,
    cpu_seconds: Option<f64>,
    memory_bytes: Option<u64>,
    memory_peak_bytes: Option<u64>,
    read_bytes: Option<u64>,
    written_bytes: Option<u64>,
    control_groups: Vec<PathBuf>,
    session_directory: PathBuf,
    service: Option<Status>,
    mounts: Vec<MountReport>,
    other_processes: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct MountReport {
    mountpoint: PathBuf,
    service: u32,
}

impl PoolReport {
    fn from_pool(pool: &Pool) -> Self {
        let (mut mounts, mut other_processes) = (Vec::new(), Vec::new());
        let service = pool.service();
        for Member { process, mountpoints, program } in pool.members() {
            let own = service.as_ref().is_some_and(|own| own.service == process || own.supervisor == process)
                || KEEPERS.contains(&program.as_str());
            if mountpoints.is_empty() && !own {
                other_processes.push(process);
            }
            mounts.extend(
                mountpoints.into_iter().map(|mountpoint| MountReport { mountpoint, service: process }),
            );
        }
        mounts.sort_by(|one, other| one.mountpoint.cmp(&other.mountpoint));
        let usage = pool.usage();
        Self {
            name: pool.name().clone(),
            settings: pool.settings().clone(),
            cpu_seconds: usage.cpu.map(|cpu| cpu.as_secs_f64()),
            memory_bytes: usage.memory,
            memory_peak_bytes: usage.memory_peak,
            read_bytes: usage.read,
            written_bytes: usage.written,
            control_groups: pool.groups().into_iter().map(PathBuf::from).collect(),
            session_directory: pool.session_directory(),
            service,
            mounts,
            other_processes,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:<14}{value}");
        };
        line("pool", self.name.as_str());
        let settings = &self.settings;
        line("cpus", &or(settings.cpus, "no limit"));
        line("cpuset cpus", &or(settings.cpuset_cpus.as_ref(), "all"));
        line("memory", &or(settings.memory, "no limit"));
        line("weight", &or(settings.weight, "100"));
        line("cache", &or(settings.cache, "as large as its mounts ask for"));
        line("mounts weigh", &or(settings.mount_weight, "100"));
        let rate = |limit: Option<Bytes>| limit.map_or("no limit".to_owned(), |bytes| format!("{bytes}/s"));
        line("reading", &rate(settings.read_limit));
        line("writing", &rate(settings.write_limit));
        line("uid range", &or(settings.uid_range, "none"));
        if settings.ceph {
            line("ceph", "its service may connect to clusters");
        }
        if let Some(conf) = &settings.ceph_conf {
            line("ceph conf", &conf.display().to_string());
        }
        for (name, word) in [("ceph id", &settings.ceph_id), ("ceph fs", &settings.ceph_fs)] {
            if let Some(word) = word {
                line(name, word);
            }
        }
        for storage in &settings.storage {
            line("storage", &storage.display().to_string());
        }
        let memory =
            format!("{} of memory (at most {})", mib(self.memory_bytes), mib(self.memory_peak_bytes));
        let disks = format!("{} read, {} written", mib(self.read_bytes), mib(self.written_bytes));
        line("used", &format!("{memory}, {} of processors, {disks}", self.cpu()));
        for group in &self.control_groups {
            line("control group", &group.display().to_string());
        }
        line("programs", &format!("{} (to be mounted at /.vellum)", self.session_directory.display()));
        if let Some(service) = &self.service {
            let times = service.restarts;
            let replaced = match times {
                0 => String::new(),
                1 => ", replaced once".to_owned(),
                _ => format!(", replaced {times} times"),
            };
            let text = format!("process {}, supervised by {}{replaced}", service.service, service.supervisor);
            line("service", &text);
        }
        for mount in &self.mounts {
            line("mount", &format!("{} (process {})", mount.mountpoint.display(), mount.service));
        }
        for process in &self.other_processes {
            line("process", &process.to_string());
        }
        text
    }

    fn cpu(&self) -> String {
        self.cpu_seconds.map_or("?".to_owned(), |seconds| format!("{seconds:.1} s"))
    }
}

fn table(all: &[PoolReport]) -> String {
    if all.is_empty() {
        return "no pools; vellum pool create makes one\n".to_owned();
    }
    let mut text = format!(
        "{:<20}{:>6}{:>10}{:>10}{:>8}{:>8}{:>12}{:>12}\n",
        "POOL", "CPUS", "CPUSET", "MEMORY", "WEIGHT", "MOUNTS", "USED", "CPU TIME"
    );
    for pool in all {
        let settings = &pool.settings;
        let _ = writeln!(
            text,
            "{:<20}{:>6}{:>10}{:>10}{:>8}{:>8}{:>12}{:>12}",
            pool.name.as_str(),
            or(settings.cpus, "-"),
            or(settings.cpuset_cpus.as_ref(), "all"),
            or(settings.memory, "-"),
            or(settings.weight, "100"),
            pool.mounts.len(),
            mib(pool.memory_bytes),
            pool.cpu()
        );
    }
    text
}

fn or<T: ToString>(value: Option<T>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

fn many(mounts: usize) -> String {
    if mounts == 1 { "1 mount".to_owned() } else { format!("{mounts} mounts") }
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or("?".to_owned(), |bytes| format!("{} MiB", bytes.div_ceil(1 << 20)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings_from_args() -> PoolSettings {
        PoolSettings::default()
    }

    #[test]
    fn pool_options_set_and_clear_values() {
        let name: PoolName = "a".parse().unwrap();
        let some = PoolSettings {
            cpuset_cpus: Some("0".into()),
            cpus: Some("1.5".into()),
            memory: Some("2G".into()),
            weight: Some("300".into()),
            uid_range: Some("100000:65536".into()),
            ceph: Some("on".into()),
            ..settings_from_args()
        };
        let settings = changed(&name, Settings::default(), some).unwrap();
        assert_eq!(
            (settings.memory, settings.weight, settings.ceph),
            (Some(Bytes(2 << 30)), Some(300), true)
        );
        assert_eq!(settings.uid_range.map(|range| range.to_string()).as_deref(), Some("100000:65536"));
        let none = || Some("none".to_owned());
        let back = PoolSettings {
            memory: none(),
            weight: none(),
            uid_range: none(),
            ceph: none(),
            ..settings_from_args()
        };
        let settings = changed(&name, settings, back).unwrap();
        assert_eq!((settings.memory, settings.weight, settings.uid_range), (None, None, None));
        assert!(settings.cpus.is_some() && settings.cpuset_cpus.is_some() && !settings.ceph);
    }

    #[test]
    fn cluster_options_name_a_reachable_cluster() {
        let name: PoolName = "a".parse().unwrap();
        let word = |text: &str| Some(text.to_owned());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().canonicalize().unwrap().join("conf");
        std::fs::write(&file, "").unwrap();
        let conf = || Some(dir.path().join("../").join(dir.path().file_name().unwrap()).join("conf"));
        let some = PoolSettings {
            ceph_conf: conf(),
            ceph_id: word("t"),
            ceph_fs: word("f"),
            ..settings_from_args()
        };
        let settings = changed(&name, Settings::default(), some).unwrap();
        assert!(settings.ceph && settings.ceph_conf.as_deref() == Some(file.as_path()));
        assert_eq!((settings.ceph_id.as_deref(), settings.ceph_fs.as_deref()), (Some("t"), Some("f")));
        let back = PoolSettings {
            ceph_conf: Some(NONE.into()),
            ceph_id: word(NONE),
            ceph_fs: word(NONE),
            ..settings_from_args()
        };
        let settings = changed(&name, settings, back).unwrap();
        assert_eq!(settings, Settings { ceph: true, ..Settings::default() });
        // To take one back is to say nothing.
        let none = PoolSettings { ceph_id: word(NONE), ..settings_from_args() };
        assert!(!changed(&name, Settings::default(), none).unwrap().ceph);
    }

    #[test]
    fn bad_values_name_option_value_and_remedy() {
        let name: PoolName = "a".parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        for (bad, words) in [
            (PoolSettings { cpus: Some("0".into()), ..settings_from_args() }, ["--cpus 0", "--cpuset-cpus"]),
            (
                PoolSettings { cpus: Some("0-3".into()), ..settings_from_args() },
                ["--cpus 0-3", "--cpuset-cpus"],
            ),
            (
                PoolSettings { cpuset_cpus: Some("x".into()), ..settings_from_args() },
                ["--cpuset-cpus x", "0-3,8"],
            ),
            (PoolSettings { memory: Some("2X".into()), ..settings_from_args() }, ["--memory 2X", "512M"]),
            (
                PoolSettings { weight: Some("70000".into()), ..settings_from_args() },
                ["--weight 70000", "10000"],
            ),
            (
                PoolSettings { mount_weight: Some("x".into()), ..settings_from_args() },
                ["--mount-weight x", "10000"],
            ),
            (PoolSettings { cache: Some("much".into()), ..settings_from_args() }, ["--cache much", "512M"]),
            (
                PoolSettings { uid_range: Some("0:9".into()), ..settings_from_args() },
                ["--uid-range 0:9", "START:COUNT"],
            ),
            (PoolSettings { ceph: Some("yes".into()), ..settings_from_args() }, ["--ceph yes", "on or none"]),
            (
                PoolSettings { ceph_conf: Some(missing.clone()), ..settings_from_args() },
                ["--ceph-conf /", "/missing: No such file or directory (os error 2); give one that exists"],
            ),
            (
                PoolSettings { storage: vec![missing.clone()], ..settings_from_args() },
                ["--storage /", "/missing: No such file or directory (os error 2); give one that exists"],
            ),
        ] {
            let failure = changed(&name, Settings::default(), bad).unwrap_err();
            assert_eq!(failure.exit_status(), 2);
            words.iter().for_each(|word| assert!(failure.to_string().contains(word), "{failure}"));
        }
    }
}
