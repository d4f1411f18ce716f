//! INIT: what the kernel offers, what we ask for, what comes out.

use crate::session::inflight::Inflight;
use crate::wire::{self, InitFlags, InitIn, InitOut};
use std::ffi::CStr;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vellum_vfs::{Duties, Profile};

/// What a session is to be like. Every number is a wish: the kernel's own limits cut it down.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How file data travels.
    pub profile: Profile,
    /// Collect writes in the kernel's page cache (with [`Profile::Cached`]). A read-only instance is better without: with
    /// it, the kernel asks for the attributes of every file that was closed.
    pub writeback: bool,
    /// Largest WRITE and READ (bytes); cut to [`MAX_WRITE_LIMIT`] and to the kernel's `max_pages_limit`.
    pub max_write: u32,
    /// Largest read-ahead (bytes). The kernel offers 128 KiB; more is set through sysfs where that is permitted.
    pub max_readahead: u32,
    /// How worker threads are used.
    pub workers: Workers,
    /// Honour POSIX ACLs; the filesystem then applies the umask (it must look for a default ACL first).
    pub posix_acl: bool,
    /// The mount was made with `default_permissions`: the kernel checks permission.
    pub default_permissions: bool,
    /// Refuse handles (name_to_handle_at), instead of answering LOOKUP of "." and "..".
    pub no_export: bool,
    /// How deep filesystems may be stacked, this one included, with passthrough. 1: a kernel overlayfs may be
    /// mounted on top, but backing files may not lie on one; 2: the other way round.
    pub max_stack_depth: u32,
    /// Allow idmapped mounts, where the kernel offers it (Linux 6.12). Needs `default_permissions`. The caller's uid and gid then
    /// come only with what creates something (mapped); in every other request both are [`vellum_vfs::UNKNOWN`], and
    /// [`vellum_vfs::Context::ids`] asks for them, from Linux 6.13 on.
    pub allow_idmap: bool,
    /// Most requests in the background (read-ahead, writeback) at a time.
    pub max_background: u16,
    /// Where requests in flight are written down for a successor of the process; None: there will be none.
    pub inflight: Option<Arc<Inflight>>,
    /// An extended attribute whose reading makes the filesystem do something that takes long. Others are served meanwhile.
    pub slow_xattr: Option<&'static CStr>,
}

/// Upper limit of [`SessionOptions::max_write`] in bytes: 1024 pages, as `max_pages` is 16 bits wide and buffers
/// are kept per worker.
pub const MAX_WRITE_LIMIT: u32 = 4 << 20;

/// Most workers of one session.
pub const WORKERS_MAX: usize = 64;

/// How worker threads are used; see [`crate::Session`] for the measurements behind the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Most threads, 1 to [`WORKERS_MAX`]. They are started as they are needed.
    pub max: usize,
    /// Most threads as long as all of them wait for something that the filesystem waits for; less than `max`: as many.
    pub most: usize,
    /// How long a worker waits awake for the next request before it goes to sleep; zero: not at all. It stops by
    /// itself where that does not pay.
    pub spin: Duration,
}

impl Default for Workers {
    fn default() -> Self {
        Self { max: 8, most: 8, spin: Duration::from_micros(60) }
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            profile: Profile::Cached,
            writeback: true,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            workers: Workers::default(),
            posix_acl: true,
            default_permissions: true,
            no_export: false,
            max_stack_depth: 1,
            allow_idmap: false,
            max_background: 64,
            inflight: None,
            slow_xattr: None,
        }
    }
}

/// What kernel and session have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionParameters {
    /// Major version of the protocol.
    pub major: u32,
    /// Minor version that both speak.
    pub minor: u32,
    /// What the kernel offered.
    pub offered: InitFlags,
    /// What is in use.
    pub flags: InitFlags,
    /// Largest WRITE (bytes).
    pub max_write: u32,
    /// Largest read-ahead (bytes).
    pub max_readahead: u32,
    /// Levels of stacking that passthrough may use; 0 without passthrough.
    pub max_stack_depth: u32,
    /// The profile asked for.
    pub profile: Profile,
    /// Whether the kernel checks permission.
    pub default_permissions: bool,
}

impl SessionParameters {
    /// What a filesystem may count on.
    #[must_use]
    pub fn duties(&self) -> Duties {
        let mut duties = Duties::empty();
        let cached = self.profile == Profile::Cached;
        duties.set(Duties::SERVES_FILES, self.flags.contains(InitFlags::PASSTHROUGH));
        duties.set(Duties::OPENS_FILES, cached && self.flags.contains(InitFlags::NO_OPEN_SUPPORT));
        duties.set(Duties::OPENS_DIRS, self.flags.contains(InitFlags::NO_OPENDIR_SUPPORT));
        duties.set(Duties::COLLECTS_WRITES, self.flags.contains(InitFlags::WRITEBACK_CACHE));
        // The kernel turns its own checks on with ACLs.
        let acl = self.flags.contains(InitFlags::POSIX_ACL);
        duties.set(Duties::CHECKS_PERMISSION, self.default_permissions || acl);
        duties.set(Duties::CHECKS_ACL, acl);
        duties
    }

    /// As numbers, for a successor of the process.
    #[must_use]
    pub fn to_numbers(&self) -> [u64; 9] {
        [
            self.major.into(),
            self.minor.into(),
            self.offered.bits(),
            self.flags.bits(),
            self.max_write.into(),
            self.max_readahead.into(),
            self.max_stack_depth.into(),
            (self.profile == Profile::Passthrough).into(),
            self.default_permissions.into(),
        ]
    }

    /// From what a predecessor has left; None: they are none.
    #[must_use]
    pub fn from_numbers(numbers: [u64; 9]) -> Option<Self> {
        let [major, minor, offered, flags, max_write, max_readahead, depth, profile, permissions] = numbers;
        let number = |value: u64| u32::try_from(value).ok();
        Some(Self {
            major: number(major)?,
            minor: number(minor)?,
            offered: InitFlags::from_bits_retain(offered),
            flags: InitFlags::from_bits_retain(flags),
            max_write: number(max_write).filter(|bytes| *bytes <= MAX_WRITE_LIMIT)?,
            max_readahead: number(max_readahead)?,
            max_stack_depth: number(depth)?,
            profile: if profile == 0 { Profile::Cached } else { Profile::Passthrough },
            default_permissions: permissions != 0,
        })
    }

    /// The flags in use, by name.
    pub fn flag_names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.flags.iter_names().map(|(name, _)| name)
    }
}

impl fmt::Display for SessionParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "FUSE {}.{}, profile {}, max_write {} KiB:",
            self.major,
            self.minor,
            self.profile,
            self.max_write >> 10
        )?;
        self.flag_names().try_for_each(|name| write!(f, " {}", name.to_ascii_lowercase()))
    }
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitProblem {
    /// The kernel speaks a newer major version and waits for ours; another INIT follows.
    NewerMajor,
    /// The kernel is too old.
    TooOld(u32, u32),
}

/// Everything that is asked for where it is offered, whatever the options.
const ALWAYS: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::NO_OPENDIR_SUPPORT)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::INIT_EXT)
    .union(InitFlags::CREATE_SUPP_GROUP)
    .union(InitFlags::HAS_EXPIRE_ONLY)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::HAS_RESEND);

/// What the kernel is set to, for all mounts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Most pages of a request.
    pub(crate) max_pages_limit: u32,
    /// Seconds after which it ends a connection whose server has not answered a request and says nothing of its own; 0: never.
    pub(crate) default_request_timeout: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_pages_limit: 256, default_request_timeout: 0 }
    }
}

impl Settings {
    /// Those of this machine.
    pub(crate) fn detect() -> Self {
        let number = |name: &str| {
            std::fs::read_to_string(Path::new("/proc/sys/fs/fuse").join(name)).ok()?.trim().parse().ok()
        };
        let usual = Self::default();
        Self {
            max_pages_limit: number("max_pages_limit").unwrap_or(usual.max_pages_limit),
            default_request_timeout: number("default_request_timeout").unwrap_or_default(),
        }
    }
}

/// Works out the answer to INIT.
pub(crate) fn negotiate(
    options: &SessionOptions,
    init: &InitIn,
    ext: Option<&wire::InitExtIn>,
    settings: Settings,
) -> Result<(SessionParameters, InitOut), InitProblem> {
    if init.major > wire::MAJOR {
        return Err(InitProblem::NewerMajor);
    }
    if init.major < wire::MAJOR || init.minor < wire::MINOR_OLDEST {
        return Err(InitProblem::TooOld(init.major, init.minor));
    }
    let mut offered = u64::from(init.flags);
    if let Some(ext) = ext.filter(|_| offered & InitFlags::INIT_EXT.bits() != 0) {
        offered |= u64::from(ext.flags2) << 32;
    }
    let offered = InitFlags::from_bits_retain(offered);

    let mut wanted = ALWAYS;
    match options.profile {
        Profile::Cached => {
            wanted |= InitFlags::NO_OPEN_SUPPORT;
            wanted.set(InitFlags::WRITEBACK_CACHE, options.writeback);
        }
        Profile::Passthrough => wanted |= InitFlags::PASSTHROUGH | InitFlags::ATOMIC_O_TRUNC,
    }
    if options.posix_acl && offered.contains(InitFlags::POSIX_ACL) {
        wanted |= InitFlags::POSIX_ACL | InitFlags::DONT_MASK;
    }
    wanted |= if options.no_export { InitFlags::NO_EXPORT_SUPPORT } else { InitFlags::EXPORT_SUPPORT };
    if options.allow_idmap && options.default_permissions {
        wanted |= InitFlags::ALLOW_IDMAP;
    }
    // A service may be held for long, by a debugger or by whoever moves its machine, and a mount that the kernel has ended is lost. One
    // that says nothing of its own is measured by the default; without a default the kernel measures nothing.
    if settings.default_request_timeout != 0 {
        wanted |= InitFlags::REQUEST_TIMEOUT;
    }
    let flags = wanted & offered;

    let pages = if flags.contains(InitFlags::MAX_PAGES) {
        (options.max_write.min(MAX_WRITE_LIMIT) / 4096)
            .clamp(1, settings.max_pages_limit.clamp(1, u16::MAX.into()))
    } else {
        32
    };
    let stack = if flags.contains(InitFlags::PASSTHROUGH) { options.max_stack_depth.clamp(1, 2) } else { 0 };
    let negotiated = SessionParameters {
        major: wire::MAJOR,
        minor: init.minor.min(wire::MINOR_NEWEST),
        offered,
        flags,
        max_write: pages * 4096,
        max_readahead: init.max_readahead.min(options.max_readahead),
        max_stack_depth: stack,
        profile: options.profile,
        default_permissions: options.default_permissions,
    };
    let reply = InitOut {
        major: wire::MAJOR,
        minor: negotiated.minor,
        max_readahead: negotiated.max_readahead,
        flags: flags.bits() as u32,
        max_background: options.max_background,
        congestion_threshold: options.max_background / 4 * 3,
        max_write: negotiated.max_write,
        time_gran: 1,
        max_pages: pages as u16,
        flags2: (flags.bits() >> 32) as u32,
        max_stack_depth: stack,
        request_timeout: if flags.contains(InitFlags::REQUEST_TIMEOUT) { u16::MAX } else { 0 },
        ..InitOut::default()
    };
    Ok((negotiated, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: InitFlags) -> (InitIn, Option<wire::InitExtIn>) {
        let init = InitIn { major: 7, minor, max_readahead: 131_072, flags: flags.bits() as u32 };
        (init, Some(wire::InitExtIn { flags2: (flags.bits() >> 32) as u32, unused: [0; 11] }))
    }

    #[test]
    fn the_profiles_exclude_each_other() {
        let (init, ext) = offer(45, InitFlags::all());
        for (profile, yes, no) in [
            (Profile::Cached, InitFlags::WRITEBACK_CACHE, InitFlags::PASSTHROUGH),
            (Profile::Passthrough, InitFlags::PASSTHROUGH, InitFlags::WRITEBACK_CACHE),
        ] {
            let options = SessionOptions { profile, ..SessionOptions::default() };
            let (negotiated, _) = negotiate(&options, &init, ext.as_ref(), Settings::default()).unwrap();
            assert!(negotiated.flags.contains(yes) && !negotiated.flags.intersects(no));
            assert_eq!(negotiated.max_stack_depth, u32::from(profile == Profile::Passthrough));
        }
    }

    #[test]
    fn an_old_kernel_gets_supported_flags_only() {
        let old = InitFlags::from_bits_truncate((1 << 27) - 1);
        let (init, _) = offer(31, old);
        let (negotiated, reply) =
            negotiate(&SessionOptions::default(), &init, None, Settings::default()).unwrap();
        assert_eq!((negotiated.minor, reply.flags2), (31, 0));
        assert!(!negotiated.flags.contains(InitFlags::INIT_EXT));
        assert!(negotiated.duties().contains(Duties::OPENS_FILES | Duties::COLLECTS_WRITES));
        let (init, _) = offer(30, old);
        assert_eq!(
            negotiate(&SessionOptions::default(), &init, None, Settings::default()).unwrap_err(),
            InitProblem::TooOld(7, 30)
        );
    }

    #[test]
    fn upper_flags_need_init_ext() {
        let (init, ext) = offer(45, InitFlags::all() - InitFlags::INIT_EXT);
        let (negotiated, _) =
            negotiate(&SessionOptions::default(), &init, ext.as_ref(), Settings::default()).unwrap();
        assert_eq!(negotiated.flags.bits() >> 32, 0);
    }

    #[test]
    fn limits_hold() {
        let (init, ext) = offer(45, InitFlags::all());
        let options = SessionOptions { max_write: u32::MAX, max_stack_depth: 9, ..SessionOptions::default() };
        let (negotiated, reply) = negotiate(
            &options,
            &init,
            ext.as_ref(),
            Settings { max_pages_limit: 65535, ..Settings::default() },
        )
        .unwrap();
        assert_eq!(negotiated.max_write, MAX_WRITE_LIMIT);
        assert_eq!(reply.max_pages, 1024);
        let (negotiated, _) = negotiate(&options, &init, ext.as_ref(), Settings::default()).unwrap();
        assert_eq!(negotiated.max_write, 1 << 20);
    }

    #[test]
    fn the_default_request_timeout_is_not_adopted() {
        let (init, ext) = offer(45, InitFlags::all());
        let options = SessionOptions::default();
        for (default_request_timeout, named) in [(0, 0), (15, u16::MAX)] {
            let settings = Settings { default_request_timeout, ..Settings::default() };
            let (negotiated, reply) = negotiate(&options, &init, ext.as_ref(), settings).unwrap();
            assert_eq!(reply.request_timeout, named);
            assert_eq!(negotiated.flags.contains(InitFlags::REQUEST_TIMEOUT), named != 0);
        }
    }

    #[test]
    fn idmapped_mounts_need_the_kernels_permission_checks() {
        let (init, ext) = offer(45, InitFlags::all());
        for (default_permissions, expected) in [(true, true), (false, false)] {
            let options = SessionOptions { allow_idmap: true, default_permissions, ..Default::default() };
            let (negotiated, _) = negotiate(&options, &init, ext.as_ref(), Settings::default()).unwrap();
            assert_eq!(negotiated.flags.contains(InitFlags::ALLOW_IDMAP), expected);
        }
    }
}
