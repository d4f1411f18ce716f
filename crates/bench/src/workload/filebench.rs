//! An engine for workloads in Filebench's manner (Tarasov, Zadok and Shepler, "Filebench: A Flexible Framework for File
//! System Benchmarking", ;login: 41(1), 2016): threads go through lists of operations on sets of files, again and again.
//!
//! Filebench counts what is done in a fixed time; here each thread goes through its list a fixed number of times, and
//! the same seed gives the same operations, so that the work is the same on every filesystem. For that, threads that
//! create and delete files have numbers of their own among the files of a set, in directories that all share.

use crate::failure::{Failure, Result};
use crate::tree::{normal, unit};
use std::path::{Path, PathBuf};
use vellum_zoned::device::emulator::Random;

/// The shape of the gamma distribution of sizes in the published workloads.
pub const SHAPE: f64 = 1.5;
/// The log of a set.
pub const LOG: &str = "log";

/// A kind of operation in a list. The current file is what the last open or create has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flowop {
    /// Creates a file that is not there.
    Create,
    /// Writes all of the current file.
    WriteWhole,
    /// Opens a file that is there, at random.
    Open,
    /// Opens the log as the current file.
    OpenLog,
    /// Appends to the current file, in the mean so many bytes.
    Append(u32),
    /// Appends to the log, in the mean so many bytes; it stays open beside the current file.
    AppendLog(u32),
    /// Reads all of the current file.
    ReadWhole,
    /// Reads so many bytes of the current file at a random multiple of their number.
    ReadRandom(u32),
    /// Overwrites so many bytes of the current file at a random multiple of their number.
    WriteRandom(u32),
    /// Makes the current file's data durable.
    Sync,
    /// Closes the current file.
    Close,
    /// Deletes a file that is there, at random.
    Delete,
    /// Asks for the attributes of a file that is there, at random.
    Stat,
}

/// An operation with its particulars. Paths are relative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Creates and opens a file.
    Create(PathBuf),
    /// Opens a file, for reading and writing.
    Open(PathBuf),
    /// Appends so many bytes.
    Append(usize),
    /// Appends so many bytes to the log.
    AppendLog(usize),
    /// Reads to the end of the file.
    ReadWhole,
    ReadAt {
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        bytes: usize,
    },
    WriteAt {
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        bytes: usize,
    },
    /// fdatasync.
    Sync,
    Close,
    /// Deletes a file.
    Delete(PathBuf),
    /// stat of a file.
    Stat(PathBuf),
}

/// Where operations go.
pub trait Target {
    /// Does it.
    fn call(&mut self, call: &Call) -> Result<()>;
}

/// The sizes of files, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// All the same.
    Fixed(u64),
    /// Gamma-distributed with this mean and [`SHAPE`].
    Gamma(f64),
}

impl Size {
    /// The size of one more file, at least 1.
    #[must_use]
    pub fn draw(self, random: &mut Random) -> u64 {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Gamma(mean) => (gamma(random, mean).round() as u64).max(1),
        }
    }
}

/// A gamma-distributed number of this mean, by the method of Marsaglia and Tsang (ACM TOMS 26(3), 2000).
fn gamma(random: &mut Random, mean: f64) -> f64 {
    let d = SHAPE - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(random);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - unit(random)).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v * mean / SHAPE;
        }
    }
}

/// A set of files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileSet {
    /// How many there can be.
    pub count: usize,
    /// How many in a hundred are there at the beginning.
    pub percent: usize,
    /// Their sizes.
    pub size: Size,
    /// Files in a directory, and directories in a directory.
    pub width: usize,
    /// The size of the log at the beginning, in bytes.
    pub log_bytes: Option<u64>,
}

impl FileSet {
    /// The path of a file: two levels of directories where one would not hold them.
    #[must_use]
    pub fn path(&self, number: usize) -> PathBuf {
        let width = self.width.max(1);
        let dir = number / width;
        if self.count <= width {
            return PathBuf::from(format!("set/{number}"));
        }
        PathBuf::from(format!("set/{}/{}/{number}", dir / width, dir % width))
    }

    /// Whether a file is there at the beginning, when `threads` share the numbers out among them.
    fn exists_initially(&self, number: usize, threads: usize) -> bool {
        // By turns within each thread's numbers, so that every thread has its share of both.
        (number / threads.max(1)) % 10 < self.percent / 10
    }

    /// The files that are there at the beginning, and their sizes.
    pub fn initial(&self, threads: usize, seed: u64) -> impl Iterator<Item = (PathBuf, u64)> {
        let mut random = Random::new(seed);
        (0..self.count)
            .filter(move |number| self.exists_initially(*number, threads))
            .map(move |number| (self.path(number), self.size.draw(&mut random)))
    }
}

/// What a group of threads does.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// How many threads.
    pub threads: usize,
    /// Whether each has numbers of its own: those that create and delete must.
    pub own_files: bool,
    /// Once, at the beginning.
    pub first: &'static [Flowop],
    /// Again and again.
    pub each: &'static [Flowop],
    /// How often.
    pub loops: usize,
}

/// A thread that goes through its list.
#[derive(Debug)]
pub struct Thread<'a> {
    files: &'a FileSet,
    role: &'a Role,
    random: Random,
    /// Numbers of files that are there.
    there: Vec<usize>,
    /// Numbers of files that are not.
    free: Vec<usize>,
    /// The file that was created and is not closed yet.
    created: Option<usize>,
    /// Where random reads and writes of the current file end, in bytes.
    end: u64,
}

impl<'a> Thread<'a> {
    /// Thread `number` of a role.
    #[must_use]
    pub fn new(files: &'a FileSet, role: &'a Role, number: usize, seed: u64) -> Self {
        let shared_by = if role.own_files { role.threads } else { 1 };
        let mine = (0..files.count).filter(|file| !role.own_files || file % shared_by == number);
        let (there, free) = mine.partition(|file| files.exists_initially(*file, shared_by));
        // Seeds that follow each other must not give sequences that do.
        let random = Random::new(Random::new(seed ^ number as u64).draw());
        Self { files, role, random, there, free, created: None, end: 0 }
    }

    /// Does everything that this thread has to do; looks at `stop` between two turns.
    pub fn run(mut self, target: &mut impl Target, stop: impl Fn() -> Result<()>) -> Result<()> {
        for flowop in self.role.first {
            target.call(&self.next(*flowop)?)?;
        }
        for _ in 0..self.role.loops {
            stop()?;
            for flowop in self.role.each {
                target.call(&self.next(*flowop)?)?;
            }
        }
        Ok(())
    }

    /// The particulars of an operation.
    fn next(&mut self, flowop: Flowop) -> Result<Call> {
        Ok(match flowop {
            Flowop::Create => {
                let number = take(&mut self.free, &mut self.random)?;
                self.created = Some(number);
                Call::Create(self.files.path(number))
            }
            Flowop::WriteWhole => {
                Call::WriteAt { offset: 0, bytes: bytes(self.files.size.draw(&mut self.random)) }
            }
            Flowop::Open => {
                if let Size::Fixed(bytes) = self.files.size {
                    self.end = bytes;
                }
                Call::Open(self.some()?)
            }
            Flowop::OpenLog => {
                self.end = self.files.log_bytes.unwrap_or(0);
                Call::Open(LOG.into())
            }
            Flowop::Append(mean) => Call::Append(self.around(mean)),
            Flowop::AppendLog(mean) => Call::AppendLog(self.around(mean)),
            Flowop::ReadWhole => Call::ReadWhole,
            Flowop::ReadRandom(bytes) => Call::ReadAt { offset: self.place(bytes), bytes: bytes as usize },
            Flowop::WriteRandom(bytes) => Call::WriteAt { offset: self.place(bytes), bytes: bytes as usize },
            Flowop::Sync => Call::Sync,
            Flowop::Close => {
                self.there.extend(self.created.take());
                Call::Close
            }
            Flowop::Delete => {
                let number = take(&mut self.there, &mut self.random)?;
                self.free.push(number);
                Call::Delete(self.files.path(number))
            }
            Flowop::Stat => Call::Stat(self.some()?),
        })
    }

    /// A file that is there.
    fn some(&mut self) -> Result<PathBuf> {
        let at = self.random.below(self.there.len() as u64) as usize;
        let number = self.there.get(at).ok_or_else(none)?;
        Ok(self.files.path(*number))
    }

    fn around(&mut self, mean: u32) -> usize {
        bytes(Size::Gamma(f64::from(mean)).draw(&mut self.random))
    }

    /// Where to read or write in the current file.
    fn place(&mut self, bytes: u32) -> u64 {
        let bytes = u64::from(bytes).max(1);
        self.random.below(self.end / bytes) * bytes
    }
}

fn none() -> Failure {
    Failure::new("a set of files is too small for its workload")
}

/// Takes a number out of a list, at random.
fn take(from: &mut Vec<usize>, random: &mut Random) -> Result<usize> {
    if from.is_empty() {
        return Err(none());
    }
    Ok(from.swap_remove(random.below(from.len() as u64) as usize))
}

fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// The directories that the files of a set need, parents first.
#[must_use]
pub fn directories(files: &FileSet) -> std::collections::BTreeSet<PathBuf> {
    let parents = (0..files.count).map(|number| files.path(number));
    parents
        .flat_map(|path| path.ancestors().skip(1).map(Path::to_owned).collect::<Vec<_>>())
        .filter(|dir| !dir.as_os_str().is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_published_mean_and_shape() {
        let mut random = Random::new(1);
        let sizes: Vec<f64> = (0..100_000).map(|_| Size::Gamma(131_072.0).draw(&mut random) as f64).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let variance = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        assert!((mean / 131_072.0 - 1.0).abs() < 0.02, "mean {mean}");
        assert!((mean * mean / variance / SHAPE - 1.0).abs() < 0.05, "shape {}", mean * mean / variance);
    }

    #[test]
    fn threads_with_files_of_their_own_share_all_out() {
        let files = FileSet { count: 103, percent: 80, size: Size::Fixed(1), width: 20, log_bytes: None };
        let role = Role { threads: 5, own_files: true, first: &[], each: &[], loops: 0 };
        let mut all: Vec<usize> = (0..5)
            .map(|number| Thread::new(&files, &role, number, 1))
            .flat_map(|thread| [thread.there, thread.free].concat())
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..103).collect::<Vec<_>>());
        let there: usize = (0..5).map(|number| Thread::new(&files, &role, number, 1).there.len()).sum();
        assert_eq!(there, files.initial(5, 1).count());
    }
}
