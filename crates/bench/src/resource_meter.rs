//! What one run of a task took.

use crate::failure::{Result, While};
use crate::service::{Service, ServiceUse};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};
use vellum_sys::{Usage, UsageScope, usage};

/// One run, or several passes of one divided by their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Wall-clock time in seconds; for a task that measures memory, what it took to get there.
    pub seconds: f64,
    /// Switches to another thread in the process that does the task and its children.
    pub client_switches: f64,
    /// Switches to another thread in the service; None, too, where some of its threads have ended meanwhile.
    pub service_switches: Option<f64>,
    /// Processor time of that process and its children, in seconds.
    pub client_cpu_seconds: f64,
    /// Processor time of the service, in seconds.
    pub service_cpu_seconds: Option<f64>,
    /// Processor time of the kernel's own threads meanwhile, whoever they worked for, in seconds.
    pub kernel_cpu_seconds: Option<f64>,
    /// Page faults of that process and its children.
    pub client_faults: f64,
    /// Page faults of the service.
    pub service_faults: Option<f64>,
    /// Resident memory of the service at the end, in bytes.
    pub resident_bytes: Option<u64>,
    /// Space that the upper layer's files take afterwards, in bytes, where the task looks; shared blocks count.
    pub upper_bytes: Option<u64>,
    /// Resident memory of the service at its largest in this run, in bytes, where the task looks.
    pub resident_peak_bytes: Option<u64>,
    /// How far a mount's part of the service's cache is off its ideal one at the most, as a part of that, where the task looks.
    pub off_share: Option<f64>,
}

/// Measures from its making to its end.
#[derive(Debug)]
pub struct Meter {
    client: ClientUse,
    services: Vec<(Service, ServiceUse)>,
    kernel: Option<KernelUse>,
    start: Instant,
}

#[derive(Clone, Copy, Debug)]
struct ClientUse {
    switches: u64,
    cpu: Duration,
    faults: u64,
}

impl ClientUse {
    fn now() -> Result<Self> {
        let own = usage(UsageScope::Process).doing(|| "getrusage")?;
        let children = usage(UsageScope::Children).doing(|| "getrusage")?;
        let switches = |usage: &Usage| usage.switches_voluntary + usage.switches_involuntary;
        Ok(Self {
            switches: switches(&own) + switches(&children),
            cpu: own.cpu + children.cpu,
            faults: own.faults + children.faults,
        })
    }
}

impl Meter {
    /// Starts to measure, the services too: a mount's, or those of several mounts, of which the sums count.
    pub fn start(services: &[Service]) -> Result<Self> {
        let services = services.iter().map(|service| (*service, service.usage())).collect();
        let kernel = KernelUse::now();
        Ok(Self { services, kernel, client: ClientUse::now()?, start: Instant::now() })
    }

    /// Ends; `passes` of the same were done.
    pub fn end(self, passes: u32) -> Result<Sample> {
        let seconds = self.start.elapsed().as_secs_f64();
        let client = ClientUse::now()?;
        let passes = f64::from(passes.max(1));
        let per_pass = |now: u64, before: u64| now.saturating_sub(before) as f64 / passes;
        let kernel = self.kernel.and_then(|before| Some(KernelUse::now()?.since(&before)));
        let served: Vec<(ServiceUse, ServiceUse)> =
            self.services.iter().map(|(service, before)| (before.clone(), service.usage())).collect();
        let is_whole = !served.iter().any(|(before, now)| now.lacks_any_of(before));
        let of_services = |difference: fn(&ServiceUse, &ServiceUse) -> f64| {
            let each = served.iter().map(|(before, now)| difference(before, now));
            each.reduce(|sum, more| sum + more).map(|sum| sum / passes)
        };
        let resident = self.services.iter().filter_map(|(service, _)| service.resident());
        Ok(Sample {
            seconds: seconds / passes,
            client_switches: per_pass(client.switches, self.client.switches),
            service_switches: of_services(|before, now| now.switches.saturating_sub(before.switches) as f64)
                .filter(|_| is_whole),
            client_cpu_seconds: client.cpu.saturating_sub(self.client.cpu).as_secs_f64() / passes,
            service_cpu_seconds: of_services(|before, now| {
                let (before, now) = if now.lacks_any_of(before) {
                    (before.whole_cpu, now.whole_cpu)
                } else {
                    (before.cpu, now.cpu)
                };
                now.saturating_sub(before).as_secs_f64()
            }),
            kernel_cpu_seconds: kernel.map(|cpu| cpu.as_secs_f64() / passes),
            client_faults: per_pass(client.faults, self.client.faults),
            service_faults: of_services(|before, now| now.faults.saturating_sub(before.faults) as f64),
            resident_bytes: resident.reduce(|sum, more| sum + more),
            upper_bytes: None,
            resident_peak_bytes: None,
            off_share: None,
        })
    }
}

/// The process that all threads of the kernel are children of.
const KTHREADD: u32 = 2;

/// Processor time of each thread of the kernel so far.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KernelUse(BTreeMap<u32, Duration>);

impl KernelUse {
    /// As it is now; None where the kernel's threads cannot be seen, as in a container.
    fn now() -> Option<Self> {
        let name = fs::read_to_string(format!("/proc/{KTHREADD}/comm")).ok()?;
        if name.trim_end() != "kthreadd" {
            return None;
        }
        let children = fs::read_to_string(format!("/proc/{KTHREADD}/task/{KTHREADD}/children")).ok()?;
        let threads = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        Some(Self(threads.filter_map(|pid| Some((pid, cpu(pid)?))).collect()))
    }

    /// What has been used since `earlier`, without what threads that have ended meanwhile have used.
    fn since(&self, earlier: &Self) -> Duration {
        let before = |pid: &u32| earlier.0.get(pid).copied().unwrap_or_default();
        self.0.iter().map(|(pid, now)| now.saturating_sub(before(pid))).sum()
    }
}

fn cpu(pid: u32) -> Option<Duration> {
    let schedstat = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_divide() {
        let meter = Meter::start(&[]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let sample = meter.end(2).unwrap();
        assert!(sample.seconds >= 0.01 && sample.seconds < 5.0);
        assert!(sample.client_switches >= 0.5);
        assert_eq!(sample.service_switches, None);
    }

    #[test]
    fn new_kernel_threads_count_and_ended_ones_do_not() {
        let of = |all: &[(u32, u64)]| {
            KernelUse(all.iter().map(|(pid, ms)| (*pid, Duration::from_millis(*ms))).collect())
        };
        let (before, now) = (of(&[(3, 10), (4, 20)]), of(&[(3, 15), (5, 7)]));
        assert_eq!(now.since(&before), Duration::from_millis(12));
        assert_eq!(before.since(&before), Duration::ZERO);
    }
}
