//! Counts the requests that the kernel sends to a FUSE service, for any service, by the kernel's own trace events.
//!
//! Counting costs time, so it is done in a round of its own that is not timed. Forgets are not among what is traced.

use crate::failure::{Failure, Result, While};
use crate::ground;
use crate::stop;
use rustix::mount::{UnmountFlags, unmount};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kernel memory for events, per processor, in KiB: about 400,000 requests.
const BUFFER_KIB: u32 = 16 * 1024;
/// Where tracefs is when somebody has mounted it.
const USUAL: &str = "/sys/kernel/tracing";

/// Requests by the name of their kind (`LOOKUP`, `GETATTR`, ...).
pub type Requests = BTreeMap<String, u64>;

/// An instance of the kernel's tracing that is ours alone.
#[derive(Debug)]
pub struct Counter {
    instance: PathBuf,
    /// A tracefs that we mounted.
    mounted: Option<PathBuf>,
}

impl Counter {
    /// Prepares to count. Fails without root, and on kernels before 6.10.
    pub fn new(scratch: &Path) -> Result<Self> {
        let mut counter = Self { instance: PathBuf::new(), mounted: None };
        let mut tracefs = PathBuf::from(USUAL);
        if !tracefs.join("instances").exists() {
            tracefs = scratch.join("tracefs");
            fs::create_dir_all(&tracefs).doing(|| "making a mount point")?;
            ground::run(Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(&tracefs))?;
            stop::register(&tracefs);
            counter.mounted = Some(tracefs.clone());
        }
        let instance = tracefs.join("instances").join(format!("vellum-bench-{}", std::process::id()));
        fs::create_dir(&instance).doing(|| "making an instance of tracing")?;
        stop::register_dir(&instance);
        counter.instance = instance;
        if !counter.event().exists() {
            return Err(Failure::new("this kernel has no trace event fuse_request_send"));
        }
        counter.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        Ok(counter)
    }

    fn event(&self) -> PathBuf {
        self.instance.join("events/fuse/fuse_request_send")
    }

    fn write(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.instance.join(name), value).doing(|| format!("tracing: {name}"))
    }

    /// Counts the requests of the FUSE filesystem at `root` while `what` runs.
    pub fn during(&self, root: &Path, what: impl FnOnce() -> Result<()>) -> Result<Requests> {
        let dev = fs::metadata(root).doing(|| "looking at the mount")?.dev();
        // The kernel's own form of a device number, of which FUSE's connections have major 0.
        let connection = rustix::fs::minor(dev);
        self.write("trace", "")?;
        self.write("events/fuse/fuse_request_send/filter", &format!("connection=={connection}"))?;
        self.write("events/fuse/fuse_request_send/enable", "1")?;
        let done = what();
        self.write("events/fuse/fuse_request_send/enable", "0")?;
        done?;
        let trace = fs::read_to_string(self.instance.join("trace")).doing(|| "reading the trace")?;
        Ok(count(&trace))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let made = !self.instance.as_os_str().is_empty();
        if made && fs::remove_dir(&self.instance).is_err() && self.instance.exists() {
            eprintln!("vellum-bench: cannot remove {}", self.instance.display());
        }
        if let Some(tracefs) = &self.mounted {
            let _ = unmount(tracefs, UnmountFlags::DETACH);
            stop::unregister(tracefs);
        }
    }
}

/// Counts lines such as `... fuse_request_send: connection 45 req 12 opcode 1 (FUSE_LOOKUP) len 47`.
fn count(trace: &str) -> Requests {
    let mut requests = Requests::new();
    for line in trace.lines() {
        let Some((_, event)) = line.split_once(" opcode ") else { continue };
        let mut words = event.split_whitespace();
        let number = words.next().unwrap_or("?");
        let name = words.next().and_then(|word| word.strip_prefix('(')?.strip_suffix(')'));
        let name = match name {
            Some(name) if !name.is_empty() => name.strip_prefix("FUSE_").unwrap_or(name).to_owned(),
            _ => format!("opcode {number}"),
        };
        *requests.entry(name).or_default() += 1;
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_by_kind() {
        let trace = "# tracer: nop\n\
             ls-1 [001] ..... 1.0: fuse_request_send: connection 45 req 12 opcode 1 (FUSE_LOOKUP) len 47 \n\
             ls-1 [001] ..... 1.1: fuse_request_send: connection 45 req 14 opcode 1 (FUSE_LOOKUP) len 47 \n\
             ls-1 [001] ..... 1.2: fuse_request_send: connection 45 req 16 opcode 99 () len 47 \n";
        let requests = count(trace);
        assert_eq!(requests.get("LOOKUP"), Some(&2));
        assert_eq!(requests.get("opcode 99"), Some(&1));
        assert_eq!(requests.len(), 2);
    }
}
