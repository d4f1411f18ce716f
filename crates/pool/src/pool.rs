//! A pool: its settings made real, and what goes on in it.

use crate::cgroup::{Groups, Hierarchies, PoolUse};
use crate::device;
use crate::name::PoolName;
use crate::settings::Settings;
use crate::store::Store;
use crate::uids::UidRange;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vellum_service::Failure;
use vellum_service::config::Config;
use vellum_service::mounts::mount_copies::MountCopy;
use vellum_service::mounts::mountpoint;
use vellum_service::pool as service;

/// How long a service may take to notice that its last mount has gone, and its supervisor to notice that.
const END_MAX: Duration = Duration::from_secs(10);
/// When a service that has nothing mounted here is still there after this, somebody else may have a mount of it.
const USUAL: Duration = Duration::from_secs(1);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A pool of this host.
#[derive(Clone, Debug)]
pub struct Pool {
    name: PoolName,
    settings: Settings,
    groups: Groups,
    /// Where its service listens.
    socket: PathBuf,
}

/// A process in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub process: u32,
    /// Where its mounts are, when it is a service.
    pub mountpoints: Vec<PathBuf>,
    pub program: String,
}

impl Pool {
    pub fn open(store: &Store, name: &PoolName) -> Result<Self, Failure> {
        Self::with(store, name.clone(), store.read(name)?)
    }

    /// One with these settings, which are what `store` has of it.
    pub fn with(store: &Store, name: PoolName, settings: Settings) -> Result<Self, Failure> {
        let pool = Self::among(store, name, settings, &Hierarchies::detect()?);
        pool.make_session_directory();
        Ok(pool)
    }

    /// What containers have mounted has to be there before the first service is, also after a reboot.
    fn make_session_directory(&self) {
        if let Err(error) = service::make_session_directory(&self.socket) {
            tracing::debug!(%error, pool = %self.name, "no directory for the socket for programs");
        }
    }

    /// All of this user's whose files can be read: one that is damaged is no reason to show nothing. Who has no place for pools has
    /// none.
    pub fn all() -> Result<Vec<Self>, Failure> {
        let Ok(store) = Store::of_user() else { return Ok(Vec::new()) };
        let hierarchies = Hierarchies::detect()?;
        let names = store.names()?;
        let read = |name: PoolName| {
            let settings = store.read(&name).ok()?;
            Some(Self::among(&store, name, settings, &hierarchies))
        };
        Ok(names.into_iter().filter_map(read).collect())
    }

    fn among(store: &Store, name: PoolName, settings: Settings, hierarchies: &Hierarchies) -> Self {
        Self { groups: Groups::of_pool(&name, hierarchies), socket: store.socket(&name), name, settings }
    }

    /// A new one. Nothing is left of it when its settings cannot be had here.
    pub fn create(store: &Store, name: &PoolName, settings: Settings) -> Result<Self, Failure> {
        checked(name, &settings)?;
        if store.names()?.contains(name) {
            // It says what to do.
            store.create(name, &settings)?;
        }
        let _lock = own_ids(store, name, None, &settings)?;
        let groups = Groups::of_pool(name, &Hierarchies::detect()?);
        let pool = Self { name: name.clone(), settings, groups, socket: store.socket(name) };
        let made = pool.groups.make(&pool.settings, &device::disks(&pool.settings.storage));
        if let Err(failure) = made.and_then(|()| store.create(name, &pool.settings)) {
            // The first failure is what counts.
            let _ = pool.groups.remove();
            return Err(failure);
        }
        pool.make_session_directory();
        Ok(pool)
    }

    /// Changes its settings, for the services that it has as well. What cannot be had is not kept.
    pub fn set(&mut self, store: &Store, settings: Settings) -> Result<(), Failure> {
        checked(&self.name, &settings)?;
        self.check_reach(&settings)?;
        let _lock = own_ids(store, &self.name, self.settings.uid_range, &settings)?;
        let before = std::mem::replace(&mut self.settings, settings);
        let done = self.apply().and_then(|()| store.write(&self.name, &self.settings));
        if done.is_err() {
            self.settings = before;
            // As it was, as far as that goes: the first failure is what counts.
            let _ = self.apply();
        }
        done
    }

    /// Takes it away. It must be empty.
    pub fn delete(self, store: &Store) -> Result<(), Failure> {
        // A service ends a moment after its last mount.
        let begin = Instant::now();
        let end = begin + END_MAX;
        while !service::stop(&self.socket)?
            && Instant::now() < end
            && self.members().iter().all(|member| member.mountpoints.is_empty())
        {
            if begin.elapsed() > USUAL
                && let Some(elsewhere) = self.processes().into_iter().find_map(MountCopy::of_service)
            {
                let name = &self.name;
                return Err(Failure::input(format!("pool {name}: a mount of it lives on: {elsewhere}")));
            }
            std::thread::sleep(LOOK);
        }
        // And its supervisor a moment after the service.
        let is_keeper = |member: &Member| {
            member.mountpoints.is_empty() && service::KEEPERS.contains(&member.program.as_str())
        };
        vellum_sys::wait_until(end.saturating_duration_since(Instant::now()), LOOK, || {
            self.processes().is_empty() || !self.members().iter().all(is_keeper)
        });
        // A mount says more than a process.
        if let Some(member) = self.members().into_iter().min_by_key(|member| member.mountpoints.is_empty()) {
            let name = &self.name;
            let who = match member.mountpoints.first() {
                Some(mountpoint) => format!("the mount {} is in it; unmount it first", mountpoint.display()),
                None if service::KEEPERS.contains(&member.program.as_str()) => {
                    "its service has not ended yet; try again".to_owned()
                }
                None => format!("process {} ({}) is in it; end it first", member.process, member.program),
            };
            return Err(Failure::input(format!("pool {name}: {who}")));
        }
        self.groups.remove()?;
        let _ = fs::remove_file(self.socket.with_extension("lock"));
        let _ = fs::remove_dir(self.session_directory());
        store.remove(&self.name)
    }

    /// Puts this process into it, before it starts threads. `layers`: the directories whose disks limits of reading and writing are
    /// for.
    pub fn enter<P: AsRef<Path>>(&self, layers: &[P]) -> Result<(), Failure> {
        let mut disks = device::disks(layers);
        disks.extend(device::disks(&self.settings.storage));
        // Groups do not outlive a reboot.
        self.groups.make(&self.settings, &disks)?;
        self.groups.enter(std::process::id())
    }

    /// Makes it ready for layers in these directories: what it may read and write is said for each disk.
    pub fn prepare<P: AsRef<Path>>(&self, layers: &[P]) -> Result<(), Failure> {
        if self.settings.read_limit.is_none() && self.settings.write_limit.is_none() {
            return Ok(());
        }
        self.groups.make(&self.settings, &device::disks(layers))
    }

    /// Refuses layers on CephFS where its service may not reach a cluster.
    pub fn require_reach(&self, config: &Config) -> Result<(), Failure> {
        let name = &self.name;
        match config.ceph_layers().next() {
            Some(layer) if !self.settings.ceph => Err(Failure::input(format!(
                "pool {name}: layer {layer}: its service reaches no Ceph cluster"
            ))
            .remedy(format!("vellum pool set {name} --ceph on"))),
            _ => Ok(()),
        }
    }

    /// Refuses to take away what its mounts may need: a service without it could not go on with them.
    fn check_reach(&self, settings: &Settings) -> Result<(), Failure> {
        let mounts = || self.service().map_or(0, |service| service.mounts);
        if !self.settings.ceph || settings.ceph || mounts() == 0 {
            return Ok(());
        }
        let name = &self.name;
        Err(Failure::input(format!("pool {name}: option --ceph: mounts in it may have layers on CephFS"))
            .remedy("unmount them first"))
    }

    /// Where its service listens, when it has one.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The directory with the socket for programs in it, which is there as long as the pool is, and is mounted into containers.
    #[must_use]
    pub fn session_directory(&self) -> PathBuf {
        service::session_directory(&self.socket)
    }

    /// What its service says of itself; None: it has none at the moment.
    #[must_use]
    pub fn service(&self) -> Option<service::Status> {
        service::look(&self.socket)
    }

    #[must_use]
    pub fn name(&self) -> &PoolName {
        &self.name
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The users and groups that its containers run as; None: those of who starts them. They have to be there in this user namespace.
    pub fn ids(&self) -> Result<Option<UidRange>, Failure> {
        let Some(range) = self.settings.uid_range else { return Ok(None) };
        let map = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        if range.is_in(&map("uid_map")) && range.is_in(&map("gid_map")) {
            return Ok(Some(range));
        }
        let name = &self.name;
        Err(Failure::input(format!(
            "pool {name}: uid-range {range}: this user namespace has not all of these ids; take others with vellum pool set, or do it as root of the host"
        )))
    }

    #[must_use]
    pub fn usage(&self) -> PoolUse {
        self.groups.usage()
    }

    /// Where its control groups are, those that there are.
    #[must_use]
    pub fn groups(&self) -> Vec<&Path> {
        self.groups.dirs().filter(|dir| dir.exists()).collect()
    }

    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        self.groups.processes()
    }

    /// The processes in it and what they are, for which each process's descriptors are looked at.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.processes().into_iter().map(member).collect()
    }

    /// The disks are those of all mounts that there are.
    fn apply(&self) -> Result<(), Failure> {
        let mut layers = self.settings.storage.clone();
        layers.extend(self.processes().into_iter().flat_map(open_directories));
        self.groups.make(&self.settings, &device::disks(&layers))
    }
}

fn checked(name: &PoolName, settings: &Settings) -> Result<(), Failure> {
    let bad = |why: String| Failure::input(format!("pool {name}: {why}"));
    settings.check().map_err(bad)?;
    if let Some(cpus) = &settings.cpuset_cpus
        && let Some(here) = fs::read_to_string("/sys/devices/system/cpu/online")
            .ok()
            .and_then(|text| text.parse::<crate::cpus::Cpus>().ok())
        && let Some(missing) = cpus.not_in(&here).first()
    {
        return Err(bad(format!(
            "cpuset_cpus {cpus}: there is no processor {missing}; this host has {here}"
        )));
    }
    Ok(())
}

/// Sees to it that no id belongs to two pools. Until what is returned is dropped, nobody else takes any. `before`: what it had.
fn own_ids(
    store: &Store,
    name: &PoolName,
    before: Option<UidRange>,
    settings: &Settings,
) -> Result<Option<File>, Failure> {
    let Some(range) = settings.uid_range.filter(|range| Some(*range) != before) else { return Ok(None) };
    let lock = store.lock()?;
    for (other, settings) in store.all()?.iter().filter(|(other, _)| other != name) {
        if let Some(taken) = settings.uid_range
            && taken.overlaps(range)
        {
            return Err(Failure::input(format!(
                "pool {name}: option --uid-range {range}: pool {other} has ids of it, {taken}; take others"
            )));
        }
    }
    Ok(Some(lock))
}

fn member(process: u32) -> Member {
    let program = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Member { process, mountpoints: mountpoints_of(process), program: program.trim_end().to_owned() }
}

/// Where the filesystems are mounted that a process serves. A supervisor has the same descriptors as its service, but one thread; who
/// serves has several.
fn mountpoints_of(process: u32) -> Vec<PathBuf> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    if threads < 2 { Vec::new() } else { mountpoint::mounts_of_process(&process.to_string()) }
}

/// The directories that a process holds, by links that lead to them.
fn open_directories(process: u32) -> Vec<PathBuf> {
    let held = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    held.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_processors_are_refused() {
        let name: PoolName = "a".parse().unwrap();
        let settings = Settings { cpuset_cpus: Some("60000".parse().unwrap()), ..Settings::default() };
        let failure = checked(&name, &settings).unwrap_err();
        assert!(failure.exit_status() == 2 && failure.to_string().contains("60000"), "{failure}");
        assert!(checked(&name, &Settings::default()).is_ok());
    }

    #[test]
    fn no_id_belongs_to_two_pools() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path());
        let name = |text: &str| -> PoolName { text.parse().unwrap() };
        let with = |range: &str| Settings { uid_range: Some(range.parse().unwrap()), ..Settings::default() };
        store.create(&name("a"), &with("1000:100")).unwrap();
        store.create(&name("b"), &Settings::default()).unwrap();
        let own = |range: &str, before: Option<&str>| {
            own_ids(&store, &name("b"), before.map(|range| range.parse().unwrap()), &with(range))
        };
        let failure = own("1099:1", None).unwrap_err();
        let said = failure.to_string();
        assert_eq!(failure.exit_status(), 2);
        assert!(["pool b", "pool a", "1099:1", "1000:100"].iter().all(|word| said.contains(word)), "{said}");
        // The lock of one goes before the next takes it.
        for range in ["1100:5", "1:999"] {
            assert!(own(range, None).unwrap().is_some());
        }
        // Its own old range is in nobody's way, and what stays is not looked at again.
        store.write(&name("b"), &with("2000:10")).unwrap();
        assert!(own("2005:10", Some("2000:10")).unwrap().is_some());
        assert!(own("1000:1", Some("1000:1")).unwrap().is_none());
        assert_eq!(store.names().unwrap(), [name("a"), name("b")]);
    }

    #[test]
    fn this_process_has_a_program_name() {
        let own = member(std::process::id());
        assert!(!own.program.is_empty());
    }
}
