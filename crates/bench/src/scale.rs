//! Sizes and counts at another scale.

/// `count` at a scale, at least 1.
pub(crate) fn scaled(count: usize, scale: f64) -> usize {
    ((count as f64 * scale).round() as usize).max(1)
}
