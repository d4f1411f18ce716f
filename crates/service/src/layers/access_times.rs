//! Access times of files that the kernel reads by itself, in `passthrough`: the mount by which the service has opened the layer says
//! what becomes of them, so the upper layer is reached by a private copy of its mount that does what the options say.

use crate::config::{AccessTimes, Config, Profile};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// An upper layer and its work directory.
type Pair = (OwnedFd, OwnedFd);

/// The mount, and both directories by way of it: renames between them need one mount. None: not wanted, or not to be had; then the mount
/// of the layer decides.
pub(super) fn pair(config: &Config, paths: (&Path, &Path), plain: &Pair) -> Option<(OwnedFd, Pair)> {
    if config.profile != Profile::Passthrough {
        return None;
    }
    let always = match config.flags.access_times {
        AccessTimes::Never => None,
        AccessTimes::Relative => Some(false),
        AccessTimes::Always => Some(true),
    };
    try_pair(always, paths, plain)
        .inspect_err(
            |error| tracing::debug!(%error, "access times are as the mount of the upper layer has them"),
        )
        .ok()
}

fn try_pair(always: Option<bool>, paths: (&Path, &Path), plain: &Pair) -> Result<(OwnedFd, Pair), Errno> {
    let above = common(paths.0, paths.1);
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, &above, clone)?;
    vellum_sys::mount::set_access_times(&mount, always)?;
    let by_it = |path: &Path, plain: &OwnedFd| {
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let rest = path.strip_prefix(&above).map_err(|_| Errno::INVAL)?;
        let found = openat2(&mount, rest, flags, Mode::empty(), inside)?;
        if identity(&found)? == identity(plain)? { Ok(found) } else { Err(Errno::STALE) }
    };
    let pair = (by_it(paths.0, &plain.0)?, by_it(paths.1, &plain.1)?);
    // Files are handed to programs by further mounts of the upper; before Linux 6.15 there are none of one that is not in the tree.
    drop(open_tree(&pair.0, "", clone | OpenTreeFlags::from_bits_retain(AtFlags::EMPTY_PATH.bits()))?);
    Ok((mount, pair))
}

fn identity(fd: &OwnedFd) -> Result<(u32, u32, u64), Errno> {
    let stat = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

/// The deepest directory that both are in.
fn common(one: &Path, other: &Path) -> PathBuf {
    one.components().zip(other.components()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_directories_have_a_common_one() {
        assert_eq!(common(Path::new("/a/b/diff"), Path::new("/a/b/work")), Path::new("/a/b"));
        assert_eq!(common(Path::new("/a/b"), Path::new("/ab/c")), Path::new("/"));
    }
}
