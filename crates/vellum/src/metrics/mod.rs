//! `vellum metrics`: what services have done, in the text format that Prometheus reads (OpenMetrics).
//!
//! The exporter is a process of its own that asks the services when somebody asks it: they do nothing for it meanwhile.

mod serve;

pub use serve::{Listen, serve};

use crate::mounts::{Answer, Answers, Choice, ask_all};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use vellum_pool::cgroup::PoolUse;
use vellum_pool::{Pool, PoolName};
use vellum_service::Failure;
use vellum_service::instance::stats::{CacheStats, class_limit};
use vellum_service::pool::Status;

/// What is to be told, at one moment.
#[derive(Debug, Default)]
struct Snapshot {
    answers: Answers,
    pools: Vec<(PoolName, PoolSnapshot)>,
}

/// A pool at that moment.
#[derive(Debug, Default)]
struct PoolSnapshot {
    used: PoolUse,
    /// Its service, if it has one.
    service: Option<Status>,
}

/// Asks all services, and writes down what they say.
pub fn text() -> Result<String, Failure> {
    let answers = ask_all(&Choice::default())?;
    let moment = |pool: &Pool| PoolSnapshot { used: pool.usage(), service: pool.service() };
    let pools = Pool::all()?.iter().map(|pool| (pool.name().clone(), moment(pool))).collect();
    encode(Snapshot { answers, pools }).map_err(|e| Failure::system("cannot write metrics").because(e))
}

fn encode(moment: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("vellum");
    registry.register_collector(Box::new(moment));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

type Labels = Vec<(&'static str, String)>;

/// A label's value with what would end it made harmless: the encoder takes values as they are, and a path may hold anything.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Every number of a mount says which one it is, and whose.
fn labels(answer: &Answer) -> Labels {
    let pool = answer.pool.as_ref().map_or("", PoolName::as_str);
    let (mount, profile) = (&answer.stats.mountpoint, &answer.stats.profile);
    [("mount", mount.as_str()), ("pool", pool), ("profile", profile)]
        .into_iter()
        .map(|(name, value)| (name, escaped(value)))
        .collect()
}

/// A number of a mount that goes up and down.
type MountGauge = (&'static str, &'static str, Option<Unit>, fn(&Answer) -> Option<f64>);

const MOUNT_GAUGES: &[MountGauge] = &[
    ("up", "Time since the mount was made", Some(Unit::Seconds), |answer| Some(answer.stats.seconds)),
    ("resident", "Resident memory of the service", Some(Unit::Bytes), |answer| {
        answer.resident.map(|bytes| bytes as f64)
    }),
    ("passed_through_files", "Open files that the kernel itself reads and writes", None, |answer| {
        Some(answer.stats.passed_through as f64)
    }),
    ("nodes", "Files and directories that the kernel holds", None, |answer| {
        answer.stats.figures.get("nodes").map(|count| *count as f64)
    }),
    ("partial_files", "Files that were written to and still take some blocks from below", None, |answer| {
        answer.stats.figures.get("partial_files").map(|count| *count as f64)
    }),
    ("waiting_requests", "Requests that the kernel has and nobody has answered", None, |answer| {
        answer.waiting.map(|count| count as f64)
    }),
];

/// A number of what a mount has of its service's cache: whether it only grows, and what it is.
type CacheNumber = (&'static str, &'static str, Option<Unit>, MetricType, fn(&CacheStats) -> u64);

const CACHE_NUMBERS: &[CacheNumber] = &[
    ("cache_weight", "Weight of a mount in its service's cache", None, MetricType::Gauge, |cache| {
        cache.weight.into()
    }),
    ("cache", "Cached bytes that a mount pays for", Some(Unit::Bytes), MetricType::Gauge, |cache| {
        cache.bytes
    }),
    (
        "cache_lent",
        "Cached bytes that a mount pays for, in the hands of the kernel or of programs",
        Some(Unit::Bytes),
        MetricType::Gauge,
        |cache| cache.lent_bytes,
    ),
    ("cache_hits", "Reads of a block that was cached", None, MetricType::Counter, |cache| cache.hits),
    ("cache_misses", "Reads of a block that was not cached", None, MetricType::Counter, |cache| cache.misses),
    (
        "cache_evictions",
        "Blocks that a mount has given up to make room",
        None,
        MetricType::Counter,
        |cache| cache.evictions,
    ),
];

/// A number of a pool: whether it only grows, and what it is.
type PoolNumber = (&'static str, &'static str, Option<Unit>, MetricType, fn(&PoolSnapshot) -> Option<f64>);

const POOL_NUMBERS: &[PoolNumber] = &[
    ("pool_cpu", "Processor time of a pool", Some(Unit::Seconds), MetricType::Counter, |pool| {
        pool.used.cpu.map(|cpu| cpu.as_secs_f64())
    }),
    ("pool_memory", "Memory of a pool, page cache included", Some(Unit::Bytes), MetricType::Gauge, |pool| {
        pool.used.memory.map(|bytes| bytes as f64)
    }),
    ("pool_read", "Read from disks by a pool", Some(Unit::Bytes), MetricType::Counter, |pool| {
        pool.used.read.map(|bytes| bytes as f64)
    }),
    ("pool_written", "Written to disks by a pool", Some(Unit::Bytes), MetricType::Counter, |pool| {
        pool.used.written.map(|bytes| bytes as f64)
    }),
    ("pool_mounts", "Mounts that the service of a pool serves", None, MetricType::Gauge, |pool| {
        pool.service.as_ref().map(|service| service.mounts as f64)
    }),
    (
        "pool_restarts",
        "Services of a pool that were followed by another",
        None,
        MetricType::Counter,
        |pool| pool.service.as_ref().map(|service| service.restarts as f64),
    ),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.requests(&mut encoder)?;
        self.ring_calls(&mut encoder)?;
        for (name, help, unit, of) in MOUNT_GAUGES {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for answer in &self.answers.all {
                if let Some(value) = of(answer) {
                    family.encode_family(&labels(answer))?.encode_gauge(&value)?;
                }
            }
        }
        self.caches(&mut encoder)?;
        let help = "Mounts whose service has not answered in time";
        encoder
            .encode_descriptor("silent_mounts", help, None, MetricType::Gauge)?
            .encode_gauge(&(self.answers.silent.len() as f64))?;
        for (name, help, unit, kind, of) in POOL_NUMBERS {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            for (pool, moment) in &self.pools {
                let Some(value) = of(moment) else { continue };
                let labels: Labels = vec![("pool", pool.to_string())];
                let mut one = family.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => one.encode_counter::<NoLabelSet, f64, f64>(&value, None)?,
                    _ => one.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// What mounts have of their services' caches.
    fn caches(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, unit, kind, of) in CACHE_NUMBERS {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            for answer in &self.answers.all {
                let Some(cache) = &answer.stats.cache else { continue };
                let (labels, value) = (labels(answer), of(cache) as f64);
                let mut one = family.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => one.encode_counter::<NoLabelSet, f64, f64>(&value, None)?,
                    _ => one.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }

    /// How many calls over rings there were of each kind.
    fn ring_calls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        const KINDS: [(&str, &str); 5] = [
            ("open", "ring_opens"),
            ("mkdir", "ring_mkdirs"),
            ("symlink", "ring_symlinks"),
            ("setattr", "ring_setattrs"),
            ("left to the kernel", "ring_to_kernel"),
        ];
        let help = "Calls of programs over rings";
        let mut family = encoder.encode_descriptor("ring_calls", help, None, MetricType::Counter)?;
        for answer in &self.answers.all {
            for (kind, figure) in KINDS {
                if let Some(count) = answer.stats.figures.get(figure) {
                    let mut labels = labels(answer);
                    labels.extend([("interface", "ring".to_owned()), ("operation", kind.to_owned())]);
                    let count = *count as f64;
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, f64, f64>(&count, None)?;
                }
            }
        }
        Ok(())
    }

    /// How many requests there were of each kind, and how long they took.
    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Requests through FUSE, by how long the service was busy with each";
        let mut family =
            encoder.encode_descriptor("request", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for answer in &self.answers.all {
            for (kind, operation) in &answer.stats.operations {
                let mut labels = labels(answer);
                labels.extend([("interface", "fuse".to_owned()), ("operation", escaped(kind))]);
                let limit = |class: usize| class_limit(class).map_or(f64::MAX, |limit| limit.as_secs_f64());
                let mut classes: Vec<(f64, u64)> = operation
                    .classes
                    .iter()
                    .enumerate()
                    .map(|(class, count)| (limit(class), *count))
                    .collect();
                // What a reader adds up must end with all of them.
                if classes.last().is_none_or(|(limit, _)| *limit != f64::MAX) {
                    classes.push((f64::MAX, 0));
                }
                let count = operation.classes.iter().sum();
                family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                    operation.seconds,
                    count,
                    &classes,
                    None,
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;
    use vellum_service::instance::stats::{InstanceStats, OperationStats};

    fn moment() -> Snapshot {
        let read = OperationStats { count: 4, seconds: 0.25, classes: vec![0, 3] };
        let stats = InstanceStats {
            mountpoint: "/m \"quoted\"\n\\".into(),
            profile: "cached".into(),
            seconds: 5.0,
            operations: BTreeMap::from([("READ".into(), read)]),
            figures: BTreeMap::from([("nodes".into(), 7)]),
            cache: Some(CacheStats { weight: 50, bytes: 4096, hits: 9, ..CacheStats::default() }),
            ..InstanceStats::default()
        };
        let pool: PoolName = "blue".parse().unwrap();
        let used =
            PoolUse { cpu: Some(Duration::from_millis(1500)), memory: Some(4096), ..PoolUse::default() };
        let answer = Answer { pool: Some(pool.clone()), stats, resident: None, waiting: Some(3) };
        let answers = Answers { all: vec![answer], silent: vec!["/hangs".into()], ended: Vec::new() };
        Snapshot { answers, pools: vec![(pool, PoolSnapshot { used, service: None })] }
    }

    #[test]
    fn all_numbers_are_there_with_their_labels() {
        let text = encode(moment()).unwrap();
        for line in [
            "# TYPE vellum_request_seconds histogram",
            "vellum_nodes{mount=\"/m \\\"quoted\\\"\\n\\\\\",pool=\"blue\",profile=\"cached\"} 7.0",
            "vellum_silent_mounts 1.0",
            "vellum_cache_weight{mount=\"/m \\\"quoted\\\"\\n\\\\\",pool=\"blue\",profile=\"cached\"} 50.0",
            "vellum_cache_bytes{mount=\"/m \\\"quoted\\\"\\n\\\\\",pool=\"blue\",profile=\"cached\"} 4096.0",
            "vellum_cache_hits_total{mount=\"/m \\\"quoted\\\"\\n\\\\\",pool=\"blue\",profile=\"cached\"} 9.0",
            "vellum_waiting_requests{mount=\"/m \\\"quoted\\\"\\n\\\\\",pool=\"blue\",profile=\"cached\"} 3.0",
            "vellum_pool_cpu_seconds_total{pool=\"blue\"} 1.5",
            "vellum_pool_memory_bytes{pool=\"blue\"} 4096.0",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        let buckets: Vec<&str> = text.lines().filter(|line| line.contains("_bucket{")).collect();
        assert_eq!(buckets.len(), 3, "{text}");
        assert!(buckets[1].contains("le=\"0.000002\"") && buckets[1].ends_with(" 3"), "{text}");
        assert!(buckets[2].contains("le=\"+Inf\"") && buckets[2].ends_with(" 3"), "{text}");
        // What is not known is not told as 0.
        assert!(!text.contains("vellum_resident_bytes{") && !text.contains("vellum_pool_read_bytes_total{"));
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn an_empty_answer_is_valid() {
        let text = encode(Snapshot::default()).unwrap();
        assert!(text.contains("vellum_silent_mounts 0.0") && text.ends_with("# EOF\n"), "{text}");
    }
}
