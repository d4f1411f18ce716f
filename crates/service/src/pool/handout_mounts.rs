//! A mount of an upper layer of its own, seen nowhere: files that are handed out to programs are opened by it, so that everybody can
//! tell them from files that were opened otherwise, and their paths in /proc are those in the union.

use super::wire::MountRequest;
use crate::config::{AccessTimes, MountFlags};
use rustix::fs::{AtFlags, StatxFlags, fstatfs, makedev, statx};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use vellum_branch::LocalExport;
use vellum_ring::files::{MOUNT_IDS, MOUNT_NUMBERS, VOLATILE};
use vellum_sys::mount::{Restrictions, detached_directory, restrict};
use vellum_vfs::Export;

/// By what clients tell files that come from such mounts: numbers for them to know.
#[derive(Debug)]
pub(super) struct HandoutMounts {
    /// `st_dev` of the union's mount.
    shown: u64,
    /// `st_dev` of files in it.
    device: u64,
    /// Its id, as statx(2) gives it.
    mount: u64,
}

/// A new mount of a directory, for whoever may make one. What the union's mount does not do it does not do either.
pub(super) fn mount_of(directory: &OwnedFd, flags: &MountFlags) -> Option<OwnedFd> {
    let what = Restrictions {
        no_exec: flags.exec == Some(false),
        no_atime: flags.access_times == AccessTimes::Never,
        ..Restrictions::default()
    };
    let made = detached_directory(directory).and_then(|mount| restrict(&mount, what).map(|()| mount));
    made.inspect_err(|error| tracing::debug!(%error, "no files are handed out")).ok()
}

/// The id of a mount, which no other one has at any time where the kernel gives such (Linux 6.8), and `st_dev` of what is in it.
fn id_of(root: &OwnedFd) -> Option<(u64, u64)> {
    let wanted = StatxFlags::from_bits_retain(MOUNT_IDS);
    let found = statx(root, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    let device = makedev(found.stx_dev_major, found.stx_dev_minor);
    (found.stx_mask & MOUNT_IDS != 0).then_some((found.stx_mnt_id, device))
}

/// `st_dev` of what is mounted somewhere, without asking it; 0: not known.
pub(super) fn device_of(mountpoint: &Path) -> u64 {
    let flags = AtFlags::STATX_DONT_SYNC;
    statx(rustix::fs::CWD, mountpoint, flags, StatxFlags::INO)
        .map_or(0, |found| makedev(found.stx_dev_major, found.stx_dev_minor))
}

impl HandoutMounts {
    /// What is known of a mount, and the face by which files are opened in it, for what is asked for. None: no files are handed out, as the
    /// mount cannot be told from others, or the union's may have clones with mapped ids: a program asks by its own ids, and what such
    /// a clone makes of them is the kernel's to know. Nor are files that FUSE serves: each write to one is a request all the same, and
    /// a program takes what is of its root's device, if that is FUSE, for not handed out.
    pub(super) fn clone_mount(root: OwnedFd, request: &MountRequest) -> Option<(Self, Arc<dyn Export>)> {
        let (mount, device) = id_of(&root)?;
        let shown = request.device;
        let is_fuse = || fstatfs(&root).map_or(true, |found| found.f_type == libc::FUSE_SUPER_MAGIC);
        if shown == 0 || request.config.idmap || is_fuse() {
            return None;
        }
        let export = LocalExport::new(root).ok()?;
        Some((Self { shown, device, mount }, export as Arc<dyn Export>))
    }

    /// As a greeting has them.
    pub(super) fn numbers(&self, is_volatile: bool) -> [u64; MOUNT_NUMBERS] {
        [self.shown, self.device, self.mount, if is_volatile { VOLATILE } else { 0 }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A program tells by the id where a descriptor comes from: one of a mount that has gone must not seem to come from a later one.
    #[test]
    fn mount_ids_are_not_reused() {
        /// `STATX_MNT_ID_UNIQUE`.
        const UNIQUE: u32 = 0x4000;
        let dir = tempfile::tempdir().unwrap();
        let directory = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        let flags = StatxFlags::from_bits_retain(UNIQUE);
        if statx(&directory, "", AtFlags::EMPTY_PATH, flags).unwrap().stx_mask & UNIQUE == 0 {
            return println!("SKIPPED: the kernel uses ids of mounts again");
        }
        let mut seen = BTreeSet::new();
        for _ in 0..64 {
            let Some(mount) = mount_of(&directory, &MountFlags::default()) else {
                return println!("SKIPPED: needs root, to make mounts");
            };
            let (id, _) = id_of(&mount).unwrap();
            assert!(seen.insert(id), "{id} for a second time in {} mounts", seen.len());
        }
    }
}
