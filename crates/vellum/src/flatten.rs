//! `vellum flatten`: upper layers that need no others any more.

use crate::cli::FlattenArgs;
use crate::inspect::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_service::instance::flatten;
use vellum_service::instance::flatten::Flattening;
use vellum_service::layers::store::{self, Layer};

/// Completes the upper layer, or those of a store; says what was done.
pub fn run(arguments: &FlattenArgs) -> Result<String, Failure> {
    let FlattenArgs { upper, lower, work } = arguments;
    if !store::is_upper(upper)
        && lower.is_empty()
        && let Ok(Some(layers)) = store::layers(upper)
    {
        return run_store(upper, &layers);
    }
    let done = complete(upper, lower, work.as_deref(), "")?;
    let shown = upper.display();
    let text = match done.files {
        0 => format!("{shown}: nothing to do, every file is whole\n"),
        _ => format!("{shown}: {}\n", summary(&done)),
    };
    let why = failures(&format!("{shown}: "), &done);
    if done.files_failed == 0 { Ok(text) } else { Err(partly(&(text + &why), upper)) }
}

fn complete(
    upper: &Path,
    lowers: &[PathBuf],
    work: Option<&Path>,
    prefix: &str,
) -> Result<Flattening, Failure> {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(
        "{prefix}{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left  {wide_msg}",
    ) {
        bar.set_style(style);
    }
    bar.set_prefix(prefix.to_owned());
    let done = flatten::run(upper, lowers, work, &mut |state| {
        bar.set_length(state.bytes);
        bar.set_position(state.bytes_done);
        bar.set_message(state.path.clone());
        true
    });
    bar.finish_and_clear();
    done
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
        match complete(&layer.upper, &layer.lowers, layer.work.as_deref(), &prefix) {
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
    let _ = writeln!(text, "{shown}: {whole} of {} layers that were written to are whole", layers.len());
    if whole == layers.len() { Ok(text) } else { Err(partly(&text, store)) }
}

fn summary(done: &Flattening) -> String {
    format!("{} of {} files completed, {} examined", done.files_done, done.files, size(done.bytes))
}

/// A line for each file that could not be completed; what a path holds stays on it.
fn failures(prefix: &str, done: &Flattening) -> String {
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
    Failure::system(format!("{}: not everything is whole, for the reasons above", shown.display()))
}
