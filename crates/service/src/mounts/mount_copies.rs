//! A filesystem that was unmounted here and lives on: in a mount namespace that has a copy of the mount.
//!
//! The kernel tells nobody of such copies, so the mounts of all processes are looked at. That is done for people, when something does
//! not end.

use super::mountpoint::{connections_of, mounts};
use rustix::fs::{fstat, major, minor};
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Where a filesystem is mounted, and a process that sees it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountCopy {
    process: u32,
    program: String,
    point: PathBuf,
}

impl fmt::Display for MountCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, program, point } = self;
        // Whoever made that process has chosen both: they are neither for a terminal nor for a shell as they are.
        let shown = point.to_string_lossy();
        let is_plain = shown.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:@".contains(c));
        let (program, shown) = (program.escape_debug(), shown.escape_debug());
        write!(
            f,
            "the mount namespace of process {process} ({program}) still has it at {shown}; end that process"
        )?;
        if is_plain { write!(f, ", or nsenter -t {process} -m umount {shown}") } else { Ok(()) }
    }
}

impl MountCopy {
    /// A filesystem by its device, as MAJOR:MINOR. None: nobody else has it mounted, as far as this process may see.
    #[must_use]
    pub fn of_device(device: &str) -> Option<Self> {
        let own = fs::read_link("/proc/self/ns/mnt").ok();
        let mut seen: HashSet<PathBuf> = own.into_iter().collect();
        processes().find_map(|process| {
            let namespace = fs::read_link(format!("/proc/{process}/ns/mnt")).ok()?;
            if !seen.insert(namespace) {
                return None;
            }
            let point = mounts(&process.to_string()).into_iter().find(|mount| mount.device == device)?.point;
            let program = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            Some(Self { process, program: program.trim_end().to_owned(), point })
        })
    }

    /// One that a process serves and that is not mounted where that process is any more.
    #[must_use]
    pub fn of_service(process: u32) -> Option<Self> {
        let process = process.to_string();
        let here = mounts(&process);
        let is_here = |device: &String| here.iter().any(|mount| mount.device == *device);
        let mut gone = connections_of(&process).into_iter().filter(|device| !is_here(device));
        gone.find_map(|device| Self::of_device(&device))
    }

    /// One whose service holds the lock of this directory.
    pub(crate) fn of_locked(dir: impl AsFd) -> Option<Self> {
        let stat = fstat(dir).ok()?;
        // As the kernel writes it.
        let inode = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
        let holds = |text: &str| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some("lock:")
                    && words.clone().any(|word| word == "FLOCK")
                    && words.any(|word| word == inode)
            })
        };
        processes().filter(|process| is_service(*process)).find_map(|process| {
            let open = fs::read_dir(format!("/proc/{process}/fdinfo")).ok()?;
            let mut texts = open.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
            texts.any(|text| holds(&text)).then(|| Self::of_service(process)).flatten()
        })
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether it is one of ours: others have too much open to be looked at.
fn is_service(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.starts_with("vellum"))
}
