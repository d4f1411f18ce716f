//! Extended attributes, with the rules of Linux and the limits of ext4.

use super::acl::{self, Acl};
use super::disk::{Body, Inode, State};
use vellum_vfs::{Errno, FileKind};

/// File capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// Longest name in bytes.
const NAME_MAX: usize = 255;
/// Largest value in bytes that any filesystem takes.
const VALUE_MAX: usize = 64 << 10;
/// Room for all attributes of an inode in bytes: about one block, as on ext4 without large values.
const ROOM: usize = 4000;
/// What each attribute costs besides its name and value.
const ENTRY: usize = 20;

/// ERANGE for a name that is empty or too long. Checked before anything is looked up.
pub(super) const fn check_len(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_MAX { Err(Errno::RANGE) } else { Ok(()) }
}

/// Whether a name is of a known namespace. EOPNOTSUPP: it is not; EINVAL: nothing follows; ERANGE: see above.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    check_len(name)?;
    if matches!(name, acl::ACCESS | acl::DEFAULT) {
        return Ok(());
    }
    for space in [b"user.".as_slice(), b"trusted.", b"security."] {
        if let Some(rest) = name.strip_prefix(space) {
            return if rest.is_empty() { Err(Errno::INVAL) } else { Ok(()) };
        }
    }
    Err(Errno::OPNOTSUPP)
}

const fn may_have_user(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

fn is_acl(name: &[u8]) -> bool {
    matches!(name, acl::ACCESS | acl::DEFAULT)
}

/// Copies into `buf`, or only measures when it is empty.
fn deliver(value: &[u8], buf: &mut [u8]) -> Result<usize, Errno> {
    if !buf.is_empty() {
        buf.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

fn valid_capability(value: &[u8]) -> bool {
    /// Beside the revision there is one flag: effective.
    const EFFECTIVE: u32 = 1;
    const REVISION_2: u32 = 0x0200_0000;
    const REVISION_3: u32 = 0x0300_0000;
    let head = value.first_chunk().map_or(0, |head| u32::from_le_bytes(*head)) & !EFFECTIVE;
    // The kernel does not look at an empty one.
    matches!((value.len(), head), (0, _) | (20, REVISION_2) | (24, REVISION_3))
}

fn used(inode: &Inode, except: &[u8]) -> usize {
    let cost = |name: &Vec<u8>, value: &Vec<u8>| ENTRY + name.len() + value.len();
    inode.xattrs.iter().filter(|(name, _)| *name != except).map(|(name, value)| cost(name, value)).sum()
}

impl State {
    pub(super) fn get_xattr(&self, ino: u64, name: &[u8], buf: &mut [u8]) -> Result<usize, Errno> {
        let inode = self.inode(ino)?;
        if name.starts_with(b"user.") && !may_have_user(inode.kind()) {
            return Err(Errno::NODATA);
        }
        check_name(name)?;
        if is_acl(name) && inode.kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let value = inode.xattrs.get(name).ok_or(Errno::NODATA)?;
        // An empty one can be set, but not read.
        if name == CAPABILITY && value.is_empty() {
            return Err(Errno::INVAL);
        }
        deliver(value, buf)
    }

    pub(super) fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        if flags & !(CREATE | REPLACE) != 0 {
            return Err(Errno::INVAL);
        }
        check_len(name)?;
        if value.len() > VALUE_MAX {
            return Err(Errno::TOOBIG);
        }
        if is_acl(name) {
            return self.set_acl(ino, name, Acl::parse(value)?);
        }
        let inode = self.inode(ino)?;
        if name.starts_with(b"user.") && !may_have_user(inode.kind()) {
            return Err(Errno::PERM);
        }
        if name.starts_with(b"trusted.") && !self.options.trusted {
            return Err(Errno::PERM);
        }
        if name == CAPABILITY && !valid_capability(value) {
            return Err(Errno::INVAL);
        }
        check_name(name)?;
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
        let inode = self.inode(ino)?;
        if inode.kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        if name == acl::DEFAULT && !inode.is_dir() {
            return if list.is_some() { Err(Errno::ACCESS) } else { Ok(()) };
        }
        if let Some(list) = &list {
            list.check()?;
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

    pub(super) fn list_xattr(&self, ino: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let inode = self.inode(ino)?;
        let names: Vec<u8> = inode.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
        deliver(&names, buf)
    }

    pub(super) fn remove_xattr(&mut self, ino: u64, name: &[u8]) -> Result<(), Errno> {
        let inode = self.inode(ino)?;
        if is_acl(name) {
            return self.set_acl(ino, name, None);
        }
        if name.starts_with(b"user.") && !may_have_user(inode.kind()) {
            return Err(Errno::PERM);
        }
        check_name(name)?;
        if !inode.xattrs.contains_key(name) {
            return Err(Errno::NODATA);
        }
        self.change(ino)?.xattrs.remove(name);
        Ok(())
    }

    /// Gives a new inode what its directory's default list says.
    pub(super) fn inherit_acl(&self, dir: u64, inode: &mut Inode) -> Result<(), Errno> {
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
