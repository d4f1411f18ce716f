//! `vellum top`: what the services of mounts do at the moment, again and again.

use crate::mounts::{Answer, Choice, ask_all};
use crate::stats::{time, warn};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use vellum_service::Failure;
use vellum_service::instance::stats::InstanceStats;

/// To the upper left corner, and everything below it away.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// The most mounts that are shown on a terminal; the busiest ones.
const ROWS: usize = 40;

/// Shows what happens within each `interval`, so many times, or until it is interrupted.
pub fn run(choice: &Choice, interval: Duration, times: Option<u64>) -> Result<(), Failure> {
    let terminal = std::io::stdout().is_terminal();
    let mut before = PreviousSample::new();
    let mut shown = 0;
    let mut next = Instant::now();
    loop {
        let answers = ask_all(choice)?;
        warn(&answers);
        // The first look has nothing to compare with: it says what has happened since the mount.
        let rows = rows(&answers.all, &before);
        before = answers.all.into_iter().map(|answer| (key(&answer.stats), answer.stats)).collect();
        let table = table(&rows, terminal.then_some(ROWS));
        let text = if terminal { format!("{CLEAR}{table}") } else { format!("{table}\n") };
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|e| Failure::system("cannot write to stdout").because(e))?,
        }
        shown += 1;
        if times.is_some_and(|times| shown >= times) {
            return Ok(());
        }
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// What was seen at the last look, by process and mount: a service may have many mounts, and a mount another service by now.
type PreviousSample = BTreeMap<(u32, String), InstanceStats>;

fn key(stats: &InstanceStats) -> (u32, String) {
    (stats.pid, stats.mountpoint.clone())
}

/// A mount within an interval.
struct Row {
    pool: String,
    mountpoint: String,
    resident: Option<u64>,
    seconds: f64,
    passed: InstanceStats,
}

fn rows(all: &[Answer], before: &PreviousSample) -> Vec<Row> {
    let row = |answer: &Answer| {
        let earlier = before.get(&key(&answer.stats));
        let passed = earlier.map_or_else(|| answer.stats.clone(), |earlier| answer.stats.since(earlier));
        Row {
            pool: answer.pool.as_ref().map_or("-".to_owned(), ToString::to_string),
            mountpoint: answer.stats.mountpoint.clone(),
            resident: answer.resident,
            seconds: passed.seconds.max(1e-3),
            passed,
        }
    };
    let mut rows: Vec<Row> = all.iter().map(row).collect();
    rows.sort_by(|a, b| (b.busy()).total_cmp(&a.busy()).then_with(|| a.mountpoint.cmp(&b.mountpoint)));
    rows
}

impl Row {
    /// Requests that are worked on at a time, on average.
    fn busy(&self) -> f64 {
        self.passed.total().seconds / self.seconds
    }

    fn rate(&self, kinds: &[&str]) -> f64 {
        let count: u64 =
            kinds.iter().filter_map(|kind| self.passed.operations.get(*kind)).map(|one| one.count).sum();
        count as f64 / self.seconds
    }

    /// The columns about the service's cache.
    fn cache(&self) -> String {
        let Some(cache) = &self.passed.cache else {
            return ["-"; 5]
                .iter()
                .zip([8, 10, 8, 9, 10])
                .map(|(none, width)| format!("{none:>width$}"))
                .collect();
        };
        format!(
            "{:>8}{:>10}{:>8}{:>9.0}{:>10}",
            cache.weight,
            mib(cache.bytes),
            cache.hit_percent().map_or("-".to_owned(), |percent| format!("{percent:.0}%")),
            cache.evictions as f64 / self.seconds,
            mib(cache.lent_bytes)
        )
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn table(rows: &[Row], most: Option<usize>) -> String {
    let mut text = format!(
        "{:<14}{:>10}{:>9}{:>9}{:>9}{:>9}{:>8}{:>10}{:>10}",
        "POOL", "REQ/S", "LOOK/S", "OPEN/S", "READ/S", "WRITE/S", "BUSY", "99 % <", "MEMORY"
    );
    // Most mounts have no cache.
    let cached = rows.iter().any(|row| row.passed.cache.is_some());
    if cached {
        let _ = write!(text, "{:>8}{:>10}{:>8}{:>9}{:>10}", "WEIGHT", "CACHE", "HITS", "EVICT/S", "LENT");
    }
    text.push_str("  MOUNT\n");
    for row in rows.iter().take(most.unwrap_or(usize::MAX)) {
        let total = row.passed.total();
        let _ = write!(
            text,
            "{:<14}{:>10.0}{:>9.0}{:>9.0}{:>9.0}{:>9.0}{:>7.0}%{:>10}{:>10}",
            row.pool,
            total.count as f64 / row.seconds,
            row.rate(&["LOOKUP", "GETATTR", "READDIR", "READDIRPLUS", "STATX"]),
            row.rate(&["OPEN", "CREATE", "OPENDIR"]),
            row.rate(&["READ"]),
            row.rate(&["WRITE"]),
            row.busy() * 100.0,
            total.quantile(0.99).map_or("-".to_owned(), time),
            row.resident.map_or("-".to_owned(), mib),
        );
        if cached {
            text.push_str(&row.cache());
        }
        let _ = writeln!(text, "  {}", row.mountpoint);
    }
    if rows.is_empty() {
        text.push_str("no mounts\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum_service::instance::stats::{CacheStats, OperationStats};

    fn answer(pid: u32, seconds: f64, reads: u64) -> Answer {
        let read = OperationStats { count: reads, seconds: reads as f64 * 1e-4, classes: vec![0, reads] };
        let stats = InstanceStats {
            pid,
            mountpoint: format!("/m{pid}"),
            seconds,
            operations: BTreeMap::from([("READ".into(), read)]),
            ..InstanceStats::default()
        };
        Answer { pool: None, stats, resident: None, waiting: None }
    }

    #[test]
    fn rates_are_of_the_interval() {
        let first = [answer(1, 10.0, 1000), answer(2, 10.0, 1000)];
        let before = first.iter().map(|answer| (key(&answer.stats), answer.stats.clone())).collect();
        // Another service of the same mount has begun anew.
        let replaced =
            Answer { stats: InstanceStats { pid: 3, ..answer(1, 1.0, 5).stats }, ..answer(1, 1.0, 5) };
        assert_eq!(rows(&[replaced], &before)[0].rate(&["READ"]).round(), 5.0);
        let rows = rows(&[answer(1, 12.0, 1010), answer(2, 12.0, 1400)], &before);
        assert_eq!(rows.iter().map(|row| row.mountpoint.as_str()).collect::<Vec<_>>(), ["/m2", "/m1"]);
        assert_eq!(rows[0].rate(&["READ"]).round(), 200.0);
        assert_eq!((rows[0].busy() * 100.0).round(), 2.0);
        let text = table(&rows, Some(1));
        assert!(text.contains("/m2") && !text.contains("/m1"), "{text}");
        assert!(!text.contains("WEIGHT"), "{text}");
    }

    #[test]
    fn caches_have_columns_where_there_is_one() {
        let cache = CacheStats { weight: 300, bytes: 5 << 20, hits: 8, misses: 2, ..CacheStats::default() };
        let cached = InstanceStats { cache: Some(cache), ..answer(1, 1.0, 5).stats };
        let all = [Answer { stats: cached, ..answer(1, 1.0, 5) }, answer(2, 1.0, 1)];
        let text = table(&rows(&all, &PreviousSample::new()), None);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(text.contains("WEIGHT") && words.len() == 3, "{text}");
        assert!(words[1].ends_with(&["300", "5", "MiB", "80%", "0", "0", "MiB", "/m1"]), "{text}");
        assert!(words[2].ends_with(&["-", "-", "-", "-", "-", "/m2"]), "{text}");
    }
}
