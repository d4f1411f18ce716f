//! Whether Vellum's library does anything in a process: without the socket of its service, or beside a program of another version,
//! it leaves all calls to the kernel and says nothing, and a comparison would be of something else.

use crate::failure::{Failure, Result, While};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file that is read, in the root of a mount.
const NAME: &str = "library-probe";
/// Reads of it; the library maps a file that is read again and again.
const READS: usize = 64;

/// Reads a file of a mount that the library is to map, and fails where it has not.
pub(crate) fn library(root: &Path) -> Result<()> {
    let path = root.join(NAME);
    let mut block = [0x5a; 4096];
    fs::write(&path, block).doing(|| "making a file")?;
    let file = File::open(&path).doing(|| "opening a file")?;
    (0..READS).try_for_each(|_| file.read_exact_at(&mut block, 0)).doing(|| "reading a file")?;
    let maps = fs::read_to_string("/proc/self/maps").doing(|| "looking for mappings")?;
    fs::remove_file(&path).doing(|| "removing a file")?;
    if maps.lines().any(|line| line.ends_with(NAME)) {
        return Ok(());
    }
    Err(Failure::new(
        "the library reads nothing from memory; is it of the same version as the program beside it?",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_mapped_without_a_library() {
        let dir = tempfile::tempdir().unwrap();
        assert!(library(dir.path()).unwrap_err().to_string().contains("same version"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
