//! Counts the requests that the kernel sends to a FUSE service, for any service, by the kernel's own trace events.
//!
//! Counting costs time, so it is done in a round of its own that is not timed. Forgets are not among what is traced.

use crate::failure::{Failure, Result, While};
use crate::trace::Instance;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Requests by the name of their kind (`LOOKUP`, `GETATTR`, ...).
pub type Requests = BTreeMap<String, u64>;

#[derive(Debug)]
pub struct Counter(Instance);

const EVENT: &str = "fuse/fuse_request_send";

impl Counter {
    /// Prepares to count. Fails without root, and on kernels before 6.10.
    pub fn new(scratch: &Path) -> Result<Self> {
        let instance = Instance::new(scratch, "requests")?;
        if instance.has(EVENT) {
            Ok(Self(instance))
        } else {
            Err(Failure::new("this kernel has no trace event fuse_request_send"))
        }
    }

    /// Counts the requests of the FUSE filesystems at `roots` while `what` runs; None when there were too many to count.
    pub fn during<P: AsRef<Path>>(
        &self,
        roots: &[P],
        what: impl FnOnce() -> Result<()>,
    ) -> Result<Option<Requests>> {
        let mut connections = BTreeSet::new();
        for root in roots {
            let dev = fs::metadata(root).doing(|| "looking at the mount")?.dev();
            // The kernel's own form of a device number, of which FUSE's connections have major 0.
            connections.insert(rustix::fs::minor(dev));
        }
        // What one filter can hold is limited: those of several mounts are told apart afterwards.
        let filter = match connections.first() {
            Some(only) if connections.len() == 1 => format!("connection=={only}"),
            _ => "0".to_owned(),
        };
        Ok(self.0.during(EVENT, &filter, what)?.map(|trace| count(&trace, &connections)))
    }
}

/// Counts lines such as `... fuse_request_send: connection 45 req 12 opcode 1 (FUSE_LOOKUP) len 47`.
fn count(trace: &str, connections: &BTreeSet<u32>) -> Requests {
    let mut requests = Requests::new();
    for line in trace.lines() {
        let Some((_, event)) = line.split_once(": connection ") else { continue };
        let mut words = event.split_whitespace();
        let connection = words.next().and_then(|word| word.parse().ok());
        if !connection.is_some_and(|connection| connections.contains(&connection)) {
            continue;
        }
        let mut words = words.skip_while(|word| *word != "opcode").skip(1);
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
             ls-1 [001] ..... 1.2: fuse_request_send: connection 45 req 16 opcode 99 () len 47 \n\
             ls-1 [001] ..... 1.2: fuse_request_send: connection 4 req 16 opcode 1 (FUSE_LOOKUP) len 47 \n";
        let requests = count(trace, &BTreeSet::from([45, 46]));
        assert_eq!(requests.get("LOOKUP"), Some(&2));
        assert_eq!(requests.get("opcode 99"), Some(&1));
        assert_eq!(requests.len(), 2);
    }
}
