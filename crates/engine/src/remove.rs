//! Removing a tree that a container has made: however deep it is.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Removes `top` and all that is in it, without following links. What is not there is removed.
pub(crate) fn remove(top: &Path) -> io::Result<()> {
    match flatten(top) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && top.symlink_metadata().is_err() => Ok(()),
        Err(e) => Err(e),
        Ok(()) => fs::remove_dir_all(top),
    }
}

/// Moves every directory below `top` right into it, so that none is deep: removing a deep one takes a descriptor and a part of the stack
/// for each step.
fn flatten(top: &Path) -> io::Result<()> {
    let mut number = 0_u64;
    let mut todo: VecDeque<PathBuf> = directories(top)?.into();
    while let Some(dir) = todo.pop_front() {
        for inner in directories(&dir)? {
            let place = loop {
                number += 1;
                let place = top.join(format!("flat-{number}"));
                if place.symlink_metadata().is_err() {
                    break place;
                }
            };
            fs::rename(&inner, &place)?;
            todo.push_back(place);
        }
        fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

fn directories(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, mkdirat, openat};

    #[test]
    fn depth_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        fs::write(dir.path().join("outside"), "x").unwrap();
        std::os::unix::fs::symlink("../outside", top.join("link")).unwrap();
        let mut deep: std::os::fd::OwnedFd = fs::File::open(&top).unwrap().into();
        for _ in 0..3000 {
            mkdirat(&deep, "a-directory-with-a-name", Mode::RWXU).unwrap();
            deep = openat(&deep, "a-directory-with-a-name", OFlags::RDONLY, Mode::empty()).unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists() && dir.path().join("outside").exists());
        remove(&top).unwrap();
    }
}
