//! What several commands take as arguments.

use crate::failure::{Failure, Result, While};
use std::path::{Path, PathBuf};

/// No more rounds than this.
const ROUNDS_MAX: usize = 1000;
/// Factors of counts and sizes.
const SCALE_RANGE: std::ops::RangeInclusive<f64> = 0.001..=16.0;

/// How often something is done.
///
/// # Errors
/// It is not a number of times.
pub fn check_rounds(rounds: usize) -> Result<()> {
    if (1..=ROUNDS_MAX).contains(&rounds) {
        return Ok(());
    }
    Err(Failure::bad_input(format!("option --rounds {rounds}: give a number from 1 to {ROUNDS_MAX}")))
}

/// The directory that was named, or that for temporary files.
///
/// # Errors
/// There is no such directory.
pub fn directory(given: Option<&Path>) -> Result<PathBuf> {
    let directory = given.map_or_else(std::env::temp_dir, Path::to_owned);
    if directory.is_dir() {
        return Ok(directory);
    }
    let shown = directory.display();
    Err(Failure::bad_input(format!("option --dir {shown}: no such directory; give one on the disk")))
}

/// A new directory in another one.
pub fn directory_in(directory: &Path) -> Result<PathBuf> {
    let new = directory.join(format!("vellum-bench-{}", std::process::id()));
    std::fs::create_dir(&new).doing(|| format!("making {}", new.display()))?;
    Ok(new)
}

/// Writes what was found to a file, where one was named.
pub fn write_json<T: serde::Serialize>(file: Option<&Path>, report: &T) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(report).doing(|| "writing the results")?;
    std::fs::write(file, text + "\n").doing(|| format!("writing {}", file.display()))
}

/// A factor for sizes and counts.
///
/// # Errors
/// Nothing of use would come of it.
pub fn check_scale(scale: f64) -> Result<()> {
    if SCALE_RANGE.contains(&scale) {
        return Ok(());
    }
    let (low, high) = (SCALE_RANGE.start(), SCALE_RANGE.end());
    Err(Failure::bad_input(format!("option --scale {scale}: give a factor from {low} to {high}")))
}
