//! What concerns the process as a whole.

use crate::daemon::last_errno;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open descriptors to its hard limit, or to `wanted` if that is less or if the process may
/// raise the hard limit; returns what it is then.
pub fn raise_descriptor_limit(wanted: u64) -> Result<u64, Errno> {
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(u64::MAX);
    let current = now.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return Ok(current);
    }
    if hard < wanted {
        let both = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if setrlimit(Resource::Nofile, both).is_ok() {
            return Ok(wanted);
        }
    }
    let reach = wanted.min(hard);
    setrlimit(Resource::Nofile, Rlimit { current: Some(reach), maximum: now.maximum })?;
    Ok(reach)
}

/// How many descriptors the process may have.
#[must_use]
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Limits that a process inherits, and that are of whoever started it: none may end the service of all others. Stacks stay out of it
/// (threads have their own), and so do dumps of memory, which say what clients have stored.
const OTHERS: [Resource; 7] = [
    Resource::Fsize,
    Resource::Cpu,
    Resource::As,
    Resource::Data,
    Resource::Nproc,
    Resource::Memlock,
    Resource::Sigpending,
];

/// Lifts the limits of file size, processor time, memory and threads as far as the process may.
pub fn lift_limits() {
    for resource in OTHERS {
        let none = Rlimit { current: None, maximum: None };
        if setrlimit(resource, none).is_err() {
            let maximum = getrlimit(resource).maximum;
            // To the hard limit everybody may.
            let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
        }
    }
}

/// Clears the process's file mode creation mask, so that modes arrive as asked for; returns the old one.
pub fn clear_umask() -> u32 {
    rustix::process::umask(rustix::fs::Mode::empty()).as_raw_mode()
}

/// Moves the process, which must have one thread, to a new IPC namespace.
pub fn unshare_ipc() -> Result<(), Errno> {
    // SAFETY: no descriptor and no memory depends on the IPC namespace; what System V objects were attached stay attached.
    if unsafe { libc::unshare(libc::CLONE_NEWIPC) } == 0 {
        return Ok(());
    }
    Err(last_errno())
}

/// Moves the calling thread to a mount namespace of its own, a copy of the one it was in; its working directory and mask are its own from then
/// on as well. What it mounts goes with the last thread that is there, but for what is open.
pub fn unshare_mounts() -> Result<(), Errno> {
    // SAFETY: no descriptor and no memory depends on the mount namespace; other threads stay where they are.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0 {
        return Ok(());
    }
    Err(last_errno())
}

/// Has the allocator take no more arenas than so many, and large pieces from the system, to which they go back at once. It learns otherwise
/// to keep them.
pub fn limit_allocator(arenas: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let arenas = i32::try_from(arenas.max(1)).unwrap_or(i32::MAX);
        for (what, value) in [(libc::M_ARENA_MAX, arenas), (libc::M_MMAP_THRESHOLD, 128 << 10)] {
            // SAFETY: mallopt takes numbers, and may be called at any time.
            unsafe { libc::mallopt(what, value) };
        }
    }
    let _ = arenas;
}

/// Gives free memory of the allocator back to the system, where the allocator can.
pub fn trim_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: malloc_trim may be called at any time from any thread.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_limit_never_sinks() {
        let before = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(raise_descriptor_limit(1).unwrap() >= before);
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20);
        assert!(raise_descriptor_limit(hard).unwrap() >= before);
        trim_memory();
    }
}
