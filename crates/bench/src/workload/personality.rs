//! Workloads that come with Filebench: its oltp.f, fileserver.f, webserver.f and varmail.f as published, with their numbers of
//! threads, files, sizes and their lists of operations; and the readers of its videoserver.f. Enhanced OverlayFS (Han, 2023) is measured by oltp; Danaus
//! (Kappes and Anastasiadis, Middleware 2021) by fileserver and webserver.
//!
//! Numbers of files, threads and turns become smaller with the scale, and never less than what still is that workload.

use super::filebench::{FileSet, Flowop, Role, Size};

/// 16 KiB: what is appended in the mean.
const APPEND: u32 = 16 << 10;
/// 2 KiB: a page of the database.
const PAGE: u32 = 2 << 10;
/// 256 KiB: what the log writer writes at once.
const LOG_WRITE: u32 = 256 << 10;
/// Reads for which the log writer writes once.
const READS_PER_LOG_WRITE: usize = 3200;
/// Turns of all threads of the file server, and of the web server, at scale 1.
const TURNS: usize = 4000;
/// Reads of all readers of the database at scale 1, and writes of all its writers.
const PAGES: usize = 10_000;

const FILESERVER: &[Flowop] = &[
    Flowop::Create,
    Flowop::WriteWhole,
    Flowop::Close,
    Flowop::Open,
    Flowop::Append(APPEND),
    Flowop::Close,
    Flowop::Open,
    Flowop::ReadWhole,
    Flowop::Close,
    Flowop::Delete,
    Flowop::Stat,
];

const O: Flowop = Flowop::Open;
const R: Flowop = Flowop::ReadWhole;
const C: Flowop = Flowop::Close;
/// Open, read, close, ten times.
#[rustfmt::skip]
const WEBSERVER: &[Flowop] = &[
    O, R, C, O, R, C, O, R, C, O, R, C, O, R, C, O, R, C, O, R, C, O, R, C, O, R, C, O, R, C,
    Flowop::AppendLog(APPEND),
];

/// Delete; create, append, sync; read, append, sync; read.
#[rustfmt::skip]
const VARMAIL: &[Flowop] = &[
    Flowop::Delete,
    Flowop::Create, Flowop::Append(APPEND), Flowop::Sync, C,
    O, R, Flowop::Append(APPEND), Flowop::Sync, C,
    O, R, C,
];
/// A thirty-second of what is published, so that a few are as much as a cache.
const VIDEO: u64 = 16 << 20;

/// A workload.
#[derive(Clone, Debug)]
pub struct Personality {
    pub files: FileSet,
    /// Its threads.
    pub roles: Vec<Role>,
}

impl Personality {
    /// How many threads share the files' numbers out among them.
    #[must_use]
    pub fn sharers(&self) -> usize {
        self.roles.iter().find(|role| role.own_files).map_or(1, |role| role.threads)
    }

    /// How many operations it is.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.roles.iter().map(|role| role.threads * (role.first.len() + role.loops * role.each.len())).sum()
    }
}

/// So many of something at a scale, within limits.
type Scale<'a> = &'a dyn Fn(usize) -> usize;

/// Threads: as many as published at scale 1 and above, at least two.
fn threads(scaled: Scale<'_>, published: usize) -> usize {
    scaled(published).clamp(2, published)
}

/// Create and write, append, read, delete and stat files: 50 threads, 10,000 files of 128 KiB, 80 % of them there.
#[must_use]
pub fn fileserver(scaled: Scale<'_>) -> Personality {
    let threads = threads(scaled, 50);
    Personality {
        files: FileSet {
            count: scaled(10_000).max(threads * 20),
            percent: 80,
            size: Size::Gamma(131_072.0),
            width: 20,
            log_bytes: None,
        },
        roles: vec![Role {
            threads,
            own_files: true,
            first: &[],
            each: FILESERVER,
            loops: (scaled(TURNS) / threads).max(1),
        }],
    }
}

/// Ten times open, read, close, then an append to a log: 100 threads, 1,000 files of 16 KiB.
#[must_use]
pub fn webserver(scaled: Scale<'_>) -> Personality {
    let threads = threads(scaled, 100);
    Personality {
        files: FileSet {
            count: scaled(1000).max(20),
            percent: 100,
            size: Size::Gamma(16_384.0),
            width: 20,
            log_bytes: Some(16_384),
        },
        roles: vec![Role {
            threads,
            own_files: false,
            first: &[],
            each: WEBSERVER,
            loops: (scaled(TURNS) / threads).max(1),
        }],
    }
}

/// Mail in a file each: 16 threads, 1,000 files of 16 KiB, 80 % of them there; what is appended is synced.
#[must_use]
pub fn varmail(scaled: Scale<'_>) -> Personality {
    let threads = threads(scaled, 16);
    Personality {
        files: FileSet {
            count: scaled(1000).max(threads * 20),
            percent: 80,
            size: Size::Gamma(16_384.0),
            width: 1000,
            log_bytes: None,
        },
        roles: vec![Role {
            threads,
            own_files: true,
            first: &[],
            each: VARMAIL,
            loops: (scaled(TURNS) / threads).max(1),
        }],
    }
}

/// Videos that are read whole: 48 threads, 32 files. The published one beside them, which replaces a file each ten seconds, is left out.
#[must_use]
pub fn videoserver(scaled: Scale<'_>) -> Personality {
    let threads = threads(scaled, 48);
    Personality {
        files: FileSet {
            count: scaled(32).max(2),
            percent: 100,
            size: Size::Fixed(VIDEO),
            width: 32,
            log_bytes: None,
        },
        roles: vec![Role {
            threads,
            own_files: false,
            first: &[],
            each: &[O, R, C],
            loops: scaled(4).max(1),
        }],
    }
}

/// A database: 200 readers, 10 writers and a log writer on 10 files of 10 MiB and a log of 10 MiB.
///
/// As published, 1000 reads let each of the writers write 100 pages, and 3200 reads let the log writer write once;
/// here the numbers are in that relation, and nobody waits for anybody. The published loops that only take time on
/// the processor are left out, and each write is followed by fdatasync instead of being synchronous itself.
#[must_use]
pub fn oltp(scaled: Scale<'_>) -> Personality {
    let (readers, writers) = (threads(scaled, 200), threads(scaled, 10));
    let pages = scaled(PAGES);
    // A multiple of what is written at once.
    let size = (scaled(10 << 20) >> 20).max(1) << 20;
    let role = Role { threads: 1, own_files: false, first: &[Flowop::Open], each: &[], loops: 0 };
    Personality {
        files: FileSet {
            count: 10,
            percent: 100,
            size: Size::Fixed(size as u64),
            width: 1024,
            log_bytes: Some(size as u64),
        },
        roles: vec![
            Role {
                threads: readers,
                each: &[Flowop::ReadRandom(PAGE)],
                loops: (pages / readers).max(1),
                ..role
            },
            Role {
                threads: writers,
                each: &[Flowop::WriteRandom(PAGE), Flowop::Sync],
                loops: (pages / writers).max(1),
                ..role
            },
            Role {
                first: &[Flowop::OpenLog],
                each: &[Flowop::WriteRandom(LOG_WRITE), Flowop::Sync],
                loops: (pages / READS_PER_LOG_WRITE).max(1),
                ..role
            },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Result;
    use crate::workload::filebench::{Call, Target, Thread};
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    /// Keeps every call, and which files there are.
    struct Recorder {
        calls: Vec<Call>,
        there: BTreeSet<PathBuf>,
    }

    impl Target for Recorder {
        fn call(&mut self, call: &Call) -> Result<()> {
            match call {
                Call::Create(path) => assert!(self.there.insert(path.clone())),
                Call::Delete(path) => assert!(self.there.remove(path)),
                Call::Open(path) if path.starts_with("set") => assert!(self.there.contains(path)),
                Call::Stat(path) => assert!(self.there.contains(path)),
                _ => {}
            }
            self.calls.push(call.clone());
            Ok(())
        }
    }

    fn record(personality: &Personality, seed: u64) -> Vec<Call> {
        let there = personality.files.initial(personality.sharers(), 1).map(|(path, _)| path).collect();
        let mut recorder = Recorder { there, calls: Vec::new() };
        let at_first = recorder.there.len();
        for role in &personality.roles {
            for number in 0..role.threads {
                let thread = Thread::new(&personality.files, role, number, seed);
                thread.run(&mut recorder, || Ok(())).unwrap();
            }
        }
        assert_eq!(recorder.there.len(), at_first);
        assert_eq!(recorder.calls.len(), personality.operations());
        recorder.calls
    }

    fn counts(calls: &[Call]) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for call in calls {
            let name = match call {
                Call::Create(_) => "create",
                Call::Open(_) => "open",
                Call::Append(_) => "append",
                Call::AppendLog(_) => "log",
                Call::ReadWhole => "read",
                Call::ReadAt { .. } => "read-at",
                Call::WriteAt { .. } => "write",
                Call::Sync => "sync",
                Call::Close => "close",
                Call::Delete(_) => "delete",
                Call::Stat(_) => "stat",
            };
            *counts.entry(name).or_insert(0) += 1;
        }
        counts
    }

    fn at(scale: f64) -> impl Fn(usize) -> usize {
        move |count| ((count as f64 * scale).round() as usize).max(1)
    }

    #[test]
    fn the_file_server_has_the_published_shares_and_sizes() {
        let personality = fileserver(&at(1.0));
        assert_eq!((personality.sharers(), personality.files.count), (50, 10_000));
        assert_eq!(personality.files.initial(50, 1).count(), 8000);
        let calls = record(&personality, 1);
        let turns = TURNS;
        let expected = [
            ("append", turns),
            ("close", 3 * turns),
            ("create", turns),
            ("delete", turns),
            ("open", 2 * turns),
            ("read", turns),
            ("stat", turns),
            ("write", turns),
        ];
        assert_eq!(counts(&calls), BTreeMap::from(expected));
        let mean = |of: fn(&Call) -> Option<usize>| {
            let all: Vec<usize> = calls.iter().filter_map(of).collect();
            all.iter().sum::<usize>() as f64 / all.len() as f64
        };
        let written = mean(|call| if let Call::WriteAt { bytes, .. } = call { Some(*bytes) } else { None });
        let appended = mean(|call| if let Call::Append(bytes) = call { Some(*bytes) } else { None });
        assert!((written / 131_072.0 - 1.0).abs() < 0.05, "{written}");
        assert!((appended / 16_384.0 - 1.0).abs() < 0.05, "{appended}");
    }

    #[test]
    fn the_web_server_fetches_ten_files_for_each_line_of_its_log() {
        let personality = webserver(&at(1.0));
        let counts = counts(&record(&personality, 1));
        let expected = [("close", 10 * TURNS), ("log", TURNS), ("open", 10 * TURNS), ("read", 10 * TURNS)];
        assert_eq!(counts, BTreeMap::from(expected));
    }

    #[test]
    fn the_database_reads_as_often_as_it_writes_and_syncs_every_write() {
        let personality = oltp(&at(1.0));
        let threads: Vec<usize> = personality.roles.iter().map(|role| role.threads).collect();
        assert_eq!(threads, [200, 10, 1]);
        let calls = record(&personality, 1);
        let counts = counts(&calls);
        let log = PAGES / READS_PER_LOG_WRITE;
        let expected = [("open", 211), ("read-at", PAGES), ("sync", PAGES + log), ("write", PAGES + log)];
        assert_eq!(counts, BTreeMap::from(expected));
        for call in &calls {
            if let Call::ReadAt { offset, bytes } | Call::WriteAt { offset, bytes } = call {
                assert!(*bytes == 2048 || *bytes == 262_144);
                assert!(offset % *bytes as u64 == 0 && offset + *bytes as u64 <= 10 << 20);
            }
        }
    }

    #[test]
    fn seeds_repeat_exactly_at_every_scale() {
        for scale in [0.001, 0.05, 1.0] {
            let scaled = at(scale);
            for personality in [fileserver(&scaled), webserver(&scaled), oltp(&scaled)] {
                assert_eq!(record(&personality, 7), record(&personality, 7));
                assert_ne!(record(&personality, 7), record(&personality, 8));
            }
        }
    }
}
