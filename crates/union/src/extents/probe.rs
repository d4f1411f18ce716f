//! Whether a filesystem tells holes from data exactly.

use std::ffi::CStr;
use vellum_vfs::{BranchDir, BranchFile, Errno, Name, Result, Seek};

/// The file that is tried with, in a directory that nobody else uses.
const NAME: &CStr = c"#holes";

/// Binary logarithm of the size of the blocks in which the filesystem of `dir` reports holes exactly; None: it does not.
pub(crate) fn hole_shift(dir: &dyn BranchDir) -> Option<u8> {
    let name = Name::new(NAME).ok()?;
    let found = dir.create(name, 0o600).and_then(|file| find(&*file));
    let _ = dir.remove(name);
    found.unwrap_or_else(|error| {
        tracing::info!(%error, "the upper layer's filesystem reports no holes: files are copied whole");
        None
    })
}

/// Tries with what granularity a new file's holes are reported, and that reserved blocks count as holes.
fn find(file: &dyn BranchFile) -> Result<Option<u8>> {
    const RESERVED: u64 = 8;
    // Where the filesystem's blocks are smaller, a crash may leave a part of ours.
    if u64::from(file.stat()?.blksize) < 4096 {
        return Ok(None);
    }
    for shift in [12, 16] {
        let block = 1_u64 << shift;
        file.truncate(0)?;
        file.truncate(16 * block)?;
        let data = vec![1; 1 << shift];
        if file.write_at(&data, 2 * block)? != data.len() {
            return Ok(None);
        }
        match file.allocate(0, RESERVED * block, block) {
            Err(e) if !matches!(e.errno(), Errno::OPNOTSUPP | Errno::NOSYS) => return Err(e),
            _ => {}
        }
        let exact = file.seek(0, Seek::Data)? == 2 * block && file.seek(2 * block, Seek::Hole)? == 3 * block;
        let rest = file.seek(3 * block, Seek::Data);
        if exact && matches!(rest, Err(e) if e.errno() == Errno::NXIO) {
            return Ok(Some(shift));
        }
    }
    Ok(None)
}
