//! `vellum checkpoint`, `vellum restore`, `vellum checkpoints`.

use crate::cli::{CheckpointArgs, CheckpointsCommand, RestoreArgs};
use crate::inspect::size;
use crate::json::pretty;
use crate::log;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use vellum_checkpoint::{
    CheckpointEntry, CheckpointOptions, Checkpoints, ContainerEngine, Record, Take,
    restore as restore_container, take as take_checkpoint,
};
use vellum_container::image::Source;
use vellum_container::{ContainerExit, Restore, STATUS_FAILED};
use vellum_service::Failure;
use vellum_service::layers::ceph::Cluster;

/// A checkpoint as programs see it.
#[derive(Serialize)]
struct CheckpointRow<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<&'a Record>,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::system("cannot find this program").because(e))
}

/// Takes a checkpoint; says where it is.
pub fn take(arguments: CheckpointArgs) -> Result<String, Failure> {
    log::to_stderr()?;
    let taken = take_checkpoint(&Take {
        vellum: program()?,
        container: arguments.container,
        to: arguments.to,
        name: arguments.name,
        leave_running: arguments.leave_running,
        manner: CheckpointOptions {
            pace: arguments.pace,
            compress: arguments.compress,
            parent: arguments.parent,
            memory: arguments.memory_ahead,
        },
        state: arguments.state,
    })?;
    let Record { image_bytes, upper_bytes, left_running, container, .. } = &taken.record;
    let end = if *left_running { "runs on" } else { "has ended" };
    let stored = taken.record.stored_bytes.map(|bytes| format!(", in {}", size(bytes))).unwrap_or_default();
    Ok(format!(
        "{}: {} of memory, {} of files{stored}; {container} paused for {} and {end}\n",
        taken.path.display(),
        size(*image_bytes),
        size(*upper_bytes),
        pause(&taken.record)
    ))
}

/// Has a container go on, to its end. The exit status, and why, as of `vellum run`.
pub fn restore(arguments: RestoreArgs) -> (u8, Option<Failure>) {
    let checkpoint = arguments.checkpoint.clone();
    let restored = log::to_stderr()
        .and_then(|()| request(arguments))
        .and_then(|asked| restore_container(checkpoint.as_deref(), &asked));
    match restored {
        Ok(ContainerExit { status, said }) => (status, said.map(Failure::system)),
        Err(failure) => {
            let status = if failure.exit_status() == 2 { 2 } else { STATUS_FAILED };
            (status, Some(failure))
        }
    }
}

fn request(arguments: RestoreArgs) -> Result<Restore, Failure> {
    let mut image = arguments.image.as_deref().map(Source::parse).transpose()?;
    let cluster = Cluster::from(arguments.cluster);
    match &mut image {
        Some(Source::Far(layer) | Source::FarLayout(layer)) => layer.cluster = cluster,
        _ if cluster == Cluster::default() => {}
        _ => {
            return Err(Failure::input(
                "options --ceph-conf, --ceph-id and --ceph-fs: nothing is on CephFS; give --image ceph:PATH, or leave them out",
            ));
        }
    }
    Ok(Restore {
        vellum: program()?,
        pool: arguments.pool.map(|name| name.parse()).transpose()?,
        name: arguments.name,
        image,
        runtime: arguments.runtime,
        state: arguments.state,
    })
}

/// What there is in a directory, or what becomes of it.
pub fn manage(command: CheckpointsCommand) -> Result<String, Failure> {
    match command {
        CheckpointsCommand::List { json, dir } => {
            let all = Checkpoints::open("", &dir)?.list()?;
            if json { pretty(&all.iter().map(row).collect::<Vec<_>>()) } else { Ok(table(&all)) }
        }
        CheckpointsCommand::Show { json, dir, name } => {
            let record = Checkpoints::open("", &dir)?.record(&name)?;
            if json {
                pretty(&CheckpointRow { name: &name, record: Some(&record), failure: None })
            } else {
                Ok(text(&name, &record))
            }
        }
        CheckpointsCommand::Delete { dir, names } => {
            Checkpoints::open("", &dir)?.delete(&names).map(|()| String::new())
        }
    }
}

fn row(one: &CheckpointEntry) -> CheckpointRow<'_> {
    let failure = one.record.as_ref().err().map(ToString::to_string);
    CheckpointRow { name: &one.name, record: one.record.as_ref().ok(), failure }
}

fn table(all: &[CheckpointEntry]) -> String {
    let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "{:width$}  {:<12}  {:>10}  {:>10}  {:>10}  IMAGE  COMMAND\n",
        "NAME", "TAKEN", "MEMORY", "FILES", "TAKES"
    );
    for CheckpointEntry { name, record } in all {
        let _ = match record {
            Ok(record) => writeln!(
                text,
                "{name:width$}  {:<12}  {:>10}  {:>10}  {:>10}  {}  {}",
                age(record.taken),
                size(record.image_bytes),
                size(record.upper_bytes),
                size(record.stored_bytes.unwrap_or(record.image_bytes.saturating_add(record.upper_bytes))),
                record.image(),
                single_line(&record.command())
            ),
            Err(why) => writeln!(text, "{name:width$}  cannot be read: {why}"),
        };
    }
    text
}

fn text(name: &str, record: &Record) -> String {
    let mut text = String::new();
    let pool = match &record.of {
        ContainerEngine::Run { settings, .. } => settings.pool.as_deref().unwrap_or("none"),
        ContainerEngine::Podman(_) => "podman decides",
        ContainerEngine::Containerd(_) => "as its layers are claimed",
    };
    let end = if record.left_running { "went on" } else { "ended" };
    for (what, value) in [
        ("name", name.to_owned()),
        ("container", format!("{}, which {end}", record.container)),
        ("taken", age(record.taken)),
        ("image", record.image()),
        ("command", single_line(&record.command())),
        ("pool", pool.to_owned()),
        ("memory", size(record.image_bytes)),
        ("files", format!("{}, {} objects", size(record.upper_bytes), record.upper_objects)),
        ("takes", takes(record)),
        ("pause", pause(record)),
        ("taken by", format!("vellum {}, CRIU {}", record.vellum, record.criu)),
    ] {
        let _ = writeln!(text, "{what:<10} {value}");
    }
    text
}

/// What it takes where it is, and what else it needs.
fn takes(record: &Record) -> String {
    let whole = record.image_bytes.saturating_add(record.upper_bytes);
    let mut text = match record.stored_bytes {
        Some(stored) => format!("{} instead of {}", size(stored), size(whole)),
        None => size(whole),
    };
    if !record.parents.is_empty() {
        let _ = write!(text, ", and needs {}", record.parents.join(", "));
    }
    text
}

/// One line, whatever a command holds.
pub(crate) fn single_line(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// How long the container stood still, each time.
fn pause(record: &Record) -> String {
    let last = seconds(record.pause_us);
    record.pause_ahead_us.map_or(last.clone(), |before| format!("{last}, and {} before", seconds(before)))
}

fn seconds(micros: u64) -> String {
    format!("{:.2} s", micros as f64 / 1e6)
}

/// How long ago.
pub(crate) fn age(taken: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let ago = now.saturating_sub(taken);
    match ago {
        0..120 => format!("{ago} s ago"),
        120..7200 => format!("{} min ago", ago / 60),
        7200..172_800 => format!("{} h ago", ago / 3600),
        _ => format!("{} days ago", ago / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_text_has_no_control_characters() {
        assert_eq!(single_line("sh -c a\nb"), "sh -c a\\nb");
        assert_eq!(seconds(1_234_567), "1.23 s");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(age(now - 3 * 86_400).contains("3 days"));
        assert!(table(&[]).starts_with("NAME"));
    }
}
