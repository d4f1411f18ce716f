//! What another tenant does meanwhile, for as long as somebody measures: Danaus's neighbours of a file server.

use crate::failure::{Result, While};
use crate::testbed;
use crate::workload::{disk, personality};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use vellum_zoned::device::emulator::Random;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Reads and writes blocks of 4 KiB of one file at random, half each.
    RandomIo,
    /// Filebench's web server.
    Webserver,
    /// Computes on one processor, and touches no file.
    Processor,
}

/// Size of the file of random I/O in MiB at scale 1.
const RANDOM_MIB: usize = 512;
const BLOCK: usize = 4096;
const FILE: &str = "neighbour";

/// A neighbour with everything that it needs.
#[derive(Debug)]
pub struct Neighbour<'a> {
    kind: Kind,
    root: &'a Path,
    file: Option<File>,
    web: Option<personality::Personality>,
}

impl<'a> Neighbour<'a> {
    /// Makes its files in `root`; `scale` is a factor of their number and size.
    pub fn prepare(kind: Kind, root: &'a Path, scale: f64) -> Result<Self> {
        let scaled = |count: usize| testbed::scaled(count, scale);
        let mut ready = Self { kind, root, file: None, web: None };
        match kind {
            Kind::RandomIo => {
                let path = root.join(FILE);
                let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
                let file = file.doing(|| "making the neighbour's file")?;
                let piece = vec![0x5a; 1 << 20];
                for number in 0..scaled(RANDOM_MIB) as u64 {
                    file.write_all_at(&piece, number << 20).doing(|| "filling the neighbour's file")?;
                }
                ready.file = Some(file);
            }
            Kind::Webserver => {
                let web = personality::webserver(&scaled);
                disk::prepare(&web, root)?;
                ready.web = Some(web);
            }
            Kind::Processor => {}
        }
        Ok(ready)
    }

    /// Goes on until the process is killed.
    pub fn run_forever(&self) -> Result<Infallible> {
        let mut random = Random::new(23);
        loop {
            self.once(&mut random)?;
        }
    }

    /// A little of it.
    fn once(&self, random: &mut Random) -> Result<()> {
        match (self.kind, &self.file, &self.web) {
            (Kind::RandomIo, Some(file), _) => {
                let blocks = file.metadata().doing(|| "the neighbour's file")?.len() / BLOCK as u64;
                let mut block = [0x5a; BLOCK];
                let mut at = || random.below(blocks) * BLOCK as u64;
                file.read_exact_at(&mut block, at()).doing(|| "the neighbour's read")?;
                file.write_all_at(&block, at()).doing(|| "the neighbour's write")
            }
            (Kind::Webserver, _, Some(web)) => disk::run(web, self.root),
            _ => {
                black_box((0..1_000_000_u64).fold(0, |sum, number| black_box(sum ^ number)));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_run_repeatedly() {
        for kind in [Kind::RandomIo, Kind::Webserver, Kind::Processor] {
            let dir = tempfile::tempdir().unwrap();
            let neighbour = Neighbour::prepare(kind, dir.path(), 0.01).unwrap();
            let mut random = Random::new(1);
            for _ in 0..3 {
                neighbour.once(&mut random).unwrap();
            }
        }
    }
}
