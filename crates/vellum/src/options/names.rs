//! Names of options: those that change nothing, and what a misspelt one may have meant.

use super::bad_input::{BadInput, quote};
use super::tokenizer::RawOption;

/// Options that mount(8), libfuse, fuse-overlayfs or kernel overlayfs take and that change nothing here. Those that
/// are for other programs (systemd, fstab) count as well.
const SILENT: &[&str] = &[
    // mount(8) and fstab
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nofail",
    "defaults",
    "_netdev",
    "comment",
    "silent",
    "loud",
    "diratime",
    "iversion",
    "noiversion",
    "mand",
    "nomand",
    "lazytime",
    "nolazytime",
    "symfollow",
    "nosymfollow",
    "helper",
    "uhelper",
    "norelatime",
    "nostrictatime",
    // of engines: what they have done already to the labels of a volume
    "z",
    "Z",
    // libfuse
    "uid",
    "gid",
    "umask",
    "fmask",
    "dmask",
    "nonempty",
    "big_writes",
    "user_id",
    "group_id",
    "rootmode",
    "large_read",
    "default_permissions",
    "async_read",
    "sync_read",
    "atomic_o_trunc",
    "max_write",
    "max_readahead",
    "max_background",
    "congestion_threshold",
    "no_remote_lock",
    "no_remote_posix_lock",
    "no_remote_flock",
    "splice_read",
    "no_splice_read",
    "splice_write",
    "no_splice_write",
    "splice_move",
    "no_splice_move",
    "clone_fd",
    "max_idle_threads",
    "async_dio",
    "auto_inval_data",
    "no_auto_inval_data",
    "writeback_cache",
    "auto_cache",
    "noauto_cache",
    "kernel_cache",
    "readdirplus",
    "nopath",
    "intr",
    "intr_signal",
    "use_ino",
    "readdir_ino",
    "hard_remove",
    "noforget",
    "remember",
    "negative_timeout",
    "ac_attr_timeout",
    "direct_io",
    "parallel_direct_writes",
    "readdirplus_auto",
    "blksize",
    // fuse-overlayfs: the tree's inode numbers and the caching are what these ask for already, or cannot be
    "fast_ino",
    "nfs_filehandles",
    "xino",
    // kernel overlayfs: redirects, marks and inode numbers are as the layers allow
    "index",
    "nfs_export",
    "metacopy",
    "uuid",
    "redirect_dir",
    "userxattr",
    "override_creds",
    "nooverride_creds",
];

/// Option names that a misspelt one may have meant.
const KNOWN: &[&str] = &[
    "lowerdir",
    "upperdir",
    "workdir",
    "uidmapping",
    "gidmapping",
    "squash_to_root",
    "squash_to_uid",
    "squash_to_gid",
    "timeout",
    "attr_timeout",
    "entry_timeout",
    "threaded",
    "fsync",
    "volatile",
    "writeback",
    "noxattrs",
    "noacl",
    "static_nlink",
    "xattr_permissions",
    "plugins",
    "profile",
    "workers",
    "idmap",
    "keep_awake",
    "cache",
    "cache_size",
    "weight",
    "ceph.conf",
    "ceph.id",
    "ceph.fs",
    "ceph.write",
    "ceph.dirty",
    "ceph.age",
    "block_copy",
    "block_map",
    "background_fill",
    "fill_at_end",
    "log",
    "log_to",
    "pool",
    "allow_other",
    "allow_root",
    "private",
    "rprivate",
    "shared",
    "rshared",
    "slave",
    "rslave",
    "unbindable",
    "runbindable",
    "fsname",
    "subtype",
    "max_read",
    "context",
    "remount",
    "relatime",
    "noatime",
    "nosuid",
    "nodev",
    "noexec",
    "dirsync",
    "auto_unmount",
    "max_threads",
];

/// Whether an option is taken and changes nothing.
pub(super) fn is_silent(key: &str) -> bool {
    SILENT.contains(&key) || key.starts_with("x-") || key.starts_with("X-")
}

/// What is said of an option whose name is not known.
pub(super) fn unknown(raw: RawOption<'_>) -> BadInput {
    let key = quote(raw.key);
    let value = raw.value.map(|value| format!("={}", quote(value))).unwrap_or_default();
    let remedy = match nearest(&key) {
        Some(known) => format!("did you mean {known}?"),
        None => "leave it out (vellum --help lists what there is)".into(),
    };
    BadInput::new(format!("option {key}{value}: unknown; {remedy}"))
}

/// The known option that is at most two edits away.
fn nearest(key: &str) -> Option<&'static str> {
    let distance = |known: &str| {
        let known: Vec<char> = known.chars().take(32).collect();
        let mut row: Vec<usize> = (0..=known.len()).collect();
        for (i, typed) in key.chars().take(32).enumerate() {
            let mut diagonal = i;
            let mut left = i + 1;
            for (cell, wanted) in row.iter_mut().skip(1).zip(&known) {
                let best = (diagonal + usize::from(typed != *wanted)).min(left + 1).min(*cell + 1);
                diagonal = *cell;
                *cell = best;
                left = best;
            }
            if let Some(first) = row.first_mut() {
                *first = i + 1;
            }
        }
        row.last().copied().unwrap_or(usize::MAX)
    };
    KNOWN.iter().map(|known| (distance(known), *known)).filter(|(d, _)| *d <= 2).min().map(|(_, known)| known)
}
