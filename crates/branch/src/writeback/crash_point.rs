//! The moments between which a process may die: before each word of the log, before data come to it, and around each change of the
//! storage. Tests look at what would be left.

#[cfg(not(test))]
pub(super) const fn step() {}

#[cfg(test)]
pub(super) use watched::{step, watch};

#[cfg(test)]
mod watched {
    use std::cell::RefCell;

    type Hook = Box<dyn FnMut()>;

    thread_local! {
        static LOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    pub(in crate::writeback) fn step() {
        // Taken out meanwhile, so that what it does itself is not looked at.
        let look = LOOK.take();
        if let Some(mut look) = look {
            look();
            LOOK.set(Some(look));
        }
    }

    /// Has `look` called at each step of this thread within `work`.
    pub(in crate::writeback) fn watch<T>(look: impl FnMut() + 'static, work: impl FnOnce() -> T) -> T {
        LOOK.set(Some(Box::new(look)));
        let done = work();
        LOOK.set(None);
        done
    }
}
