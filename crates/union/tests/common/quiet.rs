//! Panics that are caught and told later are not printed when they happen.

use std::cell::Cell;
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Does something during which this thread's panics, which `what` catches, are not printed.
pub fn quietly<R>(what: impl FnOnce() -> R) -> R {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let done = what();
    QUIET.set(false);
    done
}
