//! Waits for a time, whose end must not come too soon for a service that is slowed down.
//!
//! A wait that has run out goes on until the service has done as many instructions as it does in that time when nobody steps
//! it. A limit that is a point in time, and no length, is not minded.

use super::clock::PER_NANOSECOND;
use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use std::time::{Duration, Instant};

/// A call that a thread is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    number: u64,
    /// Where it reads to, if it reads.
    buffer: u64,
    begun: Instant,
    /// Instructions that the service had done.
    instructions: u64,
}

impl Call {
    /// A thread with these registers is about to enter the kernel.
    pub(super) fn begin(registers: &user_regs_struct, instructions: u64) -> Self {
        Self { number: registers.rax, buffer: registers.rsi, begun: Instant::now(), instructions }
    }

    /// It is back. Where it has read something: the address and the number of bytes.
    pub(super) fn has_read(&self, registers: &user_regs_struct) -> Option<(u64, u64)> {
        let read = self.number.cast_signed() == libc::SYS_read && registers.rax.cast_signed() > 0;
        read.then_some((self.buffer, registers.rax))
    }

    /// It is back. Where it has waited until its time ran out: the instructions after which that would have been.
    pub(super) fn expired_instructions(&self, registers: &user_regs_struct) -> Option<u64> {
        let result = registers.rax.cast_signed();
        let number = self.number.cast_signed();
        let ran_out = match number {
            libc::SYS_futex => result == -i64::from(Errno::ETIMEDOUT as i32),
            libc::SYS_nanosleep
            | libc::SYS_clock_nanosleep
            | libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait => result == 0,
            _ => false,
        };
        ran_out.then(|| self.instructions.saturating_add(instructions(self.begun.elapsed())))
    }
}

fn instructions(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(PER_NANOSECOND)
}

#[cfg(test)]
mod tests {
    use super::super::decode::tests::registers;
    use super::*;

    #[test]
    fn an_expired_timeout_counts_as_that_many_instructions() {
        let with = |rax: i64| user_regs_struct { rax: rax.cast_unsigned(), ..registers() };
        let wait = Call::begin(&with(libc::SYS_futex), 1000);
        std::thread::sleep(Duration::from_millis(2));
        assert!(wait.expired_instructions(&with(-110)).unwrap() > 2_000_000);
        assert_eq!(wait.expired_instructions(&with(0)), None);
        assert!(Call::begin(&with(libc::SYS_ppoll), 0).expired_instructions(&with(0)).is_some());
        let read = Call::begin(&user_regs_struct { rsi: 0x7000, ..with(libc::SYS_read) }, 0);
        assert_eq!(
            (read.expired_instructions(&with(0)), read.has_read(&with(0)), read.has_read(&with(-11))),
            (None, None, None)
        );
        assert_eq!(read.has_read(&with(80)), Some((0x7000, 80)));
        assert_eq!(wait.has_read(&with(80)), None);
    }
}
