//! Restoring: whoever ran the container has it go on.

use super::location::Checkpoints;
use super::record::ContainerEngine;
use super::stream;
use crate::containerd::{self, Containerd};
use crate::podman::{self, Podman};
use std::path::Path;
use vellum_container::criu::Criu;
use vellum_container::{ContainerExit, Restore, State};
use vellum_pool::privilege::is_host_root;
use vellum_service::Failure;

/// Has a container go on. `checkpoint`: DIR/NAME, or `zoned:DEVICE/NAME`. None: standard input, as a stream.
pub fn restore(checkpoint: Option<&Path>, asked: &Restore) -> Result<ContainerExit, Failure> {
    if !is_host_root() {
        return Err(Failure::input("only root of the host can restore containers"));
    }
    let (store, state) =
        (checkpoint.map(Checkpoints::from_path).transpose()?, State::open(asked.state.as_deref())?);
    let (saved, record) = match store {
        Some((store, name)) => store.find(&name, state.directory())?,
        None => stream::received(state.directory())?,
    };
    match record.of {
        ContainerEngine::Run { lowers, settings } => {
            vellum_container::restore(asked, &record.container, &saved, lowers, *settings)
        }
        ContainerEngine::Podman(described) => {
            let podman = Podman::find(&Criu::find()?)?;
            podman::restore(asked, podman, &saved, &record.container, &described)
        }
        ContainerEngine::Containerd(described) => {
            let containerd = Containerd::find(&Criu::find()?)?;
            containerd::restore(asked, containerd, &saved, &record.container, &described)
        }
    }
}
