//! Mounting a FUSE connection and taking it off again.

use rustix::io::{Errno, Result};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CStr;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
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
