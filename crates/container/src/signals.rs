//! Signals: passed on to what runs, and before it runs a reason to stop.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vellum_service::Failure;

/// Those that end a command that does nothing about them.
const PASSED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Signals to this process from now on.
pub(super) struct Signals {
    /// The last one; 0: none.
    last: Arc<AtomicI32>,
    /// What gets them.
    child: Arc<Mutex<Option<Child>>>,
}

struct Child {
    handle: OwnedFd,
    /// It hears signals of the keyboard itself.
    at_keyboard: bool,
}

/// Those that a terminal sends to all of its foreground.
const OF_KEYBOARD: [i32; 2] = [SIGINT, SIGQUIT];

impl Signals {
    pub(super) fn watch() -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::system("cannot watch for signals").because(e);
        let mut incoming = signal_hook::iterator::Signals::new(PASSED).map_err(failed)?;
        let this = Self { last: Arc::default(), child: Arc::default() };
        let (last, child) = (Arc::clone(&this.last), Arc::clone(&this.child));
        let body = move || {
            for signal in incoming.forever() {
                // Under the lock, so that it goes to the child or is seen before there is one.
                let child = child.lock().unwrap_or_else(PoisonError::into_inner);
                last.store(signal, Ordering::SeqCst);
                pass(child.as_ref(), signal);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(body).map_err(failed)?;
        Ok(this)
    }

    /// The signal that has come, if any.
    pub(super) fn pending(&self) -> Option<i32> {
        Some(self.last.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    /// The child that gets them from now on, and any that has come already. `at_keyboard`: it is in the foreground of the same terminal,
    /// which sends its signals to both.
    pub(super) fn pass_to(&self, child: u32, at_keyboard: bool) {
        let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
        let Some(Ok(handle)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let new = child.insert(Child { handle, at_keyboard });
        if let Some(signal) = self.pending() {
            pass(Some(new), signal);
        }
    }
}

fn pass(child: Option<&Child>, signal: i32) {
    if let (Some(child), Some(named)) = (child, Signal::from_named_raw(signal))
        && !(child.at_keyboard && OF_KEYBOARD.contains(&signal))
    {
        // One that has ended just now needs none.
        let _ = pidfd_send_signal(&child.handle, named);
    }
}
