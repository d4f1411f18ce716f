//! `vellum flatten`: upper layers that need no others any more.

use crate::cli::FlattenArgs;
use crate::inspect::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vellum_service::instance::flatten::{self, FlattenRequest, FlattenRun};
use vellum_service::layers::ceph::Cluster;
use vellum_service::layers::store::{self, Layer};
use vellum_service::{Failure, LayerSource};

/// The exit status of who has been told twice, as shells know it for SIGINT.
const INTERRUPTED: i32 = 130;

/// Completes the upper layer, or those of a store; says what was done.
pub fn run(arguments: &FlattenArgs) -> Result<String, Failure> {
    let FlattenArgs { upper, lower, .. } = arguments;
    if !store::is_upper(upper)
        && lower.is_empty()
        && let Ok(Some(layers)) = store::layers(upper)
    {
        return run_store(upper, &layers);
    }
    let done = complete(&request(arguments)?, "")?;
    let shown = upper.display();
    let text = match done.files {
        0 => format!("{shown}: nothing to do, every file is complete\n"),
        _ => format!("{shown}: {}\n", summary(&done)),
    };
    let why = failures(&format!("{shown}: "), &done);
    if done.files_failed == 0 { Ok(text) } else { Err(partly(&(text + &why), upper)) }
}

/// What was named, with the cluster of what is on CephFS. Refuses a cluster that nothing is on.
fn request(arguments: &FlattenArgs) -> Result<FlattenRequest, Failure> {
    let named = |path: &PathBuf| LayerSource::named(path.clone().into());
    let mut wanted = FlattenRequest {
        upper: named(&arguments.upper),
        lowers: arguments.lower.iter().map(named).collect(),
        work: arguments.work.as_ref().map(named),
    };
    let cluster = Cluster::from(arguments.cluster.clone());
    let mut any = false;
    for source in [&mut wanted.upper].into_iter().chain(&mut wanted.lowers).chain(&mut wanted.work) {
        if let LayerSource::Ceph(layer) = source {
            layer.cluster = cluster.clone();
            any = true;
        }
    }
    if any || cluster == Cluster::default() {
        return Ok(wanted);
    }
    Err(Failure::input(
        "options --ceph-conf, --ceph-id and --ceph-fs: nothing is on CephFS; give ceph:PATH or --lower ceph:PATH, or leave them out",
    ))
}

fn complete(wanted: &FlattenRequest, prefix: &str) -> Result<FlattenRun, Failure> {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(
        "{prefix}{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left  {wide_msg}",
    ) {
        bar.set_style(style);
    }
    bar.set_prefix(prefix.to_owned());
    let stop = if wanted.upper.ceph().is_some() { Some(stops()?) } else { None };
    let stopped = || stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
    let done = flatten::run(wanted, &mut |state| {
        bar.set_length(state.bytes);
        bar.set_position(state.bytes_done);
        bar.set_message(state.path.clone());
        !stopped()
    });
    bar.finish_and_clear();
    let is_at_end = |done: &FlattenRun| done.files_done + done.files_failed >= done.files;
    if stopped() && done.as_ref().is_ok_and(|done| !is_at_end(done)) {
        return Err(Failure::system(format!(
            "{}: interrupted; run the command again to continue",
            wanted.upper
        )));
    }
    done
}

/// What a signal sets, and a second one ends the process: who dies on a cluster keeps the layer until his client is forgotten.
fn stops() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|e| Failure::system("cannot watch for signals").because(e))?;
    }
    Ok(stop)
}

/// Each layer of a store is a matter of its own: what is wrong with one is said, and the next one comes.
fn run_store(store: &Path, layers: &[Layer]) -> Result<String, Failure> {
    let shown = store.display();
    let mut text = String::new();
    let mut whole = 0_usize;
    for (number, layer) in layers.iter().enumerate() {
        let name = &layer.name;
        if flatten::is_in_use(&layer.upper) {
            let _ = writeln!(text, "{name}: in use, left as it is; stop what uses it and run this again");
            continue;
        }
        let prefix = format!("{} of {}  ", number + 1, layers.len());
        let wanted = FlattenRequest {
            upper: layer.upper.as_path().into(),
            lowers: layer.lowers.iter().map(|lower| lower.as_path().into()).collect(),
            work: layer.work.as_deref().map(LayerSource::from),
        };
        match complete(&wanted, &prefix) {
            Ok(done) => {
                if done.files > 0 {
                    let _ = writeln!(text, "{name}: {}", summary(&done));
                }
                if done.files_failed == 0 {
                    whole += 1;
                }
                text.push_str(&failures(&format!("{name}: "), &done));
            }
            Err(failure) => {
                let _ = writeln!(text, "{name}: {failure}");
            }
        }
    }
    let _ = writeln!(text, "{shown}: {whole} of {} changed layers are complete", layers.len());
    if whole == layers.len() { Ok(text) } else { Err(partly(&text, store)) }
}

fn summary(done: &FlattenRun) -> String {
    format!("{} of {} files completed, {} examined", done.files_done, done.files, size(done.bytes))
}

/// A line for each file that could not be completed; what a path holds stays on it.
fn failures(prefix: &str, done: &FlattenRun) -> String {
    let mut text = String::new();
    for (path, why) in &done.failed {
        let _ = writeln!(text, "{}", Failure::system(format!("{prefix}{path}: {why}")));
    }
    let more = done.files_failed.saturating_sub(done.failed.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "{prefix}{more} more files cannot be completed");
    }
    text
}

/// What was done, and why not all was, goes to standard output; that it was not is the failure.
fn partly(text: &str, shown: &Path) -> Failure {
    print!("{text}");
    Failure::system(format!("{}: not everything is complete, for the reasons above", shown.display()))
}
