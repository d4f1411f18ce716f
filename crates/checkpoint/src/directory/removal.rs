//! Removing a checkpoint that nobody has any more.
//!
//! Large files are cut piece by piece. ext4 frees all blocks of a file in one change of its journal, and an fsync of anybody waits for that: 20 ms for 512 MiB on a disk that
//! is told of freed blocks, and 3 ms this way, which takes as long.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, ftruncate, openat2};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vellum_sys::remove_tree;

/// Bytes that are cut off at once.
const PIECE: u64 = 16 << 20;

/// Where large files may be: an object, images, and images of a first pass.
const PLACES: [&str; 3] = [".", "images", "images/parent"];

/// Removes a checkpoint's directory and all that is in it.
pub(super) fn remove(dead: &Path) -> io::Result<()> {
    let of = |place: &str| fs::read_dir(dead.join(place)).into_iter().flatten().flatten();
    for large in PLACES.into_iter().flat_map(of).map(|entry| entry.path()) {
        // If it cannot be cut, it is removed at once.
        if let Err(error) = truncate(&large)
            && error != Errno::NOENT
        {
            tracing::debug!(%error, "{}: not cut before it is removed", large.display());
        }
    }
    remove_tree(dead)
}

/// Cuts a regular file of one name to a piece.
fn truncate(path: &Path) -> Result<(), Errno> {
    let len = fs::symlink_metadata(path).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    if !len.is_file() || len.nlink() > 1 || len.len() <= PIECE {
        return Ok(());
    }
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let pieces = (len.len() - 1) / PIECE;
    (1..=pieces).rev().try_for_each(|piece| ftruncate(&file, piece * PIECE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;

    #[test]
    fn removal_truncates_files_and_spares_link_targets() {
        let dir = tempfile::tempdir().unwrap();
        let dead = dir.path().join("dead");
        fs::create_dir_all(dead.join("images")).unwrap();
        for (name, len) in
            [("object", 3 * PIECE + 1), ("images/pages-1.img", 2 * PIECE), ("outside", 9 * PIECE)]
        {
            File::create(dead.join(name)).unwrap().set_len(len).unwrap();
        }
        let (outside, named) = (dir.path().join("outside"), dir.path().join("named"));
        fs::rename(dead.join("outside"), &outside).unwrap();
        symlink(&outside, dead.join("images/link")).unwrap();
        fs::hard_link(&outside, &named).unwrap();
        fs::hard_link(&outside, dead.join("images/other-name")).unwrap();
        truncate(&dead.join("object")).unwrap();
        assert_eq!(fs::metadata(dead.join("object")).unwrap().len(), PIECE);
        remove(&dead).unwrap();
        assert!(!dead.exists());
        assert_eq!(fs::metadata(&outside).unwrap().len(), 9 * PIECE);
    }

    #[test]
    fn removing_a_missing_directory_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        remove(&dir.path().join("dead")).unwrap();
    }
}
