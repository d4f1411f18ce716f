//! The disk that a directory lies on.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A disk by its numbers, as control groups name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    /// The driver's number.
    pub major: u32,
    /// The disk's number with that driver.
    pub minor: u32,
}

/// The disks that hold `dirs`. A directory whose filesystem lies on no single disk (tmpfs, btrfs, overlayfs) adds none.
#[must_use]
pub(crate) fn disks<P: AsRef<Path>>(dirs: &[P]) -> BTreeSet<Disk> {
    dirs.iter().filter_map(|dir| disk(dir.as_ref())).collect()
}

fn disk(dir: &Path) -> Option<Disk> {
    let dev = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // Limits are for whole disks, and a partition lies in its disk's directory.
    let whole = if sys.join("partition").exists() { sys.parent()? } else { &sys };
    let text = fs::read_to_string(whole.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(Disk { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_filesystem_has_no_disk() {
        assert_eq!(disk(Path::new("/proc")), None);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(disk(&dir.path().join("missing")), None);
        assert!(disks(&["/", "/"]).len() <= 1);
    }
}
