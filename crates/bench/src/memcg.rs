//! The memory that a run is charged with, page cache and the kernel's objects for files included: by control groups that are
//! made for it, one for the client and one for the service.
//!
//! A page is charged to whoever touches it first; so the caches have to be empty before a run that is to be compared.

use crate::failure::{Failure, Result, While};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the last process of a group may take to leave it, and the time between two looks.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// What the two were charged with at the end, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCharge {
    /// This process and its children.
    pub client_bytes: u64,
    pub service_bytes: u64,
}

/// Where groups can be made, and the one that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Home {
    own: PathBuf,
    parent: PathBuf,
    /// The file that says what a group is charged with.
    usage: &'static str,
}

/// The two groups. Dropping it puts this process back where it was.
#[derive(Debug)]
pub struct Charges {
    home: Home,
    client: PathBuf,
    service: PathBuf,
}

impl Charges {
    /// Makes the groups. Fails without root, and where no hierarchy has the memory controller.
    pub fn new() -> Result<Self> {
        let home = Home::detect()?;
        let dir = |what: &str| home.parent.join(format!("vellum-bench-{}-{what}", std::process::id()));
        let charges = Self { client: dir("client"), service: dir("service"), home };
        for group in [&charges.client, &charges.service] {
            fs::create_dir(group).doing(|| format!("making the control group {}", group.display()))?;
            if !group.join(charges.home.usage).exists() {
                return Err(Failure::new("memory is not counted in the control groups here"));
            }
        }
        Ok(charges)
    }

    /// From here on this process, and so a service that it starts, is charged as the service.
    pub fn as_service(&self) -> Result<()> {
        enter(&self.service)
    }

    /// From here on this process and what it starts are charged as the client.
    pub fn as_client(&self) -> Result<()> {
        enter(&self.client)
    }

    /// What both are charged with now.
    pub fn now(&self) -> Result<MemoryCharge> {
        let read = |group: &Path| {
            let text = fs::read_to_string(group.join(self.home.usage)).doing(|| "reading what is charged")?;
            text.trim().parse().doing(|| "reading what is charged")
        };
        Ok(MemoryCharge { client_bytes: read(&self.client)?, service_bytes: read(&self.service)? })
    }
}

impl Drop for Charges {
    fn drop(&mut self) {
        if let Err(failure) = enter(&self.home.own) {
            eprintln!("vellum-bench: {failure}");
        }
        for group in [&self.client, &self.service] {
            if !remove(group, &self.home.own) {
                eprintln!("vellum-bench: cannot remove {}", group.display());
            }
        }
    }
}

/// Removes a group; whether it is gone. Who is still about to end in it, as a client of a cluster may be, does so in another one.
pub(crate) fn remove(group: &Path, other: &Path) -> bool {
    let start = Instant::now();
    while fs::remove_dir(group).is_err() && group.exists() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        for process in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
            // It may have ended meanwhile.
            let _ = fs::write(other.join("cgroup.procs"), process);
        }
        std::thread::sleep(PAUSE);
    }
    true
}

fn enter(group: &Path) -> Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
        .doing(|| format!("entering the control group {}", group.display()))
}

impl Home {
    fn detect() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).doing(|| "looking for control groups");
        Self::among(&read("/proc/self/cgroup")?, &read("/proc/self/mounts")?)
            .ok_or_else(|| Failure::new("there is no hierarchy of control groups for memory"))
    }

    /// Version 1 counts where a hierarchy has the controller: it cannot be in both.
    fn among(groups: &str, mounts: &str) -> Option<Self> {
        let mounted = |kind: &str, option: &str| {
            mounts.lines().find_map(|line| {
                let mut words = line.split(' ').skip(1);
                let (point, is) = (words.next()?, words.next()?);
                let has = option.is_empty() || words.next()?.split(',').any(|one| one == option);
                (is == kind && has).then(|| PathBuf::from(point))
            })
        };
        let own = |controller: &str| {
            groups.lines().find_map(|line| {
                let mut words = line.splitn(3, ':').skip(1);
                let controllers = words.next()?;
                let path = words.next()?;
                controllers
                    .split(',')
                    .any(|one| one == controller)
                    .then(|| path.trim_start_matches('/').to_owned())
            })
        };
        if let Some(top) = mounted("cgroup", "memory") {
            let own = top.join(own("memory")?);
            return Some(Self { parent: own.clone(), own, usage: "memory.usage_in_bytes" });
        }
        let (top, path) = (mounted("cgroup2", "")?, own("")?);
        let own = top.join(&path);
        // In version 2 a group with processes in it has no children with controllers: make brothers.
        let parent = if path.is_empty() { top } else { own.parent()?.to_owned() };
        Some(Self { own, parent, usage: "memory.current" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_occupied_control_group_is_removed() {
        let Ok(charges) = Charges::new() else {
            eprintln!("SKIPPED: memory cannot be counted here");
            return;
        };
        let mut sleeper = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let groups = [charges.client.clone(), charges.service.clone()];
        fs::write(charges.service.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
        drop(charges);
        let left = groups.iter().find(|group| group.exists());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(left, None);
    }

    #[test]
    fn the_hierarchy_with_the_controller_is_found() {
        let v1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                  cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let home = Home::among("4:memory:/a/b\n1:cpu:/\n0::/\n", v1).unwrap();
        assert_eq!((home.own.as_path(), &home.parent), (Path::new("/sys/fs/cgroup/memory/a/b"), &home.own));
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let home = Home::among("0::/user.slice/x.scope\n", v2).unwrap();
        assert_eq!(home.own, Path::new("/sys/fs/cgroup/user.slice/x.scope"));
        assert_eq!(home.parent, Path::new("/sys/fs/cgroup/user.slice"));
        let home = Home::among("0::/\n", v2).unwrap();
        assert_eq!(
            (home.own.as_path(), home.parent.as_path()),
            (Path::new("/sys/fs/cgroup/"), Path::new("/sys/fs/cgroup"))
        );
        assert_eq!(Home::among("", ""), None);
    }
}
