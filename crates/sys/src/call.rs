//! The kinds of calls, for counting them and for making them fail.
#![forbid(unsafe_code)]

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident $mutates:literal,)*) => {
        /// One kind of call of [`crate::Sys`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Call { $($(#[$doc])* $name,)* }

        impl Call {
            /// Every kind, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Whether a call of this kind can change what is stored (an open may create or truncate).
            #[must_use]
            pub const fn mutates(self) -> bool {
                match self { $(Self::$name => $mutates,)* }
            }
        }
    };
}

calls! {
    /// openat(2).
    Open true,
    /// openat2(2).
    OpenBeneath false,
    /// statx(2) of a name.
    StatAt false,
    /// statx(2) of a descriptor.
    Stat false,
    /// pread(2).
    Read false,
    /// pwrite(2).
    Write true,
    /// fsync(2).
    Sync true,
    /// fdatasync(2).
    DataSync true,
    /// syncfs(2).
    SyncFs true,
    /// ftruncate(2).
    Truncate true,
    /// fallocate(2).
    Allocate true,
    /// lseek(2) with SEEK_DATA or SEEK_HOLE.
    Seek false,
    /// copy_file_range(2).
    CopyRange true,
    /// ioctl FICLONE.
    Clone true,
    /// ioctl FS_IOC_GETFLAGS.
    GetFlags false,
    /// ioctl FS_IOC_SETFLAGS.
    SetFlags true,
    /// mkdirat(2).
    MakeDir true,
    /// mknodat(2).
    MakeNode true,
    /// symlinkat(2).
    MakeSymlink true,
    /// linkat(2) from a name.
    Link true,
    /// linkat(2) from a descriptor.
    LinkFd true,
    /// unlinkat(2).
    Unlink true,
    /// renameat2(2).
    Rename true,
    /// readlinkat(2).
    ReadLink false,
    /// getdents64(2).
    ListDir false,
    /// fchmod(2) and its kin.
    SetMode true,
    /// fchownat(2).
    SetOwner true,
    /// utimensat(2).
    SetTimes true,
    /// getxattr(2) and its kin.
    GetXattr false,
    /// setxattr(2) and its kin.
    SetXattr true,
    /// listxattr(2) and its kin.
    ListXattr false,
    /// removexattr(2) and its kin.
    RemoveXattr true,
    /// fstatfs(2).
    StatFs false,
    /// Locks of open file descriptions.
    Lock false,
}
