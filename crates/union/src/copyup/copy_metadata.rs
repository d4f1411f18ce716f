//! What a copy gets from its original besides data: owner, mode, times, extended attributes.

use crate::layers::attrs::{S_ISGID, S_ISUID};
use crate::layers::marks;
use crate::layers::overrides::Override;
use crate::layers::work_dir::Work;
use std::ffi::CStr;
use vellum_vfs::{Attr, BranchDir, Errno, FileKind, Object, Result, SetTime};

impl Work {
    /// Gives a copy everything that its original has, except data: attributes, owner, mode, times. `has_mode`: it was
    /// made with its mode, apart from set-id bits. `cut`: it is shorter than its original, so it was changed now, whatever comes
    /// of the rest of the operation.
    pub(crate) fn copy_metadata(
        &self,
        to: &dyn Object,
        from: &dyn Object,
        attr: &Attr,
        has_mode: bool,
        cut: bool,
    ) -> Result<()> {
        let symlink = attr.kind() == FileKind::Symlink;
        if let Some(xattr) = self.overrides.xattr() {
            let real = to.stat()?;
            let kind = (real.kind() != attr.kind()).then_some((attr.kind(), attr.rdev));
            let value = Override { uid: attr.uid, gid: attr.gid, mode: attr.perm(), kind };
            match to.set_xattr(xattr, value.format().as_bytes(), 0) {
                Err(e) if symlink && matches!(e.errno(), Errno::PERM | Errno::OPNOTSUPP) => {}
                other => other?,
            }
        } else {
            let owner = (attr.uid, attr.gid);
            let chown = self.ids != owner;
            let is_given =
                !chown || self.give_owner(owner, || to.set_owner(Some(attr.uid), Some(attr.gid)))?;
            // Nobody runs another one's program with the service's ids.
            let mode = if is_given { attr.perm() } else { attr.perm() & !(S_ISUID | S_ISGID) };
            if !symlink && (chown || !has_mode || mode & !0o777 != 0) {
                to.set_mode(mode)?;
            }
        }
        // After the owner, whose change takes file capabilities away.
        copy_xattrs(to, from)?;
        let mtime = if cut { SetTime::Now } else { SetTime::At(attr.mtime) };
        to.set_times(Some(SetTime::At(attr.atime)), Some(mtime))
    }
}

/// A copy-up changes a directory without anybody having changed the tree: its times stay. Failing to set them is
/// no reason to fail a copy-up that is already there.
pub(crate) fn restore_times(dir: &dyn BranchDir, before: &Attr) {
    if let Err(error) = dir.set_times(Some(SetTime::At(before.atime)), Some(SetTime::At(before.mtime))) {
        tracing::debug!(%error, "restoring a directory's times");
    }
}

/// Copies all extended attributes that are not the union's own: ACLs, capabilities, users' attributes.
fn copy_xattrs(to: &dyn Object, from: &dyn Object) -> Result<()> {
    let mut small = [0u8; 1024];
    let mut large;
    let list: &[u8] = match from.list_xattr(&mut small) {
        Ok(n) => small.get(..n).unwrap_or_default(),
        Err(e) if e.errno() == Errno::RANGE => {
            large = vec![0; marks::XATTR_MAX];
            let n = from.list_xattr(&mut large)?;
            large.get(..n).unwrap_or_default()
        }
        Err(e) if e.errno() == Errno::OPNOTSUPP => return Ok(()),
        Err(e) => return Err(e),
    };
    for name in list.split_inclusive(|b| *b == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let bytes = name.to_bytes();
        if marks::is_private(bytes) {
            continue;
        }
        let value = match marks::read_value(from, name, marks::XATTR_MAX) {
            Ok(Some(value)) => value,
            Ok(None) => continue,
            // An attribute that the kernel lists and refuses to read, such as empty file capabilities, says nothing; or (EOVERFLOW) to
            // this namespace nothing: capabilities for another one.
            Err(e)
                if matches!(e.errno(), Errno::INVAL | Errno::OVERFLOW) && bytes.starts_with(b"security.") =>
            {
                continue;
            }
            Err(e) => return Err(e.doing("copying an extended attribute")),
        };
        match to.set_xattr(name, &value, 0) {
            Ok(()) => {}
            // What an unprivileged service may not set (labels, trusted attributes) it cannot keep.
            Err(e)
                if matches!(e.errno(), Errno::PERM | Errno::OPNOTSUPP)
                    && (bytes.starts_with(b"security.") || bytes.starts_with(b"trusted.")) =>
            {
                tracing::debug!(name = %name.to_string_lossy(), error = %e, "attribute not copied up");
            }
            Err(e) => return Err(e.doing("copying an extended attribute")),
        }
    }
    Ok(())
}
