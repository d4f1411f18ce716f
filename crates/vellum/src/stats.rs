//! `vellum stats`: what the services of mounts have done so far.

use crate::json;
use crate::mounts::{Answer, Answers, Choice, ask_all};
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use vellum_pool::PoolName;
use vellum_service::Failure;
use vellum_service::instance::stats::{CacheStats, InstanceStats, OperationStats};

/// A mount, for programs.
#[derive(Debug, Serialize)]
struct MountStats<'a> {
    pool: Option<&'a PoolName>,
    resident_bytes: Option<u64>,
    waiting_requests: Option<u64>,
    #[serde(flatten)]
    stats: &'a InstanceStats,
}

/// What is to be printed.
pub fn run(choice: &Choice, as_json: bool) -> Result<String, Failure> {
    let answers = ask_all(choice)?;
    warn(&answers);
    if as_json {
        let all: Vec<MountStats<'_>> = answers
            .all
            .iter()
            .map(|Answer { pool, stats, resident, waiting }| MountStats {
                pool: pool.as_ref(),
                resident_bytes: *resident,
                waiting_requests: *waiting,
                stats,
            })
            .collect();
        return json::pretty(&all);
    }
    Ok(text(&answers.all))
}

/// Says on stderr who has not answered.
pub(crate) fn warn(answers: &Answers) {
    for point in &answers.silent {
        eprintln!("vellum: {}: its service does not answer", point.display());
    }
}

fn text(all: &[Answer]) -> String {
    if all.is_empty() {
        return "no mounts\n".to_owned();
    }
    let mut text = String::new();
    for (number, Answer { pool, stats, resident, .. }) in all.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        let pool = pool.as_ref().map_or(String::new(), |pool| format!(", pool {pool}"));
        let resident = resident.map_or(String::new(), |bytes| format!(", {} MiB", bytes >> 20));
        let _ = writeln!(
            text,
            "{} ({}{pool}, process {}{resident}): {:.0} s, {} requests, {} files passed through",
            stats.mountpoint,
            stats.profile,
            stats.pid,
            stats.seconds,
            stats.total().count,
            stats.passed_through
        );
        let figures: Vec<String> =
            stats.figures.iter().map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
        if !figures.is_empty() {
            let _ = writeln!(text, "  {}", figures.join(", "));
        }
        if let Some(cache) = &stats.cache {
            let _ = writeln!(text, "  cache: {}", cached(cache));
        }
        if stats.operations.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "  {:<18}{:>12}{:>10}{:>10}{:>10}{:>10}",
            "REQUEST", "COUNT", "MEAN", "HALF <", "99 % <", "BUSY"
        );
        let mut operations: Vec<(&String, &OperationStats)> = stats.operations.iter().collect();
        operations.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
        for (name, operation) in operations {
            let _ = writeln!(
                text,
                "  {name:<18}{:>12}{:>10}{:>10}{:>10}{:>10}",
                operation.count,
                time(mean(operation)),
                operation.quantile(0.5).map_or("-".to_owned(), time),
                operation.quantile(0.99).map_or("-".to_owned(), time),
                time(Duration::from_secs_f64(operation.seconds.max(0.0)))
            );
        }
    }
    text
}

/// What a mount has of its service's cache.
fn cached(cache: &CacheStats) -> String {
    let idle = if cache.is_idle { " (idle)" } else { "" };
    let found = cache.hit_percent().map_or(String::new(), |percent| format!(" ({percent:.1} % found)"));
    format!(
        "weight {}{idle}, {} KiB, of which {} KiB are lent, {} hits, {} misses{found}, {} evictions",
        cache.weight,
        cache.bytes >> 10,
        cache.lent_bytes >> 10,
        cache.hits,
        cache.misses,
        cache.evictions
    )
}

fn mean(operation: &OperationStats) -> Duration {
    Duration::try_from_secs_f64(operation.seconds / operation.count.max(1) as f64).unwrap_or_default()
}

/// A time with a unit in which it reads well.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        0.0 => "0".to_owned(),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_busiest_requests_come_first() {
        let of = |count, seconds| OperationStats { count, seconds, classes: vec![0, count] };
        let stats = InstanceStats {
            mountpoint: "/m".into(),
            operations: BTreeMap::from([("LOOKUP".into(), of(1000, 0.002)), ("FSYNC".into(), of(2, 0.5))]),
            cache: Some(CacheStats { weight: 200, bytes: 4096, hits: 3, misses: 1, ..CacheStats::default() }),
            ..InstanceStats::default()
        };
        let text = text(&[Answer {
            pool: Some("blue".parse().unwrap()),
            stats,
            resident: Some(5 << 20),
            waiting: None,
        }]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("pool blue") && lines[0].contains("1002 requests"), "{text}");
        let cache =
            "weight 200, 4 KiB, of which 0 KiB are lent, 3 hits, 1 misses (75.0 % found), 0 evictions";
        assert_eq!(lines[1], format!("  cache: {cache}"));
        assert!(lines[3].contains("FSYNC") && lines[3].contains("250.0 ms"), "{text}");
        assert!(lines[4].contains("2.0 us"), "{text}");
        assert_eq!(super::text(&[]), "no mounts\n");
    }
}
