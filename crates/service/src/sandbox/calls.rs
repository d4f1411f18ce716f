//! System calls, by seccomp: a list of those that the service makes, and ENOSYS for all others.
//!
//! ENOSYS, because it is what a library expects that tries a call which the kernel may not have, and goes another way: a list that
//! lacks something costs a feature and not the mount. Nothing is killed. What is refused stands in the kernel's audit log (type
//! 1326, where auditing is on).
//!
//! Not in the list are above all: running programs, tracing and signalling others, mounts and namespaces, sockets but those of layers on
//! CephFS (one that is open for the log stays open, but finds no restarted daemon), handles of files, keys, BPF, modules, io_uring, memory that can be
//! run.
//!
//! Calls that come with requests are allowed without a look at their arguments: the kernel keeps those in a bitmap and does not
//! run the filter for them. ioctl is looked at, for it is seldom (a clone, an open in `passthrough`) and can do most.

use super::plan::{Mode, Plan};

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use vellum_sys::FilterInstruction;

// Not in libc yet; the same on every architecture that seccompiler knows.
const SYS_SETXATTRAT: c_long = 463;
const SYS_GETXATTRAT: c_long = 464;
const SYS_LISTXATTRAT: c_long = 465;
const SYS_REMOVEXATTRAT: c_long = 466;

/// With any arguments.
const ALLOWED: &[c_long] = &[
    // Requests and layers.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_copy_file_range,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_SETXATTRAT,
    SYS_GETXATTRAT,
    SYS_LISTXATTRAT,
    SYS_REMOVEXATTRAT,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_chdir,
    libc::SYS_ppoll,
    // Workers wait for requests, each for the next: of several one is to be woken.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads and signals of this process.
    libc::SYS_futex,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    // What cannot fail elsewhere: libraries do not expect that it does.
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_umask,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_getcpu,
    libc::SYS_membarrier,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_restart_syscall,
    // Whether a client is in a container; what else a descriptor of a process can do is not in the list.
    libc::SYS_pidfd_open,
    // Time and chance.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
];

/// The forms that other architectures have not; C libraries use some of them here.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_dup2,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_time,
];
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[c_long] = &[libc::SYS_renameat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ALLOWED_HERE: &[c_long] = &[];

/// FUSE_DEV_IOC_CLONE, FUSE_DEV_IOC_BACKING_OPEN, FUSE_DEV_IOC_BACKING_CLOSE, FICLONE, FIONBIO, FIOCLEX, TCGETS; PIDFD_GET_INFO: who
/// a client or a program is; FS_IOC_GETFLAGS, FS_IOC_SETFLAGS: flags of files (the kernel has both as numbers of 8 bytes).
const IOCTLS: [u64; 10] = [
    0x8004_e500,
    0x4010_e501,
    0x4004_e502,
    0x4004_9409,
    0x5421,
    0x5451,
    0x5401,
    0xc040_ff0b,
    0x8008_6601,
    0x4008_6602,
];

/// SIOCOUTQ, for services of pools: whether a program has taken what it was sent.
const PROGRAM_IOCTLS: [u64; 1] = [0x5411];

/// What libcephfs calls: it connects to its cluster and waits for that, and listens to nobody. Sockets themselves are looked at.
const CEPH: &[c_long] = &[
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
];

#[cfg(target_arch = "x86_64")]
const CEPH_HERE: &[c_long] = &[libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_pipe];
#[cfg(not(target_arch = "x86_64"))]
const CEPH_HERE: &[c_long] = &[];

/// FIONREAD: how long an answer of a name server is.
const CEPH_IOCTLS: [u64; 1] = [0x541b];

/// What is done to zones of a block device that is open to be written (`linux/blkzoned.h`): BLKREPORTZONE, BLKRESETZONE, BLKGETZONESZ,
/// BLKGETNRZONES, BLKOPENZONE, BLKCLOSEZONE, BLKFINISHZONE.
const ZONED_IOCTLS: [u64; 7] =
    [0xc010_1282, 0x4010_1283, 0x8004_1284, 0x8004_1285, 0x4010_1286, 0x4010_1287, 0x4010_1288];

/// What starts a thread, and nothing else: in the memory of its creator and in none but its namespaces.
const THREAD: u64 = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// PR_SET_VMA: the C library names its memory.
const PR_SET_VMA: u64 = 0x5356_4d41;

/// Gives up all system calls that are not in the list; with [`Mode::Warn`], has them logged. Says how many are left.
pub(super) fn restrict(plan: &Plan) -> Result<String, String> {
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let failed = |e: BackendError| e.to_string();
    let rules = rules(plan).map_err(failed)?;
    let count = rules.len();
    if plan.mode == Mode::Warn {
        install(&compile(rules, SeccompAction::Log, SeccompAction::Allow).map_err(failed)?, true)?;
        return Ok(format!("logged beside {count}"));
    }
    // The first look of the C library at clone3 is nothing to be logged, so another filter refuses it.
    let clone = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let clone = compile(clone, SeccompAction::Allow, refuse.clone()).map_err(failed)?;
    let list = compile(rules, refuse, SeccompAction::Allow).map_err(failed)?;
    install(&clone, false)?;
    // From here on there is no further filter: seccomp(2) is not in the list.
    install(&list, true)?;
    Ok(format!("{count} (seccomp)"))
}

fn install(program: &BpfProgram, log: bool) -> Result<(), String> {
    let program: Vec<FilterInstruction> = program
        .iter()
        .map(|one| FilterInstruction { code: one.code, jt: one.jt, jf: one.jf, k: one.k })
        .collect();
    vellum_sys::install_filter(&program, log).map_err(|e| e.to_string())
}

fn compile(
    rules: Rules,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let here = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, listed, here)?.try_into()
}

/// By the number of a call, the arguments that it may have; an empty list: all.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(plan: &Plan) -> Result<Rules, BackendError> {
    let mut rules: Rules = ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (*call, Vec::new())).collect();
    if plan.roots.is_none() {
        // Clients of the socket that is open.
        for call in [
            libc::SYS_accept4,
            libc::SYS_recvmsg,
            libc::SYS_recvfrom,
            libc::SYS_sendmsg,
            libc::SYS_getsockopt,
            libc::SYS_setsockopt,
        ] {
            rules.insert(call, Vec::new());
        }
        // A directory for a proof, as a mount of its own that is nowhere in the tree.
        let mounts = one(2, SeccompCmpOp::Eq, vellum_sys::mount::detached_directory_flags().bits().into())?;
        rules.insert(libc::SYS_open_tree, vec![mounts]);
    }
    if plan.ceph.is_some() {
        rules.extend(CEPH.iter().chain(CEPH_HERE).map(|call| (*call, Vec::new())));
        // TCP, and UDP to name servers; above all none of the local ones, by which daemons are reached.
        let kinds = [libc::AF_INET, libc::AF_INET6].map(|kind| one(0, SeccompCmpOp::Eq, kind as u64));
        rules.insert(libc::SYS_socket, kinds.into_iter().collect::<Result<_, _>>()?);
    }
    if plan.roots.is_none() || plan.cache || plan.ceph.is_some() || plan.zoned {
        // What is kept for a successor, which is made now where a layer can be opened only now; and the files of a cache.
        rules.insert(libc::SYS_memfd_create, Vec::new());
    }
    let is = |argument, value| one(argument, SeccompCmpOp::Eq, value);
    if plan.has_store_server() {
        // Commands at the store socket, which is open: who they are, and what they say. A pool's service, and clusters, may more.
        rules.entry(libc::SYS_accept4).or_default();
        rules.entry(libc::SYS_getsockopt).or_insert(vec![is(1, libc::SOL_SOCKET as u64)?]);
        rules.entry(libc::SYS_recvfrom).or_insert(vec![is(4, 0)?]);
        // A connection of FUSE by which the upper layer is shown as it is.
        rules.entry(libc::SYS_recvmsg).or_default();
    }
    let programs = plan.roots.is_none().then_some(PROGRAM_IOCTLS);
    let cluster = plan.ceph.is_some().then_some(CEPH_IOCTLS);
    let ioctls = IOCTLS.iter().chain(programs.as_slice().as_flattened());
    let zones = plan.zoned.then_some(ZONED_IOCTLS);
    let ioctls = ioctls.chain(cluster.as_slice().as_flattened()).chain(zones.as_slice().as_flattened());
    let ioctls: Result<_, _> = ioctls.map(|request| is(1, *request)).collect();
    rules.insert(libc::SYS_ioctl, ioctls?);
    // No memory that can be run.
    let not_run = one(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0)?;
    rules.insert(libc::SYS_mmap, vec![not_run.clone()]);
    rules.insert(libc::SYS_mprotect, vec![not_run]);
    // clone3, whose flags lie in memory, is refused by a filter of its own; C libraries then use clone.
    rules.insert(libc::SYS_clone3, Vec::new());
    rules.insert(libc::SYS_clone, vec![one(0, SeccompCmpOp::MaskedEq(THREAD | NAMESPACES), THREAD)?]);
    rules.insert(libc::SYS_prctl, vec![is(0, libc::PR_SET_NAME as u64)?, is(0, PR_SET_VMA)?]);
    // To who is at the other end already, not to an address.
    rules.insert(libc::SYS_sendto, vec![is(4, 0)?]);
    // Asking for limits, not setting them.
    rules.insert(libc::SYS_prlimit64, vec![is(2, 0)?]);
    // Ending itself with a core dump.
    let this = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![is(0, this)?]);
    Ok(rules)
}

fn one(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    // Pointers are 64 bits; the others are numbers of 32, whose upper half is whatever the caller left there.
    let pointer = value == 0 && matches!(operator, SeccompCmpOp::Eq);
    let len = if pointer { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
    SeccompRule::new(vec![SeccompCondition::new(argument, len, operator, value)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(roots: Option<crate::sandbox::Roots>) -> Plan {
        Plan {
            mode: Mode::On,
            roots,
            passthrough: false,
            writable: true,
            keep_awake: false,
            cache: false,
            ceph: None,
            zoned: false,
        }
    }

    #[test]
    fn dangerous_calls_are_not_allowed() {
        let rules = rules(&plan(Some(crate::sandbox::Roots::default()))).unwrap();
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_userfaultfd,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_recvmsg,
            libc::SYS_kill,
            libc::SYS_open_by_handle_at,
            libc::SYS_io_uring_setup,
            libc::SYS_memfd_create,
            libc::SYS_pidfd_getfd,
            libc::SYS_pidfd_send_signal,
            libc::SYS_setuid,
            libc::SYS_capset,
            libc::SYS_chroot,
            libc::SYS_pivot_root,
        ] {
            assert!(!rules.contains_key(&call), "{call}");
        }
        assert!(compile(rules, SeccompAction::Log, SeccompAction::Allow).unwrap().len() > 100);
    }

    #[test]
    fn memory_files_are_allowed_only_with_a_cache() {
        let plan = Plan { cache: true, ..plan(Some(crate::sandbox::Roots::default())) };
        assert!(rules(&plan).unwrap().contains_key(&libc::SYS_memfd_create));
    }

    #[test]
    fn client_sockets_are_allowed_only_for_clusters() {
        for roots in [None, Some(crate::sandbox::Roots::default())] {
            let pooled = roots.is_none();
            let rules = rules(&Plan { ceph: Some(Vec::new()), ..plan(roots) }).unwrap();
            assert_eq!(rules[&libc::SYS_socket].len(), 2);
            assert!(rules.contains_key(&libc::SYS_connect));
            for call in [libc::SYS_bind, libc::SYS_listen, libc::SYS_accept] {
                assert!(!rules.contains_key(&call), "{call}");
            }
            assert_eq!(rules.contains_key(&libc::SYS_accept4), pooled);
        }
        assert!(!rules(&plan(None)).unwrap().contains_key(&libc::SYS_socket));
    }

    #[test]
    fn command_sockets_are_allowed_only_for_writable_stores() {
        for (zoned, writable) in [(false, true), (true, false), (true, true)] {
            let plan = Plan { zoned, writable, ..plan(Some(crate::sandbox::Roots::default())) };
            let rules = rules(&plan).unwrap();
            for call in [libc::SYS_accept4, libc::SYS_getsockopt, libc::SYS_recvfrom, libc::SYS_recvmsg] {
                assert_eq!(rules.contains_key(&call), zoned && writable, "{call}");
            }
            for call in [libc::SYS_socket, libc::SYS_bind, libc::SYS_listen, libc::SYS_connect] {
                assert!(!rules.contains_key(&call), "{call}");
            }
        }
    }

    #[test]
    fn receiving_descriptors_is_allowed_only_in_pools() {
        assert!(rules(&plan(None)).unwrap().contains_key(&libc::SYS_recvmsg));
    }
}
