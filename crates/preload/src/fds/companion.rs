//! Beside a descriptor that the program writes to at offsets, or syncs, another one of the same file: the layer's own, from the service.
//! Such calls mean the same by either, and by this one they cost what they cost on the host. Everything else stays with the program's
//! own descriptor: its position, its flags, its locks, and whatever makes the file shorter, so that those who read from mappings hear
//! of it from the service.
//!
//! The program knows nothing of the numbers of companions. They are closed with what they belong to, and before the process shares its
//! descriptors with another one.

use crate::fds::table::{self, DESCRIPTORS, Entry, EntryValue};
use crate::fds::{service_fds, session_fds};
use crate::session;
use crate::session::calls::{self, O_ACCMODE, O_LARGEFILE, O_NOFOLLOW, O_NONBLOCK, O_SYNC};
use crate::shim::attributes::{self, S_IFREG};
use crate::shim::{process, raw};
use crate::stats::{MountBypass, count_write};
use crate::thresholds::companion::{AT_ONCE, FEW, FIRST, MOST};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};

/// In the place of how many: there will be none.
const NEVER: u32 = u32::MAX;
const EBADF: isize = 9;
const O_NOATIME: i32 = 0o1_000_000;

static TABLE: [Entry<Companion>; DESCRIPTORS] = [const { Entry::new() }; DESCRIPTORS];
/// Writes of the process without a companion, up to [`FIRST`].
static SPENT: AtomicU32 = AtomicU32::new(0);
/// Anything has been noted in the table.
static ANY: AtomicBool = AtomicBool::new(false);

/// In the place of a number: the place is free, or somebody is about to use it.
const FREE: i32 = -1;
const TAKEN: i32 = -2;

/// A descriptor's companion.
#[derive(Clone, Copy)]
struct Companion {
    number: i32,
    /// Which of [`PLACES`] it has.
    place: u32,
    /// What the mount shows of the file.
    device: u64,
    ino: u64,
}

impl EntryValue for Companion {
    fn words(&self) -> [u64; 4] {
        [self.number as u64, self.place.into(), self.device, self.ino]
    }

    fn from_words([number, place, device, ino]: [u64; 4]) -> Self {
        Self { number: number as i32, place: place as u32, device, ino }
    }
}

struct OpenCompanion {
    number: AtomicI32,
    of: AtomicI32,
}

static PLACES: [OpenCompanion; MOST] =
    [const { OpenCompanion { number: AtomicI32::new(FREE), of: AtomicI32::new(-1) } }; MOST];

/// Makes a write or a sync by the companion of a descriptor; None: it has none. `act` says as a system call what has come of it.
#[inline]
pub(crate) fn act(fd: i32, weight: u32, act: impl FnOnce(i32) -> isize) -> Option<isize> {
    if !process::is_on() {
        return None;
    }
    let entry = entry(fd)?;
    let companion = match entry.enter(close) {
        Some(companion) => companion,
        None => {
            let companion = warm(fd, entry, weight);
            if companion.is_none() {
                count_write(MountBypass::No);
            }
            companion?
        }
    };
    let done = act(companion.number);
    entry.leave(close);
    if done == -EBADF {
        // Somebody has closed it, unseen.
        entry.retire(close);
        return None;
    }
    count_write(MountBypass::Yes);
    Some(done)
}

/// Does something with the companion of a descriptor, if it has one, and the device and the number that the mount shows.
#[inline]
pub(crate) fn look<R>(fd: i32, act: impl FnOnce(i32, [u64; 2]) -> R) -> Option<R> {
    if !process::is_on() {
        return None;
    }
    let entry = entry(fd)?;
    let companion = entry.enter(close)?;
    let done = act(companion.number, [companion.device, companion.ino]);
    entry.leave(close);
    Some(done)
}

fn entry(fd: i32) -> Option<&'static Entry<Companion>> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Closes a companion that nobody uses any more.
fn close(companion: &Companion) {
    raw::close(companion.number);
    if let Some(place) = PLACES.get(companion.place as usize) {
        place.number.store(FREE, SeqCst);
    }
}

/// A call for a descriptor that has no companion: whether it is to have one now.
#[cold]
fn warm(fd: i32, entry: &Entry<Companion>, weight: u32) -> Option<Companion> {
    let is_spent = SPENT.load(Relaxed) >= FIRST || SPENT.fetch_add(weight, Relaxed) + weight >= FIRST;
    let due = match entry.due.load(Relaxed) {
        NEVER => return None,
        0 if session::is_at_once() => AT_ONCE,
        0 if is_spent || session_fds::is_live() => FEW,
        0 => FIRST,
        due => due,
    };
    if !ANY.load(Relaxed) {
        ANY.store(true, SeqCst);
    }
    let calls = entry.calls.fetch_add(weight, Relaxed).saturating_add(weight);
    if calls < due || process::is_borrowed() {
        return None;
    }
    let next = match attach(fd, entry) {
        Ok(()) => return entry.enter(close),
        // Longer each time.
        Err(true) => calls.saturating_mul(2).min(NEVER - 1),
        Err(false) => NEVER,
    };
    entry.due.store(next, Relaxed);
    None
}

/// Makes the companion of a descriptor. Err: whether that may be otherwise later.
fn attach(fd: i32, entry: &Entry<Companion>) -> Result<(), bool> {
    if !entry.claim() {
        return Err(true);
    }
    // Either this sees the close, or the close sees that the entry is busy.
    let is_closing = table::entry(fd).is_none_or(Entry::is_closing);
    let made = if is_closing { Err(true) } else { make(fd) };
    match made {
        Ok(companion) => entry.publish(&companion, close).then_some(()).ok_or(true),
        Err(later) => {
            entry.abandon();
            Err(later)
        }
    }
}

fn make(fd: i32) -> Result<Companion, bool> {
    // What else there may be has to be seen by the program's own descriptor.
    const KNOWN: i32 = O_ACCMODE | O_SYNC | O_LARGEFILE | O_NONBLOCK | O_NOFOLLOW | O_NOATIME;
    let flags = raw::flags_of(fd) as i32;
    if flags < 0 || flags & !KNOWN != 0 || !matches!(flags & O_ACCMODE, 1 | 2) {
        return Err(false);
    }
    let file = attributes::stat_fd(fd).map_err(|_| false)?;
    if file.kind() != S_IFREG {
        return Err(false);
    }
    let (index, place) = (0..)
        .zip(&PLACES)
        .find(|(_, place)| place.number.compare_exchange(FREE, TAKEN, SeqCst, Relaxed).is_ok())
        .ok_or(true)?;
    place.of.store(fd, Relaxed);
    match open(fd, flags, file.device()) {
        Ok(number) => {
            place.number.store(number, SeqCst);
            Ok(Companion { number, place: index, device: file.device(), ino: file.ino })
        }
        Err(later) => {
            place.number.store(FREE, SeqCst);
            Err(later)
        }
    }
}

fn open(fd: i32, flags: i32, device: u64) -> Result<i32, bool> {
    let new = calls::reopen(fd, device, flags & (O_SYNC | O_LARGEFILE | O_NONBLOCK))?;
    let number = session_fds::move_away(new).ok_or(true)?.keep();
    if service_fds::mount_of(number).is_some_and(|mount| mount.union == device) {
        return Ok(number);
    }
    raw::close(number);
    Err(true)
}

/// A descriptor is about to be closed, or to become another file. The caller has said so in the other table.
pub(crate) fn closing(fd: i32) {
    if ANY.load(SeqCst)
        && let Some(entry) = entry(fd)
    {
        entry.forget(close);
    }
}

/// No descriptor has a companion from here on, until it has been written to again.
pub(crate) fn end_all() {
    if !ANY.load(SeqCst) || process::is_borrowed() {
        return;
    }
    for place in &PLACES {
        if place.number.load(Acquire) >= 0
            && let Some(entry) = entry(place.of.load(Relaxed))
        {
            entry.forget(close);
        }
    }
}

/// Whether there is one, or one is being made.
pub(crate) fn is_any() -> bool {
    PLACES.iter().any(|place| place.number.load(SeqCst) != FREE)
}

/// Whether a number is that of a companion.
pub(crate) fn is_one(number: i32) -> bool {
    number >= 0 && ANY.load(Relaxed) && PLACES.iter().any(|place| place.number.load(Relaxed) == number)
}

/// Closes the companion that has a number, for a file of the program's. False: it is in use.
pub(crate) fn release_number(number: i32) -> bool {
    const LOOKS: u32 = 100_000;
    (0..LOOKS).any(|_| {
        end_all();
        core::hint::spin_loop();
        !is_one(number)
    })
}
