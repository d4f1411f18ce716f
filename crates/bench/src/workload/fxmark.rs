//! Two of FxMark's microbenchmarks (Min et al., "Understanding Manycore Scalability of File Systems", USENIX ATC 2016),
//! which Enhanced OverlayFS (Han, 2023) is measured by: every process works on one block of a file of its own, so
//! whatever they still share is the filesystem's.
//!
//! FxMark counts what is done in a fixed time; here a fixed number of operations is timed, so that the work is the same
//! on every filesystem.
//!
//! A third loop of the same form is ours: small reads at random, as a database's index makes them.

use crate::failure::{Result, While};
use crate::tree;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use vellum_zoned::device::emulator::Random;

/// A block, in bytes.
pub const BLOCK: usize = 4096;

/// What small reads are of, in bytes.
const SMALL: usize = 512;
/// The file that they are from, in bytes.
const SMALL_FILE: u64 = 64 << 20;

/// Which of them, by FxMark's names: data, read or (over)write, block, low sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Reads one block of a private file.
    Drbl,
    /// Overwrites one block of a private file.
    Dwol,
    /// Reads 512 bytes here and there in a private file of 64 MiB.
    Small,
}

/// The file of a worker, in `root`.
#[must_use]
pub fn file(root: &Path, worker: usize) -> PathBuf {
    root.join(format!("private-{worker}"))
}

/// Makes the file with what it holds, and opens it as the benchmark uses it.
pub fn prepare(kind: Kind, path: &Path) -> Result<File> {
    if kind == Kind::Small {
        return prepare_small(path);
    }
    let say = || format!("making {}", path.display());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).doing(say)?;
    file.write_all_at(&[0x5a; BLOCK], 0).doing(say)?;
    file.sync_all().doing(say)?;
    Ok(file)
}

/// All of it in the page cache, and opened to be read only.
fn prepare_small(path: &Path) -> Result<File> {
    let say = || format!("making {}", path.display());
    tree::write_large(path, SMALL_FILE)?;
    let file = File::open(path).doing(say)?;
    file.sync_all().doing(say)?;
    std::io::copy(&mut &file, &mut std::io::sink()).doing(say)?;
    Ok(file)
}

/// Reads or overwrites the block so often.
pub fn work(kind: Kind, file: &File, operations: usize) -> Result<()> {
    let mut block = [0xa5; BLOCK];
    let mut small = [0; SMALL];
    let mut random = Random::new(7);
    let places = SMALL_FILE as usize / SMALL;
    for _ in 0..operations {
        match kind {
            Kind::Drbl => file.read_exact_at(&mut block, 0).doing(|| "reading a block")?,
            Kind::Dwol => file.write_all_at(&block, 0).doing(|| "overwriting a block")?,
            Kind::Small => {
                let at = random.below(places as u64) * SMALL as u64;
                file.read_exact_at(&mut small, at).doing(|| "reading a little")?;
            }
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
        let open = prepare(Kind::Drbl, &path).unwrap();
        work(Kind::Drbl, &open, 10).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0x5a; BLOCK]);
        work(Kind::Dwol, &open, 10).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0xa5; BLOCK]);
    }

    #[test]
    fn small_reads_stay_in_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), 0);
        let open = prepare(Kind::Small, &path).unwrap();
        assert_eq!(open.metadata().unwrap().len(), SMALL_FILE);
        work(Kind::Small, &open, 10_000).unwrap();
    }
}
