//! What an instruction writes, said before it is done.

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    UsedMemory,
};
use nix::libc::user_regs_struct;

/// No instruction is longer.
pub(super) const LONGEST: usize = 15;

/// No repetition is believed to write more: its count may be anything before it fails.
const LONGEST_REPETITION: u64 = 1 << 26;
/// The flag by which repetitions go down.
const DOWNWARDS: u64 = 1 << 10;

/// An instruction, as far as it matters here.
#[derive(Clone, Debug, Default)]
pub(super) struct DecodedInstruction {
    /// Whether it holds its line for itself while it reads and writes.
    pub(super) locked: bool,
    /// Whether it repeats itself, and is met once more after each time.
    pub(super) repeats: bool,
    /// Where the next one is.
    pub(super) behind: u64,
    /// Whether it enters the kernel, and may stay there.
    pub(super) is_call: bool,
    /// What it reads or writes at a time.
    unit: u64,
    writes: Vec<UsedMemory>,
}

/// Decodes the instruction at `address`, which `bytes` begin with; None when it is none.
pub(super) fn decode(bytes: &[u8], address: u64) -> Option<DecodedInstruction> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let mut factory = InstructionInfoFactory::new();
    let writes = factory.info(&instruction).used_memory();
    Some(DecodedInstruction {
        behind: instruction.next_ip(),
        unit: instruction.memory_size().size() as u64,
        locked: instruction.has_lock_prefix() || is_exchange(&instruction),
        repeats: instruction.is_string_instruction()
            && (instruction.has_rep_prefix() || instruction.has_repne_prefix()),
        is_call: instruction.mnemonic() == Mnemonic::Syscall,
        writes: writes.iter().filter(|memory| is_write(memory.access())).copied().collect(),
    })
}

/// An exchange with memory is locked, whether it says so or not.
fn is_exchange(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Xchg
        && [instruction.op0_kind(), instruction.op1_kind()].contains(&OpKind::Memory)
}

/// Those under a condition too: a compare-and-exchange takes the line for itself, whatever it finds.
fn is_write(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

impl DecodedInstruction {
    /// The first and the last address of each write with these registers.
    pub(super) fn writes(&self, registers: &user_regs_struct) -> impl Iterator<Item = (u64, u64)> {
        // A repetition of no times.
        let none = self.repeats && registers.rcx == 0;
        self.writes.iter().filter(move |_| !none).filter_map(|memory| {
            let first = memory.virtual_address(0, |register, _, _| value(register, registers))?;
            // Of a repetition only the unit has a size.
            let len = if self.repeats { self.unit } else { memory.memory_size().size() as u64 }.max(1);
            let times = if self.repeats { registers.rcx.max(1) } else { 1 };
            let more = len.saturating_mul(times - 1).min(LONGEST_REPETITION);
            let first = if registers.eflags & DOWNWARDS == 0 { first } else { first.wrapping_sub(more) };
            Some((first, first.wrapping_add(more + len - 1)))
        })
    }
}

/// The value of a register that takes part in an address.
fn value(register: Register, of: &user_regs_struct) -> Option<u64> {
    let whole = match register.full_register() {
        // Their bases are 0 in 64-bit code.
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        Register::FS => of.fs_base,
        Register::GS => of.gs_base,
        Register::RAX => of.rax,
        Register::RBX => of.rbx,
        Register::RCX => of.rcx,
        Register::RDX => of.rdx,
        Register::RSI => of.rsi,
        Register::RDI => of.rdi,
        Register::RBP => of.rbp,
        Register::RSP => of.rsp,
        Register::R8 => of.r8,
        Register::R9 => of.r9,
        Register::R10 => of.r10,
        Register::R11 => of.r11,
        Register::R12 => of.r12,
        Register::R13 => of.r13,
        Register::R14 => of.r14,
        Register::R15 => of.r15,
        _ => return None,
    };
    let is_half = register.size() == 4 && register.is_gpr32();
    Some(if is_half { whole & u64::from(u32::MAX) } else { whole })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const RAX: u64 = 0x1000;
    const RCX: u64 = 0x10;
    const RDI: u64 = 0x2000_0000_2000;
    const RSP: u64 = 0x8000;
    const FS: u64 = 0x7000_0000;

    pub(in crate::cacheline) fn registers() -> user_regs_struct {
        user_regs_struct {
            rax: RAX,
            rcx: RCX,
            rdi: RDI,
            rsp: RSP,
            fs_base: FS,
            rbx: 0,
            rdx: 0,
            rsi: 0,
            rbp: 0,
            r8: 0,
            r9: 0,
            r10: 0,
            r11: 0,
            r12: 0,
            r13: 0,
            r14: 0,
            r15: 0,
            orig_rax: 0,
            rip: 0,
            cs: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
            ss: 0,
            eflags: 0,
            gs_base: 0,
        }
    }

    fn locked_and_writes(bytes: &[u8]) -> (bool, Vec<(u64, u64)>) {
        let decoded = decode(bytes, 0x40_0000).unwrap();
        (decoded.locked, decoded.writes(&registers()).collect())
    }

    /// How it is written, its bytes, whether it is locked, and what it writes.
    type Case = (&'static str, &'static [u8], bool, &'static [(u64, u64)]);

    #[test]
    fn decoded_instructions_have_their_written_addresses() {
        let cases: [Case; 16] = [
            ("lock xadd [rax],rcx", &[0xf0, 0x48, 0x0f, 0xc1, 0x08], true, &[(RAX, RAX + 7)]),
            ("lock cmpxchg [rdi],cl", &[0xf0, 0x0f, 0xb0, 0x0f], true, &[(RDI, RDI)]),
            ("xchg [rdi],eax", &[0x87, 0x07], true, &[(RDI, RDI + 3)]),
            ("xchg rax,rdi", &[0x48, 0x97], false, &[]),
            ("mov [rsp-8],rax", &[0x48, 0x89, 0x44, 0x24, 0xf8], false, &[(RSP - 8, RSP - 1)]),
            ("mov rax,[rsp-8]", &[0x48, 0x8b, 0x44, 0x24, 0xf8], false, &[]),
            ("mov [edi],al", &[0x67, 0x88, 0x07], false, &[(0x2000, 0x2000)]),
            ("movups [rax+rcx*2],xmm0", &[0x0f, 0x11, 0x04, 0x48], false, &[(RAX + 32, RAX + 47)]),
            (
                "add qword [rip+0x10],1",
                &[0x48, 0x83, 0x05, 0x10, 0, 0, 0, 1],
                false,
                &[(0x40_0018, 0x40_001f)],
            ),
            ("movsb", &[0xa4], false, &[(RDI, RDI)]),
            ("rep movsb", &[0xf3, 0xa4], false, &[(RDI, RDI + 15)]),
            ("rep stosq", &[0xf3, 0x48, 0xab], false, &[(RDI, RDI + 127)]),
            ("push rax", &[0x50], false, &[(RSP - 8, RSP - 1)]),
            ("call +0", &[0xe8, 0, 0, 0, 0], false, &[(RSP - 8, RSP - 1)]),
            (
                "mov fs:[0x28],rax",
                &[0x64, 0x48, 0x89, 0x04, 0x25, 0x28, 0, 0, 0],
                false,
                &[(FS + 40, FS + 47)],
            ),
            ("lea rax,[rdi]", &[0x48, 0x8d, 0x07], false, &[]),
        ];
        for (name, bytes, locked, writes) in cases {
            assert_eq!(locked_and_writes(bytes), (locked, writes.to_vec()), "{name}");
        }
    }

    #[test]
    fn a_repetition_of_no_times_writes_nothing() {
        let decoded = decode(&[0xf3, 0xa4], 0).unwrap();
        assert!(decoded.repeats);
        assert_eq!(decoded.writes(&user_regs_struct { rcx: 0, ..registers() }).count(), 0);
    }

    #[test]
    fn a_repetition_can_go_down() {
        let down = user_regs_struct { eflags: DOWNWARDS, ..registers() };
        let decoded = decode(&[0xf3, 0x48, 0xab], 0x100).unwrap();
        assert_eq!(decoded.writes(&down).collect::<Vec<_>>(), [(RDI - 120, RDI + 7)]);
        assert_eq!(decoded.behind, 0x103);
    }

    #[test]
    fn system_calls_and_invalid_instructions_are_recognised() {
        assert!(decode(&[0x0f, 0x05], 0).unwrap().is_call);
        assert!(!decode(&[0xe8, 0, 0, 0, 0], 0).unwrap().is_call);
        assert!(decode(&[0x06], 0).is_none() && decode(&[], 0).is_none());
    }
}
