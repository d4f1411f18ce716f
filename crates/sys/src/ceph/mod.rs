//! CephFS without the kernel: libcephfs's calls on inodes, made safe.
//!
//! Nothing here follows a symbolic link or leaves the directory that a call names. All calls are made as root, for identity is
//! checked above. A client has one lock for all its calls, which is the library's own.

mod inode;
mod library;
mod setup;
mod stale_dirs;

pub use inode::{CephChange, CephFile, CephInode, CephListing, WritePolicy};
pub use setup::{CephAccess, CephLineage, CephRefusal, CephSetup, CephTrouble, load};

use crate::stat_fs::FsStat;
use crate::sys::Result;
use library::{Library, Mount, UserPerm, Vino};
use rustix::io::Errno;
use std::ffi::{CStr, c_int};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What statfs(2) calls CephFS.
const MAGIC: u64 = 0x00c3_6400;
/// What a client calls the directory of snapshots. No name that a program asks for has a slash, so none leads there.
const SNAPSHOTS: &CStr = c"/.snap";

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

/// What is done when a cluster has expelled a client of this process.
static ON_EXPULSION: OnceLock<fn()> = OnceLock::new();

/// Has `what` called as soon as a call shows that a cluster has expelled a client of this process, by that call's thread and before the
/// call returns; once for each client. The first one that is given stays.
pub fn on_expulsion(what: fn()) {
    let _ = ON_EXPULSION.set(what);
}

/// A client: one mounted filesystem, with a cache and about 14 threads. Whatever came from it keeps it.
pub struct CephClient {
    library: &'static Library,
    mount: Handle<Mount>,
    /// Root, of no further groups.
    identity: Handle<UserPerm>,
    mounted: bool,
    device: u64,
    /// What the library says in place of a snapshot's number of what is in none.
    present: OnceLock<u64>,
    /// The cluster has expelled it.
    expelled: AtomicBool,
    /// Directories that names were moved out of.
    left: stale_dirs::StaleDirs,
}

/// Clients that are connected, or about to say goodbye.
static CONNECTED: AtomicUsize = AtomicUsize::new(0);

/// How many clients of this process their clusters still wait for. One that is dropped counts until its cluster knows that.
pub fn connected() -> usize {
    CONNECTED.load(Ordering::Acquire)
}

/// Calls of clients of this process that have returned.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// How often this process has asked its clients for something, whether they had to ask their clusters or not.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// A device number that the kernel does not give.
fn device(of: impl IntoIterator<Item = u8>, number: u64) -> u64 {
    (0xce << 56) | (crate::fnv1a(of.into_iter().chain(number.to_le_bytes())) >> 8)
}

impl CephClient {
    /// Connects to a cluster and mounts its filesystem; each step of that is done or refused within 8 s. To be called in the process
    /// that will use it, after the last fork: threads are started.
    pub fn connect(access: CephAccess<'_>) -> std::result::Result<Arc<Self>, CephRefusal> {
        CephSetup::read(access)?.connect(None)
    }

    fn create(library: &'static Library, id: Option<&CStr>) -> Result<Self> {
        let mut mount = ptr::null_mut();
        let id = id.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the name ends with NUL or is none; the client is written to a place of ours.
        outcome(unsafe { (library.ceph_create)(&raw mut mount, id) })?;
        let mount = Handle::new(mount)?;
        // SAFETY: no groups, so no array.
        let identity = unsafe { (library.ceph_userperm_new)(0, 0, 0, ptr::null_mut()) };
        let (identity, expelled, left) =
            (Handle::new(identity)?, AtomicBool::new(false), stale_dirs::StaleDirs::default());
        Ok(Self {
            library,
            mount,
            identity,
            mounted: false,
            device: 0,
            present: OnceLock::new(),
            expelled,
            left,
        })
    }

    /// What a call returned, as [`outcome`]; a cluster that has expelled the client says so in any call.
    fn outcome(&self, code: c_int) -> Result<usize> {
        // Each of them takes the client's lock: beside that a shared counter costs nothing.
        CALLS.fetch_add(1, Ordering::Relaxed);
        if code == -libc::ESHUTDOWN
            && !self.expelled.swap(true, Ordering::Relaxed)
            && let Some(what) = ON_EXPULSION.get()
        {
            what();
        }
        outcome(code)
    }

    /// Whether some call has shown that the cluster has expelled it.
    pub fn is_known_expelled(&self) -> bool {
        self.expelled.load(Ordering::Relaxed)
    }

    /// Whether the cluster has expelled it, so that it can do nothing any more. Asks the cluster, and waits for it.
    pub fn is_expelled(self: &Arc<Self>) -> bool {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        if !self.is_known_expelled() {
            // A name that the client knows nothing of yet, so that it has to ask.
            let name = format!(".vellum-{}-{}", std::process::id(), ASKED.fetch_add(1, Ordering::Relaxed));
            let asked = std::ffi::CString::new(name).map_err(|_| Errno::INVAL);
            let _ = asked.and_then(|name| self.root()?.lookup(&name).map(drop));
        }
        self.is_known_expelled()
    }

    /// The device number of files in it, and in none of its snapshots.
    #[must_use]
    pub const fn device(&self) -> u64 {
        self.device
    }

    /// The device number of files in a snapshot, which have the inode numbers of those that it was taken of.
    fn device_of(&self, snapshot: u64) -> u64 {
        let present = self.present.get().copied().unwrap_or(Vino::NOW);
        if snapshot == present { self.device } else { device(self.device.to_le_bytes(), snapshot) }
    }

    /// Asks the library what it says of the root, which is in no snapshot.
    fn meet(self: &Arc<Self>) {
        if let Ok(snapshot) = self.root().and_then(|root| root.snapshot()) {
            let _ = self.present.set(snapshot);
        }
    }

    /// A device number for files in it: the same in every client of this filesystem, and none that the kernel gives.
    fn identify(&self) -> u64 {
        let mut fsid = [0_u8; 64];
        let to = fsid.as_mut_ptr().cast();
        // SAFETY: the library writes at most as many bytes as it is told.
        unsafe { (self.library.ceph_conf_get)(self.mount.raw(), c"fsid".as_ptr(), to, fsid.len()) };
        // SAFETY: the client is mounted.
        let number = unsafe { (self.library.ceph_get_fs_cid)(self.mount.raw()) };
        device(fsid, number.cast_unsigned())
    }

    /// The root directory.
    pub fn root(self: &Arc<Self>) -> Result<CephInode> {
        let mut found = ptr::null_mut();
        // SAFETY: the client is mounted; the inode is written to a place of ours, with a reference.
        self.outcome(unsafe { (self.library.ceph_ll_lookup_root)(self.mount.raw(), &raw mut found) })?;
        CephInode::new(self, found, WritePolicy::Later)
    }

    /// The inode of a number, whatever directory it is in. ENOENT, ESTALE.
    pub fn inode(self: &Arc<Self>, ino: u64) -> Result<CephInode> {
        let mut found = ptr::null_mut();
        let which = Vino { ino, snapshot: Vino::NOW };
        // SAFETY: the client is mounted; the inode is written to a place of ours, with a reference.
        self.outcome(unsafe { (self.library.ceph_ll_lookup_vino)(self.mount.raw(), which, &raw mut found) })?;
        CephInode::new(self, found, WritePolicy::Later)
    }

    /// Space and inodes.
    pub fn stat_fs(self: &Arc<Self>) -> Result<FsStat> {
        let found = self.root()?.stat_fs()?;
        Ok(FsStat { kind: MAGIC, fsid: self.device, ..found })
    }

    /// Makes all that was written by this client durable.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the client is mounted.
        self.outcome(unsafe { (self.library.ceph_sync_fs)(self.mount.raw()) }).map(drop)
    }
}

impl Drop for CephClient {
    fn drop(&mut self) {
        if self.mounted {
            // SAFETY: the client is mounted, and nothing that came from it is left.
            unsafe { (self.library.ceph_unmount)(self.mount.raw()) };
            CONNECTED.fetch_sub(1, Ordering::Release);
        }
        // SAFETY: no call is made with it any more.
        unsafe { (self.library.ceph_userperm_destroy)(self.identity.raw()) };
        // SAFETY: it is unmounted and not used again.
        unsafe { (self.library.ceph_release)(self.mount.raw()) };
    }
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
