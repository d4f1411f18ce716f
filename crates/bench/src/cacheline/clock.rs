//! The time that a service sees while it is stepped: a nanosecond for each instruction.
//!
//! By the real clock a thread that looks after the others every few milliseconds would look between any two of their
//! instructions, and find them late. So what the clock says is put right when a thread has read it, and see [`super::stretched_timeouts`].

use nix::libc::user_regs_struct;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Instructions in a nanosecond: about as many as there are, by a thread that does not wait.
pub(super) const PER_NANOSECOND: u64 = 1;
const SECOND: u64 = 1_000_000_000;
/// CLOCK_MONOTONIC and its kin, which time limits are made of. No address is such a number, so nothing else that the kernel lets
/// a process ask without a call begins like asking for them.
const CLOCKS: [u64; 4] = [1, 4, 6, 7];

/// Where a thread wants to be told the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockRead {
    clock: u64,
    to: u64,
}

/// The clocks of a service.
#[derive(Debug)]
pub(super) struct Clocks {
    /// The kernel's functions in the process.
    vdso: Range<u64>,
    /// What they said before the first instruction, in nanoseconds.
    begun: HashMap<u64, u64>,
}

impl Clocks {
    pub(super) fn new(vdso: Range<u64>) -> Self {
        Self { vdso, begun: HashMap::new() }
    }

    /// A thread with these registers goes on: remembers when it asks for the time, and answers when it has been told.
    pub(super) fn follow(
        &mut self,
        asked: &mut Option<ClockRead>,
        registers: &user_regs_struct,
        instructions: u64,
        memory: &File,
    ) -> io::Result<()> {
        if self.vdso.contains(&registers.rip) {
            if asked.is_none() && CLOCKS.contains(&registers.rdi) {
                *asked = Some(ClockRead { clock: registers.rdi, to: registers.rsi });
            }
            return Ok(());
        }
        let Some(ClockRead { clock, to }) = asked.take() else { return Ok(()) };
        let (mut seconds, mut nanoseconds) = ([0; 8], [0; 8]);
        memory.read_exact_at(&mut seconds, to)?;
        memory.read_exact_at(&mut nanoseconds, to + 8)?;
        let real = u64::from_ne_bytes(seconds) * SECOND + u64::from_ne_bytes(nanoseconds);
        let passed = instructions / PER_NANOSECOND;
        let now = self.begun.entry(clock).or_insert(real.saturating_sub(passed)).saturating_add(passed);
        memory.write_all_at(&(now / SECOND).to_ne_bytes(), to)?;
        memory.write_all_at(&(now % SECOND).to_ne_bytes(), to + 8)
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::tests::registers;
    use super::*;

    #[test]
    fn stepped_threads_read_a_clock_that_counts_instructions() {
        let memory = tempfile::tempfile().unwrap();
        let mut clocks = Clocks::new(0x1000..0x2000);
        let mut tell = |rdi: u64, real: [u64; 2], instructions: u64| {
            let mut asked = None;
            memory.write_all_at(&real.map(u64::to_ne_bytes).concat(), 64).unwrap();
            for rip in [0x1000, 0x1010, 0x5000] {
                let registers = user_regs_struct { rip, rdi, rsi: 64, ..registers() };
                clocks.follow(&mut asked, &registers, instructions, &memory).unwrap();
            }
            [64, 72].map(|at| {
                let mut word = [0; 8];
                memory.read_exact_at(&mut word, at).unwrap();
                u64::from_ne_bytes(word)
            })
        };
        assert_eq!(tell(1, [50, SECOND - 10], 5), [50, SECOND - 10]);
        assert_eq!(tell(1, [90, 0], 25), [51, 10]);
        // The time of day is left as it is, and so is what else there is to ask for.
        assert_eq!(tell(0, [90, 3], 25), [90, 3]);
        assert_eq!(tell(0x7fff_0000, [90, 3], 25), [90, 3]);
    }
}
