//! Small files made, looked at and removed, one after the other, by processes that have a directory each: what containers do at
//! their start, in builds, and at their end. Whatever a system call takes to reach the filesystem is most of it.

use crate::failure::{Failure, Result, While};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What is in a file.
const BLOCK: [u8; 4096] = [0x5a; 4096];

/// What is done with each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// It is made, written and closed.
    Create,
    /// It is looked at (lstat).
    Stat,
    /// It is removed.
    Unlink,
}

/// The names of so many files in `dir`.
fn paths(dir: &Path, files: usize) -> Vec<PathBuf> {
    (0..files).map(|number| dir.join(format!("file-{number:06}"))).collect()
}

/// Makes the files, for another process to work with.
pub fn make(dir: &Path, files: usize) -> Result<()> {
    work(Kind::Create, &paths(dir, files))
}

/// The paths that are to be worked with. One of each operation is done, so that what happens once in a process has happened.
pub fn prepare(dir: &Path, files: usize) -> Result<Vec<PathBuf>> {
    let first = [dir.join("first")];
    [Kind::Create, Kind::Stat, Kind::Unlink].into_iter().try_for_each(|kind| work(kind, &first))?;
    Ok(paths(dir, files))
}

/// Does it with each file.
pub fn work(kind: Kind, paths: &[PathBuf]) -> Result<()> {
    let each: fn(&Path) -> Result<()> = match kind {
        Kind::Create => create,
        Kind::Stat => stat,
        Kind::Unlink => unlink,
    };
    paths.iter().try_for_each(|path| each(path))
}

fn create(path: &Path) -> Result<()> {
    let mut file = File::create_new(path).doing(|| format!("making {}", path.display()))?;
    file.write_all(&BLOCK).doing(|| format!("writing {}", path.display()))
}

fn stat(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path).doing(|| format!("lstat of {}", path.display()))?;
    if found.len() == BLOCK.len() as u64 {
        return Ok(());
    }
    Err(Failure::new(format!("{} has {} bytes", path.display(), found.len())))
}

fn unlink(path: &Path) -> Result<()> {
    fs::remove_file(path).doing(|| format!("removing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_looked_at_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let count = || fs::read_dir(dir.path()).unwrap().count();
        make(dir.path(), 3).unwrap();
        let paths = prepare(dir.path(), 3).unwrap();
        assert_eq!((count(), fs::read(&paths[2]).unwrap().len()), (3, BLOCK.len()));
        assert!(work(Kind::Create, &paths).is_err(), "none is made twice");
        work(Kind::Stat, &paths).unwrap();
        work(Kind::Unlink, &paths).unwrap();
        assert_eq!(count(), 0);
        assert!(work(Kind::Stat, &paths).unwrap_err().to_string().contains("lstat of"));
    }
}
