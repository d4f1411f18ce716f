//! From bytes to a request: a pure, total function.
//!
//! The kernel is trusted not to lie, but a successor may be handed a descriptor by somebody else and a bug
//! must never become a wild read: every length is checked, every name goes through [`Name`], and nothing here
//! can panic. The workspace's `fuzz/` and `tests/parser.rs` drive it with arbitrary bytes.

use crate::wire::{self, InHeader, Opcode};
use rustix::io::Errno;
use std::ffi::CStr;
use vellum_vfs::{Name, NodeId};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Most supplementary groups that are kept of one request. The kernel sends at most one (the parent
/// directory's, if the caller is in it); more are left out, which can only refuse, never allow.
pub const GROUPS_MAX: usize = 32;

/// A request that cannot be understood, and the errno to answer it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedRequest {
    /// The request to answer; None when not even the header could be read.
    pub unique: Option<u64>,
    /// What was asked, when that is known.
    pub opcode: Option<Opcode>,
    /// EINVAL or ENAMETOOLONG for a bad name, EIO for a bad structure, ENOSYS for an unknown opcode.
    pub errno: Errno,
}

/// The supplementary groups that came with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    ids: [u32; GROUPS_MAX],
    count: usize,
}

impl Groups {
    /// The groups.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        self.ids.get(..self.count).unwrap_or_default()
    }
}

/// A request.
#[derive(Debug)]
pub struct Request<'a> {
    /// The header.
    pub header: InHeader,
    /// What is asked.
    pub opcode: Opcode,
    /// Its arguments.
    pub operation: Operation<'a>,
    /// Supplementary groups that matter for it.
    pub groups: Groups,
}

impl Request<'_> {
    /// The node that it is about.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        NodeId(self.header.nodeid)
    }
}

/// What LOOKUP looks for.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A name in a directory.
    Name(Name<'a>),
    /// The node itself (".").
    Node,
    /// The parent of the directory ("..").
    Parent,
}

/// The nodes of a BATCH_FORGET.
#[derive(Clone, Copy, Debug)]
pub struct ForgetList<'a>(&'a [u8]);

impl Iterator for ForgetList<'_> {
    type Item = wire::ForgetOne;

    fn next(&mut self) -> Option<Self::Item> {
        let (one, rest) = wire::ForgetOne::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(one)
    }
}

/// An operation with its arguments, borrowed from the request's bytes.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are the arguments of the Filesystem method of that name")]
pub enum Operation<'a> {
    Lookup {
        target: Target<'a>,
    },
    Forget {
        count: u64,
    },
    BatchForget {
        nodes: ForgetList<'a>,
    },
    Getattr {
        args: wire::GetattrIn,
    },
    Statx {
        args: wire::StatxIn,
    },
    Setattr {
        args: wire::SetattrIn,
    },
    Readlink,
    Symlink {
        name: Name<'a>,
        target: &'a CStr,
    },
    Mknod {
        args: wire::MknodIn,
        name: Name<'a>,
    },
    Mkdir {
        args: wire::MkdirIn,
        name: Name<'a>,
    },
    Unlink {
        name: Name<'a>,
    },
    Rmdir {
        name: Name<'a>,
    },
    Rename {
        from: Name<'a>,
        to_parent: NodeId,
        to: Name<'a>,
        flags: u32,
    },
    Link {
        node: NodeId,
        name: Name<'a>,
    },
    Open {
        args: wire::OpenIn,
    },
    Read {
        args: wire::ReadIn,
    },
    Write {
        args: wire::WriteIn,
        data: &'a [u8],
    },
    Statfs,
    Release {
        args: wire::ReleaseIn,
    },
    Fsync {
        args: wire::FsyncIn,
    },
    Setxattr {
        name: &'a CStr,
        value: &'a [u8],
        flags: u32,
        acl_kill_sgid: bool,
    },
    Getxattr {
        name: &'a CStr,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a CStr,
    },
    Flush {
        args: wire::FlushIn,
    },
    Init {
        args: wire::InitIn,
        ext: Option<wire::InitExtIn>,
    },
    Opendir {
        args: wire::OpenIn,
    },
    Readdir {
        args: wire::ReadIn,
    },
    Readdirplus {
        args: wire::ReadIn,
    },
    Releasedir {
        args: wire::ReleaseIn,
    },
    Fsyncdir {
        args: wire::FsyncIn,
    },
    Access {
        mask: u32,
    },
    Create {
        args: wire::CreateIn,
        name: Name<'a>,
    },
    Tmpfile {
        args: wire::CreateIn,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl {
        args: wire::IoctlIn,
        data: &'a [u8],
    },
    Fallocate {
        args: wire::FallocateIn,
    },
    Lseek {
        args: wire::LseekIn,
    },
    CopyFileRange {
        args: wire::CopyFileRangeIn,
    },
    /// Known, and deliberately not served: locks (the kernel keeps them itself), poll, bmap, DAX, syncfs.
    Unserved,
}

/// What is not consumed yet of a request's body.
struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    fn get<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::IO)?;
        self.0 = rest;
        Ok(value)
    }

    fn c_str(&mut self) -> Result<&'a CStr, Errno> {
        let text = CStr::from_bytes_until_nul(self.0).map_err(|_| Errno::IO)?;
        self.0 = self.0.get(text.to_bytes_with_nul().len()..).unwrap_or_default();
        Ok(text)
    }

    fn name(&mut self) -> Result<Name<'a>, Errno> {
        Name::new(self.c_str()?)
    }

    fn xattr_name(&mut self) -> Result<&'a CStr, Errno> {
        let name = self.c_str()?;
        match name.to_bytes().len() {
            0 => Err(Errno::INVAL),
            1..=wire::XATTR_NAME_MAX => Ok(name),
            _ => Err(Errno::RANGE),
        }
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(len as usize).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// Reads a request. `setxattr_ext`: [`wire::InitFlags::SETXATTR_EXT`] has been negotiated.
pub fn parse(bytes: &[u8], setxattr_ext: bool) -> Result<Request<'_>, MalformedRequest> {
    let unreadable = MalformedRequest { unique: None, opcode: None, errno: Errno::IO };
    let (header, rest) = InHeader::read_from_prefix(bytes).map_err(|_| unreadable)?;
    let opcode = Opcode::from_u32(header.opcode);
    let malformed = |errno| MalformedRequest { unique: Some(header.unique), opcode, errno };
    let opcode = opcode.ok_or_else(|| malformed(Errno::NOSYS))?;
    let body_len = (header.len as usize).checked_sub(size_of::<InHeader>()).ok_or(malformed(Errno::IO))?;
    if body_len != rest.len() {
        return Err(malformed(Errno::IO));
    }
    // Extensions lie at the end, counted in units of 8 bytes.
    let args_len = body_len.checked_sub(usize::from(header.total_extlen) * 8).ok_or(malformed(Errno::IO))?;
    let (args, extensions) = rest.split_at_checked(args_len).ok_or(malformed(Errno::IO))?;
    let operation = operation(opcode, Args(args), setxattr_ext).map_err(malformed)?;
    let groups = groups(extensions).map_err(malformed)?;
    Ok(Request { header, opcode, operation, groups })
}

fn operation(opcode: Opcode, mut args: Args<'_>, setxattr_ext: bool) -> Result<Operation<'_>, Errno> {
    use Operation as Op;
    Ok(match opcode {
        Opcode::Lookup => {
            let name = args.c_str()?;
            Op::Lookup {
                target: match name.to_bytes() {
                    b"." => Target::Node,
                    b".." => Target::Parent,
                    _ => Target::Name(Name::new(name)?),
                },
            }
        }
        Opcode::Forget => Op::Forget { count: args.get::<wire::ForgetIn>()?.nlookup },
        Opcode::BatchForget => {
            let count = args.get::<wire::BatchForgetIn>()?.count;
            let len = u64::from(count) * size_of::<wire::ForgetOne>() as u64;
            let len = u32::try_from(len).map_err(|_| Errno::IO)?;
            Op::BatchForget { nodes: ForgetList(args.bytes(len)?) }
        }
        Opcode::Getattr => Op::Getattr { args: args.get()? },
        Opcode::Statx => Op::Statx { args: args.get()? },
        Opcode::Setattr => Op::Setattr { args: args.get()? },
        Opcode::Readlink => Op::Readlink,
        Opcode::Symlink => {
            let name = args.name()?;
            let target = args.c_str()?;
            if target.to_bytes().len() > wire::LINK_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            Op::Symlink { name, target }
        }
        Opcode::Mknod => Op::Mknod { args: args.get()?, name: args.name()? },
        Opcode::Mkdir => Op::Mkdir { args: args.get()?, name: args.name()? },
        Opcode::Unlink => Op::Unlink { name: args.name()? },
        Opcode::Rmdir => Op::Rmdir { name: args.name()? },
        Opcode::Rename => {
            let to_parent = NodeId(args.get::<wire::RenameIn>()?.newdir);
            Op::Rename { from: args.name()?, to_parent, to: args.name()?, flags: 0 }
        }
        Opcode::Rename2 => {
            let wire::Rename2In { newdir, flags, .. } = args.get()?;
            Op::Rename { from: args.name()?, to_parent: NodeId(newdir), to: args.name()?, flags }
        }
        Opcode::Link => {
            let node = NodeId(args.get::<wire::LinkIn>()?.oldnodeid);
            Op::Link { node, name: args.name()? }
        }
        Opcode::Open => Op::Open { args: args.get()? },
        Opcode::Read => Op::Read { args: args.get()? },
        Opcode::Write => {
            let write: wire::WriteIn = args.get()?;
            Op::Write { args: write, data: args.bytes(write.size)? }
        }
        Opcode::Statfs => Op::Statfs,
        Opcode::Release => Op::Release { args: args.get()? },
        Opcode::Fsync => Op::Fsync { args: args.get()? },
        Opcode::Setxattr => {
            let wire::SetxattrIn { size, flags } = args.get()?;
            let acl_kill_sgid = setxattr_ext
                && args.get::<wire::SetxattrExtIn>()?.setxattr_flags & wire::SETXATTR_ACL_KILL_SGID != 0;
            let name = args.xattr_name()?;
            Op::Setxattr { name, value: args.bytes(size)?, flags, acl_kill_sgid }
        }
        Opcode::Getxattr => {
            let size = args.get::<wire::GetxattrIn>()?.size;
            Op::Getxattr { name: args.xattr_name()?, size }
        }
        Opcode::Listxattr => Op::Listxattr { size: args.get::<wire::GetxattrIn>()?.size },
        Opcode::Removexattr => Op::Removexattr { name: args.xattr_name()? },
        Opcode::Flush => Op::Flush { args: args.get()? },
        Opcode::Init => Op::Init { args: args.get()?, ext: args.get().ok() },
        Opcode::Opendir => Op::Opendir { args: args.get()? },
        Opcode::Readdir => Op::Readdir { args: args.get()? },
        Opcode::Readdirplus => Op::Readdirplus { args: args.get()? },
        Opcode::Releasedir => Op::Releasedir { args: args.get()? },
        Opcode::Fsyncdir => Op::Fsyncdir { args: args.get()? },
        Opcode::Access => Op::Access { mask: args.get::<wire::AccessIn>()?.mask },
        Opcode::Create => Op::Create { args: args.get()?, name: args.name()? },
        // A name follows that means nothing.
        Opcode::Tmpfile => Op::Tmpfile { args: args.get()? },
        Opcode::Interrupt => Op::Interrupt { unique: args.get::<wire::InterruptIn>()?.unique },
        Opcode::Destroy => Op::Destroy,
        Opcode::Ioctl => {
            let ioctl: wire::IoctlIn = args.get()?;
            Op::Ioctl { args: ioctl, data: args.bytes(ioctl.in_size)? }
        }
        Opcode::Fallocate => Op::Fallocate { args: args.get()? },
        Opcode::Lseek => Op::Lseek { args: args.get()? },
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => Op::CopyFileRange { args: args.get()? },
        Opcode::Getlk
        | Opcode::Setlk
        | Opcode::Setlkw
        | Opcode::Bmap
        | Opcode::Poll
        | Opcode::NotifyReply
        | Opcode::Setupmapping
        | Opcode::Removemapping
        | Opcode::Syncfs => Op::Unserved,
    })
}

/// Collects the groups among a request's extensions; others are skipped.
fn groups(mut extensions: &[u8]) -> Result<Groups, Errno> {
    let mut groups = Groups::default();
    // Each turn takes at least 8 bytes off, so that this ends.
    while !extensions.is_empty() {
        let (ext, _) = wire::ExtHeader::read_from_prefix(extensions).map_err(|_| Errno::IO)?;
        let size = ext.size as usize;
        if size < size_of::<wire::ExtHeader>() {
            return Err(Errno::IO);
        }
        let body = extensions.get(size_of::<wire::ExtHeader>()..size).ok_or(Errno::IO)?;
        if ext.kind == wire::EXT_GROUPS {
            let mut args = Args(body);
            let count = args.get::<u32>()?;
            for _ in 0..count {
                let gid = args.get::<u32>()?;
                if let Some(slot) = groups.ids.get_mut(groups.count) {
                    *slot = gid;
                    groups.count += 1;
                }
            }
        }
        extensions = extensions.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(groups)
}
