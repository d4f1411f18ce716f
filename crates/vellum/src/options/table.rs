//! The options of a mount: what each is called, means, and sets. `vellum --help`, the reference and the manual show
//! this table.
//!
//! A meaning is Markdown, with links as seen from `docs/src/reference`. Its first sentence is enough for `--help`. The
//! default is its last sentence.

use super::bad_input::{BadInput, quote};
use super::model::{LogTarget, Options};
use super::tokenizer::{self, RawOption};
use super::values::{
    at_most, block_copy, bytes, choice, id_map, layer, listed, needed, number, os, path, plain, put, seconds,
    text,
};
use Set::{Flag, Value};
use std::num::NonZeroUsize;
use vellum_service::config::{
    AccessTimes, BlockMap, FillAtEnd, LayerWriters, OverrideStat, Profile, Propagation, WEIGHTS, WORKERS_MAX,
};
use vellum_service::process::cpu_idle::KeepAwake;

/// Options of one kind.
#[derive(Debug)]
pub struct Section {
    pub title: &'static str,
    /// What holds for all of them, in paragraphs.
    pub text: &'static str,
    pub rows: &'static [Row],
}

/// An option, or some with one meaning.
#[derive(Debug)]
pub struct Row {
    /// As they are written, with a comma and a space between two.
    pub syntax: &'static str,
    pub meaning: &'static str,
    set: Set,
}

/// What an option sets. Its name is given.
#[derive(Debug)]
pub(super) enum Set {
    /// It takes no value.
    Flag(fn(&mut Options, &str)),
    Value(fn(&mut Options, &str, RawOption<'_>) -> Result<(), BadInput>),
    /// It is a switch of the command line.
    Switch,
}

impl Row {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let names = self.syntax.split(", ").filter_map(|option| option.split(['=', '[']).next());
        names.filter(|_| !matches!(self.set, Set::Switch))
    }
}

const fn row(syntax: &'static str, meaning: &'static str, set: Set) -> Row {
    Row { syntax, meaning, set }
}

const LAYERS: &[Row] = &[
    row(
        "lowerdir=DIR[:DIR...]",
        "Layers that are only read, the top one first. At most 500; empty parts are ignored. A former \
         upper layer may be one.",
        Value(|o, key, raw| {
            let text = needed(key, raw, "give it as lowerdir=DIR[:DIR...]")?;
            o.config.lowers = tokenizer::layers(text).into_iter().map(listed).collect();
            Ok(())
        }),
    ),
    row(
        "lowerdir+=DIR",
        "One more layer below those given so far. A colon is an ordinary character.",
        Value(|o, key, raw| {
            o.config.lowers.push(layer(plain(key, raw, "give it as lowerdir+=DIR")?));
            Ok(())
        }),
    ),
    row(
        "upperdir=DIR",
        "The layer that takes changes. One mount writes to it at a time: a second one waits up to 2 s and \
         is refused; with `ro` any number may read it. Default: a read-only mount.",
        Value(|o, key, raw| put(&mut o.config.upper, plain(key, raw, "give it as upperdir=DIR").map(layer))),
    ),
    row(
        "workdir=DIR",
        "Unfinished changes. On the mounted filesystem of `upperdir`, neither inside the other, one for \
         each mount.",
        Value(|o, key, raw| put(&mut o.config.work, plain(key, raw, "give it as workdir=DIR").map(layer))),
    ),
];

const CEPHFS: &[Row] = &[
    row(
        "ceph.conf=FILE",
        "Configuration of the cluster. Default: the pool's, the variable `CEPH_CONF`, \
         `/etc/ceph/ceph.conf`.",
        Value(|o, key, raw| put(&mut o.cluster.conf, plain(key, raw, "write ceph.conf=FILE").map(path))),
    ),
    row(
        "ceph.id=NAME",
        "The client. `admin` means `client.admin`. Default: the pool's, `admin`.",
        Value(|o, key, raw| put(&mut o.cluster.id, text(key, raw, "write ceph.id=NAME, without client."))),
    ),
    row(
        "ceph.fs=NAME",
        "The filesystem. Default: the pool's, the cluster's default.",
        Value(|o, key, raw| put(&mut o.cluster.filesystem, text(key, raw, "write ceph.fs=NAME"))),
    ),
    row(
        "ceph.write=sync|back",
        "When the cluster gets a change of an [upper layer there](../guide/ceph.md#the-upper-layer): \
         before the answer, or later (write-back). At `fsync` it gets all changes. A crash of the service \
         loses nothing in either case. Default: `sync`.",
        Value(|o, key, raw| {
            put(&mut o.written.writeback, choice(key, raw, &[("sync", false), ("back", true)]))
        }),
    ),
    row(
        "ceph.dirty=SIZE",
        "The most that waits with `ceph.write=back`, 4m to 64g. Default: 64m.",
        Value(|o, key, raw| put(&mut o.written.bytes, bytes(key, raw, "write a number of bytes, e.g. 64M"))),
    ),
    row(
        "ceph.age=SECONDS",
        "The longest that it waits, 0.1 to 3600. Default: 5.",
        Value(|o, key, raw| put(&mut o.written.age, seconds(key, raw))),
    ),
];

const OWNERS: &[Row] = &[
    row(
        "uidmapping=LAYER:MOUNT:LEN[:...]",
        "User ids LAYER and so on of the layers show as MOUNT and so on, LEN of them. Ids without a \
         mapping show and are stored as 65534. Default: the pool's `--uid-range`.",
        Value(|o, key, raw| put(&mut o.config.uid_map, id_map(key, raw))),
    ),
    row(
        "gidmapping=LAYER:MOUNT:LEN[:...]",
        "The same for groups. Default: the pool's `--uid-range`.",
        Value(|o, key, raw| put(&mut o.config.gid_map, id_map(key, raw))),
    ),
    row("squash_to_root", "Everything shows as owned by root.", Flag(|o, _| o.squash_to_root = true)),
    row(
        "squash_to_uid=UID",
        "Everything shows as owned by this user.",
        Value(|o, key, raw| put(&mut o.config.squash_uid, number(key, raw, 0, u32::MAX - 1))),
    ),
    row(
        "squash_to_gid=GID",
        "Everything shows as owned by this group.",
        Value(|o, key, raw| put(&mut o.config.squash_gid, number(key, raw, 0, u32::MAX - 1))),
    ),
    row(
        "xattr_permissions=0|1|2",
        "Owner, mode and type are in the inode (0), or in an attribute of security.* (1) or user.* (2). \
         With 1 it is `security.fuseoverlayfs.override_stat`. With 2 it is \
         `user.fuseoverlayfs.override_stat`, or `user.containers.override_stat` if the upper layer's root \
         has that. The root of the upper layer is marked in the same way, so later mounts show the same. \
         2 is refused for an upper layer whose owners are in the inodes. Default: 0.",
        Value(|o, key, raw| {
            let named = [("0", None), ("1", Some(OverrideStat::Privileged)), ("2", Some(OverrideStat::User))];
            put(&mut o.config.override_owners, choice(key, raw, &named))
        }),
    ),
    row(
        "idmap",
        "Allows clones of the mount with mapped ids also in a pool with `profile=passthrough`. Programs \
         then receive no files. Elsewhere they are allowed anyway, on Linux 6.13 and later.",
        Flag(|o, _| o.config.idmap = true),
    ),
];

const DATA_PATH: &[Row] = &[
    row(
        "profile=cached|passthrough",
        "File data pass the page cache of the mount, or the kernel uses the layer's file \
         [directly](../guide/profiles.md), which needs root of the host. Default: `cached`.",
        Value(|o, key, raw| put(&mut o.config.profile, choice(key, raw, &Profile::NAMES))),
    ),
    row(
        "writeback=0",
        "In `cached`, each write reaches the layer at once. So it reports a full disk. Default: 1.",
        Value(|o, key, raw| {
            let through = raw.value.is_some() && number(key, raw, 0, 1)? == 0;
            put(&mut o.config.write_through, Ok(through))
        }),
    ),
    row("no_writeback_cache", "As `writeback=0`.", Flag(|o, _| o.config.write_through = true)),
    row(
        "volatile",
        "`fsync` does nothing. After a crash of the machine the upper layer must be thrown away. Default: \
         durable.",
        Flag(|o, _| o.config.volatile = true),
    ),
    row(
        "fsync=0",
        "As `volatile`.",
        Value(|o, key, raw| put(&mut o.config.volatile, number(key, raw, -1, i32::MAX).map(|n| n == 0))),
    ),
    row(
        "block_copy=SIZE|off",
        "Lower files from this size on are [copied block by block](../guide/blocks.md) as they are \
         written to. Default: 128k, `passthrough` 1m.",
        Value(|o, key, raw| put(&mut o.config.block_copy, block_copy(key, raw))),
    ),
    row(
        "block_map=holes|sidecar",
        "Record of the copied blocks: holes of the file, or a file in `.vellum.maps` of the upper layer. \
         Default: `holes`.",
        Value(|o, key, raw| {
            let named = [("holes", BlockMap::Holes), ("sidecar", BlockMap::Sidecar)];
            put(&mut o.config.block_map, choice(key, raw, &named))
        }),
    ),
    row(
        "background_fill=RATE",
        "Completes partial files while the mount is idle, in bytes per second. Default: off.",
        Value(|o, key, raw| {
            put(&mut o.config.background_fill, bytes(key, raw, "write bytes per second, e.g. 64M"))
        }),
    ),
    row(
        "fill_at_end=SIZE|off",
        "Completes files after the mount has ended, at most SIZE in all. Default: 1g.",
        Value(|o, key, raw| {
            let most = if raw.value == Some(b"off") {
                0
            } else {
                bytes(key, raw, "write off, or the most bytes that may be copied, e.g. 1G")?
            };
            (o.config.fill_at_end, o.fills) = (FillAtEnd(most), most > 0);
            Ok(())
        }),
    ),
    row(
        "cache=off|shared|immutable",
        "Lower layers are read through the service's [data cache](../guide/cache.md): not at all, though \
         others may change them, or because nobody does. Default: `off`.",
        Value(|o, key, raw| {
            let (shared, immutable) = (Some(LayerWriters::Shared), Some(LayerWriters::Immutable));
            put(
                &mut o.cache,
                choice(key, raw, &[("off", None), ("shared", shared), ("immutable", immutable)]),
            )
        }),
    ),
    row(
        "cache_size=SIZE",
        "Size of that cache, at least 1m. Default: 256m.",
        Value(|o, key, raw| put(&mut o.cache_size, bytes(key, raw, "write a number of bytes, e.g. 256M"))),
    ),
    row(
        "weight=N",
        "The mount's share of that cache under contention, 1 to 10000. Default: the pool's \
         `--mount-weight`, otherwise 100.",
        Value(|o, key, raw| put(&mut o.config.weight, number(key, raw, *WEIGHTS.start(), *WEIGHTS.end()))),
    ),
    row(
        "max_read=BYTES",
        "The largest read request. Default: the kernel's.",
        Value(|o, key, raw| put(&mut o.config.max_read, number(key, raw, 0, u32::MAX))),
    ),
];

const BEHAVIOUR: &[Row] = &[
    row(
        "pool=NAME",
        "The [pool](../guide/pools.md) that serves the mount. Default: the pool that claims the layers.",
        Value(|o, key, raw| put(&mut o.pool, plain(key, raw, "write pool=NAME").map(os))),
    ),
    row(
        "timeout=SECONDS",
        "How long the kernel may believe names and attributes. With 0 other processes may change which \
         names lower layers have. Default: a day.",
        Value(|o, key, raw| put(&mut o.config.timeout, seconds(key, raw))),
    ),
    row(
        "attr_timeout=SECONDS, entry_timeout=SECONDS",
        "As in libfuse: the shorter one is the timeout, unless `timeout` is given.",
        Value(|o, key, raw| {
            let time = seconds(key, raw)?;
            o.timeout_of_libfuse = Some(o.timeout_of_libfuse.map_or(time, |other| other.min(time)));
            Ok(())
        }),
    ),
    row(
        "workers=N",
        "Threads that answer requests, 1 to 64. Default: 8; with CephFS up to 32.",
        Value(|o, key, raw| put(&mut o.config.workers, number(key, raw, 1, WORKERS_MAX as i32).map(at_most))),
    ),
    row(
        "max_threads=N",
        "As in libfuse: the same number, at most 64.",
        Value(|o, key, raw| put(&mut o.config.workers, number(key, raw, -1, i32::MAX).map(at_most))),
    ),
    row(
        "threaded=0",
        "One thread.",
        Value(|o, key, raw| {
            if number(key, raw, -1, i32::MAX)? == 0 {
                o.config.workers = Some(NonZeroUsize::MIN);
            }
            Ok(())
        }),
    ),
    row(
        "keep_awake=auto|on|off",
        "[Processors do not sleep](../guide/profiles.md#small-requests-and-sleeping-processors) while \
         many requests arrive. It needs privilege. Default: `auto`, which is on where there are \
         at most 4 processors.",
        Value(|o, key, raw| {
            let named = [("auto", KeepAwake::Auto), ("on", KeepAwake::On), ("off", KeepAwake::Off)];
            let alone = raw.value.is_none();
            put(&mut o.config.keep_awake, if alone { Ok(KeepAwake::On) } else { choice(key, raw, &named) })
        }),
    ),
    row("static_nlink", "Directories show a link count of 1.", Flag(|o, _| o.config.static_nlink = true)),
    row("noacl", "No POSIX access control lists.", Flag(|o, _| o.config.no_acl = true)),
    row(
        "noxattrs=1",
        "No extended attributes for users.",
        Value(|o, key, raw| put(&mut o.config.no_xattrs, number(key, raw, -1, i32::MAX).map(|n| n > 0))),
    ),
    row(
        "log=FILTER",
        "What is logged: `error`, `warn`, `info`, `debug`, `trace`, or `target=level` with escaped \
         commas. Default: the variable `VELLUM_LOG`, `warn`.",
        Value(|o, key, raw| put(&mut o.log, text(key, raw, "write e.g. log=info"))),
    ),
    row(
        "log_to=stderr|syslog|kmsg|FILE",
        "Where it is logged. Default: the variable `VELLUM_LOG_TO`; standard error in the foreground, \
         otherwise the system log.",
        Value(|o, key, raw| {
            put(
                &mut o.log_to,
                plain(key, raw, "write log_to=stderr, syslog, kmsg or a file's path").map(LogTarget::named),
            )
        }),
    ),
    row("debug", "As the switch `-d`.", Flag(|o, _| o.debug = true)),
];

const THE_MOUNT_ITSELF: &[Row] = &[
    row("ro, rw", "Read-only, writable.", Flag(|o, key| o.config.flags.read_only = key == "ro")),
    row(
        "dev, nodev",
        "As in mount(8). Default: `nodev`.",
        Flag(|o, key| o.config.flags.dev = Some(key == "dev")),
    ),
    row(
        "suid, nosuid",
        "As in mount(8). Default: `nosuid` for ordinary users.",
        Flag(|o, key| o.config.flags.suid = Some(key == "suid")),
    ),
    row("exec, noexec", "As in mount(8).", Flag(|o, key| o.config.flags.exec = Some(key == "exec"))),
    row(
        "noatime, relatime, atime, strictatime",
        "Access times, for files of the upper layer in `passthrough` on Linux 6.15. Otherwise reading \
         sets none. `atime` means `relatime`. Default: `noatime`.",
        Flag(|o, key| {
            o.access_times = Some(match key {
                "noatime" => AccessTimes::Never,
                "strictatime" => AccessTimes::Always,
                _ => AccessTimes::Relative,
            })
        }),
    ),
    row("nodiratime", "Without one of these: as `relatime`.", Flag(|o, _| o.nodiratime = true)),
    row("sync, async", "As in mount(8).", Flag(|o, key| o.config.flags.sync = key == "sync")),
    row("dirsync", "As in mount(8).", Flag(|o, _| o.config.flags.dirsync = true)),
    row(
        "allow_other",
        "Other users may enter. For ordinary users `/etc/fuse.conf` must permit it (`user_allow_other`). \
         Default: on for root.",
        Flag(|o, _| (o.config.allow_other, o.config.allow_root) = (Some(true), false)),
    ),
    row(
        "allow_root",
        "For root's mounts: root only. Refused to other users.",
        Flag(|o, _| o.config.allow_root = true),
    ),
    row(
        "private, shared, slave, unbindable, rprivate, rshared, rslave, runbindable",
        "Propagation, as in mount(8). Ordinary users get the host's.",
        Flag(|o, key| {
            o.config.propagation = Some(match key.strip_prefix('r').unwrap_or(key) {
                "private" => Propagation::Private,
                "shared" => Propagation::Shared,
                "slave" => Propagation::Slave,
                _ => Propagation::Unbindable,
            })
        }),
    ),
    row(
        "fsname=NAME",
        "The source that mount(8) shows.",
        Value(|o, key, raw| put(&mut o.config.source, plain(key, raw, "write fsname=NAME").map(os))),
    ),
    row(
        "subtype=NAME",
        "The type after `fuse.` that mount(8) shows.",
        Value(|o, key, raw| put(&mut o.config.subtype, plain(key, raw, "write subtype=NAME").map(os))),
    ),
    row(
        "context=LABEL, fscontext=LABEL, defcontext=LABEL, rootcontext=LABEL",
        "SELinux labels, as in mount(8).",
        Value(|o, key, raw| {
            let label = os(plain(key, raw, "write it with a label, or leave it out")?);
            o.config.labels.retain(|(other, _)| other != key);
            o.config.labels.push((key.into(), label));
            Ok(())
        }),
    ),
    row(
        "auto_unmount",
        "Unmounts if no service can be started any more. Without it the mount stays and gives ENOTCONN.",
        Flag(|o, _| o.config.auto_unmount = true),
    ),
    row("remount", "Changes the flags of an existing mount.", Flag(|o, _| o.remount = true)),
];

const SWITCHES: &[Row] = &[
    row(
        "-f",
        "Stay in the foreground and log to standard error. For `mount.fuse.vellum`: check the options, \
         mount nothing.",
        Set::Switch,
    ),
    row("-d, --debug", "Stay in the foreground and log everything.", Set::Switch),
    row("-s", "Answer one request at a time. For `mount.fuse.vellum`: ignore unknown options.", Set::Switch),
    row("-r, -w", "The options `ro` and `rw`.", Set::Switch),
    row("-V, --version, -h, --help", "Print the version, this summary.", Set::Switch),
    row("-n, -v, -t TYPE", "Accepted without effect.", Set::Switch),
];

const ACCEPTED_WITHOUT_EFFECT: &[Row] = &[
    row(
        "verity=off",
        "Of the kernel's overlayfs. Other values are refused.",
        Value(|_, key, raw| choice(key, raw, &[("off", ())])),
    ),
    row(
        "plugins",
        "Of fuse-overlayfs. With a value it is refused.",
        Value(|_, key, raw| match raw.value.filter(|value| !value.is_empty()) {
            None => Ok(()),
            Some(value) => {
                let why = "layers by plugins are not supported";
                Err(BadInput::value(key, value, why, "leave the option out, give layers as directories"))
            }
        }),
    ),
];

/// All options that are not [`SILENT`], and the switches.
pub static SECTIONS: &[Section] = &[
    Section {
        title: "Layers",
        text: "In place of `DIR` may stand:

- `ceph:PATH`, a [directory on CephFS](../guide/ceph.md); `upperdir` and `workdir` both or neither.
- `zoned:DEVICE/DIR`, a [directory in a store](../guide/zoned.md); likewise. Such an upper layer needs \
no lower layer.

The words `ceph` and `zoned` with a colon belong to the path that follows. Local directories of these names \
are written `./ceph` and `./zoned`.",
        rows: LAYERS,
    },
    Section { title: "CephFS", text: "", rows: CEPHFS },
    Section { title: "Owners", text: "", rows: OWNERS },
    Section { title: "Data path", text: "", rows: DATA_PATH },
    Section {
        title: "Behaviour",
        text: "A pool's service takes `log` and `log_to` from the variables of the process that started it.",
        rows: BEHAVIOUR,
    },
    Section { title: "The mount itself", text: "", rows: THE_MOUNT_ITSELF },
    Section { title: "Switches", text: "", rows: SWITCHES },
    Section { title: "Accepted without effect", text: "", rows: ACCEPTED_WITHOUT_EFFECT },
];

/// Options that change nothing, by those who take them. They are for other programs, or ask for what Vellum does
/// anyway.
pub static SILENT: &[(&str, &str)] = &[
    (
        "mount(8), fstab and systemd",
        "auto noauto user nouser users nousers owner noowner group nogroup nofail defaults _netdev comment silent loud \
         diratime iversion noiversion mand nomand lazytime nolazytime symfollow nosymfollow helper uhelper norelatime \
         nostrictatime",
    ),
    // What they have done already to the labels of a volume.
    ("Engines", "z Z"),
    (
        "libfuse",
        "uid gid umask fmask dmask nonempty big_writes user_id group_id rootmode large_read default_permissions \
         async_read sync_read atomic_o_trunc max_write max_readahead max_background congestion_threshold no_remote_lock \
         no_remote_posix_lock no_remote_flock splice_read no_splice_read splice_write no_splice_write splice_move \
         no_splice_move clone_fd max_idle_threads async_dio auto_inval_data no_auto_inval_data writeback_cache auto_cache \
         noauto_cache kernel_cache readdirplus nopath intr intr_signal use_ino readdir_ino hard_remove noforget remember \
         negative_timeout ac_attr_timeout direct_io parallel_direct_writes readdirplus_auto blksize",
    ),
    ("fuse-overlayfs", "fast_ino nfs_filehandles xino"),
    (
        "The kernel's overlayfs",
        "index nfs_export metacopy uuid redirect_dir userxattr override_creds nooverride_creds",
    ),
];

/// What an option sets, by its name.
pub(super) fn find(key: &str) -> Option<&'static Set> {
    rows().find(|row| row.names().any(|name| name == key)).map(|row| &row.set)
}

fn rows() -> impl Iterator<Item = &'static Row> {
    SECTIONS.iter().flat_map(|section| section.rows)
}

/// Whether an option is taken and changes nothing.
pub(super) fn is_silent(key: &str) -> bool {
    SILENT.iter().any(|(_, names)| names.split(' ').any(|name| name == key))
        || key.starts_with("x-")
        || key.starts_with("X-")
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
    // Two letters are near everything that is short.
    let known = rows().flat_map(Row::names).filter(|known| known.len() > 2);
    known.map(|known| (distance(known), known)).filter(|(d, _)| *d <= 2).min().map(|(_, known)| known)
}
