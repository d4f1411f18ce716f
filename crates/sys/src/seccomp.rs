//! Installing a filter of system calls.

use crate::daemon::last_errno;
use rustix::io::Errno;

/// An instruction of a filter program: `struct sock_filter` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterInstruction {
    /// What to do.
    pub code: u16,
    /// Instructions to leave out when a comparison holds.
    pub jt: u8,
    /// Instructions to leave out when a comparison does not hold.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// seccomp(2)'s flags; the libc crate has not all of them on every target.
const FLAG_LOG: libc::c_uint = 1 << 1;
const FLAG_SPEC_ALLOW: libc::c_uint = 1 << 2;

/// Filters the system calls of this thread, and of all that it starts from now on, for ever. `log`: what the filter refuses is told
/// to the kernel's audit log, where there is one. EACCES: neither privileged nor without new privileges; EINVAL: no filter that
/// the kernel takes.
pub fn install_filter(program: &[FilterInstruction], log: bool) -> Result<(), Errno> {
    let mut instructions: Vec<libc::sock_filter> = program
        .iter()
        .map(|one| libc::sock_filter { code: one.code, jt: one.jt, jf: one.jf, k: one.k })
        .collect();
    let len = u16::try_from(instructions.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: instructions.as_mut_ptr() };
    // The process runs no code but its own, so that the slow-down against guessing across code of others (before Linux 5.16)
    // would buy nothing. Kernels without a flag refuse it.
    let log = if log { FLAG_LOG } else { 0 };
    for flags in [log | FLAG_SPEC_ALLOW, log, 0] {
        // SAFETY: `program` names as many instructions as it says, which live for the whole call; the kernel copies and checks
        // them.
        let result = unsafe {
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
        };
        match if result == 0 { Ok(()) } else { Err(last_errno()) } {
            Err(Errno::INVAL) if flags != 0 => {}
            other => return other,
        }
    }
    Err(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_is_no_filter() {
        // In a thread of its own: what it may do no longer, others still may.
        std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            assert_eq!(install_filter(&[], false), Err(Errno::INVAL));
            // "Allow everything" is one.
            let allow = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
            assert_eq!(install_filter(&[allow], true), Ok(()));
        })
        .join()
        .unwrap();
    }
}
