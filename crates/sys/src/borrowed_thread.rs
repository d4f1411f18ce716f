//! A process whose threads stand still, one of which is made to call a function of its own, as a debugger does it.
//!
//! System calls that were interrupted begin anew when the threads go on: that is what the kernel does for whoever was stopped and got no
//! signal. Whoever holds a process so must not die meanwhile, or the thread goes on where it was made to go.

use crate::daemon::last_errno;
use rustix::io::{Errno, Result};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread may take to stand still, and the function to come to its end.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_micros(50);
/// Not in libc for every target: PTRACE_SETSIGMASK and its kin, and the note of a processor's extended state.
const GETSIGMASK: libc::c_uint = 0x420a;
const SETSIGMASK: libc::c_uint = 0x420b;
const X86_XSTATE: usize = 0x202;
/// The most that the extended state takes, in bytes.
const STATE_MAX: usize = 64 << 10;
/// Signals that wait meanwhile.
const ALL_BUT_FAULTS: u64 = !(1 << (libc::SIGTRAP - 1) | 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1));

/// A process, all of whose threads stand still until this is dropped. It belongs to the thread that has made it.
#[derive(Debug)]
pub struct BorrowedThread {
    threads: Vec<libc::pid_t>,
    /// A signal that the first thread gets when it goes on; 0: none.
    signal: libc::c_int,
}

/// A function that a thread is to call: its address, and the end of a stack for it, both in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrowed {
    /// Its last instruction is a trap, on which it leaves its result where functions leave theirs.
    pub function: u64,
    /// Aligned to 16 bytes.
    pub stack_end: u64,
}

fn ptrace(request: libc::c_uint, thread: libc::pid_t, address: usize, data: usize) -> Result<libc::c_long> {
    // SAFETY: the addresses that callers of this file give are of memory that they have borrowed for the call, or numbers.
    let done = unsafe { libc::ptrace(request as _, thread, address, data) };
    if done == -1 { Err(last_errno()) } else { Ok(done) }
}

/// Waits for a stop of a thread: the status. ESRCH: it has ended. TIMEDOUT: it does not stop.
fn stopped(thread: libc::pid_t) -> Result<libc::c_int> {
    let begin = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes the status.
        let got = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match got {
            0 if begin.elapsed() > PATIENCE => return Err(Errno::TIMEDOUT),
            0 => thread::sleep(LOOK),
            -1 => return Err(last_errno()),
            _ if libc::WIFSTOPPED(status) => return Ok(status),
            _ => return Err(Errno::SRCH),
        }
    }
}

impl BorrowedThread {
    /// Has all threads of a process stand still. ESRCH: it has ended. ETIMEDOUT: a thread does not stop, and all go on.
    pub fn of(process: u32) -> Result<Self> {
        let mut held = Self { threads: Vec::new(), signal: 0 };
        // New ones may have come meanwhile, until all that could make some stand still.
        loop {
            let before = held.threads.len();
            let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return Err(Errno::SRCH) };
            let numbers = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
            for number in numbers {
                if !held.threads.contains(&number) {
                    held.hold(number)?;
                }
            }
            if held.threads.len() == before {
                return if before == 0 { Err(Errno::SRCH) } else { Ok(held) };
            }
        }
    }

    fn hold(&mut self, thread: libc::pid_t) -> Result<()> {
        match ptrace(libc::PTRACE_SEIZE, thread, 0, 0) {
            // Ended, or about to: it is looked for again.
            Err(Errno::SRCH | Errno::PERM) if !is_there(thread) => return Ok(()),
            seized => seized?,
        };
        let held = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0).and_then(|_| {
            loop {
                let status = stopped(thread)?;
                if status >> 16 != 0 {
                    return Ok(());
                }
                // A signal came first. It gets it, and stops after that.
                ptrace(libc::PTRACE_CONT, thread, 0, libc::WSTOPSIG(status) as usize)?;
            }
        });
        match held {
            Ok(()) => self.threads.push(thread),
            Err(Errno::SRCH) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Has the first thread call a function with one argument: its result. All is afterwards as it was. ENOTSUP: on this machine that is not known.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn call(&mut self, _: Borrowed, _: u64) -> Result<u64> {
        Err(Errno::NOTSUP)
    }

    /// Has the first thread call a function with one argument: its result. All is afterwards as it was. EBUSY: it ignores traps, and the kernel would
    /// have it do so no longer. ETIMEDOUT: the function does not come to its end. EFAULT: it has failed.
    #[cfg(target_arch = "x86_64")]
    pub fn call(&mut self, what: Borrowed, argument: u64) -> Result<u64> {
        let Some(thread) = self.threads.first().copied() else { return Err(Errno::SRCH) };
        if ignores_traps(thread) {
            return Err(Errno::BUSY);
        }
        let before = registers(thread)?;
        let state = State::of(thread)?;
        let (mut mask, faults_only) = (0_u64, ALL_BUT_FAULTS);
        ptrace(GETSIGMASK, thread, size_of::<u64>(), &raw mut mask as usize)?;
        ptrace(SETSIGMASK, thread, size_of::<u64>(), &raw const faults_only as usize)?;
        let called = self.run(thread, what, argument, &before);
        let mut restored = set_registers(thread, &before).and_then(|()| state.put_back(thread));
        let masked = ptrace(SETSIGMASK, thread, size_of::<u64>(), &raw const mask as usize);
        restored = restored.and(masked.map(drop));
        restored.and(called)
    }

    #[cfg(target_arch = "x86_64")]
    fn run(
        &mut self,
        thread: libc::pid_t,
        what: Borrowed,
        argument: u64,
        before: &libc::user_regs_struct,
    ) -> Result<u64> {
        let registers = libc::user_regs_struct {
            rip: what.function,
            rsp: what.stack_end,
            rbp: 0,
            rdi: argument,
            rax: 0,
            // In no system call that would begin anew.
            orig_rax: u64::MAX,
            // The direction in which strings are copied is up.
            eflags: before.eflags & !0x400,
            ..*before
        };
        set_registers(thread, &registers)?;
        let begin = Instant::now();
        let mut late = 0;
        while begin.elapsed() < PATIENCE {
            ptrace(libc::PTRACE_CONT, thread, 0, 0)?;
            let status = match stopped(thread) {
                Err(Errno::TIMEDOUT) => {
                    // It is to stand still for its registers to be given back.
                    ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0)?;
                    stopped(thread)?;
                    return Err(Errno::TIMEDOUT);
                }
                status => status?,
            };
            let now = self::registers(thread)?;
            match libc::WSTOPSIG(status) {
                // An event, and no signal.
                _ if status >> 16 != 0 => {}
                libc::SIGTRAP if is_of_the_kernel(thread) => {
                    self.signal = if late == 0 { self.signal } else { late };
                    return Ok(now.rax);
                }
                libc::SIGSEGV | libc::SIGBUS if is_of_the_kernel(thread) => return Err(Errno::FAULT),
                signal => late = signal,
            }
        }
        Err(Errno::TIMEDOUT)
    }
}

/// Whether a thread has not ended.
fn is_there(thread: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !matches!(rest.trim_start().chars().next(), None | Some('Z' | 'X')))
}

/// Whether a thread ignores the signal of a trap.
#[cfg(target_arch = "x86_64")]
fn ignores_traps(thread: libc::pid_t) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask & 1 << (libc::SIGTRAP - 1) != 0)
}

/// Whether a signal that a thread has stopped for comes from what it has done itself.
#[cfg(target_arch = "x86_64")]
fn is_of_the_kernel(thread: libc::pid_t) -> bool {
    // SAFETY: of plain numbers, all of which may be 0.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETSIGINFO, thread, 0, &raw mut info as usize).is_ok() && info.si_code > 0
}

#[cfg(target_arch = "x86_64")]
fn registers(thread: libc::pid_t) -> Result<libc::user_regs_struct> {
    // SAFETY: of plain numbers, all of which may be 0.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, thread, 0, &raw mut registers as usize)?;
    Ok(registers)
}

#[cfg(target_arch = "x86_64")]
fn set_registers(thread: libc::pid_t, registers: &libc::user_regs_struct) -> Result<()> {
    ptrace(libc::PTRACE_SETREGS, thread, 0, std::ptr::from_ref(registers) as usize).map(drop)
}

/// What a processor has beside its plain registers.
#[cfg(target_arch = "x86_64")]
struct State(Vec<u8>);

#[cfg(target_arch = "x86_64")]
impl State {
    fn of(thread: libc::pid_t) -> Result<Self> {
        let mut bytes = vec![0_u8; STATE_MAX];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        ptrace(libc::PTRACE_GETREGSET, thread, X86_XSTATE, &raw mut part as usize)?;
        bytes.truncate(part.iov_len);
        Ok(Self(bytes))
    }

    fn put_back(mut self, thread: libc::pid_t) -> Result<()> {
        let mut part = libc::iovec { iov_base: self.0.as_mut_ptr().cast(), iov_len: self.0.len() };
        ptrace(libc::PTRACE_SETREGSET, thread, X86_XSTATE, &raw mut part as usize).map(drop)
    }
}

impl Drop for BorrowedThread {
    fn drop(&mut self) {
        for (at, thread) in self.threads.iter().enumerate() {
            let signal = if at == 0 { self.signal } else { 0 };
            let _ = ptrace(libc::PTRACE_DETACH, *thread, 0, signal as usize);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// Says that this process is the one that is borrowed from.
    const CHILD: &str = "VELLUM_TEST_BORROWED";
    const NAME: &str = "borrowed_thread::tests::calls_under_way_notice_nothing";

    #[repr(align(64))]
    struct Stack(std::cell::UnsafeCell<[u8; 4096]>);

    // SAFETY: only the other process writes to it.
    unsafe impl Sync for Stack {}

    static STACK: Stack = Stack(std::cell::UnsafeCell::new([0; 4096]));

    /// One more; spoils all that a function may spoil, and more.
    #[unsafe(naked)]
    extern "C" fn one_more() {
        core::arch::naked_asm!(
            "lea rax, [rdi + 1]",
            "pxor xmm0, xmm0",
            "pxor xmm1, xmm1",
            "push rdi",
            "mov rbx, 7",
            "mov r12, 7",
            "std",
            "int3"
        );
    }

    /// Sleeps, waits, and counts: status 0 if nothing of that was cut short or spoilt.
    fn child() -> i32 {
        let begin = Instant::now();
        let waiter = thread::spawn(|| {
            // SAFETY: no descriptors.
            unsafe { libc::poll(std::ptr::null_mut(), 0, 1200) }
        });
        let counter = thread::spawn(|| {
            let begin = Instant::now();
            let mut is_kept = true;
            while is_kept && begin.elapsed() < Duration::from_millis(1200) {
                let after: u64;
                // SAFETY: registers alone.
                unsafe {
                    core::arch::asm!(
                        "movq xmm0, {before}",
                        "2:",
                        "dec {turns}",
                        "jnz 2b",
                        "movq {after}, xmm0",
                        before = in(reg) 12_345_u64,
                        turns = inout(reg) 5_000_000_u64 => _,
                        after = out(reg) after,
                        out("xmm0") _,
                        options(nomem, nostack)
                    );
                }
                is_kept = after == 12_345;
            }
            is_kept
        });
        let time = libc::timespec { tv_sec: 1, tv_nsec: 200_000_000 };
        // SAFETY: the time is borrowed.
        let slept = unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
        let polled = waiter.join().unwrap_or(-1);
        let counted = counter.join().unwrap_or(false);
        let long = begin.elapsed() >= Duration::from_millis(1200);
        i32::from(slept != 0) | i32::from(polled != 0) << 1 | i32::from(!counted) << 2 | i32::from(!long) << 3
    }

    /// Where a process has the first part of this program.
    fn base(process: u32) -> Option<u64> {
        let program = fs::read_link(format!("/proc/{process}/exe")).ok()?;
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
        let line = maps.lines().find(|line| line.ends_with(program.to_str().unwrap_or("?")))?;
        u64::from_str_radix(line.split('-').next()?, 16).ok()
    }

    fn threads(child: &Child) -> usize {
        fs::read_dir(format!("/proc/{}/task", child.id())).map_or(0, Iterator::count)
    }

    #[test]
    fn calls_under_way_notice_nothing() {
        if std::env::var_os(CHILD).is_some() {
            std::process::exit(child());
        }
        let mut command = Command::new("/proc/self/exe");
        command.args([NAME, "--exact"]).env(CHILD, "1").stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // The one that waits for the tests, the test's, and its two.
        while threads(&child) < 4 {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            thread::sleep(LOOK);
        }
        let (mine, its) = (base(std::process::id()).unwrap(), base(child.id()).unwrap());
        let at = |address: u64| address - mine + its;
        let what = Borrowed {
            function: at(one_more as *const () as u64),
            stack_end: at(STACK.0.get() as u64 + 4096),
        };
        let mut calls = 0;
        while child.try_wait().unwrap().is_none() {
            let mut held = match BorrowedThread::of(child.id()) {
                Err(Errno::SRCH) => break,
                Err(Errno::PERM) => return eprintln!("SKIPPED: no other process may be traced here"),
                held => held.unwrap(),
            };
            // Each in its turn; near the end some have gone.
            let first = calls % held.threads.len().max(1);
            held.threads.rotate_left(first);
            for argument in [1, 2] {
                match held.call(what, argument) {
                    Err(Errno::SRCH) => break,
                    result => assert_eq!(result, Ok(argument + 1)),
                }
            }
            calls += 1;
            drop(held);
            thread::sleep(Duration::from_millis(5));
        }
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}: 1 sleep, 2 poll, 4 numbers, 8 time");
        assert!(calls > 20, "{calls}");
    }

    #[test]
    fn a_process_that_has_ended_is_none() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(BorrowedThread::of(child.id()).err(), Some(Errno::SRCH));
    }
}
