//! Mounting a FUSE connection and taking it off again.

use crate::daemon::last_errno;
use rustix::io::{Errno, Result};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CStr;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
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

/// Makes a mount that is nowhere in the tree one that can only be read, hands out no devices, runs nothing, and hears of no other
/// mounts: mount_setattr(2), from Linux 5.12 on.
pub fn restrict(mount: impl AsFd) -> Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY
            | libc::MOUNT_ATTR_NOSUID
            | libc::MOUNT_ATTR_NODEV
            | libc::MOUNT_ATTR_NOEXEC,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: the kernel reads the path, which is empty, and a structure of this size.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
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
