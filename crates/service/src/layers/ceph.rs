//! Layers on CephFS: what names them, and the clients of this process, one for each cluster and name.
//!
//! A client has threads, so it connects when the process has given its rights up. What that takes and is given up then comes before
//! ([`prepare`]): the library is loaded, the configuration read, and it is known where the key is.

mod admin;
mod metadata_cache;
mod open;

pub use admin::{CephEntry, CephFileReader, Visit, end_visitor};
pub(crate) use admin::{arrive, without_ceph_output};
pub use open::CephRight;
pub(crate) use open::{immutable, layer, reach, upper};

use crate::config::Config;
use crate::failure::Failure;
use crate::path_text;
use crate::pool::EXPELLED;
use parking_lot::Mutex;
use rustix::system::uname;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use vellum_branch::{
    CephAccess, CephClient, CephLineage, CephRefusal, CephSetup, CephTrouble, ceph_clients, load_ceph,
    on_expulsion,
};

/// What names of such layers begin with.
const SCHEME: &[u8] = b"ceph:";
/// The configuration where neither an option nor the variable CEPH_CONF says another one.
const CONF: &str = "/etc/ceph/ceph.conf";
/// How long a process that ends waits for its clusters, and the time between two looks.
const LEAVING: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(2);

/// How a cluster is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its configuration. None: the usual one.
    #[serde(with = "path_text::option")]
    pub conf: Option<PathBuf>,
    /// The client's name, without `client.`; None: `admin`.
    #[serde(deserialize_with = "path_text::required")]
    pub id: Option<String>,
    /// The filesystem's name; None: the cluster's default.
    #[serde(deserialize_with = "path_text::required")]
    pub filesystem: Option<String>,
}

impl Cluster {
    /// With what it leaves open taken from another.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            conf: self.conf.or_else(|| other.conf.clone()),
            id: self.id.or_else(|| other.id.clone()),
            filesystem: self.filesystem.or_else(|| other.filesystem.clone()),
        }
    }
}

/// A directory of CephFS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CephLayer {
    /// Its path below the filesystem's root, without a slash at either end.
    #[serde(with = "path_text")]
    path: PathBuf,
    pub cluster: Cluster,
}

impl CephLayer {
    /// The directory that an option with one layer names; None: it names none of CephFS.
    #[must_use]
    pub fn named(text: &OsStr) -> Option<Self> {
        text.as_bytes().strip_prefix(SCHEME).map(Self::at)
    }

    /// The directory at a path, which begins at the filesystem's root whether it begins with a slash or not.
    #[must_use]
    pub fn at(path: &[u8]) -> Self {
        let components = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let path = OsString::from_vec(components.collect::<Vec<_>>().join(&b'/'));
        Self { path: path.into(), cluster: Cluster::default() }
    }

    /// Its path below the filesystem's root, without a slash at either end.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// As [`Self::resolve`], on another cluster as far as it leaves that open.
    pub fn resolve_with(&self, usual: &Cluster) -> Result<Self, Failure> {
        let cluster = self.cluster.clone().or(usual);
        Self { path: self.path.clone(), cluster }.resolve()
    }

    /// With the configuration as a path that means the same everywhere. Refuses one that cannot be read.
    pub fn resolve(&self) -> Result<Self, Failure> {
        let (option, given) = match (&self.cluster.conf, std::env::var_os("CEPH_CONF")) {
            (Some(conf), _) => ("option ceph.conf=", conf.clone()),
            (None, Some(conf)) if !conf.is_empty() => ("variable CEPH_CONF=", conf.into()),
            (None, _) => ("", CONF.into()),
        };
        let conf = given.canonicalize().and_then(|conf| std::fs::File::open(&conf).map(|_| conf));
        let conf = conf.map_err(|e| {
            let line = format!("layer {self}: {option}{}: cannot read the configuration", given.display());
            Failure::input(line).because(e).remedy("give the cluster's, with ceph.conf=FILE")
        })?;
        let cluster = Cluster { conf: Some(conf), ..self.cluster.clone() };
        Ok(Self { path: self.path.clone(), cluster })
    }
}

impl fmt::Display for CephLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ceph:/{}", self.path.display())
    }
}

/// Of which family of services this process is one, by a number that no other family has, and how many were before it.
static FAMILY: OnceLock<(u64, u64)> = OnceLock::new();

/// What this family writes down where it writes: its number, and for people the name of the host.
static WRITER: OnceLock<String> = OnceLock::new();

/// Says so, before anything else: clusters are told, and forget the client of a service that has died when the next one comes. They would
/// hold others up for a minute otherwise, waiting for what the dead one may have.
pub(crate) fn be_one_of(family: u64, before: u64) {
    let _ = FAMILY.set((family, before));
    let _ = WRITER.set(format!("{family:016x} on {}", uname().nodename().to_string_lossy()));
}

/// Has this process end with a status as soon as a cluster has expelled a client of it, for a supervisor to start another: what a killed one
/// leaves is what that one goes on with. The call that has found it out is not answered, and is sent again with those that are under way.
pub(crate) fn end_when_expelled() {
    on_expulsion(|| {
        tracing::error!("a cluster has expelled the client of this service, which ends for another one");
        vellum_sys::end_process(EXPELLED);
    });
}

/// The record of this family.
fn writer() -> String {
    WRITER.get().cloned().unwrap_or_else(|| format!("process {}", std::process::id()))
}

/// Whether no service was before this one, which somebody uses the mounts of.
fn is_first() -> bool {
    FAMILY.get().is_none_or(|(_, before)| *before == 0)
}

/// What clusters call the clients of this family, one after the other, and whether there may have been one before.
fn lineage(cluster: &Cluster) -> Option<(CString, bool)> {
    let (family, before) = FAMILY.get()?;
    // Clients of one cluster under several names would drive each other out.
    let hash = vellum_sys::fnv1a(serde_json::to_vec(cluster).ok()?);
    Some((CString::new(format!("vellum-{family:016x}-{hash:016x}")).ok()?, *before > 0))
}

/// A client, as far as it has come.
#[derive(Default)]
struct Slot {
    begun: Option<CephSetup>,
    client: Weak<CephClient>,
}

/// The slot of a cluster. Nobody waits for a cluster while holding the lock of all.
fn slot(cluster: &Cluster) -> Arc<Mutex<Slot>> {
    static SLOTS: Mutex<BTreeMap<Cluster, Arc<Mutex<Slot>>>> = Mutex::new(BTreeMap::new());
    Arc::clone(SLOTS.lock().entry(cluster.clone()).or_default())
}

fn setup(cluster: &Cluster) -> Result<CephSetup, CephRefusal> {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
    let conf = cluster.conf.as_deref().map(|conf| text(conf.as_os_str().as_bytes()));
    let [id, filesystem] =
        [&cluster.id, &cluster.filesystem].map(|name| name.as_ref().map(|n| text(n.as_bytes())));
    CephSetup::read(CephAccess {
        conf: conf.as_deref(),
        id: id.as_deref(),
        filesystem: filesystem.as_deref(),
    })
}

/// The client of a cluster: one for all who ask, as long as one of them uses it. One that was expelled is left to those who have it.
fn client(cluster: &Cluster) -> Result<Arc<CephClient>, CephRefusal> {
    let slot = slot(cluster);
    let mut slot = slot.lock();
    if let Some(client) = slot.client.upgrade().filter(|client| !client.is_expelled()) {
        return Ok(client);
    }
    let begun = slot.begun.take().map_or_else(|| setup(cluster), Ok)?;
    let lineage = lineage(cluster);
    let client =
        begun.connect(lineage.as_ref().map(|(name, goes_on)| CephLineage { name, goes_on: *goes_on }))?;
    slot.client = Arc::downgrade(&client);
    Ok(client)
}

/// The client of a cluster, if somebody uses one that has not been found to be expelled. Nobody is asked.
fn client_at_hand(cluster: &Cluster) -> Option<Arc<CephClient>> {
    slot(cluster).lock().client.upgrade().filter(|client| !client.is_known_expelled())
}

/// Does for the layers of a mount what has to be done before the process gives its rights up. The files that are read later; None: no
/// layer lies on CephFS.
pub(crate) fn prepare(config: &Config) -> Result<Option<Vec<PathBuf>>, Failure> {
    let mut files = None;
    for layer in config.ceph_layers() {
        let slot = slot(&layer.cluster);
        let mut slot = slot.lock();
        let files = files.get_or_insert_with(Vec::new);
        if slot.begun.is_none() {
            match setup(&layer.cluster) {
                Ok(begun) => {
                    files.extend(begun.keys());
                    slot.begun = Some(begun);
                }
                Err(refusal) if is_first() => return Err(refused(&refusal).context(format!("layer {layer}"))),
                // Those who use the mount wait for a next service, which may find it in order again.
                Err(refusal) => tracing::error!("layer {layer}: {refusal}"),
            }
        }
    }
    Ok(files)
}

/// Loads the library, for a process to whose mounts such layers may come later. Where it is not there, that is said when one comes.
pub(crate) fn load() {
    if let Err(refusal) = load_ceph() {
        tracing::info!("no layers on CephFS: {refusal}");
    }
}

/// Waits, but not for long, until the clusters know that this process ends. Clients are let go by the last of several threads, and one that
/// goes without a word is waited for.
pub(crate) fn leave() {
    vellum_sys::wait_until(LEAVING, LOOK, || ceph_clients() == 0);
}

fn refused(refusal: &CephRefusal) -> Failure {
    Failure::input(refusal.to_string()).remedy(remedy(refusal.trouble()))
}

const fn remedy(trouble: CephTrouble) -> &'static str {
    match trouble {
        CephTrouble::Library => "install the package libcephfs2",
        CephTrouble::Configuration => {
            "see that ceph.conf, ceph.id and ceph.fs name the cluster, a client with a keyring, and a filesystem"
        }
        CephTrouble::Key => {
            "give a client that may use the filesystem, with ceph.id=NAME and its keyring where the configuration says"
        }
        CephTrouble::Silence => "see that the cluster is up and can be reached from here (ceph -s)",
        CephTrouble::Other => "see that the cluster is healthy (ceph -s)",
    }
}

/// Refuses layers on CephFS in a service that can reach no cluster.
pub(crate) fn require_reach(config: &Config, reaches: bool) -> Result<(), Failure> {
    match config.ceph_layers().next() {
        Some(layer) if !reaches => Err(Failure::input(format!(
            "layer {layer}: the pool's service was started without the right to reach a Ceph cluster"
        ))
        .remedy("vellum pool set NAME --ceph on, and then vellum pool restart NAME")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_root() {
        for (text, shown) in [
            ("ceph:", "ceph:/"),
            ("ceph:/", "ceph:/"),
            ("ceph:a/b", "ceph:/a/b"),
            ("ceph:/a//b/./c/", "ceph:/a/b/c"),
            ("ceph:/a:b", "ceph:/a:b"),
        ] {
            assert_eq!(CephLayer::named(text.as_ref()).unwrap().to_string(), shown);
        }
        for text in ["ceph", "./ceph:a", "/ceph:a", "Ceph:a", ""] {
            assert_eq!(CephLayer::named(text.as_ref()), None, "{text}");
        }
    }

    #[test]
    fn explicit_cluster_options_override_defaults() {
        let usual = Cluster { conf: Some("/c".into()), id: Some("i".into()), filesystem: None };
        let said = Cluster { id: Some("mine".into()), filesystem: Some("f".into()), ..Cluster::default() };
        let both = Cluster { conf: usual.conf.clone(), ..said.clone() };
        assert_eq!(said.or(&usual), both);
        assert_eq!(Cluster::default().or(&usual), usual);
    }

    #[test]
    fn a_missing_configuration_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("ceph.conf");
        let mut layer = CephLayer::at(b"a");
        layer.cluster.conf = Some(missing.clone());
        let failure = layer.resolve().unwrap_err();
        let said = failure.to_string();
        assert!(
            failure.exit_status() == 2 && said.contains(&format!("ceph.conf={}", missing.display())),
            "{said}"
        );
    }
}
