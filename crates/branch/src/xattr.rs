//! What Linux itself says about extended attributes before a filesystem sees them, for branches that it does not see.

use crate::acl::{self, Acl};
use vellum_vfs::{Errno, FileKind};

/// File capabilities.
pub(crate) const CAPABILITY: &std::ffi::CStr = c"security.capability";

/// Set only what is not there, and only what is.
pub(crate) const CREATE: u32 = 1;
pub(crate) const REPLACE: u32 = 2;

/// Longest name in bytes.
const NAME_MAX: usize = 255;
/// Largest value in bytes that any filesystem takes.
const VALUE_MAX: usize = 64 << 10;

/// ERANGE for a name that is empty or too long. Checked before anything is looked up.
pub(crate) const fn check_len(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_MAX { Err(Errno::RANGE) } else { Ok(()) }
}

/// Whether a name is of a known namespace. EOPNOTSUPP: it is not; EINVAL: nothing follows; ERANGE: see above.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    check_len(name)?;
    if is_acl(name) {
        return Ok(());
    }
    for space in [b"user.".as_slice(), b"trusted.", b"security."] {
        if let Some(rest) = name.strip_prefix(space) {
            return if rest.is_empty() { Err(Errno::INVAL) } else { Ok(()) };
        }
    }
    Err(Errno::OPNOTSUPP)
}

/// `otherwise` for a user's attribute on what cannot have one.
fn check_user(name: &[u8], kind: FileKind, otherwise: Errno) -> Result<(), Errno> {
    let may = matches!(kind, FileKind::Regular | FileKind::Directory);
    if may || !name.starts_with(b"user.") { Ok(()) } else { Err(otherwise) }
}

pub(crate) fn is_acl(name: &[u8]) -> bool {
    matches!(name, acl::ACCESS | acl::DEFAULT)
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

/// Whether an attribute of an object of this kind can be asked for.
pub(crate) fn check_get(name: &[u8], kind: FileKind) -> Result<(), Errno> {
    check_user(name, kind, Errno::NODATA)?;
    check_name(name)?;
    if is_acl(name) && kind == FileKind::Symlink { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

/// What is wrong with setting an attribute on whatever it may be.
pub(crate) fn check_form(name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
    if flags & !(CREATE | REPLACE) != 0 {
        return Err(Errno::INVAL);
    }
    check_len(name)?;
    if value.len() > VALUE_MAX { Err(Errno::TOOBIG) } else { Ok(()) }
}

/// Whether an attribute that is no access-control list can be set on an object of this kind.
pub(crate) fn check_set(name: &[u8], value: &[u8], kind: FileKind) -> Result<(), Errno> {
    check_user(name, kind, Errno::PERM)?;
    if name == CAPABILITY.to_bytes() && !valid_capability(value) {
        return Err(Errno::INVAL);
    }
    check_name(name)
}

/// Whether a list can be set on an object of this kind, or be removed from it; false: there is nothing to do.
pub(crate) fn check_acl(name: &[u8], list: Option<&Acl>, kind: FileKind) -> Result<bool, Errno> {
    if kind == FileKind::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    if name == acl::DEFAULT && kind != FileKind::Directory {
        return if list.is_some() { Err(Errno::ACCESS) } else { Ok(false) };
    }
    list.map_or(Ok(()), Acl::check).map(|()| true)
}

/// Whether an attribute that is no access-control list can be removed from an object of this kind.
pub(crate) fn check_remove(name: &[u8], kind: FileKind) -> Result<(), Errno> {
    check_user(name, kind, Errno::PERM)?;
    check_name(name)
}
