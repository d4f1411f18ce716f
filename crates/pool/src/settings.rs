//! What a pool may use.

use crate::bytes::Bytes;
use crate::cpus::{CpuCount, Cpus};
use crate::uids::UidRange;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vellum_service::config::{Cache, WEIGHTS};
use vellum_service::layers::ceph::Cluster;

/// Below this a service that serves one small tree would be killed for want of memory.
pub(crate) const MEMORY_MIN: Bytes = Bytes(16 << 20);

/// The settings of a pool. What is None is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Processors that its services run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset_cpus: Option<Cpus>,
    /// How many processors' time its services use at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuCount>,
    /// Memory of its services, the page cache that they fill included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Its share of processors and disks where others want them too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The weight of those of its mounts that were given none: their shares of its service's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_weight: Option<u16>,
    /// The most that its service's cache may hold, whatever its mounts ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<Bytes>,
    /// Bytes per second that its services read from the disks of its layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_limit: Option<Bytes>,
    /// Bytes per second that its services write to the disks of its layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_limit: Option<Bytes>,
    /// Users and groups of the host that its containers' users and groups are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid_range: Option<UidRange>,
    /// Its service may reach Ceph clusters, for mounts with layers on CephFS.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ceph: bool,
    /// The configuration of the cluster that its mounts' layers on CephFS are on, where their options say nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_conf: Option<PathBuf>,
    /// As which client it is reached, without `client.`, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_id: Option<String>,
    /// The filesystem there, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_fs: Option<String>,
    /// Mounts with layers below one of these directories belong to the pool without saying so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub storage: Vec<PathBuf>,
}

impl Settings {
    /// Whether a layer below one of its directories belongs to it; the length of that directory's path, for whoever has to
    /// choose among several.
    #[must_use]
    pub fn claims(&self, layer: &Path) -> Option<usize> {
        let below = self.storage.iter().filter(|storage| layer.starts_with(storage));
        below.map(|storage| storage.components().count()).max()
    }

    /// The cluster of those of its mounts' layers on CephFS whose options leave it open.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        Cluster { conf: self.ceph_conf.clone(), id: self.ceph_id.clone(), filesystem: self.ceph_fs.clone() }
    }

    /// What cannot be, if anything, in a line that says what to do instead.
    pub fn check(&self) -> Result<(), String> {
        for (name, weight) in [("weight", self.weight), ("mount_weight", self.mount_weight)] {
            if let Some(weight) = weight.filter(|weight| !WEIGHTS.contains(weight)) {
                let (low, high) = (WEIGHTS.start(), WEIGHTS.end());
                return Err(format!(
                    "{name} {weight}: give a number from {low} to {high}; 100 is the usual one"
                ));
            }
        }
        if let Some(memory) = self.memory
            && memory < MEMORY_MIN
        {
            return Err(format!("memory {memory}: a service alone takes more; give {MEMORY_MIN} or more"));
        }
        let cache_min = Bytes(Cache::MIN);
        if let Some(cache) = self.cache
            && cache < cache_min
        {
            return Err(format!("cache {cache}: too small to be of use; give {cache_min} or more"));
        }
        let cluster = self.cluster();
        if !self.ceph && cluster != Cluster::default() {
            return Err("ceph_conf, ceph_id and ceph_fs: its service reaches no Ceph cluster; set ceph to on, or remove these settings"
                .into());
        }
        if let Some(conf) = cluster.conf.filter(|conf| !conf.is_absolute()) {
            return Err(format!("ceph_conf {}: give an absolute path", conf.display()));
        }
        for (name, word) in [("ceph_id", &cluster.id), ("ceph_fs", &cluster.filesystem)] {
            if let Some(word) =
                word.as_ref().filter(|word| word.is_empty() || word.contains(char::is_control))
            {
                return Err(format!("{name} {word:?}: give a name"));
            }
        }
        match self.storage.iter().find(|storage| !storage.is_absolute()) {
            Some(storage) => Err(format!("storage {}: give an absolute path", storage.display())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_directory_claims() {
        let settings = Settings { storage: vec!["/a".into(), "/a/b".into()], ..Settings::default() };
        assert_eq!(settings.claims(Path::new("/a/c")), Some(2));
        assert_eq!(settings.claims(Path::new("/a/b/c")), Some(3));
        assert_eq!(settings.claims(Path::new("/ab")), None);
    }

    #[test]
    fn a_written_value_parses_back() {
        let text = "cpuset_cpus = \"2-3\"\ncpus = 1.5\nmemory = \"2G\"\nweight = 200\nmount_weight = 50\ncache = \"64M\"\nwrite_limit = \"5M\"\nuid_range = \"9:5\"\nceph = true\nceph_conf = \"/c\"\nceph_id = \"t\"\nceph_fs = \"f\"\nstorage = [\"/x\"]\n";
        let settings: Settings = toml::from_str(text).unwrap();
        assert_eq!(settings.memory, Some(Bytes(2 << 30)));
        assert_eq!(toml::to_string(&settings).unwrap(), text);
        for bad in [
            "memmory = \"2G\"",
            "memory = \"2X\"",
            "cpuset_cpus = \"\"",
            "cpus = 0",
            "cpus = -1",
            "cpus = nan",
            "weight = 70000",
            "weight = \"1\"",
            "uid_range = \"0:5\"",
            "uid_range = 5",
            "ceph = \"on\"",
        ] {
            assert!(toml::from_str::<Settings>(bad).is_err(), "{bad}");
        }
        // What older versions have written.
        let old = toml::from_str::<Settings>("cpus = \"0-3\"").unwrap_err().to_string();
        assert!(old.contains("cpuset_cpus"), "{old}");
        for bad in [
            "weight = 0",
            "mount_weight = 10001",
            "memory = \"15M\"",
            "cache = \"1000K\"",
            "storage = [\"x\"]",
            "ceph_id = \"t\"",
            "ceph = true\nceph_conf = \"c\"",
            "ceph = true\nceph_id = \"\"",
            "ceph = true\nceph_fs = \"a\\n\"",
        ] {
            assert!(toml::from_str::<Settings>(bad).unwrap().check().is_err(), "{bad}");
        }
    }
}
