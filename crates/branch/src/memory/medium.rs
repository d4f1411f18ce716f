//! A disk in memory as the medium of a tree.

use super::data::{Data, MAX_SIZE};
use super::disk::{Disk, State};
use crate::tree::{Contents as _, File, Medium};
use vellum_vfs::{Errno, Result, Seek};

impl Medium for Disk {
    type Data = Data;
    /// They are looked up by the inode's number.
    type FileRef = ();
    const SIZE_MAX: u64 = MAX_SIZE;

    fn look<R>(&self, act: impl FnOnce(&mut State) -> Result<R, Errno>) -> Result<R> {
        Ok(act(&mut self.lock())?)
    }

    fn change<R>(&self, act: impl FnOnce(&mut State) -> Result<R, Errno>) -> Result<R> {
        self.look(act)
    }

    fn release(&self, ino: u64) {
        self.lock().unpin(ino);
    }

    fn file_ref(_data: &Data) {}

    fn read(&self, file: &File<Self>, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut state = self.lock();
        let cached = state.options.page_cache;
        let data = state.inode_mut(file.pin.ino)?.data_mut()?;
        if cached {
            data.mark_cached(offset, buf.len() as u64);
        }
        Ok(data.read(buf, offset))
    }

    fn write(&self, file: &File<Self>, data: &[u8], offset: u64) -> Result<usize> {
        let mut state = self.lock();
        let now = state.now();
        let inode = state.inode_mut(file.pin.ino)?;
        let count = inode.data_mut()?.write(data, offset)?;
        inode.modified(now);
        Ok(count)
    }

    fn truncate(&self, file: &File<Self>, size: u64) -> Result<()> {
        let mut state = self.lock();
        let now = state.now();
        let inode = state.inode_mut(file.pin.ino)?;
        inode.data_mut()?.truncate(size)?;
        inode.modified(now);
        Ok(())
    }

    fn allocate(&self, file: &File<Self>, mode: u32, offset: u64, len: u64) -> Result<()> {
        let mut state = self.lock();
        let (now, cached) = (state.now(), state.options.page_cache);
        let inode = state.inode_mut(file.pin.ino)?;
        let result = inode.data_mut()?.allocate(mode, offset, len);
        if cached {
            inode.data_mut()?.mark_cached(offset, len);
        }
        // ext4 counts it as a change before it sees that a range does not fit the file, or that the file would become too large by it;
        // a range that no file has is refused before that.
        let is_seen = result != Err(Errno::FBIG) || offset.saturating_add(len) <= MAX_SIZE;
        if matches!(result, Ok(()) | Err(Errno::INVAL | Errno::FBIG)) && is_seen {
            inode.modified(now);
        }
        Ok(result?)
    }

    fn seek(&self, file: &File<Self>, offset: u64, whence: Seek) -> Result<u64> {
        let state = self.lock();
        let data = state.inode(file.pin.ino)?.data()?;
        Ok(match whence {
            Seek::Data => data.seek_data(offset),
            Seek::Hole => data.seek_hole(offset),
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
        let mut state = self.lock();
        let bytes = state.inode(from.pin.ino)?.data()?.copy_out(from_offset, len);
        let now = state.now();
        let inode = state.inode_mut(to.pin.ino)?;
        let count = inode.data_mut()?.write(&bytes, offset)?;
        inode.modified(now);
        Ok(count as u64)
    }

    fn share(&self, to: &File<Self>, from: &File<Self>) -> Result<()> {
        let mut state = self.lock();
        if !state.options.reflink {
            return Err(Errno::OPNOTSUPP.into());
        }
        if from.pin.ino == to.pin.ino {
            return Ok(());
        }
        let data = state.inode(from.pin.ino)?.data()?.clone();
        let now = state.now();
        let inode = state.inode_mut(to.pin.ino)?;
        // What lies beyond the source's end stays, as with FICLONE.
        if inode.data()?.size() > data.size() {
            let old = inode.data()?.copy_out(data.size(), u64::MAX);
            let at = data.size();
            *inode.data_mut()? = data;
            inode.data_mut()?.write(&old, at)?;
        } else {
            *inode.data_mut()? = data;
        }
        inode.modified(now);
        Ok(())
    }

    fn sync(&self, file: &File<Self>, datasync: bool) -> Result<()> {
        self.synced(file.pin.ino, datasync);
        Ok(())
    }

    fn sync_dir(&self, ino: u64) -> Result<()> {
        self.synced(ino, false);
        Ok(())
    }
}
