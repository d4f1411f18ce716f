//! Opcodes of requests and codes of notifications.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the names are those of the protocol")]
        pub enum Opcode { $($(#[$doc])* $name = $value,)* }

        impl Opcode {
            /// Every opcode that is known.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The opcode of this number; None when it is unknown.
            #[must_use]
            pub const fn from_u32(number: u32) -> Option<Self> {
                match number { $($value => Some(Self::$name),)* _ => None }
            }

            /// Its name in the protocol.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, "LOOKUP";
    Forget = 2, "FORGET";
    Getattr = 3, "GETATTR";
    Setattr = 4, "SETATTR";
    Readlink = 5, "READLINK";
    Symlink = 6, "SYMLINK";
    Mknod = 8, "MKNOD";
    Mkdir = 9, "MKDIR";
    Unlink = 10, "UNLINK";
    Rmdir = 11, "RMDIR";
    Rename = 12, "RENAME";
    Link = 13, "LINK";
    Open = 14, "OPEN";
    Read = 15, "READ";
    Write = 16, "WRITE";
    Statfs = 17, "STATFS";
    Release = 18, "RELEASE";
    Fsync = 20, "FSYNC";
    Setxattr = 21, "SETXATTR";
    Getxattr = 22, "GETXATTR";
    Listxattr = 23, "LISTXATTR";
    Removexattr = 24, "REMOVEXATTR";
    Flush = 25, "FLUSH";
    Init = 26, "INIT";
    Opendir = 27, "OPENDIR";
    Readdir = 28, "READDIR";
    Releasedir = 29, "RELEASEDIR";
    Fsyncdir = 30, "FSYNCDIR";
    Getlk = 31, "GETLK";
    Setlk = 32, "SETLK";
    Setlkw = 33, "SETLKW";
    Access = 34, "ACCESS";
    Create = 35, "CREATE";
    Interrupt = 36, "INTERRUPT";
    Bmap = 37, "BMAP";
    Destroy = 38, "DESTROY";
    Ioctl = 39, "IOCTL";
    Poll = 40, "POLL";
    NotifyReply = 41, "NOTIFY_REPLY";
    BatchForget = 42, "BATCH_FORGET";
    Fallocate = 43, "FALLOCATE";
    Readdirplus = 44, "READDIRPLUS";
    Rename2 = 45, "RENAME2";
    Lseek = 46, "LSEEK";
    CopyFileRange = 47, "COPY_FILE_RANGE";
    Setupmapping = 48, "SETUPMAPPING";
    Removemapping = 49, "REMOVEMAPPING";
    Syncfs = 50, "SYNCFS";
    Tmpfile = 51, "TMPFILE";
    Statx = 52, "STATX";
    CopyFileRange64 = 53, "COPY_FILE_RANGE_64";
}

/// What a notification tells the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Notify {
    /// Attributes or data of a node are no longer good.
    InvalInode = 2,
    /// Here are data of a file; without any it only says whether the kernel has the node.
    Store = 4,
    /// Send again what has been read but not answered (7.40).
    Resend = 7,
    /// Look every name up again before it is used (7.44).
    IncEpoch = 8,
    /// Forget nodes that nobody uses (7.45).
    Prune = 9,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_opcodes_map_to_each_other() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_u32(opcode as u32), Some(opcode));
        }
        for unknown in [0, 7, 19, 54, 4096, u32::MAX] {
            assert_eq!(Opcode::from_u32(unknown), None);
        }
    }
}
