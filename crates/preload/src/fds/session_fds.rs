//! Numbers of descriptors that are the sessions': their sockets. The program knows nothing of them, and does not
//! get to close them.

use crate::shim::raw;
use crate::thresholds::own_fds::{HIGH, ROOM};
use crate::thresholds::session::MOST;
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// A number; -1: there is none.
pub(crate) struct Number(AtomicI32);

impl Number {
    const fn none() -> Self {
        Self(AtomicI32::new(-1))
    }

    #[inline]
    pub(crate) fn get(&self) -> i32 {
        self.0.load(Relaxed)
    }

    /// With what others have written before.
    pub(crate) fn get_ordered(&self) -> i32 {
        self.0.load(SeqCst)
    }

    pub(crate) fn set(&self, fd: Descriptor) {
        self.0.store(fd.keep(), SeqCst);
    }

    /// Closes the descriptor, if there is one. Until it is closed the number is the library's: who wants it has to wait.
    pub(crate) fn close(&self) {
        let number = self.get();
        if number >= 0 {
            raw::close(number);
            self.forget();
        }
    }

    /// There is none: somebody else has closed it.
    pub(crate) fn forget(&self) {
        self.0.store(-1, SeqCst);
    }
}

/// What a session has open.
pub(crate) struct SessionFds {
    pub(crate) socket: Number,
}

/// Apart from what each call writes.
pub(crate) static OWN: [SessionFds; MOST] = [const { SessionFds { socket: Number::none() } }; MOST];

/// Whether there is a session.
#[inline]
pub(crate) fn is_live() -> bool {
    OWN.iter().any(|own| own.socket.get() >= 0)
}

impl SessionFds {
    /// Whether nothing is open.
    pub(crate) fn is_closed(&self) -> bool {
        self.socket.get_ordered() < 0
    }

    /// Whether it has this number.
    pub(crate) fn has(&self, fd: i32) -> bool {
        fd >= 0 && self.socket.get() == fd
    }
}

/// Whether a number is one of a session's, which the program must not touch.
#[inline]
pub(crate) fn is_own(fd: i32) -> bool {
    OWN.iter().any(|own| own.has(fd))
}

/// What a range of numbers is without the sessions'; None: it has none of them.
pub(crate) fn without_own(first: u32, last: u32) -> Option<impl Iterator<Item = (u32, u32)>> {
    // What is no number of a session comes last.
    let mut numbers = [u32::MAX; MOST];
    let all = OWN.iter().map(|own| &own.socket);
    for (to, number) in numbers.iter_mut().zip(all) {
        let number = u32::try_from(number.0.load(Acquire));
        *to = number.ok().filter(|number| (first..=last).contains(number)).unwrap_or(u32::MAX);
    }
    numbers.sort_unstable();
    let mut next = Some(first);
    let [lowest, ..] = numbers;
    (lowest != u32::MAX).then(|| {
        numbers.into_iter().filter(|number| *number != u32::MAX).map(Some).chain([None]).filter_map(
            move |number| {
                let begin = next?;
                next = number.and_then(|number| number.checked_add(1));
                let end = number.map_or(Some(last), |number| number.checked_sub(1))?;
                (begin <= end).then_some((begin, end))
            },
        )
    })
}

/// Gives a descriptor of this library's a number that programs do not count on.
pub(crate) fn move_away(fd: i32) -> Option<Descriptor> {
    let low = Descriptor(fd);
    let place = raw::descriptor_limit().checked_sub(ROOM).filter(|n| *n >= ROOM)?.min(HIGH);
    raw::duplicate(low.0, place as usize).map(Descriptor)
}

/// A descriptor of this library's, until it is dropped.
pub(crate) struct Descriptor(pub(crate) i32);

impl Descriptor {
    pub(crate) fn keep(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        raw::close(self.0);
    }
}
