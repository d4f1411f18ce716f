//! What this process and its children have used.

use rustix::io::Errno;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageScope {
    /// This process, all of its threads, those that have ended included.
    Process,
    /// The calling thread.
    Thread,
    /// Its children that have ended and been waited for, and theirs.
    Children,
}

/// Use so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a processor, in the kernel and outside.
    pub cpu: Duration,
    /// Switches to another thread because this one had to wait.
    pub switches_voluntary: u64,
    /// Switches to another thread because it was that one's turn.
    pub switches_involuntary: u64,
    /// Page faults, with and without reading from a device.
    pub faults: u64,
}

/// getrusage(2).
pub fn usage(of: UsageScope) -> Result<Usage, Errno> {
    let who = match of {
        UsageScope::Process => libc::RUSAGE_SELF,
        UsageScope::Thread => libc::RUSAGE_THREAD,
        UsageScope::Children => libc::RUSAGE_CHILDREN,
    };
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is writable and of the size that getrusage expects.
    let rc = unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    if rc != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: all zeros is a valid rusage, and getrusage has filled it.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec.unsigned_abs()) + Duration::from_micros(t.tv_usec.unsigned_abs())
    };
    Ok(Usage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        switches_voluntary: usage.ru_nvcsw.unsigned_abs(),
        switches_involuntary: usage.ru_nivcsw.unsigned_abs(),
        faults: usage.ru_minflt.unsigned_abs() + usage.ru_majflt.unsigned_abs(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_usage_grows() {
        let before = usage(UsageScope::Process).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let after = usage(UsageScope::Process).unwrap();
        assert!(after.switches_voluntary > before.switches_voluntary);
        assert!(after.cpu >= before.cpu);
        assert!(usage(UsageScope::Children).is_ok());
    }
}
