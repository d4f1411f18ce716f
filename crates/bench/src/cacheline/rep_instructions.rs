//! Repeated instructions, which would be a step for every byte: a thread does one of them as a whole, up to a breakpoint of the
//! processor's at the instruction behind it.

use nix::Result;
use nix::libc::{c_long, user};
use nix::sys::ptrace;
use nix::unistd::Pid;

/// Below so many repetitions, steps are as quick.
pub(super) const FEW: u64 = 4;
/// Breakpoint 0, for this thread, when an instruction is to be done.
const ENABLED: c_long = 1;
/// The register that says which breakpoints there are; the first ones say where.
const CONTROL: usize = 7;

/// Lets a thread stop at `address` when it goes on.
pub(super) fn stop_at(id: Pid, address: u64) -> Result<()> {
    write(id, 0, address.cast_signed())?;
    write(id, CONTROL, ENABLED)
}

/// The thread stops there no more.
pub(super) fn stop_nowhere(id: Pid) -> Result<()> {
    write(id, CONTROL, 0)
}

fn write(id: Pid, register: usize, value: c_long) -> Result<()> {
    let offset = std::mem::offset_of!(user, u_debugreg) + register * size_of::<c_long>();
    ptrace::write_user(id, std::ptr::without_provenance_mut(offset), value)
}
