//! Bits of a sidecar that are not durable yet, for the process after this one.
//!
//! A file beside the sidecar: a header that names the run of the machine, then bits as in the sidecar. A bit is written there as soon as its
//! block is. So when the process dies the next one finds it, and makes block and bit durable in that order before it begins. When the
//! machine crashes, a bit may have reached the disk before its block: in another run none is believed. Where each write is durable before
//! the next one, there is nothing that a crash could take, and the bits are good in any run and on any machine.

use crate::config::{DURABLE, Run};
use crate::sync::Mutex;
use smallvec::{SmallVec, smallvec};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;
use vellum_vfs::{BranchDir, BranchFile, Errno, Name, OpenMode, Result};

/// What the header begins with.
const MAGIC: [u8; 8] = *b"recent1\n";
/// Bytes of the header.
const HEADER: usize = 24;
/// Bytes that are taken over at a time.
const STEP: usize = 4096;

/// The file of a sidecar, made when the first bit comes.
pub(crate) struct SidecarJournal {
    maps: Arc<dyn BranchDir>,
    name: Box<CStr>,
    run: Run,
    file: Mutex<Option<Arc<dyn BranchFile>>>,
}

fn header(run: Run) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    MAGIC.iter().chain(&run).zip(&mut header).for_each(|(from, to)| *to = *from);
    header
}

/// Writes all; ENOSPC.
fn write_whole(file: &dyn BranchFile, data: &[u8], at: u64) -> Result<()> {
    if file.write_at(data, at)? < data.len() { Err(Errno::NOSPC.into()) } else { Ok(()) }
}

impl SidecarJournal {
    /// Bytes before the bits.
    pub(crate) const HEADER_LEN: u64 = HEADER as u64;

    pub(crate) fn new(maps: &Arc<dyn BranchDir>, name: Box<CStr>, run: Run) -> Self {
        Self { maps: Arc::clone(maps), name, run, file: Mutex::new(None) }
    }

    /// Writes the bits of blocks.
    pub(super) fn write(&self, blocks: Range<u64>) -> Result<()> {
        // Held to the end: bits of two writers may stand in one byte.
        let mut open = self.file.lock();
        let file = match &*open {
            Some(file) => Arc::clone(file),
            None => Arc::clone(open.insert(self.begin()?)),
        };
        let first = blocks.start / 8;
        let place = HEADER as u64 + first;
        let mut bytes: SmallVec<[u8; 64]> =
            smallvec![0; usize::try_from(blocks.end.div_ceil(8) - first).unwrap_or(0)];
        file.read_at(&mut bytes, place)?;
        for block in blocks {
            let at = usize::try_from(block / 8 - first).unwrap_or(usize::MAX);
            if let Some(byte) = bytes.get_mut(at) {
                *byte |= 1 << (block % 8);
            }
        }
        write_whole(&*file, &bytes, place)
    }

    /// The file, with its header. One that is there is of this service: what others had left was taken over when it began.
    fn begin(&self) -> Result<Arc<dyn BranchFile>> {
        let name = Name::new(&self.name)?;
        let file = match self.maps.create(name, 0o600) {
            Err(e) if e.errno() == Errno::EXIST => {
                self.maps.open_file(name, OpenMode::READ | OpenMode::WRITE)?
            }
            made => made?,
        };
        write_whole(&*file, &header(self.run), 0)?;
        Ok(file)
    }

    /// Whether the bits of a file are of this run, or good in any.
    pub(crate) fn is_of(file: &dyn BranchFile, run: Option<Run>) -> Result<bool> {
        let mut found = [0; HEADER];
        let n = file.read_at(&mut found, 0)?;
        Ok(n == HEADER && (found == header(DURABLE) || run.is_some_and(|run| found == header(run))))
    }

    /// Adds the bits of a file to a sidecar, and makes them durable. Their blocks are durable.
    pub(crate) fn adopt(file: &dyn BranchFile, sidecar: &dyn BranchFile) -> Result<()> {
        let (mut recent, mut own) = ([0; STEP], [0; STEP]);
        let mut at = 0;
        loop {
            let n = file.read_at(&mut recent, HEADER as u64 + at)?;
            if n == 0 {
                return sidecar.sync(false);
            }
            own.fill(0);
            sidecar.read_at(&mut own, at)?;
            own.iter_mut().zip(&recent).take(n).for_each(|(own, recent)| *own |= recent);
            write_whole(sidecar, own.get(..n).unwrap_or_default(), at)?;
            at += n as u64;
        }
    }
}
