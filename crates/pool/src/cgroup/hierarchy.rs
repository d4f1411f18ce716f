//! Where control groups are mounted, and which controllers each hierarchy has.

use crate::members::each;
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use vellum_service::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Shares of processors.
    Cpu,
    /// Counts time on processors. Version 2 counts it in every group.
    CpuAcct,
    /// Which processors.
    Cpuset,
    Memory,
    /// Disks.
    Io,
}

impl Controller {
    const ALL: [Self; 5] = [Self::Cpu, Self::CpuAcct, Self::Cpuset, Self::Memory, Self::Io];

    /// Its name in version 2.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuAcct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }

    fn name_in_version_1(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.name(),
        }
    }

    /// Whether version 2 has to be told to give it to the groups below.
    pub(super) fn is_delegated(self) -> bool {
        self != Self::CpuAcct
    }
}

/// Of which kind a hierarchy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each controller, or for a few.
    One,
    Two,
}

/// A hierarchy with controllers that pools use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// The group in which those of pools are made.
    pub(super) top: PathBuf,
    pub(super) controllers: BTreeSet<Controller>,
}

/// All hierarchies of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    pub(super) all: Vec<Hierarchy>,
    /// The tops of those whose controllers pools do not use. The runtimes of containers make groups there too.
    pub(super) others: Vec<PathBuf>,
}

impl Hierarchies {
    /// Those of this host, as far as this user may make groups there.
    pub fn detect() -> Result<Self, Failure> {
        let read = |path: &str| {
            fs::read_to_string(path)
                .map_err(|e| Failure::system(format!("control groups: {path}")).because(e))
        };
        let own = read("/proc/self/cgroup")?;
        let tables = read("/proc/self/mounts")?;
        let controllers = |top: &Path| fs::read_to_string(top.join("cgroup.controllers")).unwrap_or_default();
        Ok(Self::among(&tables, &own, crate::privilege::is_host_root(), controllers))
    }

    /// The groups in which those of pools are made.
    pub fn tops(&self) -> impl Iterator<Item = &Path> {
        self.all.iter().map(|hierarchy| hierarchy.top.as_path())
    }

    /// The hierarchy that has a controller: its version, and the group in which those of pools are made.
    pub fn with(&self, controller: Controller) -> Option<(Version, PathBuf)> {
        let hierarchy = self.all.iter().find(|hierarchy| hierarchy.controllers.contains(&controller))?;
        Some((hierarchy.version, hierarchy.top.clone()))
    }

    /// Removes a group that a runtime has made in each of them, and those below. False: a process is in one.
    pub fn remove(&self, group: &Path) -> bool {
        self.groups(group).iter().filter(|group| !remove_group(group)).count() == 0
    }

    /// Ends the processes in such a group, also where they stand still.
    pub fn end(&self, group: &Path) {
        for group in self.groups(group) {
            each(&group, &mut |_, handle| {
                let _ = pidfd_send_signal(handle, Signal::KILL);
            });
            for (name, word) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
                let _ = OpenOptions::new()
                    .write(true)
                    .open(group.join(name))
                    .and_then(|mut file| file.write_all(word.as_bytes()));
            }
        }
    }

    /// A group in each of them. None of a path that leads elsewhere.
    fn groups(&self, group: &Path) -> Vec<PathBuf> {
        let group = group.strip_prefix("/").unwrap_or(group);
        if group.as_os_str().is_empty()
            || !group.components().all(|part| matches!(part, Component::Normal(_)))
        {
            return Vec::new();
        }
        self.tops().chain(self.others.iter().map(PathBuf::as_path)).map(|top| top.join(group)).collect()
    }

    /// Whether all controllers are those of version 2.
    pub fn is_unified(&self) -> bool {
        !self.all.is_empty() && self.all.iter().all(|hierarchy| hierarchy.version == Version::Two)
    }

    fn among(mounts: &str, own: &str, root: bool, controllers: impl Fn(&Path) -> String) -> Self {
        let mut all: Vec<Hierarchy> = Vec::new();
        let mut others = Vec::new();
        for line in mounts.lines() {
            let mut words = line.split(' ').skip(1);
            let (Some(point), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let point = PathBuf::from(point);
            let (version, top, has) = match kind {
                "cgroup" => {
                    let has = |controller: Controller| {
                        options.split(',').any(|option| option == controller.name_in_version_1())
                    };
                    (Version::One, point, Controller::ALL.into_iter().filter(|one| has(*one)).collect())
                }
                "cgroup2" => {
                    let Some(top) = delegated(&point, own, root) else { continue };
                    let there = controllers(&top);
                    let has =
                        |controller: Controller| there.split_whitespace().any(|one| one == controller.name());
                    let mut has: BTreeSet<Controller> =
                        Controller::ALL.into_iter().filter(|one| has(*one)).collect();
                    if !has.is_empty() {
                        has.insert(Controller::CpuAcct);
                    }
                    (Version::Two, top, has)
                }
                _ => continue,
            };
            // A hierarchy may be mounted twice.
            let known = |hierarchy: &Hierarchy| hierarchy.controllers == has && hierarchy.version == version;
            if has.is_empty() {
                others.push(top);
            } else if !all.iter().any(known) {
                all.push(Hierarchy { version, top, controllers: has });
            }
        }
        Self { all, others }
    }
}

/// Removes a group and those below. False: a process is in one.
fn remove_group(dir: &Path) -> bool {
    let below = fs::read_dir(dir).into_iter().flatten().flatten();
    for group in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_group(&group.path());
    }
    !matches!(fs::remove_dir(dir), Err(e) if e.kind() == io::ErrorKind::ResourceBusy)
}

/// Where in version 2 groups may be made: by root at the top, by others in what systemd has given to them. (The number in its name
/// is the user's on the host, which a user namespace does not show.)
fn delegated(point: &Path, own: &str, root: bool) -> Option<PathBuf> {
    if root {
        return Some(point.to_owned());
    }
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut top = point.to_owned();
    for part in path.split('/') {
        top.push(part);
        if part.starts_with("user@") && part.ends_with(".service") {
            return Some(top);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
        cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n\
        cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn controllers_are_found_in_their_hierarchies() {
        let found = Hierarchies::among(HYBRID, "0::/\n", true, |_| String::new());
        let of = |number: usize| found.all.get(number).unwrap();
        assert_eq!(found.all.len(), 2);
        assert_eq!(found.others, [Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup/unified")]);
        assert_eq!(of(0).controllers, BTreeSet::from([Controller::Cpu, Controller::CpuAcct]));
        assert_eq!((of(1).version, of(1).top.as_path()), (Version::One, Path::new("/sys/fs/cgroup/blkio")));
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let found = Hierarchies::among(v2, "0::/x\n", true, |_| "cpuset cpu io memory pids\n".to_owned());
        assert_eq!(found.all.len(), 1);
        assert_eq!(found.all.first().unwrap().controllers, Controller::ALL.into_iter().collect());
    }

    #[test]
    fn unprivileged_users_have_delegated_controllers_only() {
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let own = "0::/user.slice/user-7.slice/user@7.service/app.slice/x.scope\n";
        let found = Hierarchies::among(v2, own, false, |_| "memory".to_owned());
        let top = Path::new("/sys/fs/cgroup/user.slice/user-7.slice/user@7.service");
        assert_eq!(found.all.first().unwrap().top, top);
        let other = "0::/user.slice/user-7.slice/session-1.scope\n";
        assert_eq!(Hierarchies::among(v2, other, false, |_| "memory".to_owned()).all, []);
    }
}
