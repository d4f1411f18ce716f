//! Nodes of the tree of files: their form on the device, and what they can be.

use super::error::{Error, Result};
use std::collections::BTreeMap;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The number of the tree's root directory.
pub const ROOT_NODE: u64 = 2;
/// Longest target of a symbolic link, in bytes.
pub const TARGET_MAX: usize = 4095;
/// Most bytes of all extended attributes of a node, as they are on the device.
pub const XATTRS_MAX: usize = 8 << 10;
/// The first number of what is no root.
pub(super) const FIRST_OBJECT: u64 = 16;

const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const KINDS: [u32; 7] = [REGULAR, DIRECTORY, SYMLINK, 0o020_000, 0o060_000, 0o010_000, 0o140_000];

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTime {
    /// Whole seconds, which may be negative.
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

/// What is known of a file, a directory or something else in the tree, beside its names, extended attributes and contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Type and permission bits, as in stat(2).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links, as in stat(2). A node without any is gone when the store is opened.
    pub nlink: u32,
    /// Device number, of device nodes.
    pub rdev: u64,
    /// Last access.
    pub atime: NodeTime,
    /// Last change of contents.
    pub mtime: NodeTime,
    /// Last change.
    pub ctime: NodeTime,
    /// Birth.
    pub btime: NodeTime,
}

/// Extended attributes by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NodeTimeForm {
    secs: I64,
    nanos: U32,
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NodeForm {
    number: U64,
    mode: U32,
    uid: U32,
    gid: U32,
    nlink: U32,
    rdev: U64,
    times: [NodeTimeForm; 4],
}

/// Bytes of a node on the device.
pub(super) const NODE_LEN: usize = size_of::<NodeForm>();

impl Node {
    /// Whether it is a regular file, whose contents are those of the object of its number.
    #[must_use]
    pub const fn is_regular(&self) -> bool {
        self.mode & KIND == REGULAR
    }

    /// Whether it is a directory.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        self.mode & KIND == DIRECTORY
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub const fn is_symlink(&self) -> bool {
        self.mode & KIND == SYMLINK
    }

    pub(super) fn encode(&self, number: u64, into: &mut Vec<u8>) {
        let time = |at: NodeTime| NodeTimeForm { secs: I64::new(at.secs), nanos: U32::new(at.nanos) };
        let form = NodeForm {
            number: U64::new(number),
            mode: U32::new(self.mode),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            nlink: U32::new(self.nlink),
            rdev: U64::new(self.rdev),
            times: [self.atime, self.mtime, self.ctime, self.btime].map(time),
        };
        into.extend_from_slice(form.as_bytes());
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<(u64, Self)> {
        let bad = || Error::Damaged("a node that cannot be".to_owned());
        let form = NodeForm::read_from_bytes(bytes).map_err(|_| bad())?;
        let times = form.times.map(|at| NodeTime { secs: at.secs.get(), nanos: at.nanos.get() });
        let [atime, mtime, ctime, btime] = times;
        let node = Self {
            mode: form.mode.get(),
            uid: form.uid.get(),
            gid: form.gid.get(),
            nlink: form.nlink.get(),
            rdev: form.rdev.get(),
            atime,
            mtime,
            ctime,
            btime,
        };
        let is_sane = KINDS.contains(&(node.mode & KIND))
            && node.mode & !(KIND | 0o7777) == 0
            && times.iter().all(|at| at.nanos < 1_000_000_000);
        if is_sane { Ok((form.number.get(), node)) } else { Err(bad()) }
    }
}

/// Refuses what no directory entry is called.
pub(super) fn check_entry_name(name: &[u8]) -> Result<&[u8]> {
    let is_bad =
        matches!(name, b"" | b"." | b"..") || name.len() > 255 || name.contains(&b'/') || name.contains(&0);
    if is_bad { Err(Error::BadName) } else { Ok(name) }
}

/// Refuses targets that no symbolic link has.
pub(super) fn check_target(target: &[u8]) -> Result<&[u8]> {
    let is_bad = target.is_empty() || target.len() > TARGET_MAX || target.contains(&0);
    if is_bad { Error::damaged("a symbolic link that cannot be") } else { Ok(target) }
}

/// Bytes of extended attributes on the device.
pub(super) fn xattrs_len(xattrs: &Xattrs) -> usize {
    xattrs.iter().map(|(name, value)| 3 + name.len() + value.len()).sum()
}

pub(super) fn encode_xattrs(xattrs: &Xattrs, into: &mut Vec<u8>) {
    for (name, value) in xattrs {
        into.push(name.len() as u8);
        into.extend_from_slice(&(value.len() as u16).to_le_bytes());
        into.extend_from_slice(name);
        into.extend_from_slice(value);
    }
}

/// In their order, each name once.
pub(super) fn decode_xattrs(mut bytes: &[u8]) -> Result<Xattrs> {
    let bad = || Error::Damaged("extended attributes that cannot be".to_owned());
    let mut xattrs = Xattrs::new();
    if bytes.len() > XATTRS_MAX {
        return Err(bad());
    }
    while let Some((&[name_len, low, high], rest)) = bytes.split_first_chunk() {
        let (name, rest) = rest.split_at_checked(usize::from(name_len)).ok_or_else(bad)?;
        let value_len = usize::from(u16::from_le_bytes([low, high]));
        let (value, rest) = rest.split_at_checked(value_len).ok_or_else(bad)?;
        let is_next = xattrs.last_key_value().is_none_or(|(last, _)| last.as_slice() < name);
        if name.is_empty() || name.contains(&0) || !is_next {
            return Err(bad());
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        bytes = rest;
    }
    if bytes.is_empty() { Ok(xattrs) } else { Err(bad()) }
}

/// Whether these can be recorded.
pub(super) fn check_xattrs(xattrs: &Xattrs) -> Result<()> {
    let sane = |name: &Vec<u8>| !name.is_empty() && name.len() <= 255 && !name.contains(&0);
    if xattrs_len(xattrs) <= XATTRS_MAX && xattrs.keys().all(sane) {
        Ok(())
    } else {
        Error::damaged("extended attributes that cannot be")
    }
}
