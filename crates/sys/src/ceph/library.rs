//! The functions of libcephfs that are used, as its header declares them.
//!
//! The library is loaded when the first client is asked for, so one program works with it and without.

use libc::{c_char, c_int, c_uint, c_void, dev_t, gid_t, mode_t, size_t, uid_t};
use std::sync::OnceLock;

/// The name that it has had since Ceph 10, and the package that has it.
const NAME: &str = "libcephfs.so.2";
pub(super) const PACKAGE: &str = "libcephfs2";

/// A client, mounted or not.
#[repr(C)]
pub(super) struct Mount([u8; 0]);
/// An inode in a client's memory.
#[repr(C)]
pub(super) struct Inode([u8; 0]);
/// An open file.
#[repr(C)]
pub(super) struct Fh([u8; 0]);
/// An open directory.
#[repr(C)]
pub(super) struct Dir([u8; 0]);
/// Who asks.
#[repr(C)]
pub(super) struct UserPerm([u8; 0]);

/// `vinodeno_t`: an inode's number, and which of its snapshots.
#[repr(C)]
pub(super) struct Vino {
    pub(super) ino: u64,
    pub(super) snapshot: u64,
}

impl Vino {
    /// CEPH_NOSNAP: as it is now.
    pub(super) const NOW: u64 = u64::MAX - 1;
}

/// `struct ceph_statx`.
#[repr(C)]
#[allow(dead_code, reason = "the order and the size are the library's")]
pub(super) struct Statx {
    pub(super) mask: u32,
    pub(super) blksize: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u16,
    pub(super) ino: u64,
    pub(super) size: u64,
    pub(super) blocks: u64,
    /// The number of the snapshot.
    pub(super) dev: dev_t,
    pub(super) rdev: dev_t,
    pub(super) atime: libc::timespec,
    pub(super) ctime: libc::timespec,
    pub(super) mtime: libc::timespec,
    pub(super) btime: libc::timespec,
    pub(super) version: u64,
    /// For fields that a later version may add.
    room: [u64; 32],
}

impl Statx {
    pub(super) const fn new() -> Self {
        const NEVER: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        Self {
            mask: 0,
            blksize: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            mode: 0,
            ino: 0,
            size: 0,
            blocks: 0,
            dev: 0,
            rdev: 0,
            atime: NEVER,
            ctime: NEVER,
            mtime: NEVER,
            btime: NEVER,
            version: 0,
            room: [0; 32],
        }
    }
}

macro_rules! library {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Self, String> {
                let failed = |error: libloading::Error| format!("cannot load {NAME}: {error}");
                // SAFETY: what the library does when it is loaded is what every program that is linked with it has done.
                let loaded = unsafe { libloading::Library::new(NAME) }.map_err(failed)?;
                // Never unloaded: it has threads of its own.
                let loaded: &'static libloading::Library = Box::leak(Box::new(loaded));
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the declaration in cephfs/libcephfs.h, from Ceph 16 to 18.
                        *unsafe {
                            loaded.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(stringify!($name))
                        }.map_err(failed)?
                    },)*
                })
            }
        }
    };
}

library! {
    ceph_create(*mut *mut Mount, *const c_char) -> c_int;
    ceph_conf_read_file(*mut Mount, *const c_char) -> c_int;
    ceph_conf_set(*mut Mount, *const c_char, *const c_char) -> c_int;
    ceph_conf_get(*mut Mount, *const c_char, *mut c_char, size_t) -> c_int;
    ceph_select_filesystem(*mut Mount, *const c_char) -> c_int;
    ceph_init(*mut Mount) -> c_int;
    ceph_start_reclaim(*mut Mount, *const c_char, c_uint) -> c_int;
    ceph_finish_reclaim(*mut Mount);
    ceph_set_uuid(*mut Mount, *const c_char);
    ceph_mount(*mut Mount, *const c_char) -> c_int;
    ceph_unmount(*mut Mount) -> c_int;
    ceph_release(*mut Mount) -> c_int;
    ceph_get_fs_cid(*mut Mount) -> i64;
    ceph_sync_fs(*mut Mount) -> c_int;
    ceph_umask(*mut Mount, mode_t) -> mode_t;
    ceph_userperm_new(uid_t, gid_t, c_int, *mut gid_t) -> *mut UserPerm;
    ceph_userperm_destroy(*mut UserPerm);

    ceph_ll_lookup_root(*mut Mount, *mut *mut Inode) -> c_int;
    ceph_ll_lookup_vino(*mut Mount, Vino, *mut *mut Inode) -> c_int;
    ceph_ll_lookup(
        *mut Mount, *mut Inode, *const c_char, *mut *mut Inode, *mut Statx, c_uint, c_uint, *const UserPerm
    ) -> c_int;
    ceph_ll_put(*mut Mount, *mut Inode) -> c_int;
    ceph_ll_getattr(*mut Mount, *mut Inode, *mut Statx, c_uint, c_uint, *const UserPerm) -> c_int;
    ceph_ll_setattr(*mut Mount, *mut Inode, *mut Statx, c_int, *const UserPerm) -> c_int;
    ceph_ll_getxattr(*mut Mount, *mut Inode, *const c_char, *mut c_void, size_t, *const UserPerm) -> c_int;
    ceph_ll_setxattr(
        *mut Mount, *mut Inode, *const c_char, *const c_void, size_t, c_int, *const UserPerm
    ) -> c_int;
    ceph_ll_listxattr(*mut Mount, *mut Inode, *mut c_char, size_t, *mut size_t, *const UserPerm) -> c_int;
    ceph_ll_removexattr(*mut Mount, *mut Inode, *const c_char, *const UserPerm) -> c_int;
    ceph_ll_readlink(*mut Mount, *mut Inode, *mut c_char, size_t, *const UserPerm) -> c_int;
    ceph_ll_statfs(*mut Mount, *mut Inode, *mut libc::statvfs) -> c_int;
    ceph_ll_sync_inode(*mut Mount, *mut Inode, c_int) -> c_int;

    ceph_ll_create(
        *mut Mount, *mut Inode, *const c_char, mode_t, c_int, *mut *mut Inode, *mut *mut Fh, *mut Statx,
        c_uint, c_uint, *const UserPerm
    ) -> c_int;
    ceph_ll_mkdir(
        *mut Mount, *mut Inode, *const c_char, mode_t, *mut *mut Inode, *mut Statx, c_uint, c_uint,
        *const UserPerm
    ) -> c_int;
    ceph_ll_mknod(
        *mut Mount, *mut Inode, *const c_char, mode_t, dev_t, *mut *mut Inode, *mut Statx, c_uint, c_uint,
        *const UserPerm
    ) -> c_int;
    ceph_ll_symlink(
        *mut Mount, *mut Inode, *const c_char, *const c_char, *mut *mut Inode, *mut Statx, c_uint, c_uint,
        *const UserPerm
    ) -> c_int;
    ceph_ll_link(*mut Mount, *mut Inode, *mut Inode, *const c_char, *const UserPerm) -> c_int;
    ceph_ll_unlink(*mut Mount, *mut Inode, *const c_char, *const UserPerm) -> c_int;
    ceph_ll_rmdir(*mut Mount, *mut Inode, *const c_char, *const UserPerm) -> c_int;
    ceph_ll_rename(
        *mut Mount, *mut Inode, *const c_char, *mut Inode, *const c_char, *const UserPerm
    ) -> c_int;

    ceph_ll_opendir(*mut Mount, *mut Inode, *mut *mut Dir, *const UserPerm) -> c_int;
    ceph_readdir_r(*mut Mount, *mut Dir, *mut libc::dirent) -> c_int;
    ceph_ll_releasedir(*mut Mount, *mut Dir) -> c_int;

    ceph_ll_open(*mut Mount, *mut Inode, c_int, *mut *mut Fh, *const UserPerm) -> c_int;
    ceph_ll_read(*mut Mount, *mut Fh, i64, u64, *mut c_char) -> c_int;
    ceph_ll_write(*mut Mount, *mut Fh, i64, u64, *const c_char) -> c_int;
    ceph_ll_fsync(*mut Mount, *mut Fh, c_int) -> c_int;
    ceph_ll_fallocate(*mut Mount, *mut Fh, c_int, i64, i64) -> c_int;
    ceph_ll_setlk(*mut Mount, *mut Fh, *mut libc::flock, u64, c_int) -> c_int;
    ceph_ll_close(*mut Mount, *mut Fh) -> c_int;
}

impl Library {
    /// The library, loaded once. The error is one line.
    pub(super) fn get() -> Result<&'static Self, &'static str> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref().map_err(String::as_str)
    }
}
