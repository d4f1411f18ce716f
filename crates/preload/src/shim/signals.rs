//! Faults in the copy, and the program's own handlers of the two signals that say of them.
//!
//! From the first mapping on the kernel has this library's handler for SIGBUS and SIGSEGV. It acts where a thread is inside the copy;
//! everything else it passes on to the program's own, which is kept here, and is what the program is told when it asks.

use crate::shim::hook_macros::next;
use crate::shim::{copy, raw};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

pub(crate) const SIGBUS: i32 = 7;
pub(crate) const SIGSEGV: i32 = 11;
const SA_SIGINFO: i32 = 4;
const SA_RESETHAND: i32 = 0x8000_0000_u32 as i32;
const SA_RESTART: i32 = 0x1000_0000;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const FAULTS: u64 = 1 << (SIGBUS - 1) | 1 << (SIGSEGV - 1);

/// libc's sigaction.
pub(crate) fn next_sigaction() -> Option<SetAction> {
    next!(SIGACTION as SetAction)
}

/// `struct sigaction` of every libc on 64-bit machines.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: i32,
    restorer: usize,
}

impl Action {
    const fn new(handler: usize, mask: u64, flags: i32) -> Self {
        let mut all = [0; 16];
        all[0] = mask;
        Self { handler, mask: all, flags, restorer: 0 }
    }
}

/// libc's sigaction, or what another library has put before it.
pub(crate) type SetAction = unsafe extern "C" fn(i32, *const Action, *mut Action) -> i32;

/// The program's own handler of one signal.
struct ProgramHandler {
    handler: AtomicUsize,
    mask: AtomicU64,
    flags: AtomicI32,
}

impl ProgramHandler {
    const fn new() -> Self {
        Self { handler: AtomicUsize::new(0), mask: AtomicU64::new(0), flags: AtomicI32::new(0) }
    }

    fn get(&self) -> Action {
        let handler = self.handler.load(Acquire);
        Action::new(handler, self.mask.load(Relaxed), self.flags.load(Relaxed))
    }

    fn set(&self, action: &Action) {
        self.mask.store(action.mask[0], Relaxed);
        self.flags.store(action.flags, Relaxed);
        self.handler.store(action.handler, Release);
    }
}

static OWN: [ProgramHandler; 2] = [const { ProgramHandler::new() }; 2];
/// 0: not installed; 1: somebody is at it; 2: installed.
static INSTALLED: AtomicU32 = AtomicU32::new(0);
/// Some thread blocks these signals, so that a fault in it would be the end of the process.
static BLOCKED: AtomicBool = AtomicBool::new(false);

fn program_handler(signal: i32) -> Option<&'static ProgramHandler> {
    match signal {
        SIGBUS => OWN.first(),
        SIGSEGV => OWN.last(),
        _ => None,
    }
}

/// What the kernel is to have for what the program has: its mask, its stack, this handler.
fn kernel_action(program: &Action) -> Action {
    Action {
        handler: handle as *const () as usize,
        flags: program.flags & !SA_RESETHAND | SA_SIGINFO,
        ..*program
    }
}

/// Puts the handlers in place. False: not now.
pub(crate) fn install(set: SetAction) -> bool {
    if let Err(now) = INSTALLED.compare_exchange(0, 1, SeqCst, SeqCst) {
        return now == 2;
    }
    for signal in [SIGBUS, SIGSEGV] {
        let mut before = Action::new(SIG_DFL, 0, 0);
        // SAFETY: libc's own function, with actions of its form.
        let asked = unsafe { set(signal, core::ptr::null(), &raw mut before) };
        let Some(own) = program_handler(signal).filter(|_| asked == 0) else { return false };
        own.set(&before);
        let ours = kernel_action(&before);
        // SAFETY: libc's own function, with actions of its form; the handler may run any time.
        if unsafe { set(signal, &raw const ours, core::ptr::null_mut()) } != 0 {
            return false;
        }
    }
    note_mask(raw::blocked_signals());
    INSTALLED.store(2, SeqCst);
    true
}

/// Whether faults in the copy are caught.
pub(crate) fn is_installed() -> bool {
    INSTALLED.load(Relaxed) == 2
}

/// The program's call of sigaction.
///
/// # Safety
/// The pointers are null or point to actions.
pub(crate) unsafe fn set_action(set: SetAction, signal: i32, new: *const Action, old: *mut Action) -> i32 {
    // SAFETY: the caller's.
    let new_action = unsafe { new.as_ref() };
    if let Some(new) = new_action {
        note_mask(new.mask[0]);
    }
    let Some(own) = program_handler(signal).filter(|_| INSTALLED.load(SeqCst) != 0) else {
        // SAFETY: passed on as it came.
        return unsafe { set(signal, new, old) };
    };
    let before = own.get();
    if let Some(new) = new_action {
        own.set(new);
        let ours = kernel_action(new);
        // SAFETY: libc's own function, with an action of its form.
        let done = unsafe { set(signal, &raw const ours, core::ptr::null_mut()) };
        if done != 0 {
            own.set(&before);
            return done;
        }
    }
    if !old.is_null() {
        // SAFETY: the caller's.
        unsafe { old.write(before) };
    }
    0
}

/// The program's call of signal, for one of the two; None: it is about another signal, or there is nothing here to be kept.
pub(crate) fn set_simple(set: SetAction, signal: i32, handler: usize) -> Option<usize> {
    program_handler(signal).filter(|_| INSTALLED.load(SeqCst) != 0)?;
    let new = Action::new(handler, 1 << (signal - 1), SA_RESTART);
    let mut old = Action::new(SIG_DFL, 0, 0);
    // SAFETY: both are actions.
    let done = unsafe { set_action(set, signal, &raw const new, &raw mut old) };
    Some(if done == 0 { old.handler } else { usize::MAX })
}

/// Some thread is to have this mask.
pub(crate) fn note_mask(mask: u64) {
    if mask & FAULTS != 0 && !BLOCKED.load(Relaxed) {
        BLOCKED.store(true, SeqCst);
    }
}

/// Whether the calling thread would not survive a fault.
#[inline]
pub(crate) fn is_exposed() -> bool {
    BLOCKED.load(Relaxed) && raw::blocked_signals() & FAULTS != 0
}

/// The kernel's part of `siginfo_t` that is used here.
#[repr(C)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
}

unsafe extern "C" fn handle(signal: i32, info: *const Info, context: usize) {
    // SAFETY: the kernel has passed them.
    let is_fault = unsafe { (*info).code } > 0;
    // SAFETY: the kernel has passed the context of the signal that is being handled.
    if is_fault && unsafe { copy::leave(context) } {
        return;
    }
    let Some(own) = program_handler(signal) else { return };
    let action = own.get();
    if action.flags & SA_RESETHAND != 0 {
        own.handler.store(SIG_DFL, SeqCst);
    }
    match action.handler {
        SIG_IGN if !is_fault => {}
        // The kernel does not let a fault be ignored either.
        SIG_DFL | SIG_IGN => {
            default(signal);
            // A fault comes again by itself.
            if !is_fault {
                raw::raise(signal);
            }
        }
        handler if action.flags & SA_SIGINFO != 0 => {
            // SAFETY: the program has set it as a handler with these arguments.
            let handler: extern "C" fn(i32, *const Info, usize) = unsafe { core::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the program has set it as a handler.
            let handler: extern "C" fn(i32) = unsafe { core::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// The next signal of this kind ends the process.
fn default(signal: i32) {
    if let Some(set) = next_sigaction() {
        let action = Action::new(SIG_DFL, 0, 0);
        // SAFETY: libc's own function, which may be called in a handler.
        unsafe { set(signal, &raw const action, core::ptr::null_mut()) };
    }
}
