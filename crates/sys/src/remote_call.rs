//! A process whose threads stand still, one of which is made to call a function of its own, as a debugger does it.
//!
//! System calls that were interrupted begin anew when the threads go on: that is what the kernel does for whoever was stopped and got no
//! signal. Whoever holds a process so must not die meanwhile, or the thread goes on where it was made to go.
//!
//! The function is the process's own, and may do anything. If it makes the process another program or another user, that one may have rights which
//! the process had not: then nothing is written to it, and it goes on as it is.

use crate::daemon::last_errno;
use rustix::io::{Errno, Result};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread may take to stand still, and the function to come to its end.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_micros(50);
/// A thread that takes longer is looked at less often.
const LONG: Duration = Duration::from_millis(2);
/// Not in libc for every target: PTRACE_SETSIGMASK and its kin, and the note of a processor's extended state.
const GETSIGMASK: libc::c_uint = 0x420a;
const SETSIGMASK: libc::c_uint = 0x420b;
/// What `PTRACE_SEIZE` is asked for: a stop when the process has become another program.
const OPTIONS: usize = libc::PTRACE_O_TRACEEXEC as usize;
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
pub struct RemoteFunction {
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

/// What has come of a thread. None: nothing new. ESRCH: it has ended.
fn news(thread: libc::pid_t) -> Result<Option<libc::c_int>> {
    let mut status = 0;
    // SAFETY: the kernel writes the status.
    let got = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
    match got {
        0 => Ok(None),
        -1 => Err(last_errno()),
        _ if libc::WIFSTOPPED(status) => Ok(Some(status)),
        _ => Err(Errno::SRCH),
    }
}

/// Waits for a stop of a thread: the status. ESRCH: it has ended. TIMEDOUT: it does not stop. `meanwhile` is called now and then.
fn stopped(thread: libc::pid_t, meanwhile: &mut dyn FnMut()) -> Result<libc::c_int> {
    let begin = Instant::now();
    loop {
        if let Some(status) = news(thread)? {
            return Ok(status);
        }
        match begin.elapsed() {
            waited if waited > PATIENCE => return Err(Errno::TIMEDOUT),
            waited if waited > LONG => {
                meanwhile();
                thread::sleep(LONG);
            }
            _ => thread::sleep(LOOK),
        }
    }
}

/// Waits for threads that end while another one is being held. With that thread about to become another program, the kernel holds none of the process
/// until these have been waited for.
fn reap_ended_threads(known: &Mutex<Vec<libc::pid_t>>, done: &AtomicBool) {
    loop {
        thread::park_timeout(LONG);
        if done.load(SeqCst) {
            return;
        }
        for thread in known.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // SAFETY: nobody asks for what the kernel would write.
            unsafe {
                libc::waitid(
                    libc::P_PID,
                    thread.cast_unsigned(),
                    std::ptr::null_mut(),
                    libc::WEXITED | libc::WNOHANG | libc::__WALL,
                )
            };
        }
    }
}

impl BorrowedThread {
    /// Has all threads of a process stand still. ESRCH: it has ended. ETIMEDOUT: a thread does not stop, and all go on.
    ///
    /// From here on no other process gets its number: so what is to be known of it is looked at now, and not before.
    pub fn stop_process(process: u32) -> Result<Self> {
        Self { threads: Vec::new(), signal: 0 }.and_all(process)
    }

    /// Has the others stand still, too.
    fn and_all(mut self, process: u32) -> Result<Self> {
        let (known, done) = (Mutex::new(self.threads.clone()), AtomicBool::new(false));
        thread::scope(|scope| {
            let mut watcher = None;
            let held = loop {
                // New ones may have come meanwhile, until all that could make some stand still.
                let before = self.threads.len();
                let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { break Err(Errno::SRCH) };
                let numbers = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
                let mut new =
                    numbers.filter(|number| !self.threads.contains(number)).collect::<Vec<_>>().into_iter();
                let all = new.try_for_each(|number| {
                    if !self.threads.is_empty() && watcher.is_none() {
                        watcher = Some(scope.spawn(|| reap_ended_threads(&known, &done)));
                    }
                    self.hold(process, number)?;
                    known.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.threads);
                    Ok(())
                });
                if all.is_err() || self.threads.len() == before {
                    break all.and(if before == 0 { Err(Errno::SRCH) } else { Ok(()) });
                }
            };
            done.store(true, SeqCst);
            if let Some(watcher) = watcher {
                watcher.thread().unpark();
            }
            held.map(|()| self)
        })
    }

    fn hold(&mut self, process: u32, thread: libc::pid_t) -> Result<()> {
        let seize = || ptrace(libc::PTRACE_SEIZE, thread, 0, OPTIONS);
        match seize() {
            // Ended, or about to: it is looked for again.
            Err(Errno::SRCH | Errno::PERM) if !is_alive(thread) => return Ok(()),
            // Or another one has got its number, by exec.
            Err(Errno::SRCH | Errno::PERM) => seize()?,
            seized => seized?,
        };
        let held = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0).and_then(|_| {
            loop {
                let status = stopped(thread, &mut || {})?;
                let signal = match status >> 16 {
                    // A signal came first. It gets it, and stops after that.
                    0 => libc::WSTOPSIG(status) as usize,
                    // It has just become what it is.
                    libc::PTRACE_EVENT_EXEC => 0,
                    _ => return Ok(()),
                };
                ptrace(libc::PTRACE_CONT, thread, 0, signal)?;
            }
        });
        match held {
            // Its number may have gone to another process before it was held.
            Ok(()) if !Path::new(&format!("/proc/{process}/task/{thread}")).exists() => {
                let _ = ptrace(libc::PTRACE_DETACH, thread, 0, 0);
            }
            Ok(()) => self.threads.push(thread),
            Err(Errno::SRCH) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Has the first thread call a function with one argument: its result. All is afterwards as it was. ENOTSUP: on this machine that is not known.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn call(&mut self, _: RemoteFunction, _: u64) -> Result<u64> {
        Err(Errno::NOTSUP)
    }

    /// Has the first thread call a function with one argument: its result. All is afterwards as it was. EBUSY: it ignores traps, and the kernel would
    /// have it do so no longer. ETIMEDOUT: the function does not come to its end. EFAULT: it has failed. ESTALE: the function has made the process
    /// another program or another user; all go on, and nothing is given back.
    #[cfg(target_arch = "x86_64")]
    pub fn call(&mut self, what: RemoteFunction, argument: u64) -> Result<u64> {
        let Some(thread) = self.threads.first().copied() else { return Err(Errno::SRCH) };
        if ignores_traps(thread) {
            return Err(Errno::BUSY);
        }
        let who = ThreadOrigin::read(thread).ok_or(Errno::SRCH)?;
        let before = registers(thread)?;
        let state = State::read(thread)?;
        let (mut mask, faults_only) = (0_u64, ALL_BUT_FAULTS);
        ptrace(GETSIGMASK, thread, size_of::<u64>(), &raw mut mask as usize)?;
        ptrace(SETSIGMASK, thread, size_of::<u64>(), &raw const faults_only as usize)?;
        let called = self.run(thread, what, argument, &before);
        // By a thread that is not the first one, exec takes the thread's number away.
        let is_other = matches!(called, Err(Errno::STALE | Errno::CHILD));
        if is_other || ThreadOrigin::read(thread).is_some_and(|now| now != who) {
            self.release();
            return Err(Errno::STALE);
        }
        let mut restored = set_registers(thread, &before).and_then(|()| state.restore(thread));
        let masked = ptrace(SETSIGMASK, thread, size_of::<u64>(), &raw const mask as usize);
        restored = restored.and(masked.map(drop));
        restored.and(called)
    }

    /// Has all go on as they are.
    fn release(&mut self) {
        for (at, thread) in self.threads.drain(..).enumerate() {
            let signal = if at == 0 { self.signal } else { 0 };
            let detached = || ptrace(libc::PTRACE_DETACH, thread, 0, signal as usize);
            // One that has taken this number with exec is about to stop for that.
            if detached() == Err(Errno::SRCH) && stopped(thread, &mut || {}).is_ok() {
                let _ = detached();
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn run(
        &mut self,
        thread: libc::pid_t,
        what: RemoteFunction,
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
            // A thread that becomes another program has the others end, and waits until they have been looked at.
            let mut meanwhile = || self.threads.retain(|other| *other == thread || news(*other).is_ok());
            let (status, is_over) = match stopped(thread, &mut meanwhile) {
                Err(Errno::TIMEDOUT) => {
                    // It is to stand still for its registers to be given back.
                    ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0)?;
                    (stopped(thread, &mut meanwhile)?, true)
                }
                status => (status?, false),
            };
            if status >> 16 == libc::PTRACE_EVENT_EXEC {
                return Err(Errno::STALE);
            }
            if is_over {
                return Err(Errno::TIMEDOUT);
            }
            let now = self::registers(thread)?;
            match libc::WSTOPSIG(status) {
                // An event, and no signal.
                _ if status >> 16 != 0 => {}
                libc::SIGTRAP if is_kernel_signal(thread) => {
                    self.signal = if late == 0 { self.signal } else { late };
                    return Ok(now.rax);
                }
                libc::SIGSEGV | libc::SIGBUS if is_kernel_signal(thread) => return Err(Errno::FAULT),
                signal => late = signal,
            }
        }
        Err(Errno::TIMEDOUT)
    }
}

/// Whether a thread has not ended.
fn is_alive(thread: libc::pid_t) -> bool {
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
fn is_kernel_signal(thread: libc::pid_t) -> bool {
    // SAFETY: of plain numbers, all of which may be 0.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETSIGINFO, thread, 0, &raw mut info as usize).is_ok() && info.si_code > 0
}

/// When a thread began, and what it may do.
#[cfg(target_arch = "x86_64")]
#[derive(PartialEq, Eq)]
struct ThreadOrigin(Vec<String>);

#[cfg(target_arch = "x86_64")]
impl ThreadOrigin {
    /// None: it has ended.
    fn read(thread: libc::pid_t) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
        let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        // Behind the program's name, which may hold blanks.
        let began = stat.rsplit(')').next()?.split_ascii_whitespace().nth(19)?;
        let rights = ["Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Tgid:", "TracerPid:"];
        let lines = status.lines().filter(|line| rights.iter().any(|right| line.starts_with(right)));
        Some(Self(lines.chain([began]).map(str::to_owned).collect()))
    }
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
    fn read(thread: libc::pid_t) -> Result<Self> {
        let mut bytes = vec![0_u8; STATE_MAX];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        ptrace(libc::PTRACE_GETREGSET, thread, X86_XSTATE, &raw mut part as usize)?;
        bytes.truncate(part.iov_len);
        Ok(Self(bytes))
    }

    fn restore(mut self, thread: libc::pid_t) -> Result<()> {
        let mut part = libc::iovec { iov_base: self.0.as_mut_ptr().cast(), iov_len: self.0.len() };
        ptrace(libc::PTRACE_SETREGSET, thread, X86_XSTATE, &raw mut part as usize).map(drop)
    }
}

impl Drop for BorrowedThread {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
