//! A directory in view: its names are looked up in the upper layer, by a mount of that directory alone which the service has handed out.
//! That is two system calls, and three for a name that is not there.
//!
//! It means the same as asking as long as the directory's word in the memory of generations says so
//! ([`VIEW`](vellum_ring::files::VIEW)), and the kernel does not know the name. Before each look the kernel says which directory the
//! path leads to, as before a call. What is no file and no link, and whatever else is not certain, is asked for.

use crate::fds::own_fds::{self, Descriptor};
use crate::session::SessionGuard;
use crate::session::call_path::Name;
use crate::session::calls::{Outcome, receive};
use crate::session::dirs::Place;
use crate::session::generations;
use crate::session::view_state::{Given, View};
use crate::shim::attributes::{
    self, AT_STATX_DONT_SYNC, AT_SYMLINK_NOFOLLOW, Attributes, S_IFLNK, S_IFREG, STATX_BASIC_STATS,
    STATX_MNT_ID, Statx,
};
use crate::stats::count_view;
use crate::thresholds::view::{FEW, MANY, PAID};
use core::ffi::CStr;
use core::sync::atomic::Ordering::Acquire;
use core::sync::atomic::fence;
use vellum_ring::Request;
use vellum_ring::files::{ASK_KERNEL, KNOWN_MAX, VIEW};

const ENOENT: i32 = 2;

impl SessionGuard {
    /// The program has gone on to another directory, or the session ends.
    pub(crate) fn end_view(&mut self) {
        if let Some(given) = self.view.given
            && !given.is_at(self.own.view.get())
        {
            // Somebody has closed it, unseen; the number may be the program's.
            self.own.view.forget();
        }
        self.view = View::new();
        self.own.view.close();
    }

    fn count_look(&mut self) {
        self.view.used = self.view.used.saturating_add(1);
        count_view();
    }

    /// The view does not hold any more.
    fn lose_view(&mut self) {
        let due = if self.view.used >= PAID { FEW } else { self.view.due.saturating_mul(2).min(MANY) };
        self.end_view();
        self.view.due = due;
    }
}

/// Looks a name up; None: it has to be asked for.
pub(crate) fn look(hold: &mut SessionGuard, name: &Name, follows: bool) -> Option<Outcome<Attributes>> {
    let given = hold.view.given?;
    if !name.is_in_last(hold) {
        return None;
    }
    if name.place(hold) != Some(given.place) {
        hold.lose_view();
        return None;
    }
    let mut before = generations::read(given.word);
    if before >> 32 != given.upper {
        // The kernel has heard of a name.
        before = renew(hold, &given)?;
    }
    // Something is just being made.
    if before & 1 != 0 || hold.view.is_known(name.text(hold)?) {
        return None;
    }
    let view = hold.own.view.get();
    let found = ask(view, name.text(hold)?);
    // What was found was there before the word is read again.
    fence(Acquire);
    if generations::read(given.word) != before {
        return None;
    }
    match found {
        Ok(found) if found.mnt_id == given.mount => {
            let kind = found.kind();
            let is_said = kind == S_IFREG || kind == S_IFLNK && !follows;
            is_said.then(|| {
                hold.count_look();
                Outcome::Done(given.shown(&found))
            })
        }
        Err(error) if given.is_at(view) => (error == ENOENT).then(|| {
            hold.count_look();
            Outcome::Failed(ENOENT)
        }),
        // Another file has come to have the number.
        _ => {
            hold.lose_view();
            None
        }
    }
}

fn ask(view: i32, name: &CStr) -> Result<Statx, i32> {
    attributes::at(view, name, AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, STATX_BASIC_STATS | STATX_MNT_ID)
}

impl Given {
    /// Whether a descriptor is that of the view.
    fn is_at(&self, fd: i32) -> bool {
        attributes::of(fd).is_ok_and(|found| found.mnt_id == self.mount)
    }

    /// As the mount shows it.
    fn shown(&self, found: &Statx) -> Attributes {
        let [a, m, c] = [found.atime, found.mtime, found.ctime];
        let time = |time: attributes::Time| [time.seconds.cast_unsigned(), time.nanoseconds.into()];
        let ([a, a_part], [m, m_part], [c, c_part]) = (time(a), time(m), time(c));
        let words = [
            found.ino,
            found.mode.into(),
            found.nlink.into(),
            found.uid.into(),
            found.gid.into(),
            attributes::join(found.rdev),
            found.size,
            found.blksize.into(),
            found.blocks,
            a,
            a_part,
            m,
            m_part,
            c,
            c_part,
        ];
        Attributes { words, device: self.place.device, mount: self.place.mount }
    }
}

/// A name in a directory was asked for: whether the next ones are to be looked up.
pub(crate) fn asked(hold: &mut SessionGuard, place: &Place) {
    let view = &mut hold.view;
    view.asked += 1;
    if view.given.is_some() || view.asked < view.due {
        return;
    }
    view.asked = 0;
    match take(hold, place) {
        Ok((descriptor, given)) => {
            hold.own.view.set(descriptor);
            hold.view.given = Some(given);
        }
        Err(Refusal::Never) => hold.view.due = MANY,
        Err(Refusal::Later) => hold.view.due = hold.view.due.saturating_mul(2).min(MANY),
    }
}

/// Why there is no view.
enum Refusal {
    /// The kernel knows too many names in the directory, or something has gone wrong.
    Later,
    /// It is not the kind of directory that can be looked at.
    Never,
}

/// What the service says of a view, with or without the view itself: the values, of which the last is the word.
fn call(hold: &mut SessionGuard, place: &Place, has_it: bool) -> Result<[u64; 6], Refusal> {
    let number = hold.dirs.find(place).flatten().ok_or(Refusal::Later)?;
    let request = Request { opcode: VIEW, args: [number, has_it.into(), 0, 0, 0], ..Request::default() };
    let mut data = [0; KNOWN_MAX * 4];
    let (response, len) = hold.call(request, &[], &mut data).map_err(|_| Refusal::Later)?;
    match response.status as u32 {
        0 => {}
        ASK_KERNEL => return Err(Refusal::Never),
        _ => return Err(Refusal::Later),
    }
    let hashes = data.get(..len).unwrap_or_default().as_chunks::<4>().0;
    let view = &mut hold.view;
    view.known.iter_mut().zip(hashes).for_each(|(to, from)| *to = u32::from_ne_bytes(*from));
    view.known_count = hashes.len();
    Ok(response.values)
}

fn take(hold: &mut SessionGuard, place: &Place) -> Result<(Descriptor, Given), Refusal> {
    let [tag, memory, slot, word, ..] = call(hold, place, false)?;
    let Outcome::Done(fd) = receive(hold, tag, true) else { return Err(Refusal::Later) };
    let descriptor = own_fds::move_away(fd).ok_or(Refusal::Later)?;
    let is_it = |found: &Statx| found.ino == place.ino && found.kind() == attributes::S_IFDIR;
    let found = attributes::of(descriptor.0).ok().filter(is_it).ok_or(Refusal::Later)?;
    let address = word_at(memory, slot).ok_or(Refusal::Later)?;
    Ok((descriptor, Given { place: *place, mount: found.mnt_id, word: address, upper: word >> 32 }))
}

fn word_at(memory: u64, slot: u64) -> Option<usize> {
    generations::word(memory, u32::try_from(slot).ok()?).ok()
}

/// Asks which names the kernel knows now; what the word says. None: the view is lost.
fn renew(hold: &mut SessionGuard, given: &Given) -> Option<u64> {
    match call(hold, &given.place, true) {
        Ok([_, memory, slot, word, ..]) if word_at(memory, slot) == Some(given.word) => {
            let now = generations::read(given.word);
            if now >> 32 == word >> 32
                && let Some(given) = &mut hold.view.given
            {
                given.upper = now >> 32;
                return Some(now);
            }
            hold.lose_view();
        }
        Ok(_) | Err(Refusal::Later) => hold.lose_view(),
        Err(Refusal::Never) => {
            hold.end_view();
            hold.view.due = MANY;
        }
    }
    None
}
