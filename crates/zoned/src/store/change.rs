//! Changes of the store's metadata, and their form on the device.
//!
//! A change is a head of four bytes (kind, 0, length of the rest) and its fields, little-endian.

use super::error::{Error, Result};
use super::node::{
    NODE_LEN, Node, Xattrs, check_entry_name, check_target, decode_xattrs, encode_xattrs, xattrs_len,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest name of an object, in bytes.
pub const NAME_MAX: usize = 255;
/// Largest object, in bytes.
pub const SIZE_MAX: u64 = 1 << 48;
/// Most blocks of one extent.
pub const EXTENT_BLOCKS_MAX: usize = 256;
/// Longest group of changes, in bytes: any zone has room for the record that it is alone in.
pub(super) const GROUP_MAX: usize = 11 << 10;

/// What an object is, which decides where its blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Ordinary data: many objects share a zone.
    Normal,
    /// The image of a checkpoint: in zones of its own, which are reset when it is removed.
    Checkpoint,
}

/// Where blocks are on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct DeviceExtent {
    /// The zone; [`LOST`] when what was there could not be read when it was to be moved.
    pub(super) zone: u32,
    /// The block in the zone.
    pub(super) block: u32,
}

/// The zone of blocks that are lost.
pub(super) const LOST: u32 = u32::MAX;

/// A change, which is there whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// An object without a name. One that has none when the store is opened is gone.
    Create {
        /// Its number, which no object had before.
        object: u64,
        /// What it is.
        class: Class,
    },
    /// Blocks of an object are there now.
    Map {
        /// The object.
        object: u64,
        /// The first block, in the object.
        at: u64,
        /// Where it is.
        place: DeviceExtent,
        /// The size of the object after this, in bytes.
        size: u64,
        /// CRC-32C of each block.
        sums: Vec<u32>,
    },
    /// An object has a name. Another one that had it loses it, and is gone without a name.
    Link {
        /// The object.
        object: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// A name is gone, and with its last name the object.
    Unlink {
        /// The name.
        name: Vec<u8>,
    },
    /// An object has another name. One that had that before loses it.
    Rename {
        /// The name that is gone.
        from: Vec<u8>,
        /// The name that is there.
        to: Vec<u8>,
    },
    /// An object that has no name, or a node without links, is gone.
    Drop {
        /// The object.
        object: u64,
    },
    /// How often a zone was reset.
    Wear {
        /// The zone.
        zone: u32,
        /// How often.
        resets: u32,
    },
    /// The log goes on in these zones, which hold the same.
    Next {
        /// The zones.
        zones: [u32; 2],
    },
    /// A node of the tree of files is this now. The contents of a regular file are those of the object of its number.
    Node {
        /// Its number.
        node: u64,
        /// What it is.
        is: Node,
    },
    /// A node has these extended attributes, and no others.
    Xattrs {
        /// The node.
        node: u64,
        /// All of them.
        xattrs: Xattrs,
    },
    /// A symbolic link leads there.
    Target {
        /// The node.
        node: u64,
        /// Where to.
        target: Vec<u8>,
    },
    /// A name in a directory leads to this node, whatever it led to before.
    Enter {
        /// The directory.
        dir: u64,
        /// The node.
        node: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// A name in a directory is gone.
    Leave {
        /// The directory.
        dir: u64,
        /// The name.
        name: Vec<u8>,
    },
    /// An object has this size; blocks that lie beyond it are gone.
    Size {
        /// The object.
        object: u64,
        /// In bytes.
        size: u64,
    },
    /// Blocks of an object are zeros, and have no place.
    Punch {
        /// The object.
        object: u64,
        /// The first block.
        at: u64,
        /// How many.
        count: u64,
    },
    /// All of these, or none.
    Group(Vec<Self>),
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    reserved: u8,
    len: U16,
}

/// The fields that have a fixed length; those that a kind does not have are 0.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MapFields {
    object: U64,
    at: U64,
    size: U64,
    zone: U32,
    block: U32,
}

const CREATE: u8 = 1;
const MAP: u8 = 2;
const LINK: u8 = 3;
const UNLINK: u8 = 4;
const RENAME: u8 = 5;
const DROP: u8 = 6;
const WEAR: u8 = 7;
const NEXT: u8 = 8;
const NODE: u8 = 9;
const XATTRS: u8 = 10;
const TARGET: u8 = 11;
const ENTER: u8 = 12;
const LEAVE: u8 = 13;
const SIZE: u8 = 14;
const PUNCH: u8 = 15;
const GROUP: u8 = 16;

impl Change {
    /// Its length on the device, in bytes.
    #[must_use]
    pub(super) fn encoded_len(&self) -> usize {
        let fields = match self {
            Self::Create { .. } => 9,
            Self::Map { sums, .. } => size_of::<MapFields>() + 4 * sums.len(),
            Self::Link { name, .. } => 8 + name.len(),
            Self::Unlink { name } => name.len(),
            Self::Rename { from, to } => 1 + from.len() + to.len(),
            Self::Drop { .. } | Self::Wear { .. } | Self::Next { .. } => 8,
            Self::Node { .. } => NODE_LEN,
            Self::Xattrs { xattrs, .. } => 8 + xattrs_len(xattrs),
            Self::Target { target, .. } => 8 + target.len(),
            Self::Enter { name, .. } => 16 + name.len(),
            Self::Leave { name, .. } => 8 + name.len(),
            Self::Size { .. } => 16,
            Self::Punch { .. } => 24,
            Self::Group(changes) => changes.iter().map(Self::encoded_len).sum(),
        };
        size_of::<Head>() + fields
    }

    /// Appends its form on the device.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let kind = match self {
            Self::Create { .. } => CREATE,
            Self::Map { .. } => MAP,
            Self::Link { .. } => LINK,
            Self::Unlink { .. } => UNLINK,
            Self::Rename { .. } => RENAME,
            Self::Drop { .. } => DROP,
            Self::Wear { .. } => WEAR,
            Self::Next { .. } => NEXT,
            Self::Node { .. } => NODE,
            Self::Xattrs { .. } => XATTRS,
            Self::Target { .. } => TARGET,
            Self::Enter { .. } => ENTER,
            Self::Leave { .. } => LEAVE,
            Self::Size { .. } => SIZE,
            Self::Punch { .. } => PUNCH,
            Self::Group(_) => GROUP,
        };
        let len = U16::new((self.encoded_len() - size_of::<Head>()) as u16);
        into.extend_from_slice(Head { kind, reserved: 0, len }.as_bytes());
        match self {
            Self::Create { object, class } => {
                into.extend_from_slice(&object.to_le_bytes());
                into.push(match class {
                    Class::Normal => 0,
                    Class::Checkpoint => 1,
                });
            }
            Self::Map { object, at, place, size, sums } => {
                let fields = MapFields {
                    object: U64::new(*object),
                    at: U64::new(*at),
                    size: U64::new(*size),
                    zone: U32::new(place.zone),
                    block: U32::new(place.block),
                };
                into.extend_from_slice(fields.as_bytes());
                sums.iter().for_each(|sum| into.extend_from_slice(&sum.to_le_bytes()));
            }
            Self::Link { object, name } => {
                into.extend_from_slice(&object.to_le_bytes());
                into.extend_from_slice(name);
            }
            Self::Unlink { name } => into.extend_from_slice(name),
            Self::Rename { from, to } => {
                into.push(from.len() as u8);
                into.extend_from_slice(from);
                into.extend_from_slice(to);
            }
            Self::Drop { object } => into.extend_from_slice(&object.to_le_bytes()),
            Self::Wear { zone, resets: value } | Self::Next { zones: [zone, value] } => {
                into.extend_from_slice(&zone.to_le_bytes());
                into.extend_from_slice(&value.to_le_bytes());
            }
            Self::Node { node, is } => is.encode(*node, into),
            Self::Xattrs { node, xattrs } => {
                into.extend_from_slice(&node.to_le_bytes());
                encode_xattrs(xattrs, into);
            }
            Self::Target { node: number, target: bytes } | Self::Leave { dir: number, name: bytes } => {
                into.extend_from_slice(&number.to_le_bytes());
                into.extend_from_slice(bytes);
            }
            Self::Enter { dir, node, name } => {
                into.extend_from_slice(&dir.to_le_bytes());
                into.extend_from_slice(&node.to_le_bytes());
                into.extend_from_slice(name);
            }
            Self::Size { object, size } => {
                into.extend_from_slice(&object.to_le_bytes());
                into.extend_from_slice(&size.to_le_bytes());
            }
            Self::Punch { object, at, count } => {
                [object, at, count].iter().for_each(|number| into.extend_from_slice(&number.to_le_bytes()));
            }
            Self::Group(changes) => changes.iter().for_each(|change| change.encode(into)),
        }
    }

    /// Takes a change from the front of `bytes`. Names, counts and sizes are within their bounds afterwards; whether objects and zones are
    /// there is for [`State::apply`](super::state::State::apply) to say.
    pub(super) fn decode(bytes: &mut &[u8]) -> Result<Self> {
        let short = || Error::Damaged("a change that is cut off".to_owned());
        let (head, rest) = Head::read_from_prefix(bytes).map_err(|_| short())?;
        let (fields, rest) = rest.split_at_checked(usize::from(head.len.get())).ok_or_else(short)?;
        *bytes = rest;
        let number = |bytes: &[u8]| U64::read_from_bytes(bytes).map(U64::get).map_err(|_| short());
        let pair = || -> Result<[u32; 2]> {
            let pair = <[U32; 2]>::read_from_bytes(fields).map_err(|_| short())?;
            Ok(pair.map(U32::get))
        };
        Ok(match head.kind {
            CREATE => {
                let (object, class) = fields.split_at_checked(8).ok_or_else(short)?;
                let class = match class {
                    [0] => Class::Normal,
                    [1] => Class::Checkpoint,
                    _ => return Error::damaged("a class that does not exist"),
                };
                Self::Create { object: number(object)?, class }
            }
            MAP => decode_map(fields)?,
            LINK => {
                let (object, name) = fields.split_at_checked(8).ok_or_else(short)?;
                Self::Link { object: number(object)?, name: check_name(name)?.to_vec() }
            }
            UNLINK => Self::Unlink { name: check_name(fields)?.to_vec() },
            RENAME => {
                let (len, names) = fields.split_first().ok_or_else(short)?;
                let (from, to) = names.split_at_checked(usize::from(*len)).ok_or_else(short)?;
                Self::Rename { from: check_name(from)?.to_vec(), to: check_name(to)?.to_vec() }
            }
            DROP => Self::Drop { object: number(fields)? },
            WEAR => pair().map(|[zone, resets]| Self::Wear { zone, resets })?,
            NEXT => Self::Next { zones: pair()? },
            GROUP => decode_group(fields)?,
            NODE..=PUNCH => decode_of_tree(head.kind, fields)?,
            kind => return Error::damaged(format!("a change of kind {kind}")),
        })
    }
}

/// A change of the tree, or of the contents of its files.
fn decode_of_tree(kind: u8, fields: &[u8]) -> Result<Change> {
    let short = || Error::Damaged("a change that is cut off".to_owned());
    if kind == NODE {
        return Node::decode(fields).map(|(node, is)| Change::Node { node, is });
    }
    let (first, rest) = U64::read_from_prefix(fields).map_err(|_| short())?;
    let first = first.get();
    let numbers = |bytes: &[u8]| -> Result<Vec<u64>> {
        Ok(<[U64]>::ref_from_bytes(bytes).map_err(|_| short())?.iter().map(|number| number.get()).collect())
    };
    let bounded =
        |number: u64| if number > SIZE_MAX { Error::damaged("a size that cannot be") } else { Ok(number) };
    Ok(match kind {
        XATTRS => Change::Xattrs { node: first, xattrs: decode_xattrs(rest)? },
        TARGET => Change::Target { node: first, target: check_target(rest)?.to_vec() },
        ENTER => {
            let (node, name) = U64::read_from_prefix(rest).map_err(|_| short())?;
            Change::Enter { dir: first, node: node.get(), name: check_entry_name(name)?.to_vec() }
        }
        LEAVE => Change::Leave { dir: first, name: check_entry_name(rest)?.to_vec() },
        SIZE => match numbers(rest)?.as_slice() {
            [size] => Change::Size { object: first, size: bounded(*size)? },
            _ => return Err(short()),
        },
        _ => match numbers(rest)?.as_slice() {
            [at, count] => Change::Punch { object: first, at: bounded(*at)?, count: bounded(*count)? },
            _ => return Err(short()),
        },
    })
}

fn decode_group(mut bytes: &[u8]) -> Result<Change> {
    let mut changes = Vec::new();
    if bytes.len() > GROUP_MAX {
        return Error::damaged("a group that is too long");
    }
    while !bytes.is_empty() {
        if bytes[0] == GROUP || bytes[0] == NEXT {
            return Error::damaged("a group of what cannot be grouped");
        }
        changes.push(Change::decode(&mut bytes)?);
    }
    Ok(Change::Group(changes))
}

fn decode_map(bytes: &[u8]) -> Result<Change> {
    let bad = || Error::Damaged("an extent that cannot be".to_owned());
    let (fields, sums) = MapFields::read_from_prefix(bytes).map_err(|_| bad())?;
    let sums = <[U32]>::ref_from_bytes(sums).map_err(|_| bad())?;
    let (at, size) = (fields.at.get(), fields.size.get());
    if sums.is_empty() || sums.len() > EXTENT_BLOCKS_MAX || size > SIZE_MAX || at > SIZE_MAX {
        return Err(bad());
    }
    Ok(Change::Map {
        object: fields.object.get(),
        at,
        place: DeviceExtent { zone: fields.zone.get(), block: fields.block.get() },
        size,
        sums: sums.iter().map(|sum| sum.get()).collect(),
    })
}

/// Refuses names that no object can have.
pub(super) fn check_name(name: &[u8]) -> Result<&[u8]> {
    if name.is_empty() || name.len() > NAME_MAX { Err(Error::BadName) } else { Ok(name) }
}
