//! Control groups as files: what is read of them, and where a share is written.
//!
//! Version 2: `memory.low`, which the kernel's reclaim leaves alone as long as it finds enough elsewhere. Version 1 has no such
//! thing: there it is `memory.limit_in_bytes`, moved as shares move.

use super::control::GroupSample;
use super::oom::Oom;
use super::total_limit::{self, Host};
use rustix::fs::{FlockOperation, XattrFlags, flock, getxattr, removexattr, setxattr};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vellum_pool::cgroup::{Controller, Hierarchies, Version};
use vellum_service::Failure;

/// What a limit was before, as an attribute of the group: a killed process leaves it to the next one.
const BEFORE: &str = "trusted.vellum.before";
/// As [`BEFORE`], of the limit of all groups together.
const BOUND_BEFORE: &str = "trusted.vellum.bound";
/// A limit in version 1 leaves at least so much beyond what cannot be dropped, in bytes.
const FLOOR: u64 = 8 << 20;
/// Of what the groups hold, an eighth stays unprotected where others of the host compete for the same memory.
const PROTECTED: (u64, u64) = (7, 8);
/// Longest wait for somebody who is about to end, and the time between two looks.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);
/// A group that was short of memory keeps its old limit for so long.
const RELIEF: Duration = Duration::from_secs(5);
/// Version 1 has no word for "no limit" but numbers as large as this.
const NO_LIMIT: u64 = 1 << 62;

/// The group whose children share.
#[derive(Debug)]
pub(super) struct Parent {
    dir: PathBuf,
    version: Version,
    /// The top of the hierarchy.
    top: PathBuf,
    /// Directories of the parent where processors, time on them and disks are controlled, in version 1.
    siblings: Siblings,
    /// Groups from this one up whose protection was changed, in version 2.
    protected: Vec<Limit>,
    /// The limit of all groups together, once there was one.
    bound: Option<Limit>,
    /// Held as long as this is.
    _lock: File,
}

/// A group's directories in other hierarchies of version 1.
#[derive(Clone, Debug, Default)]
struct Siblings {
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
    io: Option<PathBuf>,
}

impl Parent {
    pub(super) fn open(asked: Option<PathBuf>) -> Result<Self, Failure> {
        let hierarchies = Hierarchies::detect()?;
        let of = |controller| hierarchies.with(controller);
        let Some((version, top)) = of(Controller::Memory) else {
            return Err(Failure::system("control groups: no hierarchy with the controller memory")
                .remedy("mount one, or have it delegated (systemd: Delegate=yes)"));
        };
        let named = asked.unwrap_or_else(|| PathBuf::from(vellum_pool::cgroup::TOP));
        // An absolute path stays as it is.
        let wanted = top.join(&named);
        let bad = |why: String| Failure::input(format!("control group {}: {why}", wanted.display()));
        let dir = fs::canonicalize(&wanted).map_err(|e| {
            bad(e.to_string()).remedy("name a group whose children share, such as machine.slice")
        })?;
        let Some(below) = dir.strip_prefix(&top).ok().filter(|below| *below != Path::new("")) else {
            return Err(bad(format!("not below {}", top.display()))
                .remedy("name a group whose children share, such as machine.slice"));
        };
        let lock = File::open(&dir).map_err(|e| bad(e.to_string()))?;
        match lock_soon(&lock) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(bad("another process balances it".into()).remedy("end that one first"));
            }
            Err(e) => return Err(Failure::system(format!("control group {}", dir.display())).because(e)),
        }
        let beside = |controller| match version {
            Version::One => of(controller).map(|(_, top)| top.join(below)),
            Version::Two => None,
        };
        let siblings = Siblings {
            cpu: beside(Controller::Cpu),
            cpuacct: beside(Controller::CpuAcct),
            io: beside(Controller::Io),
        };
        Ok(Self { dir, version, top, siblings, protected: Vec::new(), bound: None, _lock: lock })
    }

    pub(super) fn children(&self) -> Result<BTreeSet<String>, Failure> {
        let failed =
            |e: io::Error| Failure::system(format!("control group {}", self.dir.display())).because(e);
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Ok(name) = entry.file_name().into_string()
            {
                names.insert(name);
            }
        }
        Ok(names)
    }

    /// A child; None when it has gone.
    pub(super) fn child(&self, name: &str) -> Option<Group> {
        let dir = self.dir.join(name);
        let beside = |dir: &Option<PathBuf>| dir.as_ref().map(|dir| dir.join(name));
        let siblings = Siblings {
            cpu: beside(&self.siblings.cpu),
            cpuacct: beside(&self.siblings.cpuacct),
            io: beside(&self.siblings.io),
        };
        let limit = Limit::take(&dir, self.version)?;
        let oom = if self.version == Version::One { Oom::take(&dir) } else { None };
        Some(Group {
            dir,
            version: self.version,
            siblings,
            fixed: 0,
            unwritten: 0,
            share: 0,
            limit,
            oom,
            relieved: None,
        })
    }

    /// Whether groups may be given limits, which have to be taken back whatever becomes of this process.
    pub(super) fn has_limits(&self) -> bool {
        self.version == Version::One || total_limit::is_needed()
    }

    /// Its directory.
    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Gives the groups that a killed process has left with its limits those that they had.
    pub(super) fn restore_limits(&self) -> Result<(), Failure> {
        if getxattr(&self.dir, BOUND_BEFORE, [0; 32].as_mut_slice()).is_ok() {
            drop(Limit::by_name(&self.dir, "memory.high", BOUND_BEFORE));
        }
        for name in self.children()? {
            if getxattr(self.dir.join(&name), BEFORE, [0; 32].as_mut_slice()).is_ok() {
                drop(self.child(&name));
            }
        }
        Ok(())
    }

    /// Bytes of page cache for all children, which hold `held` now.
    pub(super) fn room(&mut self, held: u64) -> Result<u64, Failure> {
        let memory = Memory::read(&self.dir, self.version)
            .map_err(|e| Failure::system(format!("control group {}", self.dir.display())).because(e))?;
        if let Some(limit) = self.limit(&memory) {
            self.bound = None;
            return Ok(limit.saturating_sub(memory.fixed));
        }
        match self.version {
            Version::Two => {
                let bound = self.bind(&memory)?.map(|bound| bound.saturating_sub(memory.fixed));
                Ok(bound.unwrap_or(held / PROTECTED.1 * PROTECTED.0))
            }
            // Limits are limits: all that is to be had must be in somebody's.
            Version::One => {
                let text = fs::read_to_string("/proc/meminfo")
                    .map_err(|e| Failure::system("/proc/meminfo").because(e))?;
                Ok(number_after(&text, "MemAvailable:").unwrap_or(0) * 1024)
            }
        }
    }

    /// Gives all groups together a limit, where that is needed, and returns it.
    fn bind(&mut self, memory: &Memory) -> Result<Option<u64>, Failure> {
        if !total_limit::is_needed() {
            self.bound = None;
            return Ok(None);
        }
        if self.bound.is_none() {
            self.bound = Limit::by_name(&self.dir, "memory.high", BOUND_BEFORE);
        }
        let Some(limit) = &self.bound else { return Ok(None) };
        let host = Host::read().map_err(|e| Failure::system("memory of the host").because(e))?;
        let bytes = host.bound(memory).map(|bytes| bytes.min(limit.before_in_bytes()));
        match bytes {
            Some(bytes) => limit.write(bytes),
            None => limit.write_before(),
        }
        Ok(bytes)
    }

    /// The smallest limit from this group up.
    fn limit(&self, memory: &Memory) -> Option<u64> {
        match self.version {
            Version::One => memory.hierarchical_limit,
            Version::Two => self.ancestors().filter_map(|dir| number_in(&dir.join("memory.max"))).min(),
        }
    }

    /// This group and those above it, without the top, which has no limits.
    fn ancestors(&self) -> impl Iterator<Item = &Path> {
        self.dir.ancestors().take_while(|dir| *dir != self.top)
    }

    /// In version 2 a group's protection counts only as far as those above it have as much. Where one has a limit, reclaim begins
    /// there and looks no further up.
    pub(super) fn protect(&mut self, bytes: u64) {
        if self.version == Version::One {
            return;
        }
        if self.protected.is_empty() {
            let open = |dir: &&Path| number_in(&dir.join("memory.max")).is_none();
            let open: Vec<PathBuf> = self.ancestors().take_while(open).map(Path::to_owned).collect();
            self.protected = open.iter().filter_map(|dir| Limit::take(dir, Version::Two)).collect();
        }
        for limit in &self.protected {
            limit.write(bytes.max(limit.before_in_bytes()));
        }
    }
}

/// A group that has a share.
#[derive(Debug)]
pub(super) struct Group {
    dir: PathBuf,
    version: Version,
    siblings: Siblings,
    /// Memory that is no page cache, at the last look, in bytes.
    fixed: u64,
    /// Of its page cache, what no disk has yet, at the last look, in bytes.
    unwritten: u64,
    /// Page cache that it may keep, in bytes.
    share: u64,
    // Dropped in this order: with its old limit a group may be killed at it again.
    limit: Limit,
    /// In version 1.
    oom: Option<Oom>,
    /// When it was short of memory last.
    relieved: Option<Instant>,
}

impl Group {
    /// Readable when it may be short of memory.
    pub(super) fn event(&self) -> Option<BorrowedFd<'_>> {
        self.oom.as_ref().map(Oom::event)
    }

    /// Gives it the limit that it had, if it is short of memory. There the kernel kills.
    pub(super) fn relieve(&mut self) {
        let Some(oom) = self.oom.as_ref().filter(|oom| oom.was_notified()) else { return };
        let is_short =
            || Memory::read(&self.dir, self.version).map_or(true, |memory| memory.is_short(self.share));
        if oom.has_waiting() || is_short() {
            self.limit.write_before();
            oom.restore();
            self.relieved = Some(Instant::now());
        }
    }

    /// None: it has gone.
    pub(super) fn look(&mut self) -> Option<GroupSample> {
        let memory = Memory::read(&self.dir, self.version).ok()?;
        (self.fixed, self.unwritten) = (memory.fixed, memory.unwritten);
        Some(GroupSample {
            weight: self.weight(),
            cache: memory.cache,
            refaults: memory.refaults,
            cpu: self.cpu(),
        })
    }

    /// Lets it keep `share` bytes of page cache. One that has just gone needs nothing.
    pub(super) fn allow(&mut self, share: u64) {
        self.share = share;
        match (self.version, &self.oom) {
            (Version::Two, _) => self.limit.write(self.fixed.saturating_add(share)),
            (Version::One, Some(oom)) => {
                let bytes = limit(self.fixed, self.unwritten, share);
                let is_relieved = self.relieved.is_some_and(|at| at.elapsed() < RELIEF);
                if is_relieved || bytes >= self.limit.before_in_bytes() || !oom.wait() {
                    self.limit.write_before();
                    oom.restore();
                } else {
                    self.limit.write(bytes);
                }
            }
            // A limit at which the kernel kills is worse than none.
            (Version::One, None) => {}
        }
    }

    /// What engines and pools have set: that of disks, or else that of processors.
    fn weight(&self) -> u16 {
        let (disks, cpus) = match self.version {
            Version::Two => {
                let file = |name: &str| fs::read_to_string(self.dir.join(name)).ok();
                let disks = file("io.weight").or_else(|| file("io.bfq.weight"));
                (
                    disks.and_then(|text| default_weight(&text)),
                    file("cpu.weight").and_then(|text| text.trim().parse().ok()),
                )
            }
            Version::One => {
                let number = |dir: &Option<PathBuf>, name: &str| number_in(&dir.as_ref()?.join(name));
                let bfq = number(&self.siblings.io, "blkio.bfq.weight");
                // 500 is the usual one there.
                let cfq = || number(&self.siblings.io, "blkio.weight").map(|weight| weight / 5);
                let shares = number(&self.siblings.cpu, "cpu.shares");
                (bfq.or_else(cfq), shares.map(|shares| shares.saturating_mul(USUAL) / 1024))
            }
        };
        let chosen = disks.filter(|weight| *weight != USUAL).or(cpus).unwrap_or(USUAL);
        u16::try_from(chosen.clamp(1, 10_000)).unwrap_or(u16::MAX)
    }

    /// Time on processors so far.
    fn cpu(&self) -> Duration {
        let read = || match self.version {
            Version::Two => {
                let text = fs::read_to_string(self.dir.join("cpu.stat")).ok()?;
                number_after(&text, "usage_usec").map(Duration::from_micros)
            }
            Version::One => {
                number_in(&self.siblings.cpuacct.as_ref()?.join("cpuacct.usage")).map(Duration::from_nanos)
            }
        };
        read().unwrap_or_default()
    }
}

/// The guard of a process that was killed has it for a moment.
fn lock_soon(file: &File) -> rustix::io::Result<()> {
    let begin = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if begin.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

/// The limit of a group in version 1 that may keep `share` bytes of page cache, of which no disk has `unwritten` yet. Where nothing else
/// is left to drop, a call that needs memory for a read fails with ENOMEM: the kernel kills nobody there, and does not wait for the
/// disk either.
fn limit(fixed: u64, unwritten: u64, share: u64) -> u64 {
    fixed.saturating_add(share.max(unwritten.saturating_add(FLOOR)))
}

/// The weight of a group that was given none.
const USUAL: u64 = 100;

/// `default 200`, or `200` alone.
fn default_weight(text: &str) -> Option<u64> {
    number_after(text, "default").or_else(|| text.lines().next()?.trim().parse().ok())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// Page cache that can be dropped, in bytes: without files in memory (tmpfs).
    pub(super) cache: u64,
    /// What no disk has yet of it, in bytes: it can be dropped only after it was written.
    pub(super) unwritten: u64,
    /// All else, in bytes.
    pub(super) fixed: u64,
    pub(super) refaults: u64,
    /// The smallest limit from the group up, where version 1 says so.
    pub(super) hierarchical_limit: Option<u64>,
}

impl Memory {
    fn read(dir: &Path, version: Version) -> io::Result<Self> {
        let text = fs::read_to_string(dir.join("memory.stat"))?;
        let all = match version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        let used = number_in(&dir.join(all)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self::parse(&text, used, version))
    }

    /// Whether a group that was told of pressure may be short of memory with such a share. One that reads much is told of it as well, and
    /// has all of its share. What no disk has yet cannot be dropped for it.
    fn is_short(&self, share: u64) -> bool {
        self.cache < share / 2 || self.cache - self.unwritten < FLOOR / 2
    }

    fn parse(text: &str, used: u64, version: Version) -> Self {
        let [file, shmem, dirty, writeback, refaults] = match version {
            Version::One => [
                "total_cache",
                "total_shmem",
                "total_dirty",
                "total_writeback",
                "total_workingset_refault_file",
            ],
            Version::Two => ["file", "shmem", "file_dirty", "file_writeback", "workingset_refault_file"],
        };
        let number = |name: &str| number_after(text, name).unwrap_or(0);
        let cache = number(file).saturating_sub(number(shmem));
        Self {
            cache,
            unwritten: number(dirty).saturating_add(number(writeback)).min(cache),
            fixed: used.saturating_sub(cache),
            refaults: number(refaults),
            hierarchical_limit: number_after(text, "hierarchical_memory_limit")
                .filter(|limit| *limit < NO_LIMIT),
        }
    }
}

/// A file with a limit, which has its contents of before again when this is dropped.
#[derive(Debug)]
struct Limit {
    dir: PathBuf,
    file: PathBuf,
    /// Has `before` for a process after this one.
    attribute: &'static str,
    before: String,
}

impl Limit {
    /// None: there is no such file here, or not any more.
    fn take(dir: &Path, version: Version) -> Option<Self> {
        let name = match version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.low",
        };
        Self::by_name(dir, name, BEFORE)
    }

    /// As [`Self::take`], of a file by its name.
    fn by_name(dir: &Path, name: &str, attribute: &'static str) -> Option<Self> {
        let file = dir.join(name);
        let now = fs::read_to_string(&file).ok()?.trim().to_owned();
        let mut value = [0; 32];
        let left = getxattr(dir, attribute, value.as_mut_slice()).ok();
        let left = left.and_then(|length| String::from_utf8(value.get(..length)?.to_vec()).ok());
        let before = left.filter(|text| text == "max" || text.parse::<u64>().is_ok()).unwrap_or(now);
        if let Err(error) = setxattr(dir, attribute, before.as_bytes(), XattrFlags::empty()) {
            tracing::debug!(%error, group = %dir.display(), "its limit is not kept for a process after this one");
        }
        Some(Self { dir: dir.to_owned(), file, attribute, before })
    }

    /// A number as large as can be where it was none.
    fn before_in_bytes(&self) -> u64 {
        self.before.parse().unwrap_or(NO_LIMIT)
    }

    fn write(&self, bytes: u64) {
        self.write_text(&bytes.to_string());
    }

    fn write_before(&self) {
        self.write_text(&self.before);
    }

    fn write_text(&self, bytes: &str) {
        if let Err(error) = fs::write(&self.file, bytes)
            && error.kind() != io::ErrorKind::NotFound
        {
            // Version 1 refuses a limit that it cannot reclaim down to at once; the next step tries again.
            tracing::debug!(%error, file = %self.file.display(), bytes, "a share was refused");
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // Version 1 shows "no limit" as a number, and takes it.
        match fs::write(&self.file, &self.before) {
            Ok(()) => drop(removexattr(&self.dir, self.attribute)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, file = %self.file.display(), "its limit stays"),
        }
    }
}

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number in the line that begins with `name`.
pub(super) fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut of_lines = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    of_lines.find(|(first, _)| *first == name)?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_both_versions() {
        let v1 = "cache 1\nhierarchical_memory_limit 9223372036854771712\ntotal_cache 100\ntotal_shmem 30\n\
                  total_workingset_refault_file 5\ntotal_dirty 11\ntotal_writeback 4\n";
        let memory = Memory::parse(v1, 1000, Version::One);
        let expected = Memory { cache: 70, unwritten: 15, fixed: 930, refaults: 5, hierarchical_limit: None };
        assert_eq!(memory, expected);
        let v2 = "anon 12\nfile 100\nfile_mapped 7\nfile_dirty 11\nfile_writeback 4\nshmem 30\n\
                  workingset_refault_file 5\n";
        assert_eq!(Memory::parse(v2, 1000, Version::Two), memory);
        let limited = Memory::parse("hierarchical_memory_limit 4096\n", 10, Version::One);
        let nothing = Memory { cache: 0, unwritten: 0, fixed: 10, refaults: 0, hierarchical_limit: None };
        assert_eq!(limited, Memory { hierarchical_limit: Some(4096), ..nothing });
        assert_eq!(Memory::parse("file 5\nfile_dirty 9\n", 10, Version::Two).unwritten, 5);
    }

    #[test]
    fn a_limit_leaves_room_beyond_unwritten_memory() {
        assert_eq!(limit(100, 0, 50 << 20), 100 + (50 << 20));
        assert_eq!(limit(100, 0, 0), 100 + FLOOR);
        assert_eq!(limit(0, 40 << 20, 50 << 20), 50 << 20);
        assert_eq!(limit(0, 49 << 20, 50 << 20), (49 << 20) + FLOOR);
        assert_eq!(limit(0, 1 << 20, 0), (1 << 20) + FLOOR);
    }

    /// A share that is smaller than what a limit leaves is no reason to give the old limit back.
    #[test]
    fn a_group_with_its_share_is_not_short() {
        const MIB: u64 = 1 << 20;
        let of = |cache, unwritten, share| {
            let memory = Memory { cache, unwritten, fixed: 0, refaults: 0, hierarchical_limit: None };
            memory.is_short(share)
        };
        assert!(!of(5 * MIB, 0, 5 * MIB) && !of(8 * MIB, 0, MIB) && !of(30 * MIB, 25 * MIB, 50 * MIB));
        assert!(of(3 * MIB, 0, 5 * MIB) && of(20 * MIB, 0, 50 * MIB) && of(30 * MIB, 27 * MIB, 30 * MIB));
    }

    /// A group of version 2, as files.
    fn group(dir: &Path, files: &[(&str, &str)]) -> Group {
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        let limit = Limit::take(dir, Version::Two).unwrap();
        Group {
            dir: dir.to_owned(),
            version: Version::Two,
            siblings: Siblings::default(),
            fixed: 0,
            unwritten: 0,
            share: 0,
            limit,
            oom: None,
            relieved: None,
        }
    }

    #[test]
    fn protection_covers_anonymous_memory_and_is_reset() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("memory.low", "17\n"),
            ("memory.stat", "file 100\nshmem 0\n"),
            ("memory.current", "300\n"),
            ("cpu.stat", "usage_usec 5\nuser_usec 1\n"),
            ("io.weight", "default 250\n8:0 7\n"),
        ];
        let mut group = group(dir.path(), &files);
        let seen = group.look().unwrap();
        assert_eq!(seen, GroupSample { weight: 250, cache: 100, refaults: 0, cpu: Duration::from_micros(5) });
        group.allow(40);
        let low = || fs::read_to_string(dir.path().join("memory.low")).unwrap();
        assert_eq!(low(), "240");
        drop(group);
        assert_eq!(low(), "17");
    }

    #[test]
    fn weights_are_those_of_disks_or_else_of_processors() {
        for (files, weight) in [
            (vec![("io.weight", "default 100\n"), ("cpu.weight", "300\n")], 300),
            (vec![("io.weight", "default 50\n"), ("cpu.weight", "300\n")], 50),
            (vec![("io.bfq.weight", "70\n")], 70),
            (vec![("cpu.weight", "0\n")], 1),
            (vec![], 100),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("memory.low"), "0\n").unwrap();
            assert_eq!(group(dir.path(), &files).weight(), weight, "{files:?}");
        }
    }
}
