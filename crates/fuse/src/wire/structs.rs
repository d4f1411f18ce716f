//! The structures of the protocol, under the kernel's names without `fuse_`.
#![allow(missing_docs, reason = "field names are those of the kernel's header, which documents them")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident ($size:literal) { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[repr(C)]
            pub struct $name { $(pub $field: $type,)* }
            const _: () = assert!(size_of::<$name>() == $size, "size differs from the kernel's");
        )*
    };
}

wire! {
    /// Attributes, in replies.
    Attr (88) {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32,
        flags: u32,
    }
    /// Reply to STATFS.
    Kstatfs (80) {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    /// In front of every request.
    InHeader (40) {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16,
        padding: u16,
    }
    /// In front of every reply and notification.
    OutHeader (16) {
        len: u32, error: i32, unique: u64,
    }
    /// A name that was found or made.
    EntryOut (128) {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    /// FORGET.
    ForgetIn (8) {
        nlookup: u64,
    }
    /// One node of a BATCH_FORGET.
    ForgetOne (16) {
        nodeid: u64, nlookup: u64,
    }
    /// BATCH_FORGET; followed by its nodes.
    BatchForgetIn (8) {
        count: u32, dummy: u32,
    }
    /// GETATTR.
    GetattrIn (16) {
        getattr_flags: u32, dummy: u32, fh: u64,
    }
    /// Reply to GETATTR and SETATTR.
    AttrOut (104) {
        attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr,
    }
    /// STATX.
    StatxIn (24) {
        getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32,
    }
    /// A time in a STATX reply.
    SxTime (16) {
        secs: i64, nanos: u32, reserved: i32,
    }
    /// Attributes in a STATX reply.
    Statx (256) {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime,
        mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Reply to STATX.
    StatxOut (288) {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }
    /// MKNOD; followed by the name.
    MknodIn (16) {
        mode: u32, rdev: u32, umask: u32, padding: u32,
    }
    /// MKDIR; followed by the name.
    MkdirIn (8) {
        mode: u32, umask: u32,
    }
    /// RENAME; followed by both names.
    RenameIn (8) {
        newdir: u64,
    }
    /// RENAME2; followed by both names.
    Rename2In (16) {
        newdir: u64, flags: u32, padding: u32,
    }
    /// LINK; followed by the name.
    LinkIn (8) {
        oldnodeid: u64,
    }
    /// SETATTR.
    SetattrIn (88) {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }
    /// OPEN and OPENDIR.
    OpenIn (8) {
        flags: u32, open_flags: u32,
    }
    /// CREATE and TMPFILE; followed by the name.
    CreateIn (16) {
        flags: u32, mode: u32, umask: u32, open_flags: u32,
    }
    /// Reply to OPEN and OPENDIR, second part of the reply to CREATE.
    OpenOut (16) {
        fh: u64, open_flags: u32, backing_id: i32,
    }
    /// RELEASE and RELEASEDIR.
    ReleaseIn (24) {
        fh: u64, flags: u32, release_flags: u32, lock_owner: u64,
    }
    /// FLUSH.
    FlushIn (24) {
        fh: u64, unused: u32, padding: u32, lock_owner: u64,
    }
    /// READ, READDIR and READDIRPLUS.
    ReadIn (40) {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// WRITE; followed by the data.
    WriteIn (40) {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut (8) {
        size: u32, padding: u32,
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn (16) {
        fh: u64, fsync_flags: u32, padding: u32,
    }
    /// SETXATTR, first part; followed by name and value.
    SetxattrIn (8) {
        size: u32, flags: u32,
    }
    /// SETXATTR, second part, with [`InitFlags::SETXATTR_EXT`](super::InitFlags::SETXATTR_EXT).
    SetxattrExtIn (8) {
        setxattr_flags: u32, padding: u32,
    }
    /// GETXATTR (followed by the name) and LISTXATTR.
    GetxattrIn (8) {
        size: u32, padding: u32,
    }
    /// Reply to GETXATTR and LISTXATTR that asked for the length.
    GetxattrOut (8) {
        size: u32, padding: u32,
    }
    /// ACCESS.
    AccessIn (8) {
        mask: u32, padding: u32,
    }
    /// INIT, first part.
    InitIn (16) {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
    }
    /// INIT, second part (7.36).
    InitExtIn (48) {
        flags2: u32, unused: [u32; 11],
    }
    /// Reply to INIT.
    InitOut (64) {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }
    /// INTERRUPT.
    InterruptIn (8) {
        unique: u64,
    }
    /// IOCTL; followed by what is given.
    IoctlIn (32) {
        fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32,
    }
    /// Reply to IOCTL; followed by what is told.
    IoctlOut (16) {
        result: i32, flags: u32, in_iovs: u32, out_iovs: u32,
    }
    /// `struct fsxattr`, of FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR.
    Fsxattr (28) {
        xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u32; 2],
    }
    /// FALLOCATE.
    FallocateIn (32) {
        fh: u64, offset: u64, length: u64, mode: u32, padding: u32,
    }
    /// LSEEK.
    LseekIn (24) {
        fh: u64, offset: u64, whence: u32, padding: u32,
    }
    /// Reply to LSEEK.
    LseekOut (8) {
        offset: u64,
    }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn (56) {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// Reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut (8) {
        bytes_copied: u64,
    }
    /// A directory entry; followed by the name, padded to 8 bytes.
    Dirent (24) {
        ino: u64, off: u64, namelen: u32, kind: u32,
    }
    /// A directory entry with its node; followed by the name, padded to 8 bytes.
    Direntplus (152) {
        entry: EntryOut, dirent: Dirent,
    }
    /// In front of every extension of a request.
    ExtHeader (8) {
        size: u32, kind: u32,
    }
    /// INVAL_INODE.
    NotifyInvalInode (24) {
        ino: u64, off: i64, len: i64,
    }
    /// STORE; followed by data.
    NotifyStore (24) {
        nodeid: u64, offset: u64, size: u32, padding: u32,
    }
    /// PRUNE; followed by node ids.
    NotifyPrune (16) {
        count: u32, padding: u32, spare: u64,
    }
}
