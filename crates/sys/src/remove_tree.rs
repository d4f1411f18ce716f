//! Removing a tree that others have made: however deep it is, and whatever is being changed in it meanwhile.
//!
//! Somebody may still have a part of the tree open, and put a symbolic link where a directory was a moment ago. So nothing is reached by
//! a path: each directory is opened from the one above it by one name that may be no link and no mount, and entries are removed and moved
//! by these descriptors only.

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::fs::{openat2, renameat_with, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// As many directories are open at a time. What lies deeper is moved up first.
const OPEN_MAX: u32 = 32;
/// How often a directory is looked through that turns out not to be empty afterwards, or that nothing could be moved up from.
const ATTEMPTS: u32 = 16;

/// Removes `top` and all that is in it, without following links, also on the way to it. What is not there is removed.
pub fn remove_tree(top: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (top.parent(), top.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match retry_on_intr(|| openat2(rustix::fs::CWD, above, flags, Mode::empty(), resolve)) {
        Err(Errno::NOENT) => Ok(()),
        above => {
            let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
            Ok(remove_tree_at(above?, &name, u64::MAX)?)
        }
    }
}

/// Removes what has this name, with all that is in it. ENOTEMPTY: not all of it, after a look at `most` entries.
pub fn remove_tree_at(above: impl AsFd, name: &CStr, mut most: u64) -> Result<(), Errno> {
    let mut idle = 0;
    while !unlink(&above, name)? {
        let Some(top) = directory(&above, name)? else { continue };
        let mut tree = Tree { top: &top, number: 0, most };
        tree.clear(&top, 1)?;
        most = tree.most;
        idle = if tree.number == 0 { idle + 1 } else { 0 };
        if idle > ATTEMPTS {
            return Err(Errno::NOTEMPTY);
        }
    }
    Ok(())
}

struct Tree<'a> {
    top: &'a OwnedFd,
    /// Of directories that have been moved right below the top.
    number: u64,
    /// Entries that are still to be looked at.
    most: u64,
}

impl Tree<'_> {
    /// Removes what is in a directory of the tree, as far as that goes. `open`: so many are open with it.
    fn clear(&mut self, dir: &OwnedFd, open: u32) -> Result<(), Errno> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.most = self.most.checked_sub(1).ok_or(Errno::NOTEMPTY)?;
            if unlink(dir, name)? {
                continue;
            }
            if open < OPEN_MAX {
                self.clear_below(dir, name, open)?;
            } else {
                self.move_up(dir, name)?;
            }
        }
        Ok(())
    }

    fn clear_below(&mut self, dir: &OwnedFd, name: &CStr, open: u32) -> Result<(), Errno> {
        for _ in 0..ATTEMPTS {
            // What is a directory no longer is not opened, and removed by the next attempt.
            if let Some(inner) = directory(dir, name)? {
                self.clear(&inner, open + 1)?;
            }
            if unlink(dir, name)? {
                return Ok(());
            }
        }
        Err(Errno::NOTEMPTY)
    }

    /// Moves what has this name right below the top, by a name that nothing has there.
    fn move_up(&mut self, dir: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        loop {
            self.number += 1;
            let place = format!("deep-{}", self.number);
            match renameat_with(dir, name, self.top, place.as_str(), RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
}

/// Removes what is no directory, or an empty one. False: it has entries.
fn unlink(dir: impl AsFd, name: &CStr) -> Result<bool, Errno> {
    match unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(Errno::ISDIR) => {}
        // Some filesystems say so of directories, others of what must not be removed.
        Err(Errno::PERM) if directory(&dir, name)?.is_some() => {}
        Err(e) => return Err(e),
    }
    match unlinkat(&dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        // By now it is something else.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Opens a directory by its name. None: it is none.
fn directory(dir: impl AsFd, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    match retry_on_intr(|| openat2(&dir, name, flags, Mode::empty(), resolve)) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        // Where something is mounted.
        Err(Errno::XDEV) => Err(Errno::BUSY),
        opened => opened.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat, openat};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn depth_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("deep-1/x")).unwrap();
        fs::write(dir.path().join("outside"), "x").unwrap();
        symlink("../outside", top.join("link")).unwrap();
        let mut deep: OwnedFd = fs::File::open(&top).unwrap().into();
        for _ in 0..3000 {
            for name in ["another", "a-directory-with-a-name"] {
                mkdirat(&deep, name, Mode::RWXU).unwrap();
            }
            deep = openat(&deep, "a-directory-with-a-name", OFlags::RDONLY, Mode::empty()).unwrap();
        }
        remove_tree(&top).unwrap();
        assert!(!top.exists() && dir.path().join("outside").exists());
        remove_tree(&top).unwrap();
        remove_tree(&top.join("below")).unwrap();
    }

    #[test]
    fn removal_stops_at_its_entry_limit() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("top/a/b/c")).unwrap();
        fs::write(dir.path().join("top/a/file"), "").unwrap();
        let above = fs::File::open(dir.path()).unwrap();
        assert_eq!(remove_tree_at(&above, c"top", 3), Err(Errno::NOTEMPTY));
        remove_tree_at(&above, c"top", 4).unwrap();
        assert!(!dir.path().join("top").exists());
    }

    #[test]
    fn no_link_is_followed_on_the_way() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("real/inner")).unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        assert!(remove_tree(&dir.path().join("link/inner")).is_err());
        assert!(dir.path().join("real/inner").is_dir());
        remove_tree(&dir.path().join("link")).unwrap();
        assert!(dir.path().join("real/inner").is_dir());
        assert!(remove_tree(Path::new("/")).is_err());
    }

    /// Directories are exchanged with links that lead out of the tree, at all depths, while it is being removed.
    #[test]
    fn concurrently_planted_links_are_not_followed() {
        const PAIRS: u32 = 40;
        const ROUNDS: u32 = 6;
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        for number in 0..4 {
            fs::create_dir_all(victim.join(format!("important{number}/inner"))).unwrap();
            fs::write(victim.join(format!("important{number}/file")), "precious").unwrap();
        }
        let top = dir.path().join("top");
        let below = (0..OPEN_MAX + 4).fold(String::new(), |path, _| path + "d/");
        for _ in 0..ROUNDS {
            for at in ["", "a/", &below] {
                fs::create_dir_all(top.join(at)).unwrap();
                for number in 0..PAIRS {
                    fs::create_dir_all(top.join(format!("{at}s{number}/x/y"))).unwrap();
                    symlink(&victim, top.join(format!("{at}l{number}"))).unwrap();
                }
            }
            let open = |at: &str| fs::File::open(top.join(at)).unwrap();
            let held = [open("."), open("a"), open(&below)];
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        for (number, dir) in
                            (0..PAIRS).flat_map(|number| held.iter().map(move |dir| (number, dir)))
                        {
                            let (one, other) = (format!("s{number}"), format!("l{number}"));
                            let _ = renameat_with(dir, &one, dir, &other, RenameFlags::EXCHANGE);
                        }
                    }
                });
                let removed = remove_tree(&top);
                done.store(true, Relaxed);
                removed.unwrap();
            });
            assert!(openat(CWD, &top, OFlags::PATH, Mode::empty()).is_err());
        }
        for number in 0..4 {
            assert!(victim.join(format!("important{number}/inner")).is_dir());
            assert_eq!(fs::read(victim.join(format!("important{number}/file"))).unwrap(), b"precious");
        }
    }
}
