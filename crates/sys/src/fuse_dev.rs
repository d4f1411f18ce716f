//! The device `/dev/fuse` and its ioctls.

use rustix::fs::{Mode, OFlags};
use rustix::io::Result;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

const MAGIC: u8 = 229;
const CLONE: Opcode = opcode::read::<u32>(MAGIC, 0);
const BACKING_OPEN: Opcode = opcode::write::<BackingMap>(MAGIC, 1);
const BACKING_CLOSE: Opcode = opcode::write::<u32>(MAGIC, 2);

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: RawFd,
    flags: u32,
    padding: u64,
}

/// The ioctl that answers with an id instead of filling its argument.
struct BackingOpen(BackingMap);

// SAFETY: the opcode takes a pointer to a `fuse_backing_map`, which `as_ptr` gives, only reads it, and returns
// the id as the call's own value.
unsafe impl Ioctl for BackingOpen {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        BACKING_OPEN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<i32> {
        Ok(out)
    }
}

/// Opens `/dev/fuse`: a new connection once it is mounted. ENOENT, ENXIO or EACCES where there is none.
pub fn open() -> Result<OwnedFd> {
    rustix::fs::open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a further descriptor of the connection of `session`, with a queue of its own for requests that are
/// being worked on. A reply must be written to the descriptor that its request was read from.
pub fn clone(session: impl AsFd) -> Result<OwnedFd> {
    let device = open()?;
    let source = session.as_fd().as_raw_fd() as u32;
    // SAFETY: the opcode is FUSE_DEV_IOC_CLONE, which reads a u32 from the pointer.
    let request = unsafe { Setter::<CLONE, u32>::new(source) };
    // SAFETY: the opcode is FUSE_DEV_IOC_CLONE, which reads a u32; `source` is an open descriptor for the whole call.
    unsafe { ioctl(&device, request) }?;
    Ok(device)
}

/// Registers `file` as a backing file for passthrough and returns its id. EPERM: not privileged, or passthrough
/// was not negotiated; ELOOP: the file's own filesystem is stacked too deep.
pub fn backing_open(session: impl AsFd, file: impl AsFd) -> Result<i32> {
    let request = BackingOpen(BackingMap { fd: file.as_fd().as_raw_fd(), flags: 0, padding: 0 });
    // SAFETY: see the implementation of `Ioctl`; `file` is open for the whole call.
    unsafe { ioctl(session, request) }
}

/// Gives an id of [`backing_open`] back. Files that are open on it are not disturbed.
pub fn backing_close(session: impl AsFd, id: i32) -> Result<()> {
    // SAFETY: the opcode is FUSE_DEV_IOC_BACKING_CLOSE, which reads a u32 from the pointer.
    let request = unsafe { Setter::<BACKING_CLOSE, u32>::new(id as u32) };
    // SAFETY: the opcode is FUSE_DEV_IOC_BACKING_CLOSE, which reads a u32; `session` is open for the whole call.
    unsafe { ioctl(session, request) }
}
