//! After a mount has ended: its upper layer is made readable without Vellum, as far as that is done in some seconds.
//!
//! A file that takes data from other layers reads as zeros where somebody reads the upper as a plain directory. So what is missing
//! is copied, by the service that served the mount and holds the right to its upper, until somebody else wants that.

use crate::config::Config;
use crate::instance::explain::Explain;
use crate::layers::lock::DirLock;
use std::time::{Duration, Instant};

/// Bytes per second, unless the rate of idle times is given.
const RATE: u64 = 128 << 20;
/// Longest time without a look whether somebody waits.
const STEP: Duration = Duration::from_millis(10);

/// Completes what may be completed. Nothing happens where nothing is missing.
pub(crate) fn complete(tree: &impl Explain, config: &Config, locks: &[DirLock]) {
    let is_wanted = || locks.iter().any(DirLock::is_wanted);
    let bytes = config.fill_at_end.0;
    if bytes == 0 || !config.writable() || locks.is_empty() || is_wanted() {
        return;
    }
    let rate = config.background_fill.unwrap_or(RATE).max(1);
    let begin = Instant::now();
    let done = tree.complete(bytes, &mut |copied| {
        let due = Duration::from_secs_f64(copied as f64 / rate as f64);
        loop {
            if is_wanted() {
                return false;
            }
            match due.checked_sub(begin.elapsed()) {
                None | Some(Duration::ZERO) => return true,
                Some(rest) => std::thread::sleep(rest.min(STEP)),
            }
        }
    });
    let upper = config.upper.as_ref().map(ToString::to_string);
    match done {
        Ok(None) => {}
        Ok(Some(what)) => tracing::info!(upper, "{what}"),
        Err(error) => {
            tracing::warn!(upper, %error, "files that take data from other layers stay so")
        }
    }
}
