//! Checkpoints of containerd's containers. The script is in tests/engines.

use super::support::criu;
use crate::cases::engines;
use crate::harness::outcome::{Outcome, skip};
use crate::harness::{Cx, shell};

/// Containerd of this host, with the CRIU that was found for it.
pub(super) fn of_debian_12(cx: &Cx) -> Outcome {
    if !shell::have("containerd") || !shell::have("ctr") {
        return skip("containerd is missing: run make deps");
    }
    engines::give_library(cx)?;
    engines::containerd(cx, "containerd.sh", &[("PATH", criu()?)])
}
