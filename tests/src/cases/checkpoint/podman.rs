//! Checkpoints of podman's containers. The script is in tests/engines.

use super::support::criu;
use crate::cases::engines;
use crate::harness::Cx;
use crate::harness::outcome::Outcome;

const SCRIPT: &str = "checkpoint.sh";

/// Podman of this host, with the CRIU that was found for it.
pub(super) fn of_debian_12(cx: &Cx) -> Outcome {
    engines::give_library(cx)?;
    engines::podman_4(cx, SCRIPT, &[("PATH", criu()?)])
}

pub(super) fn of_debian_13(cx: &Cx) -> Outcome {
    engines::give_library(cx)?;
    engines::podman_5(cx, SCRIPT, "NO_BUILD=1")
}
