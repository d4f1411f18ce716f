//! Locks, and the atomics of what several parties agree by: those of the processor, or those of a model checker that tries orders.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

#[cfg(shuttle)]
pub(crate) use checked::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

/// Another thread may go on here: before words that are in shared memory, which the checker does not know.
#[cfg(not(shuttle))]
pub(crate) const fn turn() {}

#[cfg(shuttle)]
pub(crate) use shuttle::thread::yield_now as turn;

/// Without poisoning, as in `parking_lot`: a panic ends the execution.
#[cfg(shuttle)]
mod checked {
    use std::fmt;
    use std::sync::PoisonError;

    pub(crate) use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    #[derive(Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[derive(Default)]
    pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(shuttle::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }

    macro_rules! opaque {
        ($($name:ident $(<$param:ident>)?),*) => {
            $(impl $(<$param>)? fmt::Debug for $name $(<$param>)? {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(stringify!($name))
                }
            })*
        };
    }
    opaque!(Mutex<T>, RwLock<T>);
}
