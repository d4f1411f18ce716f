//! `vellum zoned calibrate`: which zones disturb each other.

use super::args::CalibrateArgs;
use super::calibration::{Calibration, Calibrations};
use super::{device, inspect};
use crate::json;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write;
use std::time::Duration;
use vellum_service::Failure;
use vellum_zoned::calibrate::calibrate;
use vellum_zoned::device::Access;

/// Tries the device, and keeps what was found; what is to be printed.
pub(super) fn run(arguments: &CalibrateArgs) -> Result<String, Failure> {
    if !(1..=3600).contains(&arguments.limit) {
        return Err(Failure::input(format!("option --limit {}: give 1 to 3600 seconds", arguments.limit)));
    }
    let path = arguments.device.as_path();
    let calibrations = Calibrations::at(arguments.state.state.as_deref())?;
    let found = device::open(path, Access::Write)?;
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos} of {len} distances, {eta} left") {
        bar.set_style(style);
    }
    let findings = calibrate(&found, Duration::from_secs(arguments.limit), &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let failed = |e| Failure::system(format!("{}: cannot be calibrated", path.display())).because(e);
    let findings = findings.map_err(failed)?;
    let calibration = Calibration::new(found.identity.as_deref().unwrap_or_default(), &findings);
    let kept = match found.identity {
        Some(_) => Some(calibrations.keep(&calibration)?),
        None => None,
    };
    if arguments.json {
        return json::pretty(&calibration);
    }
    let mut text = text(&calibration);
    let kept = match kept {
        Some(kept) => format!("{}, for vellum zoned format", kept.display()),
        None => "nowhere: the kernel knows nothing to tell this device by".to_owned(),
    };
    let _ = writeln!(text, "{:<13}{kept}", "kept");
    Ok(text)
}

fn text(calibration: &Calibration) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<13}{value}");
    };
    line("found", &calibration.text);
    line("groups", &inspect::groups_text(calibration));
    if calibration.pairs > 0 {
        let rates = [calibration.read_rate, calibration.write_rate].map(|rate| rate as f64 / 1e6);
        line("one zone", &format!("read {:.0} MB/s, written {:.0} MB/s", rates[0], rates[1]));
    }
    for beside in &calibration.beside {
        let place = format!(
            "of two, beside {}: readers have {:.2}, writers {:.2} of that",
            beside.place, beside.readers, beside.writers
        );
        let waits = format!(
            "small reads wait {:.1}, small writes {:.1} times as long beside a writer",
            beside.reads_wait, beside.writes_wait
        );
        line("", &format!("{place}; {waits}"));
    }
    if calibration.write_buffer_is_shared {
        line("write buffer", "everybody's: images have to be paced, wherever they are");
    }
    text
}
