//! A control group whose writes to a disk are limited.

use crate::failure::{Failure, Result, While};
use rustix::fs::{major, minor, stat};
use rustix::thread::gettid;
use std::fs;
use std::path::{Path, PathBuf};

/// Where groups of version 1 for disks are. In those of version 2 single threads have no limit of their own.
const GROUPS: &str = "/sys/fs/cgroup/blkio";
/// The file that takes threads.
const MEMBERS: &str = "tasks";

/// The group; it is taken away when this is dropped, which its threads must have left by their end.
pub(super) struct Limit {
    group: PathBuf,
}

impl Limit {
    /// Makes a group that writes so many bytes per second to the disk of a directory.
    pub(super) fn new(directory: &Path, rate: u64) -> Result<Self> {
        if !Path::new(GROUPS).join(MEMBERS).exists() {
            return Err(Failure::new(format!("no control groups of version 1 at {GROUPS}")));
        }
        let device = stat(directory).doing(|| format!("looking at {}", directory.display()))?.st_dev;
        let group = Path::new(GROUPS).join(format!("vellum-bench-{}", std::process::id()));
        fs::create_dir(&group).doing(|| format!("making the control group {}", group.display()))?;
        let new = Self { group };
        let file = new.group.join("blkio.throttle.write_bps_device");
        let line = format!("{}:{} {rate}", major(device), minor(device));
        fs::write(&file, line).doing(|| format!("writing {}", file.display()))?;
        Ok(new)
    }

    /// This thread is in it from now on.
    pub(super) fn enter(&self) -> Result<()> {
        let file = self.group.join(MEMBERS);
        let thread = gettid().as_raw_nonzero().to_string();
        fs::write(&file, thread).doing(|| format!("writing {}", file.display()))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.group);
    }
}
