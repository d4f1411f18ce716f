//! What an instance is made of, as plain data: no option syntax above it, no open file below it.
//!
//! It is made of a command line once, by the command. Services are sent it, and leave it to their successors, by serde. What is
//! read so must be complete: a field that is missing or not known is an error, for it was said by another version.

use crate::failure::Failure;
use crate::layers::ceph::{CephLayer, Cluster};
use crate::layers::source::LayerSource;
use crate::path_text;
use crate::process::cpu_idle::KeepAwake;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_branch::WritebackLimits;
pub use vellum_union::OverrideStat;
use vellum_vfs::IdMap;
pub use vellum_vfs::Profile;

/// Most layers of one instance, the upper included.
pub const LAYERS_MAX: usize = 500;

/// Most worker threads of one instance.
pub const WORKERS_MAX: usize = 64;

/// Which lower files are copied block by block as they are written to, and not whole at the first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockCopy {
    /// Those of at least [`vellum_union::PARTIAL_FROM`] bytes, in passthrough
    /// [`vellum_union::PARTIAL_FROM_PASSTHROUGH`].
    #[default]
    Usual,
    /// None.
    Off,
    /// Those of at least so many bytes.
    From(u64),
}

/// How it is known which blocks a partial file has of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockMap {
    /// The others are holes, as far as the filesystem reports holes exactly.
    #[default]
    Holes,
    /// They are listed in a file beside.
    Sidecar,
}

/// What reading a file does to its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessTimes {
    /// Nothing.
    #[default]
    Never,
    /// It is set when it is older than a change, or than a day.
    Relative,
    /// It is set each time.
    Always,
}

/// Bytes that are copied into partial files when the mount has ended, so that the upper can be read without Vellum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillAtEnd(pub u64);

impl Default for FillAtEnd {
    /// What takes some seconds.
    fn default() -> Self {
        Self(1 << 30)
    }
}

/// Weights of mounts, as control groups of version 2 have them.
pub const WEIGHTS: std::ops::RangeInclusive<u16> = 1..=10_000;
/// The weight of a mount that was given none.
pub const WEIGHT_USUAL: u16 = 100;

/// Who may change lower layers that are read through a cache, beside this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerWriters {
    /// Others: their changes are seen when a file is opened anew.
    Shared,
    /// Nobody.
    Immutable,
}

/// A cache of the service through which lower layers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Who else may change the layers.
    pub sharing: LayerWriters,
    /// Bytes that it may hold. The mounts of a service have one cache, as large as the largest that one of them asks for.
    pub bytes: u64,
}

impl Cache {
    /// Least bytes: a block for each of some files.
    pub const MIN: u64 = 1 << 20;
    /// Bytes where nothing else is said.
    pub const USUAL: u64 = 256 << 20;
}

/// An upper layer on CephFS whose files are written behind: what is changed of them is answered when it stands in memory that outlives the
/// service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WritebackConfig {
    /// Most bytes that the cluster has not got yet.
    pub bytes: u64,
    /// How long it may not have them.
    pub age: Duration,
}

impl WritebackConfig {
    /// Bytes that it may be.
    pub const BYTES: std::ops::RangeInclusive<u64> = WritebackLimits::BYTES_MIN..=WritebackLimits::BYTES_MAX;
    /// Bytes where nothing else is said.
    pub const BYTES_USUAL: u64 = 64 << 20;
    /// Times that it may be.
    pub const AGES: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(100)..=Duration::from_secs(3600);
    /// The time where nothing else is said.
    pub const AGE_USUAL: Duration = Duration::from_secs(5);
}

/// What the mount itself allows, as the flags of mount(2). None: the default for the caller's privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountFlags {
    /// Nothing can be changed through the mount; the upper, if any, is only read.
    pub read_only: bool,
    /// Device files work. Default: no.
    #[serde(deserialize_with = "path_text::required")]
    pub dev: Option<bool>,
    /// Set-id bits act. Default: for root only.
    #[serde(deserialize_with = "path_text::required")]
    pub suid: Option<bool>,
    /// Programs can be run. Default: yes.
    #[serde(deserialize_with = "path_text::required")]
    pub exec: Option<bool>,
    /// What reading does to access times.
    pub access_times: AccessTimes,
    /// Every change is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
}

/// Everything that makes an instance. Relative paths are relative to the working directory at the time of
/// [`crate::layers::open`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the tree is mounted.
    #[serde(with = "path_text")]
    pub mountpoint: PathBuf,
    /// Lower layers, the top one first.
    pub lowers: Vec<LayerSource>,
    /// The layer that takes changes; None: the tree is read-only.
    #[serde(deserialize_with = "path_text::required")]
    pub upper: Option<LayerSource>,
    /// Where new objects are prepared; on the upper's filesystem. Needed with an upper that is written to.
    #[serde(deserialize_with = "path_text::required")]
    pub work: Option<LayerSource>,
    /// How file data travels.
    pub profile: Profile,
    /// Threads that answer requests. None: by the number of processors.
    #[serde(deserialize_with = "path_text::required")]
    pub workers: Option<NonZeroUsize>,
    /// Keep processors from sleep while requests come in numbers (privileged).
    pub keep_awake: KeepAwake,
    /// Mounts of the tree with mapped ids are allowed also where programs would be given files, which they are not then.
    pub idmap: bool,
    /// User ids in the layers against those in the mount.
    #[serde(with = "id_map")]
    pub uid_map: IdMap,
    /// Group ids in the layers against those in the mount.
    #[serde(with = "id_map")]
    pub gid_map: IdMap,
    /// Show every file as owned by this user.
    #[serde(deserialize_with = "path_text::required")]
    pub squash_uid: Option<u32>,
    /// Show every file as of this group.
    #[serde(deserialize_with = "path_text::required")]
    pub squash_gid: Option<u32>,
    /// Nothing is made durable; a crash may lose everything in the upper.
    pub volatile: bool,
    /// With [`Profile::Cached`]: every write comes here at once, and is not collected in the kernel's page cache.
    pub write_through: bool,
    /// Directories show a link count of 1.
    pub static_nlink: bool,
    /// POSIX ACLs are not honoured.
    pub no_acl: bool,
    /// Extended attributes of users cannot be read or set.
    pub no_xattrs: bool,
    /// Owner, mode and type are recorded in an extended attribute, not set. None: as the upper's root says.
    #[serde(deserialize_with = "path_text::required")]
    pub override_owners: Option<OverrideStat>,
    /// How long the kernel may believe names and attributes. None: as long as only this mount changes the upper.
    #[serde(deserialize_with = "path_text::required")]
    pub timeout: Option<Duration>,
    /// When lower files are copied block by block.
    pub block_copy: BlockCopy,
    /// How it is recorded which blocks a file has copied.
    pub block_map: BlockMap,
    /// Bytes per second that are copied into partial files while there is nothing else to do; None: none.
    #[serde(deserialize_with = "path_text::required")]
    pub background_fill: Option<u64>,
    /// How much of what the upper takes from other layers is copied when the mount has ended.
    pub fill_at_end: FillAtEnd,
    /// The cache through which lower layers are read; None: they are read as they are.
    #[serde(deserialize_with = "path_text::required")]
    pub cache: Option<Cache>,
    /// Files of an upper layer on CephFS are written behind; None: the cluster has each change before it is answered.
    #[serde(deserialize_with = "path_text::required")]
    pub write_behind: Option<WritebackConfig>,
    /// Its share of the cache where other mounts of the service want it too ([`WEIGHTS`]). None: the pool's, or [`WEIGHT_USUAL`].
    #[serde(deserialize_with = "path_text::required")]
    pub weight: Option<u16>,
    /// What the mount itself allows.
    pub flags: MountFlags,
    /// Whether others than the one who mounts may enter. None: only when root mounts.
    #[serde(deserialize_with = "path_text::required")]
    pub allow_other: Option<bool>,
    /// Only root may enter beside the one who mounts.
    pub allow_root: bool,
    /// How mounts below the mount point come and go elsewhere. None: as for those beside it.
    #[serde(deserialize_with = "path_text::required")]
    pub propagation: Option<Propagation>,
    /// Take the mount away when the process dies, whatever it dies of.
    pub auto_unmount: bool,
    /// How much of its privileges the process gives up.
    pub sandbox: crate::sandbox::Mode,
    /// Largest read request in bytes.
    #[serde(deserialize_with = "path_text::required")]
    pub max_read: Option<u32>,
    /// What mount(8) shows as the source.
    #[serde(with = "path_text::option")]
    pub source: Option<OsString>,
    /// What mount(8) shows as the type, after `fuse.`.
    #[serde(with = "path_text::option")]
    pub subtype: Option<OsString>,
    /// Security labels for the mount: option name and value.
    pub labels: Vec<(String, OsString)>,
}

/// What other mount namespaces, and other mounts of the same tree, see of mounts below a mount point: mount(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// Nothing, in either direction.
    Private,
    /// All, in both directions.
    Shared,
    /// What comes from elsewhere is seen here.
    Slave,
    /// Nothing, and the mount cannot be bound elsewhere.
    Unbindable,
}

impl Config {
    /// Whether the upper is to be written to.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.upper.is_some() && !self.flags.read_only
    }

    /// The upper and its work directory, where they are written to.
    #[must_use]
    pub fn writable_layers(&self) -> Option<(&LayerSource, &LayerSource)> {
        self.upper.as_ref().zip(self.work.as_ref()).filter(|_| self.writable())
    }

    /// The layers that are only read, the top one first; in a read-only mount, an upper is one of them.
    pub fn read_only_layers(&self) -> impl Iterator<Item = &LayerSource> {
        self.upper.iter().filter(|_| !self.writable()).chain(&self.lowers)
    }

    /// Those of its layers that are directories, from the top down.
    #[must_use]
    pub fn directories(&self) -> Vec<&Path> {
        self.upper.iter().chain(&self.lowers).filter_map(LayerSource::directory).collect()
    }

    /// Those of its layers that lie on CephFS.
    pub fn ceph_layers(&self) -> impl Iterator<Item = &CephLayer> {
        let written = self.writable_layers().into_iter().flat_map(|(upper, work)| [upper, work]);
        written.chain(self.read_only_layers()).filter_map(LayerSource::ceph)
    }

    /// Has those of its layers on CephFS that leave their cluster open lie on this one.
    pub fn reach_by(&mut self, usual: &Cluster) {
        let layers = self.upper.iter_mut().chain(&mut self.work).chain(&mut self.lowers);
        for layer in layers.filter_map(LayerSource::ceph_mut) {
            layer.cluster = layer.cluster.clone().or(usual);
        }
    }

    /// Whether some of its layers lie in a store on a zoned device.
    #[must_use]
    pub fn is_on_zoned(&self) -> bool {
        self.upper.iter().chain(&self.lowers).any(|layer| layer.zoned().is_some())
    }

    /// Shows the ids of the layers as others: `LAYER:MOUNT:LEN[:LAYER:MOUNT:LEN...]`, for users and groups.
    pub fn show_ids(&mut self, mapping: &str) -> Result<(), Failure> {
        let map = IdMap::parse(mapping).map_err(|why| Failure::input(format!("ids {mapping}: {why}")))?;
        (self.uid_map, self.gid_map) = (map.clone(), map);
        Ok(())
    }

    /// Refuses what no command line can ask for. Who reads one that another process has written calls this.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |why: String| Err(Failure::input(format!("what is to be mounted: {why}")));
        let layers = self.lowers.len();
        // A directory in a store is mounted by itself, too.
        let least = usize::from(self.upper.as_ref().is_none_or(|upper| upper.zoned().is_none()));
        if layers < least || layers > LAYERS_MAX {
            return wrong(format!("{layers} lower layers, where {least} to {LAYERS_MAX} can be"));
        }
        if self.writable() && self.work.is_none() {
            return wrong("an upper layer without a work directory".into());
        }
        if let Some(workers) = self.workers.filter(|workers| workers.get() > WORKERS_MAX) {
            return wrong(format!("{workers} workers, more than {WORKERS_MAX}"));
        }
        if let Some(cache) = self.cache.filter(|cache| cache.bytes < Cache::MIN) {
            return wrong(format!("a cache of {} bytes, less than {}", cache.bytes, Cache::MIN));
        }
        if let Some(behind) = self.write_behind {
            let is_far = self.writable_layers().is_some_and(|(upper, _)| upper.ceph().is_some());
            if !is_far
                || !WritebackConfig::BYTES.contains(&behind.bytes)
                || !WritebackConfig::AGES.contains(&behind.age)
            {
                return wrong(format!(
                    "{behind:?}, for which there is no upper layer, or limits that cannot be"
                ));
            }
        }
        if let Some(weight) = self.weight.filter(|weight| !WEIGHTS.contains(weight)) {
            return wrong(format!("weight {weight}, where 1 to 10000 can be"));
        }
        Ok(())
    }
}

/// Maps of ids, as options write them.
mod id_map {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use vellum_vfs::IdMap;

    pub(super) fn serialize<S: Serializer>(map: &IdMap, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(map)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<IdMap, D::Error> {
        match String::deserialize(from)?.as_str() {
            "" => Ok(IdMap::default()),
            text => IdMap::parse(text).map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::os::unix::ffi::OsStringExt;

    fn odd(bytes: &[u8]) -> OsString {
        OsString::from_vec(bytes.to_vec())
    }

    fn on_ceph() -> CephLayer {
        let mut layer = CephLayer::at(b"a/\xff");
        layer.cluster.conf = Some(odd(b"/c\xfe").into());
        layer.cluster.id = Some("x".into());
        layer
    }

    /// One with something in every field.
    fn full() -> Config {
        Config {
            mountpoint: odd(b"/m\xff\n").into(),
            lowers: vec![
                LayerSource::named(odd(b"/l\xc3")),
                LayerSource::named("/\"ü\u{2028}".into()),
                LayerSource::Ceph(on_ceph()),
            ],
            upper: Some(LayerSource::named(odd(b"\x80"))),
            work: Some(Path::new("/w").into()),
            profile: Profile::Passthrough,
            workers: NonZeroUsize::new(7),
            uid_map: IdMap::parse("0:100000:65536").unwrap(),
            squash_gid: Some(u32::MAX - 1),
            override_owners: Some(OverrideStat::User),
            timeout: Some(Duration::from_millis(1500)),
            block_copy: BlockCopy::From(1 << 40),
            background_fill: Some(u64::MAX),
            cache: Some(Cache { sharing: LayerWriters::Immutable, bytes: Cache::MIN }),
            weight: Some(200),
            flags: MountFlags {
                dev: Some(false),
                access_times: AccessTimes::Always,
                ..MountFlags::default()
            },
            propagation: Some(Propagation::Slave),
            source: Some(odd(b"\xfe\xff")),
            labels: vec![("context".into(), odd(b"a\xffb"))],
            ..Config::default()
        }
    }

    #[test]
    fn a_config_survives_a_round_trip() {
        for config in [Config::default(), full()] {
            let text = serde_json::to_vec(&config).unwrap();
            assert_eq!(serde_json::from_slice::<Config>(&text).unwrap(), config);
        }
    }

    #[test]
    fn missing_and_unknown_fields_are_refused() {
        let whole = serde_json::to_value(full()).unwrap();
        let read = |value: &Value| serde_json::from_value::<Config>(value.clone()).map_err(|e| e.to_string());
        for place in ["", "/flags"] {
            let names: Vec<String> =
                whole.pointer(place).and_then(Value::as_object).unwrap().keys().cloned().collect();
            assert!(names.len() > 6, "{names:?}");
            for name in names {
                let mut less = whole.clone();
                less.pointer_mut(place).and_then(Value::as_object_mut).unwrap().remove(&name);
                let why = read(&less).unwrap_err();
                assert!(why.contains("missing field") && why.contains(&name), "{why}");
            }
            let mut more = whole.clone();
            more.pointer_mut(place).and_then(Value::as_object_mut).unwrap().insert("new".into(), Value::Null);
            assert!(read(&more).unwrap_err().contains("unknown field `new`"));
        }
    }

    #[test]
    fn a_config_outside_the_limits_is_refused() {
        full().check().unwrap();
        let many = Config { lowers: vec![Path::new("/l").into(); LAYERS_MAX + 1], ..full() };
        let threads = Config { workers: NonZeroUsize::new(WORKERS_MAX + 1), ..full() };
        let small = Config { cache: Some(Cache { sharing: LayerWriters::Shared, bytes: 0 }), ..full() };
        let nowhere =
            WritebackConfig { bytes: WritebackConfig::BYTES_USUAL, age: WritebackConfig::AGE_USUAL };
        let nowhere = Config { write_behind: Some(nowhere), ..full() };
        let weightless = Config { weight: Some(0), ..full() };
        for bad in
            [Config::default(), many, threads, small, nowhere, weightless, Config { work: None, ..full() }]
        {
            assert_eq!(bad.check().unwrap_err().exit_status(), 2);
        }
        for (name, bad) in [
            ("mountpoint", serde_json::json!("/m\0")),
            ("mountpoint", serde_json::json!([47, 256])),
            ("upper", serde_json::json!("/u")),
            ("upper", serde_json::json!({ "Elsewhere": "/u" })),
            ("uid_map", serde_json::json!("0:1")),
            ("uid_map", serde_json::json!("0:0:0")),
            ("profile", serde_json::json!("quick")),
        ] {
            let mut value = serde_json::to_value(full()).unwrap();
            value[name] = bad;
            serde_json::from_value::<Config>(value).expect_err(name);
        }
    }
}
