//! `libvellum.so`: an accelerator for programs on a Vellum mount, to be preloaded or linked.
//!
//! Reads at an offset (`pread` and its kin) of regular files are answered from a mapping of the program's own descriptor, without a
//! system call. Writes at an offset, and syncs, go to the layer's file itself where there are many. Opens to write, and what is done with
//! names where that has just been done, go to the pool's service over a ring in shared memory. Everything else is the kernel's, as
//! without the library: a call that it misses is slow, never wrong.
//!
//! [`shim`] has the functions that the program calls instead of libc's, `fds` what is known of descriptors, `session` what is asked over a
//! ring, and `stats` counts. In `fds`, `table` keeps one entry for each descriptor number, `reads` serves from it, `map` makes a mapping,
//! and `companion` writes by a descriptor beside the program's own; `session::file_generations` has the memory in which the service says that
//! a file may have become shorter, and `shim::{copy, signals}` survive a fault all the same.
//!
//! One file for every libc: nothing of any is used but `dl_iterate_phdr`, `getauxval`, `__errno_location` and `environ`, which all have. System
//! calls are made here, nothing is allocated, and no lock is ever waited for, so that all of it may run in signal handlers.
#![allow(unsafe_code, reason = "it stands in place of the C library")]
#![cfg_attr(not(test), no_std)]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tables of other objects are followed word by word")]

mod fds;
mod session;
pub mod shim;
mod stats;
#[cfg(test)]
mod tests;
mod thresholds;

/// Nothing here panics; if it did, nothing could be done about it in somebody else's process.
#[cfg(all(feature = "object", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    shim::raw::abort()
}
