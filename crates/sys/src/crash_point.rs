//! Crash points: the moments between which a process may be killed. One is before each change of [persistent
//! memory](crate::PersistentMemory), and before each step that such a change speaks of.
//!
//! At each of them a test looks at what a death there leaves, as the successor finds it: [`at_each`] for any scenario, [`copy`] for any
//! memory. In release builds they are nothing.

use rustix::fs::{
    MemfdFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, seek,
};
use rustix::io::{Errno, pread, pwrite};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Look = Box<dyn FnMut()>;

thread_local! {
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
}
/// Some thread of the process has looked, so it is a test.
static IS_TEST: AtomicBool = AtomicBool::new(false);

/// The process may be killed here.
#[inline]
pub fn reach() {
    if cfg!(debug_assertions) && IS_TEST.load(Relaxed) {
        // Taken out meanwhile: what it does itself is not looked at.
        let look = LOOK.take();
        if let Some(mut look) = look {
            look();
            LOOK.set(Some(look));
        }
    }
}

/// Calls `look` at each crash point that this thread reaches within `work`. How many there were comes back, too.
pub fn at_each<T>(mut look: impl FnMut() + 'static, work: impl FnOnce() -> T) -> (T, usize) {
    let count = Rc::new(Cell::new(0));
    let counted = Rc::clone(&count);
    IS_TEST.store(true, Relaxed);
    LOOK.set(Some(Box::new(move || {
        counted.set(counted.get() + 1);
        look();
    })));
    let done = work();
    LOOK.set(None);
    (done, count.get())
}

/// A memory file as it is now, with its seals, under a name for /proc.
pub fn copy(memory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    // First: it is whole by then, and only changes. A file of another kind has none.
    let seals = fcntl_get_seals(&memory);
    let copy = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&copy, fstat(&memory)?.st_size.unsigned_abs())?;
    let mut end = 0;
    while let Ok(start) = seek(&memory, SeekFrom::Data(end)) {
        end = seek(&memory, SeekFrom::Hole(start))?;
        let mut data = vec![0; usize::try_from(end - start).map_err(|_| Errno::NOMEM)?];
        let len = pread(&memory, &mut data[..], start)?;
        pwrite(&copy, data.get(..len).unwrap_or_default(), start)?;
    }
    if let Ok(seals) = seals {
        fcntl_add_seals(&copy, seals)?;
    }
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryKind, PersistentMemory};
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn the_crash_point_precedes_each_change() {
        const KIND: MemoryKind = MemoryKind { name: c"test", magic: 7, words: 1024..=1024 };
        let memory = Rc::new(PersistentMemory::create(&KIND, 1024).unwrap());
        let seen = Rc::new(RefCell::new(Vec::new()));
        let look = {
            let (memory, seen) = (Rc::clone(&memory), Rc::clone(&seen));
            move || {
                let left = PersistentMemory::open(&KIND, copy(&*memory, c"copy").unwrap()).unwrap();
                // What it changes itself is not looked at.
                left.store(900, 1, Relaxed);
                seen.borrow_mut().push((left.load(1, Relaxed), left.load(512, Relaxed)));
            }
        };
        let ((), points) = at_each(look, || {
            let at = memory.word(1).unwrap();
            memory.store(1, 4, Relaxed);
            at.change().fetch_add(1, Relaxed);
            at.change().swap(2, Relaxed);
            memory.write(&[1; 8], 512 * 8).unwrap();
            memory.clear(512, 512).unwrap();
            reach();
        });
        let ones = u64::from_ne_bytes([1; 8]);
        let expected = [(0, 0), (4, 0), (5, 0), (2, 0), (2, ones), (2, 0)];
        assert_eq!((points, seen.take()), (expected.len(), expected.to_vec()));
    }
}
