//! By what the file below a partial file is known again, where its size and the time of its last change say nothing.
//!
//! Its inode number together with the time of its last change of status is the file itself, unchanged: nobody can set that time.
//! Where either is another one, the layer may have been copied, or the file's attributes, names or data changed. Then blocks
//! spread over the file tell.

use sha2::{Digest, Sha256};
use std::time::SystemTime;
use vellum_vfs::{Attr, BranchFile, Result, Timestamp};

/// Bytes of the digest of the sample that are kept.
pub(crate) const SAMPLE_LEN: usize = 12;
/// Blocks of the sample: the first, the last, and others at equal distances between.
const BLOCKS: u64 = 16;
const BLOCK: u64 = 4096;
/// A time of change that is no older than this can be that of a later change, too: filesystems' clocks tick slowly.
const SETTLED_SECS: i64 = 2;

/// What is recorded of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Its inode number; 0: its time of change was too young to mean anything.
    pub(crate) ino: u64,
    /// When it was changed last in any way.
    pub(crate) ctime: Timestamp,
    /// Digest of its sample.
    pub(crate) sample: [u8; SAMPLE_LEN],
}

impl Origin {
    /// What there is to be recorded of `file`.
    pub(crate) fn read(file: &dyn BranchFile) -> Result<Self> {
        // The attributes first: a change after that shows in them.
        let attr = file.stat()?;
        Ok(Self { sample: sample(file, attr.size)?, ..Self::from_attr(&attr, [0; SAMPLE_LEN]) })
    }

    fn from_attr(attr: &Attr, sample: [u8; SAMPLE_LEN]) -> Self {
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        let settled = attr.ctime.secs.saturating_add(SETTLED_SECS) < now;
        Self { ino: if settled { attr.ino } else { 0 }, ctime: attr.ctime, sample }
    }

    /// Looks whether `file` is still that. None: it is not. Otherwise what is to be recorded from now on; the same, unless the file
    /// has another inode or time.
    pub(crate) fn look(&self, file: &dyn BranchFile) -> Result<Option<Self>> {
        let attr = file.stat()?;
        if self.ino != 0 && (attr.ino, attr.ctime) == (self.ino, self.ctime) {
            return Ok(Some(*self));
        }
        Ok((sample(file, attr.size)? == self.sample).then(|| Self::from_attr(&attr, self.sample)))
    }
}

fn sample(file: &dyn BranchFile, size: u64) -> Result<[u8; SAMPLE_LEN]> {
    let mut digest = Sha256::new();
    let mut block = [0; BLOCK as usize];
    let last = size.saturating_sub(1) / BLOCK;
    let mut before = None;
    for number in 0..BLOCKS {
        let at = (u128::from(last) * u128::from(number) / u128::from(BLOCKS - 1)) as u64 * BLOCK;
        if before == Some(at) {
            continue;
        }
        before = Some(at);
        let mut got = 0;
        while let Some(rest) = block.get_mut(got..)
            && !rest.is_empty()
        {
            match file.read_at(rest, at + got as u64)? {
                0 => break,
                n => got += n,
            }
        }
        digest.update(block.get(..got).unwrap_or_default());
    }
    let mut kept = [0; SAMPLE_LEN];
    kept.iter_mut().zip(digest.finalize()).for_each(|(to, from)| *to = from);
    Ok(kept)
}
