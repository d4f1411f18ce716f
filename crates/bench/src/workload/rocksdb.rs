//! A key-value store in each of several trees at once: Danaus (Kappes and Anastasiadis, Middleware 2021) runs RocksDB 4.5 in 1 to 32
//! pools of a host, each of 2 cores and 8 GB.
//!
//! As published: one thread puts 1 GB of random pairs, keys of 9 bytes and values of 128 KB, with a memory buffer of 64 MB and two
//! threads for compaction; and gets 8 GB at random from a database of 8 GB. Whether a put waits for the disk is not said; here it
//! does not, as RocksDB's defaults have it, and every put is in the log. At 32 pools Danaus's puts are 5.9 times faster than over
//! FUSE and 16.2 times faster than with the kernel's client, its gets 1.4 and 2.2 times.
//!
//! The program is RocksDB's own `db_bench`. Debian's version has other defaults than the published one, so every size that matters is
//! given.

use crate::failure::{Failure, Result, While};
use crate::programs::{self, last_words, on_path};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = "db_bench";
/// The database in a tree.
const NAME: &str = "db";
/// A value, in bytes; it is not compressed.
const VALUE: usize = 128 * 1024;
/// Memory buffers that a database of puts fills, at any scale: 1 GB in buffers of 64 MB. So there are as many flushes, and about as
/// many compactions, as there were.
const BUFFERS: usize = 16;
/// No buffer is smaller, in bytes.
const BUFFER_MIN: usize = 1 << 20;

/// What is done with a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// So many random puts into a new one.
    Put(usize),
    /// So many random gets from one that has as many values.
    Get(usize),
}

/// Why it cannot be done here, if so.
#[must_use]
pub fn missing_requirement() -> Option<String> {
    on_path(PROGRAM)
        .is_empty()
        .then(|| format!("there is no {PROGRAM} on PATH; install the package rocksdb-tools"))
}

/// Makes a database of `count` values in `layer`, compacted: what random puts come to in the end, in less time.
pub fn make(layer: &Path, count: usize) -> Result<()> {
    let mut command = command(layer, count, 0);
    let output = command.args(["--benchmarks=fillseq,compact", "--disable_wal=1"]).output();
    let output = output.doing(|| PROGRAM)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{PROGRAM}: {}: {}", output.status, last_words(&said).unwrap_or("no message"))))
}

/// Brings the program into the page cache, which may just have been emptied.
pub fn warm() -> Result<()> {
    programs::run(Command::new(PROGRAM).arg("--version"))
}

/// Becomes the program, at work in the tree `root`; returns only when that failed. What it complains of goes where its results go.
pub(crate) fn exec_program(root: &Path, number: usize, work: Work) -> Failure {
    let (Work::Put(count) | Work::Get(count)) = work;
    let mut command = command(root, count, number);
    match work {
        Work::Put(_) => command.arg("--benchmarks=fillrandom"),
        // Without a cache of its own every get is a read. (The published cache, if it was the default, held a thousandth.)
        Work::Get(_) => command.args(["--benchmarks=readrandom", "--use_existing_db=1", "--cache_size=0"]),
    };
    match std::io::stdout().as_fd().try_clone_to_owned() {
        Ok(stdout) => command.stderr(Stdio::from(stdout)),
        Err(error) => return Failure::new(format!("a second stdout: {error}")),
    };
    Failure::new(format!("{PROGRAM}: {}", command.stdin(Stdio::null()).exec()))
}

/// What all that is done with a database of `count` values has in common; `number` makes tenants' keys differ.
fn command(root: &Path, count: usize, number: usize) -> Command {
    let buffer = (count * VALUE / BUFFERS).max(BUFFER_MIN);
    let mut command = Command::new(PROGRAM);
    command.arg(format!("--db={}", database(root).display()));
    for (option, value) in [
        ("num", count),
        // 0 would be another one each time.
        ("seed", number + 1),
        ("threads", 1),
        ("key_size", 9),
        ("value_size", VALUE),
        ("max_background_compactions", 2),
        ("write_buffer_size", buffer),
        // As they are to a buffer of 64 MiB.
        ("target_file_size_base", buffer),
        ("max_bytes_for_level_base", 4 * buffer),
    ] {
        command.arg(format!("--{option}={value}"));
    }
    command.arg("--compression_type=none");
    command
}

fn database(root: &Path) -> PathBuf {
    root.join(NAME)
}

/// Fails where the program has not said that all of the work was done.
pub fn check_done(said: &str, work: Work) -> Result<()> {
    if is_complete(said, work) {
        return Ok(());
    }
    let last = last_words(said).unwrap_or("nothing");
    Err(Failure::new(format!("{PROGRAM} has not done what it was to do; it says {last:?}")))
}

/// Whether the program says that everything was put, or found.
fn is_complete(said: &str, work: Work) -> bool {
    said.lines().any(|line| match work {
        Work::Put(count) => {
            line.starts_with("fillrandom ") && line.contains(&format!(" {count} operations;"))
        }
        Work::Get(count) => {
            line.starts_with("readrandom ") && line.ends_with(&format!("({count} of {count} found)"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_complete_or_not() {
        let put = "DB path: [/x]\nfillrandom   :     670.3 micros/op 1481 ops/sec 1.3 seconds 41 operations;  1.2 MB/s\n";
        let get = "readrandom   :     274.6 micros/op 3641 ops/sec 2.2 seconds 82 operations;  45.2 MB/s (82 of 82 found)\n";
        assert!(is_complete(put, Work::Put(41)) && is_complete(get, Work::Get(82)));
        assert!(!is_complete(put, Work::Put(1)) && !is_complete(put, Work::Get(41)));
        assert!(!is_complete(&get.replace("(82", "(81"), Work::Get(82)) && !is_complete("", Work::Put(41)));
    }

    #[test]
    fn buffers_grow_with_the_database() {
        let buffer = |count| {
            let command = command(Path::new("/x"), count, 0);
            let mut arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
            arguments.find_map(|argument| argument.strip_prefix("--write_buffer_size=")?.parse().ok())
        };
        assert_eq!([buffer(8192), buffer(2048), buffer(1)], [Some(64 << 20), Some(16 << 20), Some(1 << 20)]);
    }
}
