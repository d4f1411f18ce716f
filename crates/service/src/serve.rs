//! From a configuration to a served mount, and to its end.

use crate::config::Config;
use crate::daemon::Pending;
use crate::failure::Failure;

/// Serves until the mount is gone.
pub fn run(config: &Config, pending: Option<Pending>) -> Result<(), Failure> {
    let _ = config;
    let failure = Failure::system("not wired yet");
    if let Some(pending) = pending {
        pending.failed(&failure);
    }
    Err(failure)
}
