//! Keeping the machine's processors out of their deeper idle states while requests come in numbers.
//!
//! A round trip wakes the worker's processor and then the client's. On a virtual machine that does not poll when idle,
//! each costs 10 to 15 microseconds, more than everything else together. The kernel has an interface for
//! exactly this: as long as a process holds `/dev/cpu_dma_latency` open, with a 0 written to it, idle processors wait in
//! a polling loop, which is woken by a write to memory, without an interrupt. It needs privileges, it concerns the whole
//! machine, and an idle processor then takes as much from its host as a busy one: so it is held only while it pays.
//!
//! What was tried and is not done ([`CpuLatency`] has the table):
//!
//! - `pm_qos_resume_latency_us` of single processors is as fast. It outlives a process that is killed, with a processor
//!   that never sleeps again, and the processor of the client is not known to a service in its sandbox;
//! - threads of the idle scheduling class that spin need no privilege. They have to be interrupted, which costs a
//!   virtual machine nearly what waking a processor does.

use parking_lot::Mutex;
use rustix::fs::{Access, access};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time within which requests are counted. Whoever counts for a [`Pulse`] looks so often, while there is work.
pub const TICK: Duration = Duration::from_millis(2);
/// So many requests within a tick make it worth while.
const MANY: u32 = 16;
/// So many ticks with fewer requests end it.
const QUIET_TICKS: u32 = 5;

const DEVICE: &str = "/dev/cpu_dma_latency";

/// A process's one request to the kernel, for all who hold it.
///
/// Unpacking an archive of 4000 small files in a tmpfs, virtual machine, 2 processors, `haltpoll` governor, medians:
///
/// | | time | processor time of service and client |
/// | --- | --- | --- |
/// | nothing, workers spin | 1150 ms | 1320 ms |
/// | this, workers do not spin | 620 ms | 610 ms |
/// | this, workers spin for 10 microseconds at most | 490 ms | 630 ms |
/// | held all the time, workers spin | 530 ms | 680 ms |
/// | `pm_qos_resume_latency_us` of both processors, all the time, workers spin | 520 ms | 680 ms |
/// | an idle-class thread that spins on each processor, workers spin | 1000 ms | 2000 ms |
#[derive(Debug)]
pub struct CpuLatency {
    device: &'static Path,
    request: Mutex<Request>,
    is_held: AtomicBool,
}

#[derive(Debug, Default)]
struct Request {
    holders: u32,
    /// Open while there are holders.
    file: Option<File>,
    /// Why it cannot be made.
    refused: Option<std::io::Error>,
}

impl CpuLatency {
    /// Nothing is asked of the kernel yet; whether it could be is.
    #[must_use]
    pub fn new() -> Self {
        Self::with_device(Path::new(DEVICE))
    }

    fn with_device(device: &'static Path) -> Self {
        let refused = access(device, Access::WRITE_OK).err().map(Into::into);
        Self {
            device,
            request: Mutex::new(Request { refused, ..Request::default() }),
            is_held: AtomicBool::new(false),
        }
    }

    /// What holding it opens.
    #[must_use]
    pub const fn device(&self) -> &'static Path {
        self.device
    }

    /// Why nothing can be asked of the kernel; None: it can, or has not been refused yet.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.request.lock().refused.as_ref().map(ToString::to_string)
    }

    /// Whether processors are being kept awake: there is little to be gained by spinning then.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    /// Keeps processors awake until the result is dropped; None: the kernel refuses, and is not asked again.
    fn hold(self: &Arc<Self>) -> Option<LatencyGuard> {
        let mut request = self.request.lock();
        if request.refused.is_some() {
            return None;
        }
        if request.file.is_none() {
            match open(self.device) {
                Ok(file) => request.file = Some(file),
                Err(error) => {
                    tracing::info!(%error, device = %self.device.display(), "processors are not kept awake");
                    request.refused = Some(error);
                    return None;
                }
            }
        }
        request.holders += 1;
        self.is_held.store(true, Ordering::Relaxed);
        Some(LatencyGuard(Arc::clone(self)))
    }
}

impl Default for CpuLatency {
    fn default() -> Self {
        Self::new()
    }
}

fn open(device: &Path) -> std::io::Result<File> {
    let mut file = File::options().write(true).open(device)?;
    // Microseconds, as a native i32.
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}

/// Processors are kept awake until this is dropped, and others like it.
#[derive(Debug)]
struct LatencyGuard(Arc<CpuLatency>);

impl Drop for LatencyGuard {
    fn drop(&mut self) {
        let mut request = self.0.request.lock();
        request.holders -= 1;
        if request.holders == 0 {
            request.file = None;
            self.0.is_held.store(false, Ordering::Relaxed);
        }
    }
}

/// The requests of a session, as its watchdog counts them.
#[derive(Debug)]
pub struct Pulse {
    latency: Option<Arc<CpuLatency>>,
    held: Option<LatencyGuard>,
    quiet: u32,
}

impl Pulse {
    /// No requests yet; None: processors are left alone.
    #[must_use]
    pub const fn new(latency: Option<Arc<CpuLatency>>) -> Self {
        Self { latency, held: None, quiet: 0 }
    }

    /// So many ticks have gone by with so many requests; returns whether processors are kept awake from now on.
    pub fn beat(&mut self, requests: u64, ticks: u32) -> bool {
        let Some(latency) = &self.latency else { return false };
        if requests >= u64::from(MANY) * u64::from(ticks) {
            self.quiet = 0;
            if self.held.is_none() {
                self.held = latency.hold();
            }
        } else {
            self.quiet += ticks;
            if self.quiet >= QUIET_TICKS {
                self.held = None;
            }
        }
        self.held.is_some()
    }
}

/// The calls of one client, as the thread counts them that serves it beside a session.
#[derive(Debug)]
pub struct Burst {
    latency: Arc<CpuLatency>,
    held: Option<LatencyGuard>,
    /// Calls since `since`.
    calls: u32,
    since: Instant,
    /// When there were last as many as make it worth while.
    many: Instant,
}

impl Burst {
    /// How long to sleep at most while processors are kept awake; then [`Self::pause`].
    pub const PATIENCE: Duration = TICK.saturating_mul(QUIET_TICKS);

    /// No calls yet.
    #[must_use]
    pub fn new(latency: Arc<CpuLatency>) -> Self {
        let now = Instant::now();
        Self { latency, held: None, calls: 0, since: now, many: now }
    }

    /// A call has come. `wanted` is asked when there have been so many that processors are to be kept awake.
    pub fn call(&mut self, wanted: impl FnOnce() -> bool) {
        self.calls += 1;
        if self.calls >= MANY {
            self.many(Instant::now(), wanted);
        }
    }

    fn many(&mut self, now: Instant, wanted: impl FnOnce() -> bool) {
        if now.duration_since(self.since) <= TICK {
            self.many = now;
            if self.held.is_none() && wanted() {
                self.held = self.latency.hold();
            }
        }
        (self.calls, self.since) = (0, now);
    }

    /// The client has nothing to ask at the moment. Lets processors sleep if it has not asked much for a while; true: they
    /// are still kept awake for it.
    pub fn pause(&mut self) -> bool {
        self.held.is_some() && self.pause_at(Instant::now())
    }

    fn pause_at(&mut self, now: Instant) -> bool {
        if now.duration_since(self.many) >= Self::PATIENCE {
            self.held = None;
        }
        self.held.is_some()
    }

    /// Whether processors are being kept awake, for this client or another.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.latency.is_held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(device: &'static str) -> Arc<CpuLatency> {
        Arc::new(CpuLatency::with_device(Path::new(device)))
    }

    #[test]
    fn the_latency_request_is_held_under_load() {
        let latency = latency("/dev/null");
        let mut pulse = Pulse::new(Some(Arc::clone(&latency)));
        assert!(!pulse.beat(3, 1));
        assert!(!pulse.beat(u64::from(MANY), 2), "as many in twice the time");
        assert!(!latency.is_held());
        assert!(pulse.beat(u64::from(MANY), 1) && latency.is_held());
        for _ in 1..QUIET_TICKS {
            assert!(pulse.beat(1, 1));
        }
        assert!(!pulse.beat(1, 1) && !latency.is_held());
        assert!(pulse.beat(1000, 1));
        assert!(!pulse.beat(0, QUIET_TICKS), "one look after a long time");
        assert!(!Pulse::new(None).beat(1000, 1));
    }

    #[test]
    fn a_refusal_is_final() {
        let missing = latency("/dev/no-such-thing");
        assert!(missing.refused().is_some());
        assert!(!Pulse::new(Some(Arc::clone(&missing))).beat(1000, 1) && !missing.is_held());
        // It looks as if it could be written to.
        let full = latency("/dev/full");
        assert!(full.refused().is_none());
        assert!(!Pulse::new(Some(Arc::clone(&full))).beat(1000, 1));
        assert!(full.refused().is_some() && !full.is_held());
    }

    #[test]
    fn the_latency_request_lasts_until_the_last_user_ends() {
        let latency = latency("/dev/null");
        let [mut first, mut second] = [(); 2].map(|()| Pulse::new(Some(Arc::clone(&latency))));
        assert!(first.beat(1000, 1) && second.beat(1000, 1));
        drop(first);
        assert!(latency.is_held());
        drop(second);
        assert!(!latency.is_held() && latency.request.lock().file.is_none());
    }

    #[test]
    fn only_frequent_calls_hold_the_latency_request() {
        let latency = latency("/dev/null");
        let mut burst = Burst::new(Arc::clone(&latency));
        let begin = Instant::now();
        let mut at = begin;
        let calls = |burst: &mut Burst, at: &mut Instant, apart: Duration, wanted: bool| {
            for _ in 0..MANY {
                *at += apart;
                burst.calls += 1;
            }
            burst.many(*at, || wanted);
        };
        burst.since = begin;
        calls(&mut burst, &mut at, TICK, true);
        assert!(!burst.is_awake() && !burst.pause_at(at), "too seldom");
        calls(&mut burst, &mut at, TICK / (2 * MANY), false);
        assert!(!burst.is_awake(), "nobody wants it");
        calls(&mut burst, &mut at, TICK / (2 * MANY), true);
        assert!(burst.is_awake() && burst.pause_at(at));
        assert!(burst.pause_at(at + Burst::PATIENCE / 2));
        // It goes on, but not so fast.
        calls(&mut burst, &mut at, TICK, true);
        assert!(!burst.pause_at(at) && !burst.is_awake());
    }
}
