//! Whole reads of a layer's files.

use vellum_vfs::{BranchFile, Result};

/// Reads until `buf` is full or the file ends; says how much.
pub(crate) fn read_full(file: &dyn BranchFile, buf: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}
