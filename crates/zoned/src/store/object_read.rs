//! Reading objects. Where blocks are is looked up under the lock; they are read without it.

use super::blocks;
use super::change::DeviceExtent;
use super::error::{Error, Result};
use super::shared::Shared;
use super::state::Object;

/// How often blocks are looked up again that were moved while they were read.
const READ_TRIES: usize = 8;
/// Read under one look-up, in blocks.
const READ_BLOCKS: u64 = 1024;

/// Blocks that are to be read, side by side in the object and on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first block, in the object.
    pub(super) at: u64,
    pub(super) place: DeviceExtent,
    pub(super) sums: Vec<u32>,
}

/// The pieces of an object in `count` blocks from `at` on. What no piece covers is zeros.
pub(super) fn pieces(object: &Object, at: u64, count: u64) -> Vec<Piece> {
    let end = at + count;
    let first = at.saturating_sub(super::change::EXTENT_BLOCKS_MAX as u64);
    let mut pieces = Vec::new();
    for (start, extent) in object.extents.range(first..end) {
        let stop = start + extent.sums.len() as u64;
        let (from, to) = ((*start).max(at), stop.min(end));
        if from < to {
            let skipped = (from - start) as usize;
            pieces.push(Piece {
                at: from,
                place: DeviceExtent { zone: extent.place.zone, block: extent.place.block + skipped as u32 },
                sums: extent.sums[skipped..(to - start) as usize].to_vec(),
            });
        }
    }
    pieces
}

impl Shared {
    /// Reads whole blocks from block `at` on, zeros where there are none.
    pub(super) fn read_blocks(&self, number: u64, at: u64, into: &mut [u8]) -> Result<()> {
        let size = self.device.geometry().block_size as usize;
        for (part, from) in
            into.chunks_mut(READ_BLOCKS as usize * size).zip((at..).step_by(READ_BLOCKS as usize))
        {
            self.read_pieces(number, from, part)?;
        }
        Ok(())
    }

    fn read_pieces(&self, number: u64, at: u64, into: &mut [u8]) -> Result<()> {
        let size = self.device.geometry().block_size as usize;
        let mut before = None;
        for _ in 0..READ_TRIES {
            let pieces = {
                let core = self.core.lock();
                let object = core.state.objects.get(&number).ok_or(Error::NotFound)?;
                pieces(object, at, (into.len() / size) as u64)
            };
            if pieces.iter().map(|piece| piece.sums.len()).sum::<usize>() * size < into.len() {
                into.fill(0);
            }
            let failed = self.read_each(&pieces, at, into);
            let Some((piece, error)) = failed else { return Ok(()) };
            if before.as_ref() == Some(&piece) {
                tracing::error!("object {number}, block {}: {error}", piece.at);
                return Err(error);
            }
            before = Some(piece);
        }
        Err(Error::Damaged("an object is moved again and again while it is read".to_owned()))
    }

    /// Reads pieces to their places in `into`, which begins with block `at`. The first that fails, and why.
    fn read_each(&self, pieces: &[Piece], at: u64, into: &mut [u8]) -> Option<(Piece, Error)> {
        let size = self.device.geometry().block_size as usize;
        pieces.iter().find_map(|piece| {
            let start = (piece.at - at) as usize * size;
            let part = &mut into[start..start + piece.sums.len() * size];
            Some((piece.clone(), blocks::read(&*self.device, piece.place, &piece.sums, part).err()?))
        })
    }

    /// Reads from `offset` on, as much as there is. How much that was, in bytes.
    pub(super) fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let number = self.core.lock().state.object(name)?.0;
        let mut done = 0;
        while done < into.len() {
            let some = self.read_some(name, number, offset + done as u64, &mut into[done..])?;
            if some == 0 {
                break;
            }
            done += some;
        }
        Ok(done)
    }

    fn read_some(&self, name: &[u8], number: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        let size = u64::from(self.device.geometry().block_size);
        let mut before = None;
        for _ in 0..READ_TRIES {
            let core = self.core.lock();
            let object = core.state.objects.get(&number).ok_or(Error::NotFound)?;
            let at = offset / size;
            let wanted = (into.len() as u64).min(object.size.saturating_sub(offset));
            let wanted = wanted.min((at + READ_BLOCKS) * size - offset) as usize;
            if wanted == 0 {
                return Ok(0);
            }
            let count = (offset + wanted as u64).div_ceil(size) - at;
            let pieces = pieces(object, at, count);
            drop(core);
            let mut blocks = vec![0; (count * size) as usize];
            let Some((piece, error)) = self.read_each(&pieces, at, &mut blocks) else {
                let skipped = (offset - at * size) as usize;
                into[..wanted].copy_from_slice(&blocks[skipped..skipped + wanted]);
                return Ok(wanted);
            };
            // It may have been moved, and its zone emptied, meanwhile. Not if it is still known at the same place.
            if before.as_ref() == Some(&piece) {
                let name = String::from_utf8_lossy(name);
                tracing::error!("object {name:?}, block {}: {error}", piece.at);
                return Err(error);
            }
            before = Some(piece);
        }
        Err(Error::Damaged("an object is moved again and again while it is read".to_owned()))
    }
}
