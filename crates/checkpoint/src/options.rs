//! How a checkpoint is written, as it is asked for.

use super::compression::Compress;
use super::pace::Pace;
use super::precopy::Precopy;

/// How a checkpoint is written.
#[derive(Clone, Debug, Default)]
pub struct CheckpointOptions {
    /// Beside others; none: as is usual where it is written.
    pub pace: Option<Pace>,
    /// How it is packed.
    pub compress: Compress,
    /// The checkpoint at the same place that has what has not changed since, and is needed from then on.
    pub parent: Option<String>,
    /// Whether memory is read once while the container runs.
    pub memory: Precopy,
}
