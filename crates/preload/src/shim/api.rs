//! What a program may call by name; `include/vellum.h` declares it.
#![allow(clippy::missing_safety_doc, reason = "said in the header")]

use crate::shim::detach;
use crate::shim::hooks;
use crate::stats;
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct vellum_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    served: u64,
    bytes: u64,
    not_vellum: u64,
    few: u64,
    beyond: u64,
    changed: u64,
    no_socket: u64,
    other: u64,
    opens: [u64; 2],
    reserved: [u64; 4],
}

/// Opens a file, as open(2).
#[cfg_attr(feature = "object", unsafe(no_mangle))]
pub unsafe extern "C" fn vellum_open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    stats::start();
    // SAFETY: the program's path.
    unsafe { hooks::open_create::open(path, flags, mode) }
}

/// Reads, as pread(2).
#[cfg_attr(feature = "object", unsafe(no_mangle))]
pub unsafe extern "C" fn vellum_pread(fd: c_int, buf: *mut c_void, len: usize, offset: i64) -> isize {
    // SAFETY: the program's buffer.
    unsafe { hooks::pread64(fd, buf, len, offset) }
}

/// Closes, as close(2).
#[cfg_attr(feature = "object", unsafe(no_mangle))]
pub unsafe extern "C" fn vellum_close(fd: c_int) -> c_int {
    // SAFETY: the program's descriptor.
    unsafe { hooks::close(fd) }
}

/// Where [`vellum_leave`] runs: the stack of whoever is made to call it may be as small as he likes.
#[repr(C, align(64))]
pub struct Stack(core::cell::UnsafeCell<[u8; 64 << 10]>);

// SAFETY: only one thread runs there, while all others stand still.
unsafe impl Sync for Stack {}

#[doc(hidden)]
#[allow(non_upper_case_globals, reason = "a name of the library's")]
#[cfg_attr(feature = "object", unsafe(no_mangle))]
pub static vellum_leave_stack: Stack = Stack(core::cell::UnsafeCell::new([0; 64 << 10]));

/// What a thread is made to run while a checkpoint is taken, with the time in seconds as its argument and all others standing still: see
/// [`detach::leave`], whose result is in the register of results when a trap says that all is done.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(feature = "object", unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn vellum_leave() {
    core::arch::naked_asm!("cld", "call {leave}", "int3", leave = sym detach::leave);
}

/// What has been done since the first [`vellum_open`].
#[cfg_attr(feature = "object", unsafe(no_mangle))]
pub unsafe extern "C" fn vellum_stats(to: *mut Counts) {
    let ([served, not_vellum, few, beyond, changed, no_socket, other], bytes) = stats::all();
    let [opens, ..] = stats::calls().map(|[ring, kernel @ ..]| [ring, kernel.iter().sum()]);
    let reserved = [0; 4];
    let counts =
        Counts { served, bytes, not_vellum, few, beyond, changed, no_socket, other, opens, reserved };
    if !to.is_null() {
        // SAFETY: the program's memory, of this form.
        unsafe { to.write(counts) };
    }
}
