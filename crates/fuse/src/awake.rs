//! Keeping the machine's processors out of their deeper idle states while requests come in numbers.
//!
//! A round trip wakes the worker's processor and then the client's. On a virtual machine that does not poll when idle,
//! each costs 10 to 15 microseconds, more than everything else together. The kernel has an interface for
//! exactly this: whoever holds `/dev/cpu_dma_latency` open, with a 0 written to it, has idle processors wait in a
//! polling loop. It needs privileges, it concerns the whole machine, and an idle processor then takes as much
//! from its host as a busy one: so it is an option ([`crate::Workers::keep_awake`]), and held only while it pays.

use std::fs::File;
use std::io::Write;

/// So many requests within a tick of the watchdog (2 ms) make it worth while.
const MANY: u64 = 16;
/// So many ticks with fewer requests end it.
const QUIET_TICKS: u32 = 5;

/// The session's request to the kernel, while it is held.
#[derive(Debug)]
pub(crate) struct Awake {
    /// None: not wanted, or not permitted.
    path: Option<&'static str>,
    held: Option<File>,
    quiet: u32,
}

impl Awake {
    pub(crate) const fn new(wanted: bool) -> Self {
        Self { path: if wanted { Some("/dev/cpu_dma_latency") } else { None }, held: None, quiet: 0 }
    }

    /// A tick has gone by with so many requests; returns whether processors are kept awake from now on.
    pub(crate) fn pulse(&mut self, requests: u64) -> bool {
        let Some(path) = self.path else { return false };
        if requests >= MANY {
            self.quiet = 0;
            if self.held.is_none() {
                match hold(path) {
                    Ok(file) => self.held = Some(file),
                    Err(error) => {
                        tracing::warn!(%error, path, "processors cannot be kept awake");
                        self.path = None;
                    }
                }
            }
        } else {
            self.quiet += 1;
            if self.quiet >= QUIET_TICKS {
                self.held = None;
            }
        }
        self.held.is_some()
    }
}

fn hold(path: &str) -> std::io::Result<File> {
    let mut file = File::options().write(true).open(path)?;
    // Microseconds, as a native i32.
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_while_there_is_much_to_do() {
        let mut awake = Awake { path: Some("/dev/null"), held: None, quiet: 0 };
        assert!(!awake.pulse(3));
        assert!(awake.pulse(MANY));
        for _ in 1..QUIET_TICKS {
            assert!(awake.pulse(1));
        }
        assert!(!awake.pulse(1));
        let mut missing = Awake { path: Some("/dev/no-such-thing"), held: None, quiet: 0 };
        assert!(!missing.pulse(1000) && missing.path.is_none());
        assert!(!Awake::new(false).pulse(1000));
    }
}
