//! `vellum flatten`: an upper layer that needs no other any more.

use crate::cli::FlattenArgs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vellum_service::{Failure, flatten};

/// Completes the upper layer; says in one line what was done.
pub fn run(arguments: &FlattenArgs) -> Result<String, Failure> {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left  {wide_msg}",
    ) {
        bar.set_style(style);
    }
    let done = flatten::run(&arguments.upper, &arguments.lower, arguments.work.as_deref(), &mut |state| {
        bar.set_length(state.bytes);
        bar.set_position(state.bytes_done);
        bar.set_message(state.path.clone());
        true
    });
    bar.finish_and_clear();
    let done = done?;
    Ok(match done.files {
        0 => format!("{}: nothing to do, every file is whole\n", arguments.upper.display()),
        files => format!(
            "{}: {files} files completed, {} examined\n",
            arguments.upper.display(),
            crate::inspect::size(done.bytes)
        ),
    })
}
