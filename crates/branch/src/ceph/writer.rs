//! The right to write to a directory of CephFS: one mount has it, among all clients on all hosts.
//!
//! A lock on the directory says that somebody has it. It goes with the session of the client, so the cluster breaks it when it has expelled
//! that one, and not before. Between a service that was killed and its successor nobody has the lock, but the mount is still there, and
//! its kernel goes on by what it believes. So a record on the directory says whose it is. It is taken away when the right is given up;
//! one that is found without a lock was left by somebody who has died, or is about to come back.

use super::CephBranch;
use rustix::fs::OFlags;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vellum_sys::ceph::{CephClient, CephFile as OpenFile, WritePolicy};
use vellum_vfs::{Errno, Error, Result};

/// The record: an attribute of the directory, and of no use anywhere else.
pub const WRITER: &CStr = c"trusted.vellum.writer";
/// Longest record in bytes.
const NAME_MAX: usize = 256;

/// Who asks for the right.
#[derive(Clone, Copy, Debug)]
pub struct CephWriter<'a> {
    /// What is written down: at most 256 bytes, and no other mount has them.
    pub name: &'a [u8],
    /// The mount has had it before, by a process that has died.
    pub goes_on: bool,
    /// Whose record stands for nothing any more.
    pub gone: Option<&'a [u8]>,
    /// What is written to files, and changed of them, is left to the client until it is synced: for a log above, which has it. All else is
    /// the cluster's before it is answered.
    pub is_logged: bool,
}

/// What has become of it.
pub enum CephClaim {
    Taken(Arc<CephBranch>),
    /// Nobody has it, but somebody else's record is there.
    Left(Vec<u8>),
}

/// The right, until it is dropped.
pub(super) struct Right {
    lock: OpenFile,
}

impl Drop for Right {
    fn drop(&mut self) {
        // Before the lock goes. One that has been expelled can say nothing any more, and its record stays.
        let _ = self.lock.inode().remove_xattr(WRITER);
    }
}

impl CephBranch {
    /// Takes a directory to write to it, as [`CephBranch::open`] does, and the right to.
    /// EAGAIN: another mount has that right; ESTALE: it has had it since `writer` had it last; EROFS: it lies in a snapshot.
    pub fn open_to_write(client: &Arc<CephClient>, path: &CStr, writer: CephWriter<'_>) -> Result<CephClaim> {
        /// No two locks of a process have one owner.
        static OWNER: AtomicU64 = AtomicU64::new(1);
        let fail = |error: Errno| Error::from(error).doing("lock").at(path.to_bytes());
        if writer.name.len() > NAME_MAX {
            return Err(fail(Errno::INVAL));
        }
        let sending = if writer.is_logged { WritePolicy::AllButFiles } else { WritePolicy::AtOnce };
        let mut branch = Self::sent(client, path, sending)?;
        if branch.is_snapshot() {
            return Err(fail(Errno::ROFS));
        }
        let lock =
            branch.root.inode_handle().inode.open(OFlags::RDONLY.bits().cast_signed()).map_err(fail)?;
        lock.lock(OWNER.fetch_add(1, Ordering::Relaxed)).map_err(fail)?;
        let found = record(&lock).map_err(fail)?;
        let is_own = found.as_deref() == Some(writer.name);
        if writer.goes_on && !is_own {
            return Err(fail(Errno::STALE));
        }
        match found {
            Some(found) if !is_own && writer.gone != Some(&*found) => return Ok(CephClaim::Left(found)),
            _ => {}
        }
        lock.inode().set_xattr(WRITER, writer.name, 0).map_err(fail)?;
        branch._right = Some(Right { lock });
        Ok(CephClaim::Taken(Arc::new(branch)))
    }

    /// What the writer of this directory has written down; None: nothing.
    pub fn writer(&self) -> Result<Option<Vec<u8>>> {
        let lock = self.root.inode_handle().inode.open(OFlags::RDONLY.bits().cast_signed())?;
        Ok(record(&lock)?)
    }
}

fn record(dir: &OpenFile) -> std::result::Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0; NAME_MAX];
    match dir.inode().get_xattr(WRITER, &mut value) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        // Longer than any of ours: not that of a mount.
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(errno) => Err(errno),
    }
}
