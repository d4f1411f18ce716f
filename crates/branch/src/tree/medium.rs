//! Where a tree is.

use super::objects::File;
use super::state::{Contents, State};
use std::sync::Arc;
use vellum_vfs::{Errno, Name, OpenMode, Result, Seek};

/// Keeps a tree and the contents of its files.
pub(crate) trait Medium: Send + Sync + Sized + 'static {
    /// The contents of a regular file, as its inode has them.
    type Data: Contents;
    /// By what an open file reaches its contents.
    type FileRef: Send + Sync;
    /// Largest size of a file in bytes.
    const SIZE_MAX: u64;

    /// Looks at the tree; changes nothing but holders.
    fn look<R>(&self, act: impl FnOnce(&mut State<Self::Data>) -> Result<R, Errno>) -> Result<R>;
    /// Changes the tree.
    fn change<R>(&self, act: impl FnOnce(&mut State<Self::Data>) -> Result<R, Errno>) -> Result<R>;
    /// Changes the tree, possible also where there is no space left.
    fn free<R>(&self, act: impl FnOnce(&mut State<Self::Data>) -> Result<R, Errno>) -> Result<R> {
        self.change(act)
    }
    /// An inode is held once less.
    fn release(&self, ino: u64);
    /// A name is about to take the place of another one.
    fn before_rename(&self, _dir: u64, _name: Name<'_>) -> Result<()> {
        Ok(())
    }

    /// What an open file holds of its contents.
    fn file_ref(data: &Self::Data) -> Self::FileRef;
    /// Reads; fewer bytes only at the end.
    fn read(&self, file: &File<Self>, buf: &mut [u8], offset: u64) -> Result<usize>;
    fn write(&self, file: &File<Self>, data: &[u8], offset: u64) -> Result<usize>;
    /// Sets the size, which is no negative number.
    fn truncate(&self, file: &File<Self>, size: u64) -> Result<()>;
    /// fallocate(2), with arguments that are checked.
    fn allocate(&self, file: &File<Self>, mode: u32, offset: u64, len: u64) -> Result<()>;
    /// Finds data or a hole.
    fn seek(&self, file: &File<Self>, offset: u64, whence: Seek) -> Result<u64>;
    /// Copies `len` bytes, which do not overlap, and says how many it has copied: at least one, if `len` is not 0.
    fn copy(
        &self,
        to: &File<Self>,
        offset: u64,
        from: &File<Self>,
        from_offset: u64,
        len: u64,
    ) -> Result<u64>;
    /// Shares all blocks.
    fn share(&self, _to: &File<Self>, _from: &File<Self>) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    /// Makes a file durable.
    fn sync(&self, file: &File<Self>, datasync: bool) -> Result<()>;
    /// Makes a directory durable.
    fn sync_dir(&self, ino: u64) -> Result<()>;
}

/// A held inode: it stays while this lives, with or without a name.
pub(crate) struct Pin<M: Medium> {
    pub(crate) medium: Arc<M>,
    pub(crate) ino: u64,
}

impl<M: Medium> Pin<M> {
    /// Holds an inode. The tree is locked by the caller, who has found the number in it.
    pub(crate) fn new(medium: &Arc<M>, state: &mut State<M::Data>, ino: u64) -> Result<Self, Errno> {
        state.holders_mut(ino)?.pins += 1;
        Ok(Self { medium: Arc::clone(medium), ino })
    }
}

impl<M: Medium> Drop for Pin<M> {
    fn drop(&mut self) {
        self.medium.release(self.ino);
    }
}

impl<D: Contents> State<D> {
    /// An inode is held once less; it is gone if nothing leads to it then.
    pub(crate) fn unpin(&mut self, ino: u64) {
        if let Ok(inode) = self.holders_mut(ino) {
            inode.pins = inode.pins.saturating_sub(1);
        }
        self.reap(ino);
    }

    /// A regular file is opened: counts its writers, and says what is held of its contents.
    pub(crate) fn opened<M: Medium<Data = D>>(
        &mut self,
        ino: u64,
        mode: OpenMode,
    ) -> Result<M::FileRef, Errno> {
        let inode = self.holders_mut(ino)?;
        let held = M::file_ref(inode.data()?);
        inode.writers += u32::from(mode.contains(OpenMode::WRITE));
        Ok(held)
    }
}
