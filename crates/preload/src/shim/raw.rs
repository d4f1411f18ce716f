//! System calls, made here: no libc's, so that they touch neither `errno` nor anything that another library has put in their place.

use core::ffi::CStr;

#[cfg(target_arch = "x86_64")]
pub(crate) mod number {
    pub(crate) const READ: usize = 0;
    pub(crate) const CLOSE: usize = 3;
    pub(crate) const LSEEK: usize = 8;
    pub(crate) const FLOCK: usize = 73;
    pub(crate) const READLINKAT: usize = 267;
    pub(crate) const COPY_FILE_RANGE: usize = 326;
    pub(crate) const SENDFILE: usize = 40;
    pub(crate) const FSTAT: usize = 5;
    pub(crate) const SENDTO: usize = 44;
    pub(crate) const UMASK: usize = 95;
    pub(crate) const PRCTL: usize = 157;
    pub(crate) const SETUID: usize = 105;
    pub(crate) const SETGID: usize = 106;
    pub(crate) const SETREUID: usize = 113;
    pub(crate) const SETREGID: usize = 114;
    pub(crate) const SETGROUPS: usize = 116;
    pub(crate) const SETRESUID: usize = 117;
    pub(crate) const SETRESGID: usize = 119;
    pub(crate) const SETFSUID: usize = 122;
    pub(crate) const SETFSGID: usize = 123;
    pub(crate) const CAPSET: usize = 126;
    pub(crate) const SETXATTR: usize = 188;
    pub(crate) const GETRANDOM: usize = 318;
    pub(crate) const OPENAT: usize = 257;
    pub(crate) const NEWFSTATAT: usize = 262;
    pub(crate) const MKDIRAT: usize = 258;
    pub(crate) const RENAMEAT: usize = 264;
    pub(crate) const PPOLL: usize = 271;
    pub(crate) const SETNS: usize = 308;
    pub(crate) const SECCOMP: usize = 317;
    pub(crate) const STATX: usize = 332;
    pub(crate) const LANDLOCK_RESTRICT_SELF: usize = 446;
    pub(crate) const MMAP: usize = 9;
    pub(crate) const MUNMAP: usize = 11;
    pub(crate) const RT_SIGPROCMASK: usize = 14;
    pub(crate) const PREAD64: usize = 17;
    pub(crate) const PWRITE64: usize = 18;
    pub(crate) const FSYNC: usize = 74;
    pub(crate) const FDATASYNC: usize = 75;
    pub(crate) const WRITE: usize = 1;
    pub(crate) const MADVISE: usize = 28;
    pub(crate) const DUP2: Option<usize> = Some(33);
    pub(crate) const GETPID: usize = 39;
    pub(crate) const SOCKET: usize = 41;
    pub(crate) const CONNECT: usize = 42;
    pub(crate) const RECVMSG: usize = 47;
    pub(crate) const SETSOCKOPT: usize = 54;
    pub(crate) const FCNTL: usize = 72;
    pub(crate) const FGETXATTR: usize = 193;
    pub(crate) const GETTID: usize = 186;
    pub(crate) const TGKILL: usize = 234;
    pub(crate) const FACCESSAT: usize = 269;
    pub(crate) const CLONE: usize = 56;
    pub(crate) const CLONE3: usize = 435;
    pub(crate) const UNSHARE: usize = 272;
    pub(crate) const DUP3: usize = 292;
    pub(crate) const PREADV: usize = 295;
    pub(crate) const PWRITEV: usize = 296;
    pub(crate) const PRLIMIT64: usize = 302;
    pub(crate) const PREADV2: usize = 327;
    pub(crate) const PWRITEV2: usize = 328;
    pub(crate) const IO_URING_SETUP: usize = 425;
    pub(crate) const STATFS: usize = 137;
    pub(crate) const FLISTXATTR: usize = 196;
    pub(crate) const LLISTXATTR: usize = 195;
    pub(crate) const CLOCK_GETTIME: usize = 228;
    pub(crate) const STATMOUNT: usize = 457;
    pub(crate) const CLOSE_RANGE: usize = 436;
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod number {
    pub(crate) const STATFS: usize = 43;
    pub(crate) const FLISTXATTR: usize = 13;
    pub(crate) const LLISTXATTR: usize = 12;
    pub(crate) const CLOCK_GETTIME: usize = 113;
    pub(crate) const SETXATTR: usize = 5;
    pub(crate) const GETRANDOM: usize = 278;
    pub(crate) const FGETXATTR: usize = 10;
    pub(crate) const MKDIRAT: usize = 34;
    pub(crate) const RENAMEAT: usize = 38;
    pub(crate) const PRCTL: usize = 167;
    pub(crate) const OPENAT: usize = 56;
    pub(crate) const PPOLL: usize = 73;
    pub(crate) const NEWFSTATAT: usize = 79;
    pub(crate) const CAPSET: usize = 91;
    pub(crate) const SETREGID: usize = 143;
    pub(crate) const SETGID: usize = 144;
    pub(crate) const SETREUID: usize = 145;
    pub(crate) const SETUID: usize = 146;
    pub(crate) const SETRESUID: usize = 147;
    pub(crate) const SETRESGID: usize = 149;
    pub(crate) const SETFSUID: usize = 151;
    pub(crate) const SETFSGID: usize = 152;
    pub(crate) const SETGROUPS: usize = 159;
    pub(crate) const UMASK: usize = 166;
    pub(crate) const SENDTO: usize = 206;
    pub(crate) const SETNS: usize = 268;
    pub(crate) const SECCOMP: usize = 277;
    pub(crate) const STATX: usize = 291;
    pub(crate) const LANDLOCK_RESTRICT_SELF: usize = 446;
    pub(crate) const READ: usize = 63;
    pub(crate) const LSEEK: usize = 62;
    pub(crate) const FLOCK: usize = 32;
    pub(crate) const READLINKAT: usize = 78;
    pub(crate) const COPY_FILE_RANGE: usize = 285;
    pub(crate) const SENDFILE: usize = 71;
    pub(crate) const DUP3: usize = 24;
    pub(crate) const FCNTL: usize = 25;
    pub(crate) const FACCESSAT: usize = 48;
    pub(crate) const CLOSE: usize = 57;
    pub(crate) const WRITE: usize = 64;
    pub(crate) const PREAD64: usize = 67;
    pub(crate) const PWRITE64: usize = 68;
    pub(crate) const FSYNC: usize = 82;
    pub(crate) const FDATASYNC: usize = 83;
    pub(crate) const PREADV: usize = 69;
    pub(crate) const PWRITEV: usize = 70;
    pub(crate) const FSTAT: usize = 80;
    pub(crate) const CLONE: usize = 220;
    pub(crate) const CLONE3: usize = 435;
    pub(crate) const UNSHARE: usize = 97;
    pub(crate) const TGKILL: usize = 131;
    pub(crate) const RT_SIGPROCMASK: usize = 135;
    pub(crate) const GETPID: usize = 172;
    pub(crate) const GETTID: usize = 178;
    pub(crate) const SOCKET: usize = 198;
    pub(crate) const CONNECT: usize = 203;
    pub(crate) const SETSOCKOPT: usize = 208;
    pub(crate) const RECVMSG: usize = 212;
    pub(crate) const MUNMAP: usize = 215;
    pub(crate) const MMAP: usize = 222;
    pub(crate) const MADVISE: usize = 233;
    pub(crate) const PRLIMIT64: usize = 261;
    pub(crate) const PREADV2: usize = 286;
    pub(crate) const PWRITEV2: usize = 287;
    pub(crate) const IO_URING_SETUP: usize = 425;
    pub(crate) const CLOSE_RANGE: usize = 436;
    /// Not on this architecture.
    pub(crate) const DUP2: Option<usize> = None;
}

/// One system call: a result, or an error number negated.
///
/// # Safety
/// What the call does to memory must be right.
pub(crate) unsafe fn call(number: usize, words: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = words;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's convention; the caller answers for what the call does.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's convention; the caller answers for what the call does.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack)
        );
    }
    result
}

/// In the place of a directory's descriptor: the working directory.
pub(crate) const AT_FDCWD: i32 = -100;

/// A call that touches no memory of this process.
pub(crate) fn plain(number: usize, words: [usize; 6]) -> isize {
    // SAFETY: every call of this library that comes here takes plain numbers, or addresses that the kernel only reads or that are
    // borrowed by the caller.
    unsafe { call(number, words) }
}

pub(crate) const fn word(fd: i32) -> usize {
    fd as isize as usize
}

pub(crate) fn close(fd: i32) -> isize {
    plain(number::CLOSE, [word(fd), 0, 0, 0, 0, 0])
}

pub(crate) fn getpid() -> u32 {
    plain(number::GETPID, [0; 6]) as u32
}

/// Flags of an open file; negative: none.
pub(crate) fn flags_of(fd: i32) -> isize {
    const F_GETFL: usize = 3;
    plain(number::FCNTL, [word(fd), F_GETFL, 0, 0, 0, 0])
}

pub(crate) fn get_xattr(fd: i32, name: &CStr, buf: &mut [u8]) -> isize {
    let to = buf.as_mut_ptr() as usize;
    plain(number::FGETXATTR, [word(fd), name.as_ptr() as usize, to, buf.len(), 0, 0])
}

/// Whether there is something at a path.
pub(crate) fn exists(path: &CStr) -> bool {
    plain(number::FACCESSAT, [word(AT_FDCWD), path.as_ptr() as usize, 0, 0, 0, 0]) == 0
}

/// What statfs(2) and statmount(2) call FUSE.
pub(crate) const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;

/// Flag of a mount: reading sets no access times.
pub(crate) const ST_NOATIME: u64 = 0x400;

/// The flags of the mount that a path leads to, if FUSE serves it.
pub(crate) fn fuse_flags(path: &CStr) -> Option<u64> {
    // `struct statfs`: 120 bytes, with the kind at first, and flags behind nine words.
    let mut words = [0u64; 16];
    let done = plain(number::STATFS, [path.as_ptr() as usize, words.as_mut_ptr() as usize, 0, 0, 0, 0]);
    let [kind, .., flags, _, _, _, _, _] = words;
    (done == 0 && kind == FUSE_SUPER_MAGIC).then_some(flags)
}

/// The time of day, as the times of files are.
pub(crate) fn seconds() -> i64 {
    const CLOCK_REALTIME: usize = 0;
    let mut now = [0i64; 2];
    plain(number::CLOCK_GETTIME, [CLOCK_REALTIME, &raw mut now as usize, 0, 0, 0, 0]);
    now[0]
}

/// Kind and permissions, and size, of an open file.
pub(crate) fn stat(fd: i32) -> Option<(u32, u64)> {
    let mut words = [0u64; 32];
    let at = words.as_mut_ptr() as usize;
    if plain(number::FSTAT, [word(fd), at, 0, 0, 0, 0]) != 0 {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    let mode = words[3] as u32;
    #[cfg(target_arch = "aarch64")]
    let mode = words[2] as u32;
    Some((mode, words[6]))
}

/// A new mapping to read from, of a file that others may write to.
pub(crate) fn map_file(fd: i32, len: usize) -> Option<usize> {
    const PROT_READ: usize = 1;
    const SHARED_NORESERVE: usize = 0x1 | 0x4000;
    address(plain(number::MMAP, [0, len, PROT_READ, SHARED_NORESERVE, word(fd), 0]))
}

/// A page of private memory that a child made by fork finds empty.
pub(crate) fn map_wiped_page() -> Option<usize> {
    const READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS: usize = 0x22;
    const MADV_WIPEONFORK: usize = 18;
    let at = address(plain(number::MMAP, [0, 4096, READ_WRITE, PRIVATE_ANONYMOUS, usize::MAX, 0]))?;
    if plain(number::MADVISE, [at, 4096, MADV_WIPEONFORK, 0, 0, 0]) != 0 {
        unmap(at, 4096);
        return None;
    }
    Some(at)
}

/// A new mapping of memory that another process has too, which a child made by fork does not get.
pub(crate) fn map_shared(fd: i32, len: usize) -> Option<usize> {
    const READ_WRITE: usize = 3;
    const SHARED: usize = 1;
    const MADV_DONTFORK: usize = 10;
    let at = address(plain(number::MMAP, [0, len, READ_WRITE, SHARED, word(fd), 0]))?;
    if plain(number::MADVISE, [at, len, MADV_DONTFORK, 0, 0, 0]) != 0 {
        unmap(at, len);
        return None;
    }
    Some(at)
}

/// Empty memory where a mapping of this library's was, unless something else is there.
pub(crate) fn map_empty_at(at: usize, len: usize) {
    const READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS_FIXED_NOREPLACE: usize = 0x10_0022;
    plain(number::MMAP, [at, len, READ_WRITE, PRIVATE_ANONYMOUS_FIXED_NOREPLACE, usize::MAX, 0]);
}

fn address(result: isize) -> Option<usize> {
    (!(-4095..=0).contains(&result)).then_some(result as usize)
}

/// Takes a mapping away that was made here and that nobody reads any more.
pub(crate) fn unmap(at: usize, len: usize) {
    plain(number::MUNMAP, [at, len, 0, 0, 0, 0]);
}

/// The calling thread's blocked signals.
pub(crate) fn blocked_signals() -> u64 {
    let mut mask = 0u64;
    plain(number::RT_SIGPROCMASK, [0, 0, &raw mut mask as usize, 8, 0, 0]);
    mask
}

/// Sends the calling thread a signal.
pub(crate) fn raise(signal: i32) {
    let thread = plain(number::GETTID, [0; 6]) as usize;
    plain(number::TGKILL, [getpid() as usize, thread, signal as usize, 0, 0, 0]);
}

/// Another number for an open file, from `low` on; it is closed on exec.
pub(crate) fn duplicate(fd: i32, low: usize) -> Option<i32> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    let new = plain(number::FCNTL, [word(fd), F_DUPFD_CLOEXEC, low, 0, 0, 0]);
    i32::try_from(new).ok().filter(|new| *new >= 0)
}

/// How many descriptors this process may have.
pub(crate) fn descriptor_limit() -> u64 {
    const RLIMIT_NOFILE: usize = 7;
    let mut limit = [0u64; 2];
    plain(number::PRLIMIT64, [0, RLIMIT_NOFILE, 0, &raw mut limit as usize, 0, 0]);
    limit[0]
}

/// Whether the address space has a limit.
pub(crate) fn space_is_limited() -> bool {
    const RLIMIT_AS: usize = 9;
    let mut limit = [u64::MAX; 2];
    let done = plain(number::PRLIMIT64, [0, RLIMIT_AS, 0, &raw mut limit as usize, 0, 0]);
    done != 0 || limit[0] != u64::MAX
}

pub(crate) fn write(fd: i32, text: &[u8]) {
    plain(number::WRITE, [word(fd), text.as_ptr() as usize, text.len(), 0, 0, 0]);
}

/// Ends the process.
pub(crate) fn abort() -> ! {
    const SIGABRT: i32 = 6;
    const SIGKILL: i32 = 9;
    raise(SIGABRT);
    loop {
        raise(SIGKILL);
    }
}
