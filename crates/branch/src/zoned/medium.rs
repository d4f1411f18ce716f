//! A tree in a store as the medium of its objects.

use super::contents::FileData;
use super::tree::ZonedTree;
use crate::kernel_checks::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
use crate::tree::{File, Medium, State};
use std::sync::Arc;
use vellum_vfs::{Errno, Name, Result, Seek};
use vellum_zoned::store::SIZE_MAX;

/// Copied at once, in bytes.
const COPY_STEP: u64 = 1 << 20;

impl Medium for ZonedTree {
    type Data = Arc<FileData>;
    type FileRef = Arc<FileData>;
    const SIZE_MAX: u64 = SIZE_MAX;

    fn look<R>(&self, act: impl FnOnce(&mut State<Self::Data>) -> Result<R, Errno>) -> Result<R> {
        self.act(act)
    }

    fn change<R>(&self, act: impl FnOnce(&mut State<Self::Data>) -> Result<R, Errno>) -> Result<R> {
        self.make(act)
    }

    fn free<R>(&self, act: impl FnOnce(&mut State<Self::Data>) -> Result<R, Errno>) -> Result<R> {
        self.act(act)
    }

    fn release(&self, ino: u64) {
        // An inode that is gone is so for the store too, at the latest when that is opened again.
        let _ = self.act(|state| {
            state.unpin(ino);
            Ok(())
        });
    }

    fn before_rename(&self, dir: u64, name: Name<'_>) -> Result<()> {
        // The contents come before the name: after a loss of power nobody finds the new name on an empty file.
        if let Some((ino, data)) = self.file_at(dir, name) {
            // What cannot be written now stays in memory, and a sync will say so.
            let _ = data.write_out(self, ino);
        }
        Ok(())
    }

    fn file_ref(data: &Self::Data) -> Self::FileRef {
        Arc::clone(data)
    }

    fn read(&self, file: &File<Self>, buf: &mut [u8], offset: u64) -> Result<usize> {
        file.held.read(self, file.pin.ino, buf, offset)
    }

    fn write(&self, file: &File<Self>, data: &[u8], offset: u64) -> Result<usize> {
        let room = SIZE_MAX.checked_sub(offset).filter(|room| *room > 0).ok_or(Errno::FBIG)?;
        let len = room.min(data.len() as u64) as usize;
        self.flush_excess()?;
        file.held.write(self, file.pin.ino, &data[..len], offset)
    }

    fn truncate(&self, file: &File<Self>, size: u64) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        file.held.truncate(self, file.pin.ino, size)
    }

    fn allocate(&self, file: &File<Self>, mode: u32, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        if end > SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        match mode & !KEEP_SIZE {
            PUNCH_HOLE => file.held.zero(self, file.pin.ino, (offset, end), false),
            ZERO_RANGE => file.held.zero(self, file.pin.ino, (offset, end), mode & KEEP_SIZE == 0),
            // Nothing is written in place, so a reservation would promise nothing.
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }

    fn seek(&self, file: &File<Self>, offset: u64, whence: Seek) -> Result<u64> {
        Ok(match whence {
            Seek::Data => file.held.seek_data(self.block(), offset),
            Seek::Hole => file.held.seek_hole(self.block(), offset),
        }?)
    }

    fn copy(
        &self,
        to: &File<Self>,
        offset: u64,
        from: &File<Self>,
        from_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let mut done = 0;
        let mut bytes = vec![0; len.min(COPY_STEP) as usize];
        while done < len {
            let wanted = (len - done).min(COPY_STEP) as usize;
            let step = self.read(from, &mut bytes[..wanted], from_offset + done).and_then(|count| {
                if count == 0 { Ok(0) } else { self.write(to, &bytes[..count], offset + done) }
            });
            match step {
                Ok(0) => break,
                Ok(count) => done += count as u64,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn sync(&self, file: &File<Self>, _datasync: bool) -> Result<()> {
        file.held.write_out(self, file.pin.ino)?;
        self.sync_store()
    }

    fn sync_dir(&self, ino: u64) -> Result<()> {
        self.write_inode(ino)?;
        self.sync_store()
    }
}
