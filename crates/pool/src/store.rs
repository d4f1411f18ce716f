//! Pools on disk: `DIR/NAME/pool.toml`, which a person may read, edit and copy.

use crate::name::PoolName;
use crate::settings::Settings;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// Where root's pools are.
const SYSTEM: &str = "/etc/vellum/pools";
/// Where sockets of root's pools are.
const RUNTIME: &str = "/run/vellum";
/// Names another directory.
pub(crate) const VARIABLE: &str = "VELLUM_POOLS";
const FILE: &str = "pool.toml";
/// Locked by who compares pools with each other; no pool has such a name.
const LOCK: &str = ".lock";

/// Where pools are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// That of this user: what `VELLUM_POOLS` says, else `/etc/vellum/pools` for the host's root and `vellum/pools` in the directory for
    /// configuration for others.
    pub fn of_user() -> Result<Self, Failure> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = variable(VARIABLE).or_else(|| {
            if crate::privilege::is_host_root() {
                return Some(SYSTEM.into());
            }
            let home = || Some(variable("HOME")?.join(".config"));
            Some(variable("XDG_CONFIG_HOME").or_else(home)?.join("vellum/pools"))
        });
        let none = || Failure::input(format!("no directory for pools: set HOME or {VARIABLE}"));
        Ok(Self { dir: dir.ok_or_else(none)? })
    }

    /// One in a directory that is named.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Where the service of a pool listens.
    #[must_use]
    pub fn socket(&self, name: &PoolName) -> PathBuf {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dir = if self.dir == Path::new(SYSTEM) {
            RUNTIME.into()
        } else {
            // Who names a directory for pools has all of them there.
            let here = variable(VARIABLE).is_some();
            let runtime = variable("XDG_RUNTIME_DIR").filter(|_| !here);
            runtime.map_or_else(|| self.dir.join(".run"), |dir| PathBuf::from(dir).join("vellum"))
        };
        dir.join(format!("{name}.sock"))
    }

    /// The names of all pools, sorted. What has no name of a pool is none.
    pub fn names(&self) -> Result<Vec<PoolName>, Failure> {
        let entries = match fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| self.failed(&self.dir, &e))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| self.failed(&self.dir, &e))?;
            let name = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // What is half made or half removed has no file.
            names.extend(name.filter(|_| entry.path().join(FILE).is_file()));
        }
        names.sort();
        Ok(names)
    }

    pub fn read(&self, name: &PoolName) -> Result<Settings, Failure> {
        self.find(name)?.ok_or_else(|| self.no_such(name))
    }

    /// All pools and their settings, sorted by name. One that is deleted meanwhile is in nobody's way.
    pub fn all(&self) -> Result<Vec<(PoolName, Settings)>, Failure> {
        let found =
            self.names()?.into_iter().map(|name| Ok(self.find(&name)?.map(|settings| (name, settings))));
        found.filter_map(Result::transpose).collect()
    }

    /// The settings of a pool; None: there is no such pool.
    fn find(&self, name: &PoolName) -> Result<Option<Settings>, Failure> {
        let file = self.file(name);
        let text = match crate::regular_file::open(&file).and_then(io::read_to_string) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|e| self.failed(&file, &e))?,
        };
        let bad = |why: &str| Failure::input(format!("{}: {why}", file.display())).remedy("mend the file");
        let last = |e: toml::de::Error| bad(e.to_string().lines().last().unwrap_or_default());
        let mut table: toml::Table = toml::from_str(&text).map_err(last)?;
        // A list of processors stood there before 0.2. One pool's old file must not be in the way of all mounts.
        if let Some(toml::Value::String(list)) = table.get("cpus") {
            let list = toml::Value::String(list.clone());
            table.remove("cpus");
            table.entry("cpuset_cpus").or_insert(list);
        }
        let settings: Settings = table.try_into().map_err(last)?;
        settings.check().map_err(|why| bad(&why))?;
        Ok(Some(settings))
    }

    /// Makes a pool, which must not be there.
    pub fn create(&self, name: &PoolName, settings: &Settings) -> Result<(), Failure> {
        fs::create_dir_all(&self.dir).map_err(|e| self.failed(&self.dir, &e))?;
        let dir = self.dir.join(name.as_str());
        match fs::create_dir(&dir) {
            // A directory without a file is what an interrupted command has left.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !self.file(name).exists() => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Failure::input(format!(
                    "pool {name}: there is one of this name; change it with vellum pool set, or take another name"
                )));
            }
            made => made.map_err(|e| self.failed(&dir, &e))?,
        }
        self.write(name, settings)
    }

    /// Waits until nobody else compares pools with each other; until what is returned is dropped, nobody does.
    pub fn lock(&self) -> Result<File, Failure> {
        let path = self.dir.join(LOCK);
        let locked = (|| {
            fs::create_dir_all(&self.dir)?;
            // Nobody but its owner can hold others up.
            let file = File::options().create(true).append(true).mode(0o600).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        })();
        locked.map_err(|e: io::Error| self.failed(&path, &e))
    }

    /// Replaces the settings of a pool, whole or not at all.
    pub fn write(&self, name: &PoolName, settings: &Settings) -> Result<(), Failure> {
        let file = self.file(name);
        let text = toml::to_string(settings)
            .map_err(|e| Failure::system(format!("{}", file.display())).because(e))?;
        let written = (|| {
            let mut new = tempfile::NamedTempFile::new_in(self.dir.join(name.as_str()))?;
            new.write_all(text.as_bytes())?;
            // Not only for its owner, as files of configuration are.
            fs::set_permissions(new.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
            new.as_file().sync_all()?;
            new.persist(&file).map_err(|e| e.error)?;
            Ok(())
        })();
        written.map_err(|e: io::Error| self.failed(&file, &e))
    }

    /// Removes a pool.
    pub fn remove(&self, name: &PoolName) -> Result<(), Failure> {
        let dir = self.dir.join(name.as_str());
        match fs::remove_file(self.file(name)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(self.no_such(name)),
            removed => removed.map_err(|e| self.failed(&dir, &e))?,
        }
        // What else somebody has put there stays.
        match fs::remove_dir(&dir) {
            Err(e) if e.kind() != io::ErrorKind::DirectoryNotEmpty => Err(self.failed(&dir, &e)),
            _ => Ok(()),
        }
    }

    /// The pool that claims a mount with these layers, by the directory that is nearest to one of them. The first layer that
    /// any pool claims decides.
    pub fn of_layers<P: AsRef<Path>>(&self, layers: &[P]) -> Result<Option<(PoolName, Settings)>, Failure> {
        let pools = self.all()?;
        if pools.is_empty() {
            return Ok(None);
        }
        for layer in layers {
            let Ok(layer) = fs::canonicalize(layer) else { continue };
            let claims = pools.iter().filter_map(|pool| Some((pool.1.claims(&layer)?, pool)));
            if let Some((_, pool)) = claims.max_by_key(|(depth, _)| *depth) {
                return Ok(Some(pool.clone()));
            }
        }
        Ok(None)
    }

    fn file(&self, name: &PoolName) -> PathBuf {
        self.dir.join(name.as_str()).join(FILE)
    }

    fn no_such(&self, name: &PoolName) -> Failure {
        Failure::input(format!(
            "pool {name}: there is none in {}; vellum pool list shows them, vellum pool create makes one",
            self.dir.display()
        ))
    }

    fn failed(&self, path: &Path, e: &io::Error) -> Failure {
        Failure::system(format!("{}", path.display())).because(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PoolName {
        text.parse().unwrap()
    }

    #[test]
    fn pools_are_made_changed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path().join("pools"));
        assert_eq!(store.names().unwrap(), []);
        let settings = Settings { weight: Some(200), ..Settings::default() };
        store.create(&name("b"), &settings).unwrap();
        store.create(&name("a"), &Settings::default()).unwrap();
        assert_eq!(store.create(&name("a"), &settings).unwrap_err().exit_status(), 2);
        assert_eq!(store.read(&name("a")).unwrap(), Settings::default());
        store.write(&name("a"), &settings).unwrap();
        assert_eq!(store.read(&name("a")).unwrap(), settings);
        assert_eq!(store.names().unwrap(), [name("a"), name("b")]);
        store.remove(&name("a")).unwrap();
        for failure in [store.remove(&name("a")).unwrap_err(), store.read(&name("a")).unwrap_err()] {
            assert_eq!(failure.exit_status(), 2);
            assert!(failure.to_string().contains("vellum pool list"), "{failure}");
        }
        assert_eq!(store.names().unwrap(), [name("b")]);
        // What an interrupted command has left is no pool, and in nobody's way.
        fs::create_dir(dir.path().join("pools/c")).unwrap();
        assert_eq!(store.names().unwrap(), [name("b")]);
        store.create(&name("c"), &settings).unwrap();
    }

    #[test]
    fn a_list_of_processors_under_its_former_name_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path());
        store.create(&name("a"), &Settings::default()).unwrap();
        fs::write(dir.path().join("a/pool.toml"), "cpus = \"0-1\"\n").unwrap();
        let expected: Settings = toml::from_str("cpuset_cpus = \"0-1\"").unwrap();
        assert_eq!(store.read(&name("a")).unwrap(), expected);
        assert!(store.of_layers(&["/"]).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path());
        store.create(&name("a"), &Settings::default()).unwrap();
        for text in ["weight = 0", "weigth = 1", "memory = 5", "\u{0}", "cpuset_cpus = \"x\""] {
            fs::write(dir.path().join("a/pool.toml"), text).unwrap();
            let failure = store.read(&name("a")).unwrap_err();
            assert_eq!(failure.exit_status(), 2);
            assert!(failure.to_string().contains("a/pool.toml"), "{failure}");
            // A mount must not go on as if there was no pool.
            assert!(store.of_layers(&["/"]).is_err());
        }
    }

    #[test]
    fn a_concurrently_deleted_pool_causes_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path());
        store.create(&name("stays"), &Settings::default()).unwrap();
        let end = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    store.create(&name("goes"), &Settings::default()).unwrap();
                    store.remove(&name("goes")).unwrap();
                }
            });
            let looks: Vec<_> = (0..2000).map(|_| store.of_layers(&["/"])).collect();
            end.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(looks.into_iter().find(|look| *look != Ok(None)), None);
        });
    }

    #[test]
    fn a_pipe_instead_of_the_file_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path());
        fs::create_dir(dir.path().join("a")).unwrap();
        let file = dir.path().join("a/pool.toml");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &file, kind, mode, 0).unwrap();
        assert!(store.read(&name("a")).unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn the_nearest_pool_claims_a_mount() {
        let dir = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(dir.path()).unwrap();
        let store = Store::at(top.join("pools"));
        for deep in ["x/y/z", "w"] {
            fs::create_dir_all(top.join(deep)).unwrap();
        }
        let of = |dir: &str| Settings { storage: vec![top.join(dir)], ..Settings::default() };
        assert_eq!(store.of_layers(&[top.join("x")]).unwrap(), None);
        store.create(&name("far"), &of("x")).unwrap();
        store.create(&name("near"), &of("x/y")).unwrap();
        let claimed = |layers: &[&str]| {
            let layers: Vec<PathBuf> = layers.iter().map(|layer| top.join(layer)).collect();
            store.of_layers(&layers).unwrap().map(|(name, _)| name)
        };
        assert_eq!(claimed(&["x/y/z"]), Some(name("near")));
        assert_eq!(claimed(&["x"]), Some(name("far")));
        assert_eq!(claimed(&["w"]), None);
        assert_eq!(claimed(&["w", "nonexistent", "x/y"]), Some(name("near")));
    }
}
