//! Reads and writes of a layer that may come back early, until all is done.

use vellum_vfs::{Errno, Result};

/// Goes on until a step has done nothing. `step`: what is there from so many bytes on; None: there is no more to do.
fn all(mut step: impl FnMut(usize) -> Option<Result<usize, Errno>>) -> Result<usize> {
    let mut done = 0;
    while let Some(more) = step(done) {
        match more {
            Ok(0) => break,
            Ok(count) => done += count,
            // What has been done is good; the error comes again when the rest is asked for.
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

/// Fills `buf` from `offset` on; fewer bytes only at the end of the file, or before an error.
pub(crate) fn read(
    buf: &mut [u8],
    offset: u64,
    read: impl Fn(&mut [u8], u64) -> Result<usize, Errno>,
) -> Result<usize> {
    all(|done| {
        let rest = buf.get_mut(done..).filter(|rest| !rest.is_empty())?;
        Some(read(rest, offset.saturating_add(done as u64)))
    })
}

/// Writes `data` at `offset`, or as much as fits before an error.
pub(crate) fn write(
    data: &[u8],
    offset: u64,
    write: impl Fn(&[u8], u64) -> Result<usize, Errno>,
) -> Result<usize> {
    all(|done| {
        let rest = data.get(done..).filter(|rest| !rest.is_empty())?;
        Some(write(rest, offset.saturating_add(done as u64)))
    })
}
