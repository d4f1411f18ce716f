//! Steps all threads of a process, one instruction at a time.
//!
//! A thread of ours is their tracer, and waits for nothing but them. A thread of the service that has entered the kernel stays
//! there as long as it likes; all others are stepped as they come, so that they are at work at once as they always are.

use super::LineCount;
use super::addresses::AddressMap;
use super::clock::{ClockRead, Clocks};
use super::decode::{DecodedInstruction, LONGEST, decode};
use super::line_writes::{Tally, Writer, lines};
use super::requests::client_of;
use super::stops::{is_pending, is_restarted, next};
use super::stretched_timeouts::Call;
use crate::failure::{Failure, Result, While};
use crate::interrupt;
use crate::service::Service;
use nix::errno::Errno;
use nix::libc::{PTRACE_EVENT_CLONE, c_long, user};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A count that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long threads may take to be let go: one may be waiting for the disk.
const LET_GO: Duration = Duration::from_secs(20);
/// How often to look when all threads are in the kernel.
const LOOK: Duration = Duration::from_micros(20);
/// After so long without anything, a wait that ran out is over, however little was done: others may wait for that thread.
const IDLE: Duration = Duration::from_millis(50);

/// See [`super::count`].
pub(super) fn count(service: Service, what: impl FnOnce() -> Result<()>) -> Result<LineCount> {
    let done = AtomicBool::new(false);
    let (ready, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let done = &done;
        let tracer = std::thread::Builder::new()
            .name("stepping".into())
            .spawn_scoped(scope, move || trace(service, done, &ready))
            .doing(|| "starting a thread")?;
        let end = CompletionSignal(done);
        // Where nobody says it, the tracer has failed.
        let did = if begun.recv().is_ok() { what() } else { Ok(()) };
        drop(end);
        let counted = tracer.join().unwrap_or_else(|_| Err(Failure::new("the tracer has panicked")));
        did.and(counted)
    })
}

/// Says that the work is done, also when it ends by a panic: the tracer must not wait for it any more.
struct CompletionSignal<'a>(&'a AtomicBool);

impl Drop for CompletionSignal<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn trace(service: Service, done: &AtomicBool, ready: &mpsc::Sender<()>) -> Result<LineCount> {
    let mut stepper = Stepper::new(service)?;
    let counted = stepper.seize().and_then(|()| {
        // Nobody listens when the other side has panicked.
        let _ = ready.send(());
        stepper.step_until(done)
    });
    let let_go = stepper.detach_all();
    counted.and(let_go)?;
    Ok(stepper.tally.sum(&AddressMap::of_process(service)?))
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for us.
    Held,
    /// It waits for us, and its own wait has run out, which would not have happened before so many instructions.
    Late(u64),
    /// It does one instruction.
    Stepping,
    /// It does all of a repetition.
    Repeating,
    /// It is in the kernel, or on its way there.
    Away,
}

#[derive(Debug)]
struct Thread {
    state: State,
    /// The call that it is in, or has come from just now.
    call: Option<Call>,
    /// The thread that waits for what it does, or did last.
    client: Option<u32>,
    /// Where it wants to be told the time.
    asked: Option<ClockRead>,
    /// A repeated instruction that it is at, which has been counted.
    repeated: Option<u64>,
    /// Whether it has a breakpoint behind it.
    stops: bool,
}

impl Thread {
    const AWAY: Self =
        Self { state: State::Away, call: None, client: None, asked: None, repeated: None, stops: false };
}

struct Stepper {
    service: Service,
    threads: HashMap<Pid, Thread>,
    memory: File,
    /// By address: a program's instructions stay what they are.
    decoded: HashMap<u64, DecodedInstruction>,
    clocks: Clocks,
    tally: Tally,
}

impl Stepper {
    fn new(service: Service) -> Result<Self> {
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", service.pid));
        let memory = memory.doing(|| format!("there is no process {} to step", service.pid))?;
        let (threads, decoded) = (HashMap::new(), HashMap::new());
        let clocks = Clocks::new(AddressMap::of_process(service)?.vdso());
        Ok(Self { service, threads, memory, decoded, clocks, tally: Tally::default() })
    }

    /// Becomes the tracer of all threads, and stops them.
    fn seize(&mut self) -> Result<()> {
        // One that is not ours yet may start another while we look.
        while {
            let found = self.service.threads().into_iter().filter_map(|id| i32::try_from(id).ok());
            let new: Vec<Pid> =
                found.map(Pid::from_raw).filter(|id| !self.threads.contains_key(id)).collect();
            for id in &new {
                match ptrace::seize(*id, Options::PTRACE_O_TRACECLONE).and_then(|()| {
                    self.threads.insert(*id, Thread::AWAY);
                    ptrace::interrupt(*id)
                }) {
                    // It has ended; or it is one that a thread of ours has started, and came to us that way.
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(Errno::EPERM) if self.adopt_thread(*id) => {}
                    Err(error) => return Err(error).doing(|| "tracing the service"),
                }
            }
            !new.is_empty()
        } {}
        Ok(())
    }

    fn adopt_thread(&mut self, id: Pid) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let ours = format!("TracerPid:\t{}", rustix::thread::gettid());
        let is_ours = status.lines().any(|line| line == ours);
        if is_ours {
            self.threads.entry(id).or_insert(Thread::AWAY);
        }
        is_ours
    }

    fn step_until(&mut self, done: &AtomicBool) -> Result<()> {
        let start = Instant::now();
        let mut idle = None;
        while !done.load(Ordering::Acquire) {
            interrupt::check()?;
            if start.elapsed() > PATIENCE {
                return Err(Failure::new(format!(
                    "gave up stepping the service after {} s; {} instructions were done",
                    PATIENCE.as_secs(),
                    self.tally.instructions
                )));
            }
            // One that does an instruction is back at once; one in the kernel may never be.
            let is_stepping = self
                .threads
                .values()
                .any(|thread| matches!(thread.state, State::Stepping | State::Repeating));
            let status = next(if is_stepping { WaitPidFlag::empty() } else { WaitPidFlag::WNOHANG })?;
            let since = *idle.get_or_insert_with(Instant::now);
            if status != WaitStatus::StillAlive {
                idle = None;
            }
            self.react(status)?;
            self.end_waits(since.elapsed() > IDLE)?;
        }
        Ok(())
    }

    /// Lets threads go on whose waits are over by now; `any`: the one that is nearest to it.
    fn end_waits(&mut self, any: bool) -> Result<()> {
        let late = self.threads.iter().filter_map(|(id, thread)| match thread.state {
            State::Late(until) => Some((until, *id)),
            _ => None,
        });
        let Some((until, id)) = late.min() else { return Ok(()) };
        if any || until <= self.tally.instructions {
            self.step(id)?;
        }
        Ok(())
    }

    /// Lets a thread that has stopped go on by one instruction.
    fn react(&mut self, status: WaitStatus) -> Result<()> {
        match status {
            WaitStatus::StillAlive => {
                std::thread::sleep(LOOK);
                Ok(())
            }
            WaitStatus::Exited(id, _) | WaitStatus::Signaled(id, _, _) => {
                self.threads.remove(&id);
                Ok(())
            }
            WaitStatus::Stopped(id, Signal::SIGTRAP) => {
                self.hold(id);
                self.step(id)
            }
            // On its way to the handler it stops again, before the first instruction there.
            WaitStatus::Stopped(id, signal) => {
                self.hold(id);
                self.continue_thread(id, Some(signal), State::Away)
            }
            WaitStatus::PtraceEvent(id, _, event) => {
                self.started(id, event);
                // It was stopped in the kernel, and what it does next may be a call that is begun anew.
                self.hold(id);
                self.continue_thread(id, None, State::Away)
            }
            _ => Ok(()),
        }
    }

    /// The thread has stopped.
    fn hold(&mut self, id: Pid) {
        let thread = self.threads.entry(id).or_insert(Thread::AWAY);
        thread.state = State::Held;
        if std::mem::take(&mut thread.stops) {
            // An error: it has ended.
            let _ = clear_breakpoints(id);
        }
    }

    /// Where the event is the start of a thread, that one is ours too.
    fn started(&mut self, by: Pid, event: i32) {
        if event == PTRACE_EVENT_CLONE
            && let Ok(id) = ptrace::getevent(by)
            && let Ok(id) = i32::try_from(id)
        {
            self.threads.entry(Pid::from_raw(id)).or_insert(Thread::AWAY);
        }
    }

    /// Lets a thread do its next instruction, if it is time for it.
    fn step(&mut self, id: Pid) -> Result<()> {
        match self.note(id)? {
            State::Late(until) => {
                if let Some(thread) = self.threads.get_mut(&id) {
                    thread.state = State::Late(until);
                }
                Ok(())
            }
            next => self.continue_thread(id, None, next),
        }
    }

    fn continue_thread(&mut self, id: Pid, signal: Option<Signal>, to: State) -> Result<()> {
        let going = match to {
            State::Repeating => ptrace::cont(id, signal),
            _ => ptrace::step(id, signal),
        };
        match going {
            // Killed; its end is reported.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).doing(|| "stepping the service"),
        }
        if let Some(thread) = self.threads.get_mut(&id) {
            thread.state = to;
        }
        Ok(())
    }

    /// Takes down what the instruction does that is next in a thread, and says where that takes it.
    fn note(&mut self, id: Pid) -> Result<State> {
        let registers = match ptrace::getregs(id) {
            Ok(registers) => registers,
            Err(Errno::ESRCH) => return Ok(State::Away),
            Err(error) => return Err(error).doing(|| "reading registers"),
        };
        if is_restarted(&registers) {
            return Ok(State::Away);
        }
        let at = registers.rip;
        let call = self.threads.get_mut(&id).and_then(|thread| thread.call.take());
        if let Some(until) = call.and_then(|call| call.expired_instructions(&registers)) {
            return Ok(State::Late(until));
        }
        let request =
            call.and_then(|call| call.has_read(&registers)).and_then(|read| client_of(&self.memory, read));
        if let (Some(client), Some(thread)) = (request, self.threads.get_mut(&id)) {
            thread.client = client;
        }
        if let Some(thread) = self.threads.get_mut(&id) {
            let done = self.tally.instructions;
            self.clocks
                .follow(&mut thread.asked, &registers, done, &self.memory)
                .doing(|| "telling the service the time")?;
        }
        if !self.decoded.contains_key(&at) {
            self.decoded.insert(at, self.decode_at(at)?);
        }
        let (Some(decoded), Some(thread)) = (self.decoded.get(&at), self.threads.get_mut(&id)) else {
            return Ok(State::Away);
        };
        if thread.repeated.take() != Some(at) {
            self.tally.instructions += 1;
            self.tally.locked += u64::from(decoded.locked);
            let by = Writer { thread: id.as_raw(), client: thread.client };
            for line in decoded.writes(&registers).flat_map(lines) {
                self.tally.write(by, line, at);
            }
        }
        if decoded.repeats {
            thread.repeated = Some(at);
            // Where there are no breakpoints, it takes as many steps as it does.
            thread.stops = registers.rcx > FEW && stop_at(id, decoded.behind).is_ok();
            return Ok(if thread.stops { State::Repeating } else { State::Stepping });
        }
        if !decoded.is_call {
            return Ok(State::Stepping);
        }
        thread.call = Some(Call::begin(&registers, self.tally.instructions));
        Ok(State::Away)
    }

    fn decode_at(&self, at: u64) -> Result<DecodedInstruction> {
        let mut bytes = [0; LONGEST];
        let len = self.memory.read_at(&mut bytes, at).doing(|| "reading the service's instructions")?;
        // What is none ends the thread by itself.
        Ok(decode(bytes.get(..len).unwrap_or_default(), at).unwrap_or_default())
    }

    /// Detaches from all threads, whatever they do.
    fn detach_all(&mut self) -> Result<()> {
        let start = Instant::now();
        let held = |thread: &Thread| matches!(thread.state, State::Held | State::Late(_));
        for id in self.threads.keys().copied().collect::<Vec<_>>() {
            if self.threads.get(&id).is_some_and(held) {
                self.release(id, None);
            } else {
                // An error: it has ended, and that is reported.
                let _ = ptrace::interrupt(id);
            }
        }
        while !self.threads.is_empty() {
            if start.elapsed() > LET_GO {
                return Err(Failure::new("a thread of the service does not stop to be let go"));
            }
            match next(WaitPidFlag::WNOHANG) {
                Ok(WaitStatus::StillAlive) => std::thread::sleep(LOOK),
                Ok(WaitStatus::Stopped(id, Signal::SIGTRAP)) => self.release(id, None),
                Ok(WaitStatus::Stopped(id, signal)) => self.release(id, Some(signal)),
                Ok(WaitStatus::PtraceEvent(id, _, event)) => {
                    self.started(id, event);
                    self.release(id, None);
                }
                Ok(WaitStatus::Exited(id, _) | WaitStatus::Signaled(id, _, _)) => {
                    self.threads.remove(&id);
                }
                Ok(_) => {}
                // Nobody is left.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Detaches from a thread that is stopped.
    fn release(&mut self, id: Pid, signal: Option<Signal>) {
        self.hold(id);
        // A call that was interrupted has ended as a step does, and the signal that says so would kill the service when
        // nobody takes it off: the thread stops with it next.
        let _ = if is_pending(self.service, id, Signal::SIGTRAP) {
            self.threads.entry(id).or_insert(Thread::AWAY).state = State::Away;
            ptrace::cont(id, signal)
        } else {
            self.threads.remove(&id);
            ptrace::detach(id, signal)
        };
    }
}

// Repeated instructions would be a step for every byte. A thread does one of them as a whole, up to a breakpoint of
// the processor's at the instruction behind it.

/// Below so many repetitions, steps are as quick.
const FEW: u64 = 4;
/// Breakpoint 0, for this thread, when an instruction is to be done.
const ENABLED: c_long = 1;
/// The register that says which breakpoints there are; the first ones say where.
const CONTROL: usize = 7;

/// Lets a thread stop at `address` when it goes on.
fn stop_at(id: Pid, address: u64) -> nix::Result<()> {
    write(id, 0, address.cast_signed())?;
    write(id, CONTROL, ENABLED)
}

/// The thread stops there no more.
fn clear_breakpoints(id: Pid) -> nix::Result<()> {
    write(id, CONTROL, 0)
}

fn write(id: Pid, register: usize, value: c_long) -> nix::Result<()> {
    let offset = std::mem::offset_of!(user, u_debugreg) + register * size_of::<c_long>();
    ptrace::write_user(id, std::ptr::without_provenance_mut(offset), value)
}
