//! CephFS without the kernel: libcephfs's calls on inodes, made safe.
//!
//! Nothing here follows a symbolic link or leaves the directory that a call names. All calls are made as root, for identity is
//! checked above. A client has one lock for all its calls, which is the library's own.

mod inode;
mod library;

pub use inode::{CephChange, CephFile, CephInode, CephListing};

use crate::stat_fs::FsStat;
use crate::sys::Result;
use library::{Library, Mount, UserPerm};
use rustix::io::Errno;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Longest time that connecting may take in each of its steps, in seconds.
const PATIENCE: &CStr = c"8";
/// What statfs(2) calls CephFS.
const MAGIC: u64 = 0x00c3_6400;

/// What every client has, whatever its configuration file says.
const OPTIONS: [(&CStr, &CStr); 9] = [
    (c"client_mount_timeout", PATIENCE),
    // Access-control lists are honoured as the kernel's client honours them.
    (c"client_acl_type", c"posix_acl"),
    // Rights are judged above, as on any layer.
    (c"client_permissions", c"false"),
    // `.snap` is an ordinary name: nobody makes snapshots or looks into them by names of files.
    (c"client_snapdir", c""),
    // The size of a directory does not change with what is below it.
    (c"client_dirsize_rbytes", c"false"),
    // What goes wrong is answered, not printed.
    (c"err_to_stderr", c"false"),
    (c"log_to_stderr", c"false"),
    (c"admin_socket", c""),
    // A service's handlers of signals are its own.
    (c"fatal_signal_handlers", c"false"),
];

/// A thing of libcephfs's.
struct Handle<T>(NonNull<T>);

// SAFETY: the library locks whatever its calls touch, and none of its things belongs to a thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: several threads may name one thing in calls at the same time, which the library's lock puts in order.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// What a call has handed out. EIO: nothing.
    fn new(raw: *mut T) -> Result<Self> {
        NonNull::new(raw).map(Self).ok_or(Errno::IO)
    }

    const fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// What a call returned: a number, or a negative errno. A client that its cluster has expelled, or that is unmounted, can do
/// nothing any more: EIO.
fn outcome(code: c_int) -> Result<usize> {
    match usize::try_from(code) {
        Ok(count) => Ok(count),
        Err(_) => Err(match code.checked_neg() {
            Some(libc::ESHUTDOWN | libc::ENOTCONN) | None => Errno::IO,
            Some(number) if number < 4096 => Errno::from_raw_os_error(number),
            Some(_) => Errno::IO,
        }),
    }
}

/// How a cluster is reached. What is None is what Ceph's own programs take.
#[derive(Clone, Copy, Debug, Default)]
pub struct CephAccess<'a> {
    /// The configuration file.
    pub conf: Option<&'a CStr>,
    /// The client's name without `client.`.
    pub id: Option<&'a CStr>,
    /// The filesystem's name.
    pub filesystem: Option<&'a CStr>,
}

/// Why there is no client: one line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephRefusal(String);

impl fmt::Display for CephRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CephRefusal {}

/// A client: one mounted filesystem, with a cache and about 14 threads. Whatever came from it keeps it.
pub struct CephClient {
    library: &'static Library,
    mount: Handle<Mount>,
    /// Root, of no further groups.
    identity: Handle<UserPerm>,
    mounted: bool,
    device: u64,
}

impl CephClient {
    /// Connects to a cluster and mounts its filesystem; within some 10 seconds it is done or refused. To be called in the process
    /// that will use it, after the last fork: threads are started.
    pub fn connect(access: CephAccess<'_>) -> std::result::Result<Arc<Self>, CephRefusal> {
        let library = Library::get().map_err(|why| CephRefusal(why.into()))?;
        let refuse = |why: &str| CephRefusal(refusal(access, why));
        let mut client = Self::create(library, access.id).map_err(|e| refuse(&e.to_string()))?;
        client.configure(access).map_err(|why| refuse(&why))?;
        let root = ptr::null();
        // SAFETY: the client is configured and not mounted; no path stands for the root.
        let mounted = unsafe { (library.ceph_mount)(client.mount.raw(), root) };
        match -mounted {
            0 => client.mounted = true,
            libc::ETIMEDOUT => return Err(refuse("no answer from the monitors or the metadata server")),
            libc::EACCES | libc::EPERM => {
                return Err(refuse("the cluster refuses the client's key or its rights"));
            }
            libc::ENOENT => {
                return Err(refuse(
                    "it names no monitors, has no key for this client, or the filesystem is not there",
                ));
            }
            1000 => return Err(refuse("the configuration names no monitors")),
            other => return Err(refuse(&Errno::from_raw_os_error(other.clamp(1, 4095)).to_string())),
        }
        // Modes are those that calls ask for; the library takes its own umask for the caller's.
        // SAFETY: the client is mounted; the rest is a number.
        unsafe { (library.ceph_umask)(client.mount.raw(), 0) };
        client.device = client.identify();
        Ok(Arc::new(client))
    }

    fn create(library: &'static Library, id: Option<&CStr>) -> Result<Self> {
        let mut mount = ptr::null_mut();
        let id = id.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the name ends with NUL or is none; the client is written to a place of ours.
        outcome(unsafe { (library.ceph_create)(&raw mut mount, id) })?;
        let mount = Handle::new(mount)?;
        // SAFETY: no groups, so no array.
        let identity = unsafe { (library.ceph_userperm_new)(0, 0, 0, ptr::null_mut()) };
        Ok(Self { library, mount, identity: Handle::new(identity)?, mounted: false, device: 0 })
    }

    fn configure(&self, access: CephAccess<'_>) -> std::result::Result<(), String> {
        let conf = access.conf.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the path ends with NUL or is none, which stands for the usual places.
        outcome(unsafe { (self.library.ceph_conf_read_file)(self.mount.raw(), conf) })
            .map_err(|e| format!("cannot read the configuration: {e}"))?;
        for (name, value) in OPTIONS {
            // SAFETY: both end with NUL.
            let set =
                unsafe { (self.library.ceph_conf_set)(self.mount.raw(), name.as_ptr(), value.as_ptr()) };
            outcome(set).map_err(|e| format!("option {}: {e}", name.to_string_lossy()))?;
        }
        if let Some(name) = access.filesystem {
            // SAFETY: the name ends with NUL.
            outcome(unsafe { (self.library.ceph_select_filesystem)(self.mount.raw(), name.as_ptr()) })
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// A device number for files in it: the same in every client of this filesystem, and none that the kernel gives.
    fn identify(&self) -> u64 {
        let mut fsid = [0_u8; 64];
        let to = fsid.as_mut_ptr().cast();
        // SAFETY: the library writes at most as many bytes as it is told.
        unsafe { (self.library.ceph_conf_get)(self.mount.raw(), c"fsid".as_ptr(), to, fsid.len()) };
        // SAFETY: the client is mounted.
        let number = unsafe { (self.library.ceph_get_fs_cid)(self.mount.raw()) };
        // FNV-1a.
        let hash = fsid
            .into_iter()
            .chain(number.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte: u8| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        (0xce << 56) | (hash >> 8)
    }

    /// The root directory.
    pub fn root(self: &Arc<Self>) -> Result<CephInode> {
        let mut found = ptr::null_mut();
        // SAFETY: the client is mounted; the inode is written to a place of ours, with a reference.
        outcome(unsafe { (self.library.ceph_ll_lookup_root)(self.mount.raw(), &raw mut found) })?;
        CephInode::new(self, found)
    }

    /// Space and inodes.
    pub fn stat_fs(self: &Arc<Self>) -> Result<FsStat> {
        let found = self.root()?.stat_fs()?;
        Ok(FsStat { kind: MAGIC, fsid: self.device, ..found })
    }

    /// Makes all that was written by this client durable.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the client is mounted.
        outcome(unsafe { (self.library.ceph_sync_fs)(self.mount.raw()) }).map(drop)
    }
}

impl Drop for CephClient {
    fn drop(&mut self) {
        if self.mounted {
            // SAFETY: the client is mounted, and nothing that came from it is left.
            unsafe { (self.library.ceph_unmount)(self.mount.raw()) };
        }
        // SAFETY: no call is made with it any more.
        unsafe { (self.library.ceph_userperm_destroy)(self.identity.raw()) };
        // SAFETY: it is unmounted and not used again.
        unsafe { (self.library.ceph_release)(self.mount.raw()) };
    }
}

fn refusal(access: CephAccess<'_>, why: &str) -> String {
    let or =
        |given: Option<&CStr>, usual: &str| given.map_or(usual.into(), CStr::to_string_lossy).into_owned();
    let (conf, id) = (or(access.conf, "the usual configuration"), or(access.id, "admin"));
    format!("Ceph by {conf} as client.{id}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes() {
        assert_eq!(outcome(7), Ok(7));
        assert_eq!(outcome(-libc::ENOENT), Err(Errno::NOENT));
        assert_eq!(outcome(-libc::ESTALE), Err(Errno::STALE));
        for lost in [-libc::ESHUTDOWN, -libc::ENOTCONN, -5000, c_int::MIN] {
            assert_eq!(outcome(lost), Err(Errno::IO), "{lost}");
        }
    }
}
