//! Locks, and the atomics by which readers and the store agree: those of the processor, or those of a checker that tries orders.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};

#[cfg(shuttle)]
pub(crate) use checked::Mutex;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};

/// A gate that is shut until it is opened once, for all who wait.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_open: Mutex<bool>,
    #[cfg(not(shuttle))]
    opens: parking_lot::Condvar,
    #[cfg(shuttle)]
    opens: shuttle::sync::Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.is_open.lock() = true;
        self.opens.notify_all();
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.is_open.lock()
    }

    pub(crate) fn wait(&self) {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            #[cfg(not(shuttle))]
            self.opens.wait(&mut is_open);
            #[cfg(shuttle)]
            {
                is_open = self.opens.wait(is_open).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }
}

/// Without poisoning, as in `parking_lot`: a panic ends the execution.
#[cfg(shuttle)]
mod checked {
    use shuttle::sync::MutexGuard;
    use std::sync::PoisonError;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}
