//! The way to an entry of a layer, which never leaves the layer: the kernel resolves every name beneath the layer's root, as if that
//! was `/`, so that neither `..` nor a symbolic link that an earlier entry has made leads outside.

use super::implicit_dirs;
use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// How often a lookup is tried again that somebody's rename elsewhere has disturbed.
const ATTEMPTS: u32 = 100;

/// The mode of directories that an archive does not mention.
const UNMENTIONED: u32 = 0o755;

/// The parts of an entry's name below the layer's root. It may begin with a slash, and take back parts before by `..`, as other tools
/// have it: without a look at what is there. One that leads above the root is refused.
pub(super) fn parts(name: &[u8]) -> Result<Vec<&OsStr>, &'static str> {
    if name.contains(&0) {
        return Err("a name with a zero byte");
    }
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop().ok_or("a name that leads out of the layer by ..")?),
            _ => parts.push(OsStr::from_bytes(part)),
        }
    }
    Ok(parts)
}

/// Opens what `parts` lead to beneath `root`, following symbolic links there but for the last part.
pub(crate) fn open_beneath(root: impl AsFd, parts: &[&OsStr], flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = match parts {
        [] => OsStr::new(".").to_owned(),
        _ => parts.join(OsStr::new("/")),
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut last = Errno::AGAIN;
    for _ in 0..ATTEMPTS {
        match openat2(&root, &path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(e @ (Errno::AGAIN | Errno::INTR)) => last = e,
            other => return other,
        }
    }
    Err(last)
}

/// The directory that `parts` lead to; what is missing of it is made, and marked as implied.
pub(super) fn directory(root: impl AsFd, parts: &[&OsStr]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut there = parts.len();
    let mut dir = loop {
        let some = parts.get(..there).unwrap_or_default();
        match open_beneath(&root, some, flags) {
            Err(Errno::NOENT) if there > 0 => there -= 1,
            other => break other?,
        }
    };
    for (at, part) in parts.iter().enumerate().skip(there) {
        match mkdirat(&dir, *part, Mode::RWXU) {
            // A symbolic link to nothing; to follow it fails below.
            Err(Errno::EXIST) => {}
            Ok(()) => imply(&dir, part)?,
            Err(e) => return Err(e),
        }
        dir = open_beneath(&root, parts.get(..=at).unwrap_or_default(), flags)?;
    }
    Ok(dir)
}

/// Gives a directory that has just been made the mode and the mark of those that no entry is about.
fn imply(above: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(above, name, flags, Mode::empty())?;
    rustix::fs::fchmod(&dir, Mode::from_raw_mode(UNMENTIONED))?;
    implicit_dirs::mark(&dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_stay_inside() {
        let of = |name: &str| {
            parts(name.as_bytes()).map(|parts| parts.join(OsStr::new("/")).into_string().unwrap())
        };
        assert_eq!(of("./a//b/./c/"), Ok("a/b/c".to_owned()));
        assert_eq!(of("./"), Ok(String::new()));
        assert_eq!(of("//a/./b"), Ok("a/b".to_owned()));
        assert_eq!(of("/"), Ok(String::new()));
        assert_eq!(of("a/../b/c/../d"), Ok("b/d".to_owned()));
        assert_eq!(of("a/.."), Ok(String::new()));
        for bad in ["..", "../a", "/../a", "a/../../b", "a\0b"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn links_stay_inside_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/real")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        let root = fs::File::open(dir.path().join("root")).unwrap();
        symlink(dir.path().join("outside"), dir.path().join("root/absolute")).unwrap();
        symlink("../outside", dir.path().join("root/up")).unwrap();
        symlink("/real", dir.path().join("root/inside")).unwrap();
        symlink("nothing", dir.path().join("root/nothing")).unwrap();
        symlink("/proc/self/root", dir.path().join("root/magic")).unwrap();
        let made = |name: &str| directory(&root, &parts(name.as_bytes()).unwrap());
        made("inside/new/deep").unwrap();
        assert!(dir.path().join("root/real/new/deep").is_dir());
        for bad in ["absolute/x", "up/x", "nothing/x", "magic/x"] {
            assert!(made(bad).is_err(), "{bad}");
        }
        assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 0);
    }
}
