//! An instance of the kernel's own tracing that is ours alone, so that nobody else's is disturbed.

use crate::failure::{Result, While};
use crate::interrupt;
use crate::programs;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kernel memory for events of all processors together, in KiB, and how much of it one has at least and at most. An event takes some
/// 72 bytes, and a service that looks for requests without sleeping makes a million of them in a second.
const BUFFERS_KIB: usize = 256 * 1024;
const BUFFER_KIB: std::ops::RangeInclusive<usize> = 8 * 1024..=64 * 1024;
/// Where tracefs is when somebody has mounted it.
const USUAL: &str = "/sys/kernel/tracing";

/// An instance of tracing. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Instance {
    path: PathBuf,
    /// A tracefs that we mounted.
    mounted: Option<PathBuf>,
}

impl Instance {
    /// Makes one; `what` tells several of one process apart. Fails without root.
    pub(crate) fn new(scratch: &Path, what: &str) -> Result<Self> {
        let mut instance = Self { path: PathBuf::new(), mounted: None };
        let mut tracefs = PathBuf::from(USUAL);
        if !tracefs.join("instances").exists() {
            tracefs = scratch.join(format!("tracefs-{what}"));
            fs::create_dir_all(&tracefs).doing(|| "making a mount point")?;
            programs::run(Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(&tracefs))?;
            interrupt::register_place(&tracefs);
            instance.mounted = Some(tracefs.clone());
        }
        let path = tracefs.join("instances").join(format!("vellum-bench-{}-{what}", std::process::id()));
        fs::create_dir(&path).doing(|| "making an instance of tracing")?;
        interrupt::register_dir(&path);
        instance.path = path;
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let each = (BUFFERS_KIB / processors).clamp(*BUFFER_KIB.start(), *BUFFER_KIB.end());
        instance.write("buffer_size_kb", &each.to_string())?;
        Ok(instance)
    }

    /// Whether the kernel has an event.
    pub(crate) fn has(&self, event: &str) -> bool {
        self.path.join("events").join(event).exists()
    }

    /// Writes to one of its files.
    pub(crate) fn write(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.path.join(name), value).doing(|| format!("tracing: {name}"))
    }

    /// The lines of `event` while `what` runs, those that `filter` lets through; None when there were more than the kernel
    /// could keep.
    pub(crate) fn during(
        &self,
        event: &str,
        filter: &str,
        what: impl FnOnce() -> Result<()>,
    ) -> Result<Option<String>> {
        // Empties the buffer, and sets the count of what was lost to 0.
        self.write("trace", "")?;
        self.write(&format!("events/{event}/filter"), filter)?;
        self.write(&format!("events/{event}/enable"), "1")?;
        let done = what();
        self.write(&format!("events/{event}/enable"), "0")?;
        done?;
        if self.has_lost()? {
            return Ok(None);
        }
        fs::read_to_string(self.path.join("trace")).map(Some).doing(|| "reading the trace")
    }

    /// Whether an event was overwritten or dropped on any processor.
    fn has_lost(&self) -> Result<bool> {
        let processors = fs::read_dir(self.path.join("per_cpu")).doing(|| "looking at the trace")?;
        for processor in processors.flatten() {
            let stats =
                fs::read_to_string(processor.path().join("stats")).doing(|| "looking at the trace")?;
            if has_lost(&stats) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether a processor's statistics of its buffer speak of lost events.
fn has_lost(stats: &str) -> bool {
    let lost = ["overrun:", "commit overrun:", "dropped events:"];
    stats.lines().any(|line| {
        let count = lost.iter().find_map(|name| line.strip_prefix(name));
        count.is_some_and(|count| count.trim() != "0")
    })
}

impl Drop for Instance {
    fn drop(&mut self) {
        let made = !self.path.as_os_str().is_empty();
        if made && fs::remove_dir(&self.path).is_err() && self.path.exists() {
            eprintln!("vellum-bench: cannot remove {}", self.path.display());
        }
        if let Some(tracefs) = &self.mounted {
            let _ = unmount(tracefs, UnmountFlags::DETACH);
            interrupt::unregister(tracefs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_are_detected() {
        let stats =
            "entries: 0\noverrun: 0\ncommit overrun: 0\nbytes: 12\ndropped events: 0\nread events: 0\n";
        assert!(!has_lost(stats));
        assert!(has_lost(&stats.replace("\noverrun: 0", "\noverrun: 7")));
        assert!(has_lost(&stats.replace("dropped events: 0", "dropped events: 1")));
    }
}
