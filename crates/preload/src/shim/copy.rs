//! Copying that may fault. The copy is a few instructions that use no stack; a signal handler that finds a thread among them sends it
//! to the end, where the copy says that it has failed.

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.vellum_copy,\"ax\",@progbits",
    ".p2align 4",
    ".globl vellum_copy_begin",
    ".hidden vellum_copy_begin",
    ".globl vellum_copy_end",
    ".hidden vellum_copy_end",
    ".globl vellum_copy_failed",
    ".hidden vellum_copy_failed",
    "vellum_copy_begin:",
    "mov rcx, rdx",
    "rep movsb",
    "vellum_copy_end:",
    "xor eax, eax",
    "ret",
    "vellum_copy_failed:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.vellum_copy,\"ax\",@progbits",
    ".p2align 4",
    ".globl vellum_copy_begin",
    ".hidden vellum_copy_begin",
    ".globl vellum_copy_end",
    ".hidden vellum_copy_end",
    ".globl vellum_copy_failed",
    ".hidden vellum_copy_failed",
    "vellum_copy_begin:",
    "1: cmp x2, #16",
    "b.lo 2f",
    "ldp x3, x4, [x1], #16",
    "stp x3, x4, [x0], #16",
    "sub x2, x2, #16",
    "b 1b",
    "2: cbz x2, vellum_copy_end",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "sub x2, x2, #1",
    "b 2b",
    "vellum_copy_end:",
    "mov x0, #0",
    "ret",
    "vellum_copy_failed:",
    "mov x0, #1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn vellum_copy_begin(to: usize, from: usize, len: usize) -> usize;
    fn vellum_copy_end();
    fn vellum_copy_failed();
}

/// Where in a `ucontext_t` the program counter is.
#[cfg(target_arch = "x86_64")]
const COUNTER: usize = 40 + 16 * 8;
#[cfg(target_arch = "aarch64")]
const COUNTER: usize = 176 + 8 + 31 * 8 + 8;

/// Copies. False: one of the two could not be touched, and a part may have been copied.
///
/// # Safety
/// `to` must be the caller's to write, as far as it is mapped at all, and `from` must stay what it is, mapped or not.
pub(crate) unsafe fn copy(to: usize, from: usize, len: usize) -> bool {
    // SAFETY: it follows the convention for functions of C; what it touches is the caller's concern, and faults are caught once
    // `crate::shim::signals` has been set up.
    unsafe { vellum_copy_begin(to, from, len) == 0 }
}

/// If the context of a signal is that of a thread inside the copy, lets it go on where that fails.
///
/// # Safety
/// `context` must be the `ucontext_t` of a signal that is being handled.
pub(crate) unsafe fn leave(context: usize) -> bool {
    let counter = (context + COUNTER) as *mut usize;
    // SAFETY: the kernel has put a program counter there.
    let at = unsafe { counter.read() };
    let inside = (vellum_copy_begin as *const () as usize)..(vellum_copy_end as *const () as usize);
    if !inside.contains(&at) {
        return false;
    }
    // SAFETY: `counter` is the place of a program counter, and the copy keeps nothing on the stack, so its other end can be reached from
    // anywhere in it.
    unsafe { counter.write(vellum_copy_failed as *const () as usize) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_cover_exactly_their_range() {
        for len in 0..70 {
            let from: Vec<u8> = (1..=len as u8).collect();
            let mut to = vec![0xee; len + 1];
            // SAFETY: both are as long as that.
            assert!(unsafe { copy(to.as_mut_ptr() as usize, from.as_ptr() as usize, len) });
            assert_eq!((&to[..len], to[len]), (&from[..], 0xee));
        }
    }
}
