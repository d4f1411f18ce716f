//! The protocol as it lies in memory: structures, opcodes and flags of the Linux FUSE ABI, 7.31 to 7.45.
//!
//! Field order and sizes follow the kernel's `include/uapi/linux/fuse.h`; everything is in the machine's own
//! byte order. Structures are read from a request by copying (at most a hundred bytes), so that a request
//! needs no alignment, and are written as bytes.

mod flags;
mod opcode;
mod structs;

pub use flags::*;
pub use opcode::*;
pub use structs::*;

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest minor version that is spoken.
pub const MINOR_NEWEST: u32 = 45;
/// The oldest minor version that is spoken.
pub const MINOR_OLDEST: u32 = 31;
/// The kernel refuses a read with a smaller buffer (bytes).
pub const MIN_READ_BUFFER: usize = 8192;
/// Longest target of a symbolic link that the kernel takes (bytes).
pub const LINK_MAX: usize = 4095;
/// Largest extended attribute and largest list of names (bytes).
pub const XATTR_MAX: usize = 65536;
/// Longest name of an extended attribute (bytes).
pub const XATTR_NAME_MAX: usize = 255;
/// Set in `unique` of a request that is sent again after [`Notify::Resend`].
pub const UNIQUE_RESEND: u64 = 1 << 63;
