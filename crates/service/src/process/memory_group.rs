//! How much memory the control groups of this process leave to a cache.
//!
//! A cache lies in memory that the kernel cannot take back, and charges to the service's control groups. One that does not fit has the kernel kill
//! somebody in there. So a cache asks before it grows, and is asked to shrink while others in the groups need more.
//!
//! What files' pages take does not count: the kernel takes it back by itself. A part of each limit stays free, for what is needed between
//! two looks, and for what the cache keeps beside its bytes. The kernel says when it begins to look for memory in a group: version 1 by
//! an eventfd, version 2 by a change of a file.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// One part of so many of a limit stays free,
const FREE_PART: u64 = 8;
/// and at least so much, as far as that is not
const FREE_MIN: u64 = 8 << 20;
/// more than one part of so many.
const FREE_MOST_PART: u64 = 2;
/// Longest file in bytes that is read.
const TEXT_MAX: usize = 16 << 10;

/// The groups, open: nothing can be opened any more when they are asked.
static OWN: OnceLock<Groups> = OnceLock::new();

/// Opens the groups of this process, before it gives up its right to. Where there are none, nothing is limited.
pub(crate) fn open() {
    OWN.get_or_init(Groups::detect);
}

/// The groups that [`open`] has found.
pub(crate) fn current() -> &'static Groups {
    OWN.get_or_init(Groups::default)
}

/// The limits of the groups of this process, and how often the kernel has killed somebody for want of memory in its own. Open for as long
/// as the process and those that come from it live.
static WATCHED: OnceLock<LimitWatch> = OnceLock::new();

#[derive(Debug, Default)]
struct LimitWatch {
    limits: Vec<File>,
    kills: Option<File>,
    path: PathBuf,
}

impl LimitWatch {
    fn detect() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let Some((version, top, path)) = find(&read("/proc/self/cgroup"), &read("/proc/self/mounts")) else {
            return Self::default();
        };
        let own = Some(top.join(&path)).filter(|own| own.is_dir()).unwrap_or_else(|| top.clone());
        let dirs = own.ancestors().take_while(|dir| dir.starts_with(&top));
        let limit = match version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        let limits = dirs.filter_map(|dir| File::open(dir.join(limit)).ok()).collect();
        Self { limits, kills: Self::kills_of(version, &own), path }
    }

    /// What counts who was killed in the group itself: of a container below it the service knows nothing.
    fn kills_of(version: Version, own: &Path) -> Option<File> {
        let names: &[&str] = match version {
            Version::One => &["memory.oom_control"],
            // Before Linux 5.2 there is only the second, which counts those below, too.
            Version::Two => &["memory.events.local", "memory.events"],
        };
        names.iter().find_map(|name| File::open(own.join(name)).ok())
    }
}

/// Opens what says how much memory there is; the numbers of the descriptors, which are to stay open.
pub(crate) fn watch() -> Vec<RawFd> {
    let watched = WATCHED.get_or_init(LimitWatch::detect);
    watched.limits.iter().chain(&watched.kills).map(AsRawFd::as_raw_fd).collect()
}

/// The lowest limit of the groups of this process now, in bytes; None: there is none.
pub(crate) fn limit() -> Option<u64> {
    WATCHED.get()?.limits.iter().filter_map(|file| limit_of(&text(file)?)).min()
}

/// How often somebody has been killed in the own group for want of memory.
pub(crate) fn kills() -> u64 {
    WATCHED.get().and_then(|watched| kills_in(watched.kills.as_ref()?)).unwrap_or_default()
}

fn kills_in(counts: &File) -> Option<u64> {
    text(counts)?.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The own group, as the kernel calls it.
pub(crate) fn path() -> &'static Path {
    WATCHED.get().map_or(Path::new(""), |watched| &watched.path)
}

/// A group's files. Names of both versions.
#[derive(Debug)]
struct Group {
    limits: Vec<File>,
    used: File,
    parts: File,
    /// How the lines begin in which `parts` says what files' pages take.
    pages: [&'static str; 2],
}

/// The groups of a process, its own and those above.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    all: Vec<Group>,
    /// What is ready when the kernel looks for memory in one of them.
    notices: Vec<File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Groups {
    fn detect() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let Some((version, top, path)) = find(&read("/proc/self/cgroup"), &read("/proc/self/mounts")) else {
            return Self::default();
        };
        // In a container the hierarchy may begin with its own group, whatever that is called outside.
        let own = Some(top.join(&path)).filter(|own| own.is_dir()).unwrap_or_else(|| top.clone());
        let dirs = own.ancestors().take_while(|dir| dir.starts_with(&top));
        let (dirs, all) = dirs.filter_map(|dir| Some((dir, Group::open(version, dir)?))).unzip();
        Self { all, notices: notices(version, dirs) }
    }

    /// Waits until the kernel looks for memory in one of the groups, or for so long.
    pub(crate) fn wait(&self, most: Duration) {
        let mut all: Vec<PollFd<'_>> =
            self.notices.iter().map(|notice| PollFd::new(notice, PollFlags::IN | PollFlags::PRI)).collect();
        let seconds = i64::try_from(most.as_secs()).unwrap_or(i64::MAX);
        let most_of = Timespec { tv_sec: seconds, tv_nsec: most.subsec_nanos().into() };
        if all.is_empty() || poll(&mut all, Some(&most_of)).is_err() {
            std::thread::sleep(most);
        }
        // So that it is not said again: a file is read from its beginning, an eventfd has none.
        let ready = |notice: &PollFd<'_>| !notice.revents().is_empty();
        for (notice, _) in self.notices.iter().zip(&all).filter(|(_, polled)| ready(polled)) {
            if text(notice).is_none() {
                let _ = rustix::io::read(notice, &mut [0; 8]);
            }
        }
    }

    /// Whether one of them has a limit at the moment.
    pub(crate) fn is_limited(&self) -> bool {
        self.all.iter().any(|group| group.limit().is_some())
    }

    /// How many bytes a cache may have now that has `held`. The largest number: as many as it likes.
    pub(crate) fn room(&self, held: u64) -> u64 {
        self.all.iter().filter_map(|group| group.room(held)).min().unwrap_or(u64::MAX)
    }
}

impl Group {
    /// None: it counts no memory, as the top one.
    fn open(version: Version, dir: &Path) -> Option<Self> {
        let open = |name: &str| File::open(dir.join(name)).ok();
        let group = match version {
            Version::One => Self {
                limits: open("memory.limit_in_bytes").into_iter().collect(),
                used: open("memory.usage_in_bytes")?,
                parts: open("memory.stat")?,
                pages: ["total_inactive_file ", "total_active_file "],
            },
            // Above `high` nobody is killed, but all are held up.
            Version::Two => Self {
                limits: ["memory.max", "memory.high"].into_iter().filter_map(open).collect(),
                used: open("memory.current")?,
                parts: open("memory.stat")?,
                pages: ["inactive_file ", "active_file "],
            },
        };
        Some(group)
    }

    /// None: there is none.
    fn limit(&self) -> Option<u64> {
        self.limits.iter().filter_map(|file| limit_of(&text(file)?)).min()
    }

    fn room(&self, held: u64) -> Option<u64> {
        let limit = self.limit()?;
        let used = text(&self.used).and_then(|text| text.trim().parse().ok()).unwrap_or(limit);
        let pages = text(&self.parts).map_or(0, |text| sum(&text, self.pages));
        Some(room(limit, used, pages, held))
    }
}

/// What is ready when the kernel looks for memory in one of these groups. Where it says nothing, there are looks now and then.
fn notices(version: Version, dirs: Vec<&Path>) -> Vec<File> {
    if version == Version::Two {
        return dirs.iter().filter_map(|dir| File::open(dir.join("memory.events")).ok()).collect();
    }
    let Ok(notice) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else { return Vec::new() };
    let ask = |dir: &&Path| {
        let level = File::open(dir.join("memory.pressure_level"))?;
        let asked = format!("{} {} low", notice.as_raw_fd(), level.as_raw_fd());
        fs::write(dir.join("cgroup.event_control"), asked)
    };
    // The top one has no limit, and takes no listeners.
    let heard = dirs.iter().map(ask).filter(Result::is_ok).count();
    if heard > 0 { vec![notice.into()] } else { Vec::new() }
}

/// The hierarchy that limits memory: its version, where it is mounted, and the path of the own group there. Version 1 limits where a
/// hierarchy has the controller: it cannot be in both.
fn find(groups: &str, mounts: &str) -> Option<(Version, PathBuf, PathBuf)> {
    let mounted = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (point, is, options) = (words.next()?, words.next()?, words.next()?);
            let has = option.is_none_or(|option| options.split(',').any(|one| one == option));
            (is == kind && has).then(|| PathBuf::from(point))
        })
    };
    let own = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut words = line.splitn(3, ':').skip(1);
            let (controllers, path) = (words.next()?, words.next()?);
            let is_it = controllers.split(',').any(|one| one == controller);
            is_it.then(|| PathBuf::from(path.trim_start_matches('/')))
        })
    };
    if let Some(top) = mounted("cgroup", Some("memory")) {
        return Some((Version::One, top, own("memory")?));
    }
    Some((Version::Two, mounted("cgroup2", None)?, own("")?))
}

/// What is left of a limit for a cache that has `held`, where the group uses `used`, of which files' pages are `pages`.
fn room(limit: u64, used: u64, pages: u64, held: u64) -> u64 {
    let free = (limit / FREE_PART).max(FREE_MIN.min(limit / FREE_MOST_PART));
    let others = used.saturating_sub(pages).saturating_sub(held);
    limit.saturating_sub(free).saturating_sub(others)
}

/// A limit in bytes. None: none. Version 1 says that by a number that nobody has so much memory for.
fn limit_of(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 62)
}

/// The sum of some lines' numbers.
fn sum(text: &str, names: [&str; 2]) -> u64 {
    let number =
        |line: &str| names.iter().find_map(|name| line.strip_prefix(name))?.trim().parse::<u64>().ok();
    text.lines().filter_map(number).sum()
}

/// What a file says now.
fn text(file: &File) -> Option<String> {
    let mut text = vec![0; TEXT_MAX];
    let mut len = 0;
    while let Some(rest) = text.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, len as u64).ok()? {
            0 => break,
            more => len += more,
        }
    }
    text.truncate(len);
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_hierarchy_that_limits_memory_is_found() {
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = find("4:memory:/a/b\n1:cpu:/\n0::/\n", hybrid);
        assert_eq!(found, Some((Version::One, "/sys/fs/cgroup/memory".into(), "a/b".into())));
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(
            find("0::/x.slice/y\n", two),
            Some((Version::Two, "/sys/fs/cgroup".into(), "x.slice/y".into()))
        );
        assert_eq!(find("0::/\n", ""), None);
    }

    #[test]
    fn parent_groups_count_and_reclaimable_memory_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let group = |path: &str, limit: &str, used: u64, pages: u64| {
            let dir = dir.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("memory.max"), limit).unwrap();
            fs::write(dir.join("memory.high"), "max\n").unwrap();
            fs::write(dir.join("memory.current"), used.to_string()).unwrap();
            let stat = format!("anon 5\ninactive_file {pages}\nactive_file {pages}\nshmem 9\n");
            fs::write(dir.join("memory.stat"), stat).unwrap();
            Group::open(Version::Two, &dir).unwrap()
        };
        let inner = group("a/b", &format!("{}\n", 800 * MIB), 700 * MIB, 200 * MIB);
        let groups = |all| Groups { all, notices: Vec::new() };
        let none = groups(vec![group("a/free", "max\n", 5 * MIB, 0)]);
        assert_eq!((none.is_limited(), none.room(1)), (false, u64::MAX));
        // 300 of 700 are no files' pages, and 250 of these the cache's own: others have 50.
        let one = groups(vec![inner]);
        assert_eq!((one.is_limited(), one.room(250 * MIB)), (true, 650 * MIB));
        let outer = group("a", &format!("{}\n", 400 * MIB), 390 * MIB, 0);
        let both = groups(one.all.into_iter().chain([outer]).collect());
        assert_eq!(both.room(250 * MIB), 210 * MIB);
        // It changes while it is open.
        fs::write(dir.path().join("a/memory.high"), (300 * MIB).to_string()).unwrap();
        assert_eq!(both.room(250 * MIB), (300 * MIB - 300 * MIB / 8) - 140 * MIB);
    }

    #[test]
    fn kills_in_the_group_itself_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let kills = |version| kills_in(&LimitWatch::kills_of(version, dir.path())?);
        assert_eq!((kills(Version::One), kills(Version::Two)), (None, None));
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write("memory.events", "low 0\noom 9\noom_kill 8\noom_group_kill 1\n");
        assert_eq!((kills(Version::One), kills(Version::Two)), (Some(3), Some(8)));
        write("memory.events.local", "low 0\noom 9\noom_kill 2\noom_group_kill 0\n");
        assert_eq!(kills(Version::Two), Some(2), "with those of containers below");
    }

    #[test]
    fn room_has_a_minimum_and_is_never_negative() {
        assert_eq!(room(16 * MIB, 3 * MIB, 0, 0), 5 * MIB);
        assert_eq!(room(4 * MIB, 0, 0, 0), 2 * MIB);
        assert_eq!(room(16 * MIB, 15 * MIB, 0, 3 * MIB), 0);
        assert_eq!(room(1 << 40, 0, 0, 0), (1 << 40) / 8 * 7);
        assert_eq!(
            (limit_of("max\n"), limit_of("9223372036854771712\n"), limit_of("4096\n")),
            (None, None, Some(4096))
        );
    }

    #[test]
    fn the_own_groups_limit_is_readable() {
        let here = Groups::detect();
        assert!(here.room(0) > 0, "{here:?}");
        assert!(!here.is_limited() || here.room(0) < u64::MAX);
        here.wait(Duration::from_millis(1));
    }
}
