//! `libvellum.so`: an accelerator for programs on a Vellum mount, to be preloaded or linked.
//!
//! Reads at an offset (`pread` and its kin) of regular files are answered from a mapping of the program's own descriptor, without a
//! system call. Writes at an offset, and syncs, go to the layer's file itself where there are many. Opens to write, and what is done with
//! names where that has just been done, go to the pool's service over a ring in shared memory. Everything else is the kernel's, as
//! without the library: a call that it misses is slow, never wrong.
//!
//! `table` keeps one entry for each descriptor number, `reads` serves from it, `map` makes a mapping, `session` has the memory in which
//! the service says that a file may have become shorter, `copy` and `signals` survive a fault all the same, `hooks` are the names that
//! the program calls, `next` finds whose place they take.
//!
//! `ring` is the session with the service, `dirs` has the directories that it knows, `calls` are what goes there, `direct` knows the
//! descriptors that came from it, `companion` writes by one beside the program's own, `socket` is how all of that begins.
//!
//! One file for every libc: nothing of any is used but `dl_iterate_phdr`, `getauxval`, `__errno_location` and `environ`, which all have. System
//! calls are made here, nothing is allocated, and no lock is ever waited for, so that all of it may run in signal handlers.
#![cfg_attr(not(test), no_std)]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tables of other objects are followed word by word")]

mod alone;
pub mod api;
mod attributes;
mod calls;
mod companion;
mod copy;
mod direct;
mod dirs;
mod environment;
mod fresh;
pub mod hooks;
mod kind;
mod map;
mod mountinfo;
mod named;
mod names;
mod next;
mod numbers;
mod paths;
mod private;
mod process;
mod raw;
mod reads;
mod ring;
mod session;
mod signals;
mod socket;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod view;

/// Nothing here panics; if it did, nothing could be done about it in somebody else's process.
#[cfg(all(feature = "object", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    raw::abort()
}
