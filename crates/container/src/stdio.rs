//! Standard streams that a runtime may give away.
//!
//! Older versions of crun make the container's user the owner of whatever its standard streams are, unless they are terminals: with
//! `vellum run ... < /dev/null`, of the host's `/dev/null`. So a stream that is a device is replaced by the same device under a
//! name that nobody else has.

use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat, mknodat, openat, tell};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;

/// The name of a device in its filesystem.
const NAME: &str = "device";

/// The device that a stream is, as one that may have another owner; None: it is no device, or a terminal, or this process may make
/// none: then neither may it change the owner of one.
pub(super) fn own_device(stream: impl AsFd) -> Option<File> {
    let stream = stream.as_fd();
    let kind = FileType::from_raw_mode(fstat(stream).ok()?.st_mode);
    let device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
    if !device || rustix::termios::isatty(stream) {
        return None;
    }
    match private_node(stream) {
        Ok(device) => Some(device),
        Err(error) => {
            tracing::debug!(%error, "a standard stream stays the host's device");
            None
        }
    }
}

/// A second node of a stream's device, in a filesystem that ends with the last descriptor.
fn private_node(stream: std::os::fd::BorrowedFd<'_>) -> rustix::io::Result<File> {
    let stat = fstat(stream)?;
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let dir = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    mknodat(&dir, NAME, FileType::from_raw_mode(stat.st_mode), mode, stat.st_rdev)?;
    let kept = fcntl_getfl(stream)? & (OFlags::RWMODE | OFlags::APPEND | OFlags::NONBLOCK);
    let mut file = File::from(openat(&dir, NAME, kept | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?);
    // A null device has no place to be at, a disk has.
    if let Ok(at) = tell(stream) {
        let _ = file.seek(SeekFrom::Start(at));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::{MetadataExt, fchown};

    #[test]
    fn a_container_gets_a_private_device_node() {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let before = null.metadata().unwrap();
        // Without privileges there is none, nor a danger.
        let Some(mut own) = own_device(&null) else {
            assert!(!vellum_pool::privilege::is_host_root() || !rustix::process::geteuid().is_root());
            return println!("SKIPPED: needs root, to make devices");
        };
        fchown(&own, Some(12_345), Some(12_345)).unwrap();
        let (after, now) = (null.metadata().unwrap(), own.metadata().unwrap());
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        assert_eq!((now.rdev(), now.uid()), (before.rdev(), 12_345));
        own.write_all(b"words").unwrap();
        assert_eq!(own.read(&mut [0; 8]).unwrap(), 0);
        // What was only to be read is only read.
        let read_only = own_device(File::open("/dev/zero").unwrap()).unwrap();
        assert!((&read_only).write(b"x").is_err());
        assert_eq!((&read_only).read(&mut [1; 8]).unwrap(), 8);
    }

    #[test]
    fn files_and_pipes_are_passed_unchanged() {
        assert!(own_device(tempfile::tempfile().unwrap()).is_none());
        assert!(own_device(std::io::pipe().unwrap().0).is_none());
    }
}
