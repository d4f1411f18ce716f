//! Trees of files for the tasks: the same for the same seed, everywhere.

use crate::failure::{Result, While};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use vellum_zoned::device::AlignedBuf;
use vellum_zoned::device::emulator::Random;

/// Files per directory, on average.
const FILES_PER_DIR: usize = 40;
/// Directories lie at most this deep.
const DEPTH_MAX: usize = 5;
/// The median size of a file, in bytes; sizes are log-normal around it (the mean is about twice that).
const SIZE_MEDIAN: f64 = 4096.0;
/// The standard deviation of the logarithm of sizes.
const SIZE_SIGMA: f64 = 1.2;
/// No file is larger, in bytes.
const SIZE_MAX: f64 = 262_144.0;

/// Words of 8 letters in a line of a file.
const WORDS_PER_LINE: usize = 8;

/// A number in [0, 1).
pub(crate) fn unit(random: &mut Random) -> f64 {
    (random.draw() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A normally distributed number: mean 0, standard deviation 1.
pub(crate) fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(random)).cos()
}

/// A tree: directories, parents first, and files. Paths are relative.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Directories, without the top.
    pub dirs: Vec<PathBuf>,
    /// Files and their sizes in bytes.
    pub files: Vec<(PathBuf, usize)>,
    seed: u64,
}

impl Tree {
    /// Plans a tree of `files` files.
    #[must_use]
    pub fn plan(files: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut dirs: Vec<PathBuf> = Vec::new();
        for number in 0..files.div_ceil(FILES_PER_DIR) {
            let parent = dirs
                .get(random.below(dirs.len() as u64 + 1) as usize)
                .filter(|dir| dir.components().count() < DEPTH_MAX)
                .cloned()
                .unwrap_or_default();
            dirs.push(parent.join(format!("directory-{number}")));
        }
        let files = (0..files)
            .map(|number| {
                let dir = dirs.get(number % dirs.len().max(1)).cloned().unwrap_or_default();
                let size = (SIZE_MEDIAN.ln() + SIZE_SIGMA * normal(&mut random)).exp().min(SIZE_MAX);
                (dir.join(format!("file-{number}.txt")), size as usize)
            })
            .collect();
        Self { dirs, files, seed }
    }

    /// Makes the tree in `top`, which exists.
    pub fn write(&self, top: &Path) -> Result<()> {
        for dir in &self.dirs {
            let path = top.join(dir);
            fs::create_dir(&path).doing(|| format!("making {}", path.display()))?;
        }
        let mut random = Random::new(self.seed ^ 0x5eed);
        let mut text = Vec::new();
        for (file, size) in &self.files {
            let path = top.join(file);
            fill(&mut random, &mut text, *size);
            fs::write(&path, &text).doing(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// Fills `text` with `size` bytes of lines of letters.
fn fill(random: &mut Random, text: &mut Vec<u8>, size: usize) {
    text.clear();
    while text.len() < size {
        for _ in 0..WORDS_PER_LINE {
            text.extend(random.draw().to_le_bytes().map(|byte| b'a' + byte % 16));
        }
        text.push(b'\n');
    }
    text.truncate(size);
}

/// Writes a file of `size` bytes, which do not repeat, and makes it durable.
pub fn write_large(path: &Path, size: u64) -> Result<()> {
    let say = || format!("writing {}", path.display());
    let mut file = fs::File::create(path).doing(say)?;
    let mut random = Random::new(size);
    let mut left = size;
    let mut block = AlignedBuf::zeroed(1 << 20);
    while left > 0 {
        scramble(&mut block, &mut random);
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 20);
        file.write_all(block.as_slice().get(..part).unwrap_or_default()).doing(say)?;
        left -= part as u64;
    }
    file.sync_all().doing(say)
}

/// Bytes that no disk makes fewer of.
pub(crate) fn incompressible(length: usize) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(length);
    scramble(&mut bytes, &mut Random::new(1));
    bytes
}

fn scramble(bytes: &mut AlignedBuf, random: &mut Random) {
    for word in bytes.as_mut_slice().chunks_exact_mut(8) {
        word.copy_from_slice(&random.draw().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_the_same_for_the_same_seed_and_of_the_right_size() {
        let (one, two) = (Tree::plan(4000, 7), Tree::plan(4000, 7));
        assert_eq!(one.files, two.files);
        assert_eq!(one.files.len(), 4000);
        assert_eq!(one.dirs.len(), 100);
        assert_ne!(one.files, Tree::plan(4000, 8).files);
        let mut sizes: Vec<usize> = one.files.iter().map(|(_, size)| *size).collect();
        sizes.sort_unstable();
        assert!((3000..5500).contains(&sizes[2000]), "median {}", sizes[2000]);
        let mean = sizes.iter().sum::<usize>() / 4000;
        assert!((6000..12000).contains(&mean), "mean {mean}");
    }

    #[test]
    fn parents_come_before_children() {
        let tree = Tree::plan(4000, 7);
        for (at, dir) in tree.dirs.iter().enumerate() {
            let parent = dir.parent().unwrap();
            assert!(parent.as_os_str().is_empty() || tree.dirs[..at].contains(&parent.to_owned()));
        }
    }

    #[test]
    fn text_has_the_size_asked_for() {
        let mut text = Vec::new();
        for size in [0, 1, 64, 65, 4096] {
            fill(&mut Random::new(1), &mut text, size);
            assert_eq!(text.len(), size);
        }
    }
}
