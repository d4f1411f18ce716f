//! An upper layer that is written behind, and what a predecessor has left of it to be written.

use super::Layers;
use crate::config::WritebackConfig;
use crate::failure::Failure;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vellum_branch::{Writeback, WritebackLimits};
use vellum_vfs::Errno;

/// Has the files of the upper layer written behind. `left`: the log of a predecessor, of which all is written before this returns. To be called
/// when the process has given its rights up: a thread is started.
pub(crate) fn write(
    layers: &mut Layers,
    WritebackConfig { bytes, age }: WritebackConfig,
    left: Option<OwnedFd>,
) -> Result<Arc<Writeback>, Failure> {
    let Some((upper, work)) = layers.upper.take() else {
        return Err(Failure::system("there is no upper layer that could be written behind"));
    };
    let limits = WritebackLimits { bytes, age };
    let name = upper.describe();
    let writeback = match left {
        None => Writeback::create(upper, work, limits).map_err(|e| match e.errno() {
            // Most of it is never touched, but all of it counts.
            Errno::FBIG => Failure::input(
                "limit of file size: too low for option ceph.dirty; raise the hard limit (ulimit -f)",
            ),
            _ => Failure::system(format!("layer {name}: memory for what is to be written")).because(e),
        })?,
        Some(memory) => {
            let lost = |why: &str| {
                Failure::system(format!(
                    "layer {name}: of what a service has left to be written {why}, and is lost"
                ))
            };
            let gone_on = Writeback::resume(upper, work, limits, memory);
            let (writeback, replayed) = gone_on.map_err(|e| lost("nothing can be read").because(e))?;
            let (changes, gone, failed) = (replayed.changes, replayed.gone, replayed.failed);
            tracing::info!(layer = name, changes, gone, failed, "written for a predecessor");
            if replayed.unread > 0 {
                return Err(lost(&format!("{} bytes make no sense", replayed.unread)));
            }
            writeback
        }
    };
    writeback.begin().map_err(|e| Failure::system("cannot start a thread").because(e))?;
    layers.upper = Some(writeback.branches());
    Ok(writeback)
}
