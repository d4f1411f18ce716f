//! In version 1 a share is a limit, and memory that is no page cache may grow faster than limits are moved. While a group has less than the
//! limit that it had, the kernel does not kill at the limit: who needs memory waits, the kernel tells, and the group has its old limit again.
//! There the kernel kills as ever.

use super::groups::number_after;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Whether the kernel killed before, as an attribute of the group: a killed process leaves it to the next one.
const BEFORE: &str = "trusted.vellum.oom";

/// What a group does at its limit. It is as before when this is dropped.
#[derive(Debug)]
pub(super) struct Oom {
    dir: PathBuf,
    control: PathBuf,
    /// `oom_kill_disable` as it was.
    before: bool,
    now: Cell<bool>,
    event: OwnedFd,
}

impl Oom {
    /// None: the group has no such thing, or has gone.
    pub(super) fn take(dir: &Path) -> Option<Self> {
        let control = dir.join("memory.oom_control");
        let now = field(&control, "oom_kill_disable")?;
        let mut value = [0; 1];
        let before = match (getxattr(dir, BEFORE, value.as_mut_slice()), value) {
            (Ok(1), [b'0' | b'1']) => value == *b"1",
            _ => now,
        };
        let value: &[u8] = if before { b"1" } else { b"0" };
        // Without it a process after this one would take ours for what was before.
        setxattr(dir, BEFORE, value, XattrFlags::empty()).ok()?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let watched = File::open(&control).ok()?;
        let events = dir.join("cgroup.event_control");
        fs::write(&events, format!("{} {}", event.as_raw_fd(), watched.as_raw_fd())).ok()?;
        // Told some time before: next to nothing of what is looked at can be dropped. The kernel need not have it.
        if let Ok(pressure) = File::open(dir.join("memory.pressure_level")) {
            let _ = fs::write(&events, format!("{} {} critical", event.as_raw_fd(), pressure.as_raw_fd()));
        }
        Some(Self { dir: dir.to_owned(), control, before, now: Cell::new(now), event })
    }

    /// From here on who needs memory at the limit waits. False: that cannot be had.
    pub(super) fn wait(&self) -> bool {
        self.set(true).is_ok()
    }

    /// From here on the kernel does at the limit what it did before.
    pub(super) fn restore(&self) {
        if let Err(error) = self.set(self.before)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, file = %self.control.display(), "the kernel does not kill at its limit");
        }
    }

    fn set(&self, disabled: bool) -> io::Result<()> {
        if self.now.get() != disabled {
            fs::write(&self.control, if disabled { "1" } else { "0" })?;
            self.now.set(disabled);
        }
        Ok(())
    }

    /// Readable when it may be short of memory.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Whether that has been told since this was asked.
    pub(super) fn was_notified(&self) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&self.event, &mut count).is_ok()
    }

    /// Whether somebody waits for memory.
    pub(super) fn has_waiting(&self) -> bool {
        field(&self.control, "under_oom").unwrap_or(false)
    }
}

impl Drop for Oom {
    fn drop(&mut self) {
        self.now.set(!self.before);
        self.restore();
        let _ = removexattr(&self.dir, BEFORE);
    }
}

fn field(control: &Path, name: &str) -> Option<bool> {
    Some(number_after(&fs::read_to_string(control).ok()?, name)? == 1)
}
