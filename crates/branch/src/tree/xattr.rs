//! Extended attributes, with the limits of ext4.

use super::state::{Body, Contents, Inode, State};
use crate::acl::{self, Acl};
use crate::xattr::{
    CAPABILITY, CREATE, REPLACE, check_acl, check_form, check_get, check_remove, check_set, is_acl,
};
use vellum_vfs::Errno;

/// Room for all attributes of an inode in bytes: about one block, as on ext4 without large values.
const ROOM: usize = 4000;
/// What each attribute costs besides its name and value.
const ENTRY: usize = 20;

/// Copies into `buf`, or only measures when it is empty.
fn deliver(value: &[u8], buf: &mut [u8]) -> Result<usize, Errno> {
    if !buf.is_empty() {
        buf.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

fn used<D>(inode: &Inode<D>, except: &[u8]) -> usize {
    let cost = |name: &Vec<u8>, value: &Vec<u8>| ENTRY + name.len() + value.len();
    inode.xattrs.iter().filter(|(name, _)| *name != except).map(|(name, value)| cost(name, value)).sum()
}

impl<D: Contents> State<D> {
    pub(crate) fn get_xattr(&self, ino: u64, name: &[u8], buf: &mut [u8]) -> Result<usize, Errno> {
        let inode = self.inode(ino)?;
        check_get(name, inode.kind())?;
        let value = inode.xattrs.get(name).ok_or(Errno::NODATA)?;
        // An empty one can be set, but not read.
        if name == CAPABILITY.to_bytes() && value.is_empty() {
            return Err(Errno::INVAL);
        }
        deliver(value, buf)
    }

    pub(crate) fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        check_form(name, value, flags)?;
        if is_acl(name) {
            return self.set_acl(ino, name, Acl::parse(value)?);
        }
        let inode = self.inode(ino)?;
        if name.starts_with(b"trusted.") && !self.options.trusted {
            return Err(Errno::PERM);
        }
        check_set(name, value, inode.kind())?;
        let exists = inode.xattrs.contains_key(name);
        if exists && flags & CREATE != 0 {
            return Err(Errno::EXIST);
        }
        if !exists && flags & REPLACE != 0 {
            return Err(Errno::NODATA);
        }
        if used(inode, name) + ENTRY + name.len() + value.len() > ROOM {
            return Err(Errno::NOSPC);
        }
        self.change(ino)?.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn set_acl(&mut self, ino: u64, name: &[u8], list: Option<Acl>) -> Result<(), Errno> {
        if !check_acl(name, list.as_ref(), self.inode(ino)?.kind())? {
            return Ok(());
        }
        let inode = self.change(ino)?;
        match list {
            Some(list) if name == acl::ACCESS => {
                inode.mode = (inode.mode & !0o777) | list.mode_bits();
                if list.is_minimal() {
                    inode.xattrs.remove(name);
                } else {
                    inode.xattrs.insert(name.to_vec(), list.encode());
                }
            }
            Some(list) => {
                inode.xattrs.insert(name.to_vec(), list.encode());
            }
            None => {
                inode.xattrs.remove(name);
            }
        }
        Ok(())
    }

    pub(crate) fn list_xattr(&self, ino: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let inode = self.inode(ino)?;
        let names: Vec<u8> = inode.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
        deliver(&names, buf)
    }

    pub(crate) fn remove_xattr(&mut self, ino: u64, name: &[u8]) -> Result<(), Errno> {
        let inode = self.inode(ino)?;
        if is_acl(name) {
            return self.set_acl(ino, name, None);
        }
        check_remove(name, inode.kind())?;
        if !inode.xattrs.contains_key(name) {
            return Err(Errno::NODATA);
        }
        self.change(ino)?.xattrs.remove(name);
        Ok(())
    }

    /// Gives a new inode what its directory's default list says.
    pub(crate) fn inherit_acl(&self, dir: u64, inode: &mut Inode<D>) -> Result<(), Errno> {
        let Some(value) = self.inode(dir)?.xattrs.get(acl::DEFAULT) else { return Ok(()) };
        if matches!(inode.body, Body::Symlink(_)) {
            return Ok(());
        }
        let Some(list) = Acl::parse(value)? else { return Ok(()) };
        let access = list.inherit(inode.mode);
        inode.mode = (inode.mode & !0o777) | access.mode_bits();
        if !access.is_minimal() {
            inode.xattrs.insert(acl::ACCESS.to_vec(), access.encode());
        }
        if inode.is_dir() {
            inode.xattrs.insert(acl::DEFAULT.to_vec(), list.encode());
        }
        Ok(())
    }
}
