//! Two of FxMark's microbenchmarks (Min et al., "Understanding Manycore Scalability of File Systems", USENIX ATC 2016),
//! which Enhanced OverlayFS (Han, 2023) is measured by: every process works on one block of a file of its own, so
//! whatever they still share is the filesystem's.
//!
//! FxMark counts what is done in a fixed time; here a fixed number of operations is timed, so that the work is the same
//! on every filesystem.

use crate::failure::{Result, While};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A block, in bytes.
pub const BLOCK: usize = 4096;

/// Which of them, by FxMark's names: data, read or (over)write, block, low sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Reads one block of a private file.
    Drbl,
    /// Overwrites one block of a private file.
    Dwol,
}

/// The file of a worker, in `root`.
#[must_use]
pub fn file(root: &Path, worker: usize) -> PathBuf {
    root.join(format!("private-{worker}"))
}

/// Makes the file with its block, and opens it as the benchmark uses it.
pub fn prepare(path: &Path) -> Result<File> {
    let say = || format!("making {}", path.display());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).doing(say)?;
    file.write_all_at(&[0x5a; BLOCK], 0).doing(say)?;
    file.sync_all().doing(say)?;
    Ok(file)
}

/// Reads or overwrites the block so often.
pub fn work(kind: Kind, file: &File, operations: usize) -> Result<()> {
    let mut block = [0xa5; BLOCK];
    for _ in 0..operations {
        match kind {
            Kind::Drbl => file.read_exact_at(&mut block, 0).doing(|| "reading a block")?,
            Kind::Dwol => file.write_all_at(&block, 0).doing(|| "overwriting a block")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_leaves_the_block_and_overwriting_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), 3);
        let open = prepare(&path).unwrap();
        work(Kind::Drbl, &open, 10).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0x5a; BLOCK]);
        work(Kind::Dwol, &open, 10).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0xa5; BLOCK]);
    }
}
