//! Descriptors that came from the service are files of an upper layer, on a mount of the service's own. They show the layer's device
//! where everything else shows the mount's; programs that compare the two must see one file.

use crate::session::detach_state;
use crate::session::root_mount;
use crate::session::socket::{self, Greeting};
use crate::shim::attributes::{self, S_IFREG, STATX_MNT_ID, Statx};
use crate::shim::{process, raw};
use crate::thresholds::calls::AT_ROOT as AT_ROOT_MAX;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use vellum_ring::files::{MOUNTS_MAX, VOLATILE};

/// A mount of the pool, and by which mount its files are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mount {
    /// `st_dev` of the union.
    pub(crate) union: u64,
    /// `st_dev` of its upper layer.
    pub(crate) upper: u64,
    /// The mount's id, as [`attributes::mount_of`] has it for descriptors that the service handed out.
    pub(crate) id: u64,
    /// A sync of its files does nothing.
    pub(crate) is_volatile: bool,
}

struct MountedFd {
    union: AtomicU64,
    upper: AtomicU64,
    /// 0: the place is free. A place that has been filled stays so: a descriptor may be older than the service.
    id: AtomicU64,
    flags: AtomicU64,
}

impl MountedFd {
    const fn new() -> Self {
        let [union, upper, id, flags] = [const { AtomicU64::new(0) }; 4];
        Self { union, upper, id, flags }
    }
}

static MOUNTS: [MountedFd; MOUNTS_MAX] = [const { MountedFd::new() }; MOUNTS_MAX];
/// Places of the list that may be filled.
static COUNT: AtomicU32 = AtomicU32::new(0);
static LEARNING: AtomicBool = AtomicBool::new(false);
/// Ids that the service says are the program's: they are in one user namespace.
static SAME_IDS: AtomicBool = AtomicBool::new(false);

/// The socket has been asked, with or without success.
static KNOWN: AtomicBool = AtomicBool::new(false);
/// Files on the mount of the root directory that were looked at before the socket was asked.
static AT_ROOT: AtomicU32 = AtomicU32::new(0);

/// Receives a greeting, and keeps what it says of mounts. False: it is of another form.
pub(crate) fn greeted(socket: i32, greeting: &mut Greeting) -> bool {
    let is_greeting = greeting.receive(socket);
    if is_greeting {
        learn(greeting);
    }
    is_greeting
}

fn learn(greeting: &Greeting) {
    // Another thread has the same list.
    if !LEARNING.swap(true, SeqCst) {
        greeting.mounts().for_each(|[union, upper, id, flags]| {
            keep(union, upper, id, flags);
        });
        LEARNING.store(false, SeqCst);
    }
    let mine = attributes::at(raw::AT_FDCWD, c"/proc/self/ns/user", 0, attributes::STATX_INO);
    SAME_IDS.store(mine.is_ok_and(|mine| mine.ino == greeting.namespace()), Relaxed);
    KNOWN.store(true, Release);
}

/// As if nothing had been learnt. No descriptor was handed out, and all other threads stand still.
pub(crate) fn forget() {
    COUNT.store(0, SeqCst);
    MOUNTS.iter().for_each(|place| place.id.store(0, SeqCst));
    KNOWN.store(false, SeqCst);
    SAME_IDS.store(false, SeqCst);
    AT_ROOT.store(0, Relaxed);
}

/// Whether users and groups have the same numbers for the service and for this process. A process that is going to be in another user
/// namespace ends its sessions before.
pub(crate) fn has_same_ids() -> bool {
    SAME_IDS.load(Relaxed)
}

fn keep(union: u64, upper: u64, id: u64, flags: u64) {
    for (index, place) in (1..).zip(&MOUNTS) {
        match place.id.load(Relaxed) {
            0 if id != 0 => {
                place.union.store(union, Relaxed);
                place.upper.store(upper, Relaxed);
                place.flags.store(flags, Relaxed);
                place.id.store(id, Release);
                COUNT.store(index, Release);
                return;
            }
            known if known == id => {
                place.union.store(union, Relaxed);
                place.upper.store(upper, Relaxed);
                place.flags.store(flags, Relaxed);
                return;
            }
            _ => {}
        }
    }
}

fn mounts() -> impl Iterator<Item = Mount> {
    MOUNTS.iter().take(COUNT.load(Acquire) as usize).map(|place| {
        let id = place.id.load(Acquire);
        let flags = place.flags.load(Relaxed);
        Mount {
            union: place.union.load(Relaxed),
            upper: place.upper.load(Relaxed),
            id,
            is_volatile: flags & VOLATILE != 0,
        }
    })
}

/// Whether files of any mount are handed out.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// The mount whose file a descriptor is, if the service handed it out.
pub(crate) fn mount_of(fd: i32) -> Option<Mount> {
    if COUNT.load(Relaxed) == 0 {
        return None;
    }
    with_id(attributes::mount_of(fd)?)
}

fn with_id(id: u64) -> Option<Mount> {
    mounts().find(|mount| mount.id == id)
}

/// Two files, if one was handed out, and the other is of that mount.
pub(crate) fn of_one_mount(fds: [i32; 2]) -> Option<[Statx; 2]> {
    let [Ok(first), Ok(second)] = fds.map(attributes::sized) else { return None };
    let (mount, other) = match [&first, &second].map(|file| with_id(file.mount()?)) {
        [Some(mount), None] => (mount, &second),
        [None, Some(mount)] => (mount, &first),
        _ => return None,
    };
    (other.device() == mount.union).then_some([first, second])
}

/// Whether a descriptor was handed out by the service, and a sync of it does nothing.
pub(crate) fn is_volatile(fd: i32) -> bool {
    any() && mounts().any(|mount| mount.is_volatile) && mount_of(fd).is_some_and(|mount| mount.is_volatile)
}

/// The device that a descriptor is to show instead of the one that it shows; None: that is right.
#[inline]
pub(crate) fn displayed_device(fd: i32, kind: u32, device: u64) -> Option<u64> {
    if kind != S_IFREG || !process::is_on() {
        return None;
    }
    // No file that FUSE serves was handed out.
    if !KNOWN.load(Acquire) && (root_mount::is_of(device) || !ask(fd)) {
        return None;
    }
    if COUNT.load(Relaxed) == 0 || !mounts().any(|mount| mount.upper == device) {
        return None;
    }
    mount_of(fd).filter(|mount| mount.upper == device).map(|mount| mount.union)
}

/// Asks the socket, once, for a descriptor that may have been inherited. False: it was not.
#[cold]
fn ask(fd: i32) -> bool {
    /// The mount of the root directory; no file there was handed out by the service.
    static ROOT: AtomicU64 = AtomicU64::new(0);
    if process::is_borrowed() {
        return false;
    }
    if ROOT.load(Relaxed) == 0 {
        let root = attributes::at(raw::AT_FDCWD, c"/", attributes::AT_STATX_DONT_SYNC, STATX_MNT_ID);
        ROOT.store(root.map_or(u64::MAX, |root| root.mnt_id), Relaxed);
    }
    let is_at_root = attributes::stat_fd(fd).is_ok_and(|file| file.mnt_id == ROOT.load(Relaxed));
    if is_at_root && AT_ROOT.fetch_add(1, Relaxed) < AT_ROOT_MAX {
        return false;
    }
    greet();
    true
}

/// Whether the socket has been asked.
pub(crate) fn is_known() -> bool {
    KNOWN.load(Acquire)
}

/// Whether a device is that of a union whose files are handed out.
pub(crate) fn is_union(device: u64) -> bool {
    mounts().any(|mount| mount.union == device)
}

/// Asks the socket what mounts there are, once, whatever comes of it.
pub(crate) fn greet() {
    if detach_state::is_detached() || KNOWN.swap(true, SeqCst) {
        return;
    }
    socket::with_one(|socket| {
        greeted(socket, &mut Greeting::new());
    });
}
