//! Mounting a FUSE connection and taking it off again.

use crate::daemon::last_errno;
use rustix::fs::AtFlags;
use rustix::io::{Errno, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CStr;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// mount(2).
pub fn mount(source: &CStr, target: &Path, fstype: &CStr, flags: MountFlags, data: &CStr) -> Result<()> {
    rustix::mount::mount(source, target, fstype, flags, data)
}

/// umount2(2), never following a symbolic link. `lazy`: now from the tree, and for good when nobody uses it.
pub fn unmount(target: &Path, lazy: bool) -> Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    rustix::mount::unmount(target, flags)
}

/// Ends the FUSE filesystem that is mounted at `target`, for all who use it, wherever it is mounted, and takes this mount of it away:
/// whatever its service was about to answer, nobody hears it.
pub fn end(target: &Path) -> Result<()> {
    rustix::mount::unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH)
}

/// All that is asked of open_tree(2) by [`detached_directory`], the only user of it in a service.
#[must_use]
pub fn detached_directory_flags() -> OpenTreeFlags {
    OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::from_bits_retain(AtFlags::EMPTY_PATH.bits())
}

/// A new mount of a directory alone, seen nowhere. EINVAL: the kernel makes none of one that is not in the tree (before Linux 6.15).
pub fn detached_directory(directory: impl AsFd) -> Result<OwnedFd> {
    rustix::mount::open_tree(directory, "", detached_directory_flags())
}

/// A new filesystem in memory, seen nowhere, for so many small files: no devices, no set-id bits, nothing is run. Others than its owner
/// reach in it what they know by name.
pub fn in_memory(files: u32) -> Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "size", "64k")?;
    fsconfig_set_string(&context, "nr_inodes", files.to_string())?;
    fsconfig_set_string(&context, "mode", "0711")?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// What a mount does not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// Nothing in it can be changed.
    pub read_only: bool,
    /// Nothing in it is run.
    pub no_exec: bool,
    /// Reading leaves no trace.
    pub no_atime: bool,
}

/// Restricts a mount that is nowhere in the tree: no devices, no set-id bits, no news of other mounts, and what else is asked for.
/// mount_setattr(2), from Linux 5.12 on.
pub fn restrict(mount: impl AsFd, asked: Restrictions) -> Result<()> {
    let if_asked = |asked, bits| if asked { bits } else { 0 };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOSUID
            | libc::MOUNT_ATTR_NODEV
            | if_asked(asked.read_only, libc::MOUNT_ATTR_RDONLY)
            | if_asked(asked.no_exec, libc::MOUNT_ATTR_NOEXEC)
            | if_asked(asked.no_atime, libc::MOUNT_ATTR_NOATIME),
        // The kernel changes these all together.
        attr_clr: if_asked(asked.no_atime, libc::MOUNT_ATTR__ATIME),
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    set_attributes(mount.as_fd(), &attributes)
}

/// When reading through a mount that is nowhere in the tree sets access times: `None` never, `Some(false)` when they are older than a
/// change or than a day, `Some(true)` always. mount_setattr(2), from Linux 5.12 on.
pub fn set_access_times(mount: impl AsFd, always: Option<bool>) -> Result<()> {
    let attributes = libc::mount_attr {
        attr_set: match always {
            None => libc::MOUNT_ATTR_NOATIME,
            Some(false) => libc::MOUNT_ATTR_RELATIME,
            Some(true) => libc::MOUNT_ATTR_STRICTATIME,
        },
        attr_clr: libc::MOUNT_ATTR__ATIME,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    set_attributes(mount.as_fd(), &attributes)
}

fn set_attributes(mount: BorrowedFd<'_>, attributes: &libc::mount_attr) -> Result<()> {
    // SAFETY: the kernel reads the path, which is empty, and a structure of this size.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(attributes),
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Two connected sockets over which a descriptor can travel.
pub fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Receives one descriptor. EPIPE: the other side closed without sending one.
pub fn receive_descriptor(socket: impl AsFd) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut iov = [IoSliceMut::new(&mut byte)];
    loop {
        match rustix::net::recvmsg(&socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(Errno::PIPE)
}
