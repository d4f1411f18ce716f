//! Processes that sleep, count, become another program or another user, and are borrowed from meanwhile.

use super::*;
use std::process::{Child, Command, Stdio};

/// Says that this process is the one that is borrowed from.
const CHILD: &str = "VELLUM_TEST_BORROWED";
const NAME: &str = "remote_call::tests::interrupted_system_calls_resume_unchanged";

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

/// This program, as the process that is borrowed from: it runs a test.
fn started(name: &str) -> Child {
    let mut command = Command::new("/proc/self/exe");
    command.args([name, "--exact"]).env(CHILD, "1").stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("a process");
    // The one that waits for the tests, the test's, and its two.
    while threads(&child) < 4 {
        assert!(child.try_wait().expect("its status").is_none(), "it has ended");
        thread::sleep(LOOK);
    }
    child
}

fn within(child: &Child, function: extern "C" fn()) -> RemoteFunction {
    let (mine, its) = (base(std::process::id()), base(child.id()));
    let (mine, its) = mine.zip(its).expect("where this program is");
    let at = |address: u64| address - mine + its;
    RemoteFunction { function: at(function as *const () as u64), stack_end: at(STACK.0.get() as u64 + 4096) }
}

fn threads(child: &Child) -> usize {
    fs::read_dir(format!("/proc/{}/task", child.id())).map_or(0, Iterator::count)
}

#[test]
fn interrupted_system_calls_resume_unchanged() {
    if std::env::var_os(CHILD).is_some() {
        std::process::exit(child());
    }
    let mut child = started(NAME);
    let what = within(&child, one_more);
    let mut calls = 0;
    while child.try_wait().unwrap().is_none() {
        let mut held = match BorrowedThread::stop_process(child.id()) {
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
fn an_ended_process_is_refused() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert_eq!(BorrowedThread::stop_process(child.id()).err(), Some(Errno::SRCH));
}

/// For a second: three words that are a program's, and none.
#[repr(transparent)]
struct Words([*const u8; 3]);

// SAFETY: what they point to is never written to.
unsafe impl Sync for Words {}

static WORDS: Words = Words([c"/bin/sleep".as_ptr().cast(), c"1".as_ptr().cast(), std::ptr::null()]);

/// Becomes another program, with execve(2).
#[unsafe(naked)]
extern "C" fn another_program() {
    core::arch::naked_asm!(
        "lea rsi, [rip + {words}]",
        "mov rdi, [rsi]",
        "xor edx, edx",
        "mov eax, 59",
        "syscall",
        "int3",
        words = sym WORDS,
    );
}

/// Becomes another user, as this thread alone, with setresuid(2).
#[unsafe(naked)]
extern "C" fn another_user() {
    core::arch::naked_asm!(
        "mov edi, 65534",
        "mov esi, 65534",
        "mov edx, 65534",
        "mov eax, 117",
        "syscall",
        "int3",
        // Not given back to: it goes on here.
        "mov edi, 7",
        "mov eax, 231",
        "syscall",
    );
}

/// The process's first thread calls a function, or one that is not the first: what comes of it, and how the process ends.
fn called(name: &str, function: extern "C" fn(), by: usize) -> Option<(Result<u64>, i32)> {
    let mut child = started(name);
    let what = within(&child, function);
    let said = BorrowedThread::stop_process(child.id()).and_then(|mut held| {
        held.threads.rotate_left(by);
        let said = held.call(what, 1);
        // It goes on without being told to.
        assert!(said.is_ok() || held.threads.is_empty(), "{said:?}, thread {by}");
        said
    });
    let status = child.wait().expect("its end");
    if said == Err(Errno::PERM) {
        eprintln!("SKIPPED: no other process may be traced here");
        return None;
    }
    Some((said, status.code().unwrap_or(-1)))
}

#[test]
fn another_program_gets_no_registers() {
    if std::env::var_os(CHILD).is_some() {
        std::process::exit(child());
    }
    for by in [0, 1] {
        let name = "remote_call::tests::another_program_gets_no_registers";
        let Some(found) = called(name, another_program, by) else { return };
        assert_eq!(found, (Err(Errno::STALE), 0), "thread {by}");
    }
}

#[test]
fn another_user_gets_no_registers() {
    if std::env::var_os(CHILD).is_some() {
        std::process::exit(child());
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: needs root, to become another user");
    }
    let name = "remote_call::tests::another_user_gets_no_registers";
    let Some(found) = called(name, another_user, 0) else { return };
    assert_eq!(found, (Err(Errno::STALE), 7));
}

/// A thread that is held ends because another one, which is not yet held, becomes another program.
#[test]
fn an_exec_during_a_remote_call_does_not_block() {
    use std::io::{Read, Write};
    use std::os::unix::process::CommandExt;
    if std::env::var_os(CHILD).is_some() {
        let other = thread::Builder::new().name("sleeper".to_owned());
        let other = other.spawn(|| thread::sleep(Duration::from_secs(60))).unwrap();
        std::io::stdin().read_exact(&mut [0]).unwrap();
        let failed = Command::new("/bin/sleep").arg("30").exec();
        drop(other);
        panic!("{failed}");
    }
    let name = "remote_call::tests::an_exec_during_a_remote_call_does_not_block";
    let mut command = Command::new("/proc/self/exe");
    command.args([name, "--exact"]).env(CHILD, "1").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let sleeper = |child: &Child| {
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).ok()?.flatten();
        let mut tasks = tasks.map(|task| task.path());
        let found = tasks.find(|task| fs::read(task.join("comm")).is_ok_and(|name| name == b"sleeper\n"))?;
        found.file_name()?.to_str()?.parse().ok()
    };
    let last: libc::pid_t = loop {
        match sleeper(&child) {
            Some(thread) => break thread,
            None => thread::sleep(LOOK),
        }
    };
    match ptrace(libc::PTRACE_SEIZE, last, 0, OPTIONS) {
        Err(Errno::PERM) => eprintln!("SKIPPED: no other process may be traced here"),
        seized => {
            seized.unwrap();
            child.stdin.take().unwrap().write_all(b"x").unwrap();
            thread::sleep(Duration::from_millis(200));
            let begun = BorrowedThread { threads: vec![last], signal: 0 };
            let begin = Instant::now();
            // It is held as what it is now, or cannot be held; in the kernel nobody waits for the end of the other one.
            let held = begun.and_all(child.id());
            assert!(begin.elapsed() < 4 * PATIENCE, "{held:?} after {:?}", begin.elapsed());
        }
    }
    // Whoever traces it may have seen its end.
    let _ = (child.kill(), child.wait());
}
