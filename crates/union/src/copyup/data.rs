//! Copying a file's data from one branch to another, with its holes.

use vellum_vfs::{BranchFile, Errno, Error, Result, Seek};

/// Bytes that one copying call moves at most when the kernel cannot do it alone.
const CHUNK: usize = 256 * 1024;

/// Copies the first `limit` bytes of `from` to `to`, which is empty or all hole. The size of `to` is left to the caller.
pub(crate) fn copy(to: &dyn BranchFile, from: &dyn BranchFile, limit: u64) -> Result<()> {
    let size = from.stat()?.size.min(limit);
    if limit == u64::MAX && size > 0 && to.clone_from(from).is_ok() {
        return Ok(());
    }
    let mut at = 0;
    while at < size {
        let start = match from.seek(at, Seek::Data) {
            Ok(start) => start,
            // Only a hole is left.
            Err(e) if e.errno() == Errno::NXIO => break,
            Err(e) if is_unsupported(&e) => at,
            Err(e) => return Err(e),
        };
        if start >= size {
            break;
        }
        let end = match from.seek(start, Seek::Hole) {
            Ok(end) => end.min(size),
            Err(e) if is_unsupported(&e) || e.errno() == Errno::NXIO => size,
            Err(e) => return Err(e),
        };
        if end <= start {
            return Err(Error::new(Errno::IO, "copy-up: holes are reported out of order"));
        }
        copy_extent(to, from, start, end)?;
        at = end;
    }
    Ok(())
}

fn copy_extent(to: &dyn BranchFile, from: &dyn BranchFile, start: u64, end: u64) -> Result<()> {
    let mut at = start;
    while at < end {
        match to.copy_range(at, from, at, end - at) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(e) if is_unsupported(&e) => break,
            Err(e) => return Err(e),
        }
    }
    let mut buffer = Vec::new();
    while at < end {
        if buffer.is_empty() {
            buffer = vec![0; CHUNK];
        }
        let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        let part = buffer.get_mut(..want).unwrap_or_default();
        let n = from.read_at(part, at)?;
        if n == 0 {
            // The lower has become shorter under our hands.
            return Err(Error::new(Errno::IO, "copy-up: the lower file has changed"));
        }
        let mut done = 0;
        while done < n {
            let written = to.write_at(part.get(done..n).unwrap_or_default(), at + done as u64)?;
            if written == 0 {
                return Err(Error::new(Errno::NOSPC, "copy-up"));
            }
            done += written;
        }
        at += n as u64;
    }
    Ok(())
}

fn is_unsupported(error: &Error) -> bool {
    matches!(error.errno(), Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::BADF)
}
