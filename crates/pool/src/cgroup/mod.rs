//! The control groups of a pool, of version 2, or of version 1 where a host still has them; a host may have both.

mod hierarchy;
mod limits;

pub use hierarchy::{Controller, Hierarchies, Version};

use crate::device::Disk;
use crate::name::PoolName;
use crate::settings::Settings;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_service::Failure;

/// The group that holds those of all pools.
pub const TOP: &str = "vellum";

/// One of a pool's groups, and what it controls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) dir: PathBuf,
    pub(crate) version: Version,
    pub(crate) controllers: BTreeSet<Controller>,
}

/// What a pool's services have used so far and use now. None: nothing counts it here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Time on processors.
    pub cpu: Option<Duration>,
    /// Memory now, the page cache included, in bytes.
    pub memory: Option<u64>,
    /// The most that it was, in bytes.
    pub memory_peak: Option<u64>,
    /// Bytes read from disks.
    pub read: Option<u64>,
    /// Bytes written to disks.
    pub written: Option<u64>,
}

/// The control groups of a pool, one in each hierarchy that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    pool: PoolName,
    groups: Vec<Group>,
    /// Where the runtimes of its containers may have made groups for it as well.
    others: Vec<PathBuf>,
}

impl Groups {
    /// Those of a pool; they need not be there yet.
    #[must_use]
    pub(crate) fn of_pool(pool: &PoolName, hierarchies: &Hierarchies) -> Self {
        let group = |hierarchy: &hierarchy::Hierarchy| Group {
            dir: hierarchy.top.join(TOP).join(pool.as_str()),
            version: hierarchy.version,
            controllers: hierarchy.controllers.clone(),
        };
        let others = hierarchies.others.iter().map(|top| top.join(TOP).join(pool.as_str())).collect();
        Self { pool: pool.clone(), groups: hierarchies.all.iter().map(group).collect(), others }
    }

    /// Makes them, and lets them have what the settings say. `disks`: those that limits of reading and writing are for.
    pub fn make(&self, settings: &Settings, disks: &BTreeSet<Disk>) -> Result<(), Failure> {
        self.check(settings)?;
        for group in &self.groups {
            group.make(settings.cpuset_cpus.is_none()).map_err(|(path, e)| self.failed(&path, &e))?;
        }
        for limit in limits::from_settings(settings, disks) {
            let mut written = false;
            for group in self.groups.iter().filter(|group| group.controllers.contains(&limit.controller)) {
                written |= limit.write(group).map_err(|(path, e)| self.failed(&path, &e))?;
            }
            if !written && limit.asked {
                tracing::warn!(pool = %self.pool, "{} has no effect on this host", limit.setting);
            }
        }
        Ok(())
    }

    /// Whether there is a controller for everything that the settings ask for.
    fn check(&self, settings: &Settings) -> Result<(), Failure> {
        let missing = limits::from_settings(settings, &BTreeSet::new()).into_iter().find(|limit| {
            limit.asked && !self.groups.iter().any(|group| group.controllers.contains(&limit.controller))
        });
        let Some(limit) = missing else { return Ok(()) };
        Err(Failure::input(format!(
            "pool {}: {}: no control group here has the controller {}; leave the setting out, or have it delegated \
             (systemd: Delegate=yes)",
            self.pool,
            limit.setting,
            limit.controller.name()
        )))
    }

    /// Puts a process into them, with all of its threads.
    pub fn enter(&self, process: u32) -> Result<(), Failure> {
        for group in &self.groups {
            let path = group.dir.join("cgroup.procs");
            fs::write(&path, process.to_string()).map_err(|e| self.failed(&path, &e))?;
        }
        Ok(())
    }

    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let of = |group: &Group| fs::read_to_string(group.dir.join("cgroup.procs")).unwrap_or_default();
        let all: BTreeSet<u32> = self
            .groups
            .iter()
            .flat_map(|group| of(group).lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect();
        all.into_iter().collect()
    }

    /// What is used.
    #[must_use]
    pub fn usage(&self) -> PoolUse {
        let number = |text: &str| text.trim().parse().ok();
        let cpu = self.read(Controller::CpuAcct, ["cpuacct.usage", "cpu.stat"], |text| {
            let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
            match microseconds {
                Some(microseconds) => microseconds.trim().parse::<u64>().ok()?.checked_mul(1000),
                None => text.trim().parse().ok(),
            }
        });
        let io = |word: [&'static str; 2]| {
            let names = ["blkio.throttle.io_service_bytes_recursive", "io.stat"];
            self.read(Controller::Io, names, |text| Some(io_bytes(text, word)))
        };
        PoolUse {
            cpu: cpu.map(Duration::from_nanos),
            memory: self.read(Controller::Memory, ["memory.usage_in_bytes", "memory.current"], number),
            memory_peak: self.read(Controller::Memory, ["memory.max_usage_in_bytes", "memory.peak"], number),
            read: io(["Read ", "rbytes="]),
            written: io(["Write ", "wbytes="]),
        }
    }

    /// What `of` finds in a controller's file, which has a name in each version.
    fn read<T>(
        &self,
        controller: Controller,
        [v1, v2]: [&str; 2],
        of: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let group = self.groups.iter().find(|group| group.controllers.contains(&controller))?;
        let name = if group.version == Version::One { v1 } else { v2 };
        of(&fs::read_to_string(group.dir.join(name)).ok()?)
    }

    /// Removes them. Fails when a process is in one.
    pub fn remove(&self) -> Result<(), Failure> {
        for group in &self.groups {
            match fs::remove_dir(&group.dir) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(self.failed(&group.dir, &e)),
                _ => {}
            }
        }
        for dir in &self.others {
            // Nothing is limited there: one that stays does no harm.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.groups.iter().map(|group| group.dir.as_path())
    }

    fn failed(&self, path: &Path, e: &io::Error) -> Failure {
        let remedy = match e.kind() {
            io::ErrorKind::PermissionDenied => {
                "; root may, and others in a group that is delegated to them (systemd-run --user --scope)"
            }
            io::ErrorKind::ResourceBusy => "; a process is still in it",
            _ => "",
        };
        Failure::system(format!("pool {}: {}: {e}{remedy}", self.pool, path.display()))
    }
}

/// The bytes of all disks in lines such as `8:0 Read 4096` (version 1) and `8:0 rbytes=4096 wbytes=0` (version 2).
fn io_bytes(text: &str, words: [&str; 2]) -> u64 {
    let of_line = |line: &str| {
        let rest =
            words.iter().find_map(|word| line.split_once(&format!(" {word}")).map(|(_, rest)| rest))?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    text.lines().filter_map(of_line).sum()
}

impl Group {
    /// `all_cpus`: on all processors that the group above has.
    fn make(&self, all_cpus: bool) -> Result<(), (PathBuf, io::Error)> {
        let top = self.dir.parent().unwrap_or(&self.dir);
        for dir in [top, self.dir.as_path()] {
            if self.version == Version::Two
                && let Some(parent) = dir.parent()
            {
                self.delegate(parent)?;
            }
            match fs::create_dir(dir) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err((dir.to_owned(), e)),
                _ => {}
            }
            if self.version == Version::One && self.controllers.contains(&Controller::Cpuset) {
                inherit_cpuset(dir, all_cpus && *dir == self.dir)?;
            }
        }
        Ok(())
    }

    /// Gives the controllers to the groups below `parent`.
    fn delegate(&self, parent: &Path) -> Result<(), (PathBuf, io::Error)> {
        let path = parent.join("cgroup.subtree_control");
        let given = fs::read_to_string(&path).unwrap_or_default();
        for controller in self.controllers.iter().filter(|controller| controller.is_delegated()) {
            let name = controller.name();
            if !given.split_whitespace().any(|one| one == name) {
                fs::write(&path, format!("+{name}")).map_err(|e| (path.clone(), e))?;
            }
        }
        Ok(())
    }
}

/// In version 1 a new group has no processors and no memory nodes, and nothing can enter it. `again`: also when it has some.
fn inherit_cpuset(dir: &Path, again: bool) -> Result<(), (PathBuf, io::Error)> {
    for (name, from) in [("cpuset.cpus", "cpuset.effective_cpus"), ("cpuset.mems", "cpuset.effective_mems")] {
        let path = dir.join(name);
        let own = fs::read_to_string(&path).map_err(|e| (path.clone(), e))?;
        if again || own.trim().is_empty() {
            let from = dir.parent().unwrap_or(dir).join(from);
            let inherited = fs::read_to_string(&from).map_err(|e| (from, e))?;
            fs::write(&path, inherited.trim()).map_err(|e| (path, e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_disks_are_summed() {
        let v1 = "8:0 Read 4096\n8:0 Write 1\n8:16 Read 4\n8:16 Total 9\nTotal 4109\n";
        assert_eq!(io_bytes(v1, ["Read ", "rbytes="]), 4100);
        let v2 = "8:0 rbytes=4096 wbytes=7 rios=1\n8:16 rbytes=4 wbytes=1\n";
        assert_eq!(io_bytes(v2, ["Read ", "rbytes="]), 4100);
        assert_eq!(io_bytes(v2, ["Write ", "wbytes="]), 8);
        assert_eq!(io_bytes("", ["Write ", "wbytes="]), 0);
    }
}
