//! Every system call that Vellum uses, behind a trait, and the calls of libcephfs.
//!
//! [`Sys`] is the trait, [`Real`] the kernel. `unsafe` stays in the small modules that wrap
//! calls for which no safe wrapper exists.
#![allow(unsafe_code, reason = "system calls")]

mod call;
pub mod ceph;
mod clone_files;
mod code_pages;
pub mod cpu_latency;
pub mod crash_point;
mod daemon;
mod fork_shared_words;
pub mod fuse_dev;
mod lease;
mod lock;
mod map;
mod mode;
pub mod mount;
mod mountinfo;
mod persistent_memory;
mod pidfd;
mod proc_path;
mod process;
mod remote_call;
mod remove_tree;
mod resolve_beneath;
mod seccomp;
mod shared_region;
mod socket;
mod stat;
mod stat_fs;
mod sys;
mod thread_signal;
mod uncached_stat;
mod usage;
mod wait;
mod xattr;
pub mod zoned;

pub use call::Call;
pub use clone_files::{
    InheritedFds, close_all_but, end_process, fork_with_descriptors, keep_over_exec, open_descriptors,
    signal_on_data,
};
pub use code_pages::{drop_code, find_code};
pub use daemon::{BlockedSignals, Fork, become_io_flusher, fork, reset_signals, thread_count};
pub use fork_shared_words::{FAMILY_WORDS, ForkSharedWords};
pub use lease::{has_writers, ignore_leases, lease_to_read, open_beside_leases, release_lease};
pub use lock::{LockKind, is_ofd_shared};
pub use map::ReadMap;
pub use mountinfo::{Mount, mounts, parse_mounts, top_mount};
pub use persistent_memory::{MemoryKind, MemoryWord, PersistentMemory, SEAL_EXEC};
pub use pidfd::{Ids, THREAD, ids_of, ids_of_thread, peer_process, process_of_thread};
pub use process::{
    clear_umask, descriptor_limit, lift_limits, limit_allocator, raise_descriptor_limit, trim_memory,
    unshare_ipc, unshare_mounts,
};
pub use remote_call::{BorrowedThread, RemoteFunction};
pub use remove_tree::{remove_tree, remove_tree_at};
pub use seccomp::{FilterInstruction, install_filter};
pub use shared_region::SharedRegion;
pub use socket::{
    Peer, SENT_AT_ONCE, has_unread, peek_message, peer, refuse_rights, refuses_rights, send_with,
};
pub use stat::{Stat, Time};
pub use stat_fs::FsStat;
pub use sys::{Real, Result, Sys};
pub use thread_signal::signal_thread;
pub use uncached_stat::uncached_size;
pub use usage::{Usage, UsageScope, usage};
pub use vellum_ring::{fnv1a, memory};
pub use wait::{wait_for, wait_until};
pub use xattr::XattrTarget;

/// For tests: from now on this process does without the calls that not every supported kernel has (openat2, statx,
/// fchmodat2, getxattrat and its kin), and goes the ways that older kernels need.
pub fn avoid_new_calls() {
    use std::sync::atomic::Ordering::Relaxed;
    for missing in [&resolve_beneath::NO_OPENAT2, &stat::NO_STATX, &mode::NO_FCHMODAT2, &xattr::NO_XATTRAT] {
        missing.store(true, Relaxed);
    }
}
