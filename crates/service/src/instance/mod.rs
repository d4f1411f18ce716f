//! An instance: a tree with a way to ask about it.
//!
//! The questions come through the mount itself, as extended attributes whose names begin with [`vellum_union::QUESTION`]: no socket, no
//! file, nothing that outlives the mount. They are answered only to those who could look at the service anyway.

pub(crate) mod background_fill;
pub(crate) mod client;
pub mod flatten;
pub mod inspect;
pub(crate) mod lost_forgets;
pub mod stats;
pub mod sync;
pub mod tree;

use crate::config::WEIGHTS;
use crate::instance::client::pid_depth;
use crate::instance::inspect::InstanceReport;
use crate::instance::stats::InstanceStats;
use crate::layers::cache::Member;
use crate::pool::RecordFile;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Weak};
use std::time::Instant;
use vellum_branch::Writeback;
use vellum_fuse::SessionHandle;
use vellum_ring::files::TOKEN;
use vellum_ring_server::Entrance;
use vellum_union::{Mappable, Questions, Union};
use vellum_vfs::{Context, Duties, Errno, Error, NodeId, Result};

/// Asked of any object: the instance, as JSON ([`InstanceReport`]).
pub const INSTANCE: &CStr = c"vellum.instance";

/// Asked of any object: where it comes from, as JSON ([`crate::instance::inspect::NodeAnswer`]).
pub const NODE: &CStr = c"vellum.node";

/// Asked of any object: what the instance has done, as JSON ([`InstanceStats`]).
pub const STATS: &CStr = c"vellum.stats";

/// Asked of a regular file, by anybody: what the preload library needs to map it. Numbers in the order of the machine: a format
/// (1), slot, serial, 0 (32 bits each), generation, id of the memory with generations, size (64 bits each).
pub const MAP: &CStr = c"vellum.map";

/// Asked of any object, by anybody, as anybody may call syncfs(2): how many writes have come to the service so far, and how many of them
/// it is done with (64 bits each, in the order of the machine). The kernel asks no service of its kind to sync, and does not wait
/// for its own pages to be written either; [`crate::instance::sync::sync`] does.
pub const WRITES: &CStr = c"vellum.writes";

/// Asked in the same way: everything that has come to the service is made durable before it is answered.
pub const SYNC: &CStr = c"vellum.sync";

/// Asked of any object, with the number of a layer at its end (0 is the top one): the layer's path.
pub const LAYER: &str = "vellum.layer.";

/// Asked of any object, with a weight at its end: the mount has that one from now on in the service's cache, and the answer says
/// which it had. A question, for attributes cannot be set where a mount is read-only. EOPNOTSUPP: it has no cache.
pub const WEIGHT: &str = "vellum.weight.";

/// A tree, and what is known of it beside its files.
pub(crate) struct Instance {
    pub(crate) tree: Arc<Union>,
    pub(crate) report: InstanceReport,
    /// The session that serves it.
    session: SessionHandle,
    begun: Instant,
    /// How deep the service's pid namespace lies below that of /proc, where it can be told.
    pid_depth: Option<usize>,
    /// Effective user of the service.
    owner: u32,
    /// How programs come to its files; None where none are handed out.
    pub(crate) entrance: Option<Arc<Entrance>>,
    /// None where layers are read as they are.
    pub(crate) cache: Option<Member>,
    /// The write-back of its upper layer; None where each change is written before it is answered.
    pub(crate) writeback: Option<Weak<Writeback>>,
    /// What a successor will find of the mount.
    pub(crate) record: Option<Arc<RecordFile>>,
}

impl Instance {
    /// A tree that a session is about to serve.
    pub(crate) fn new(tree: Arc<Union>, session: SessionHandle, report: InstanceReport) -> Self {
        Self {
            tree,
            report,
            session,
            begun: Instant::now(),
            pid_depth: pid_depth(std::process::id()),
            owner: rustix::process::geteuid().as_raw(),
            entrance: None,
            cache: None,
            writeback: None,
            record: None,
        }
    }

    /// Answers questions about the tree from now on, as long as somebody has the answer.
    pub(crate) fn into_questions(self) -> Arc<Self> {
        let instance = Arc::new(self);
        let questions: Weak<dyn Questions> = Arc::<Self>::downgrade(&instance);
        instance.tree.set_questions(questions);
        instance
    }

    /// Sees to it that what is cached makes way where memory is short, and where a mount is idle. Call once threads may be started.
    pub(crate) fn watch_cache(&self) {
        if let Some(Err(why)) = self.cache.as_ref().map(Member::watch) {
            tracing::warn!("the cache shrinks only as it is used, and no mount counts as idle: {why}");
        }
    }

    fn figures(&self) -> BTreeMap<String, u64> {
        let mut figures = tree::figures(&self.tree);
        // Of all mounts of the service.
        figures.extend(
            Some(vellum_branch::ceph_calls())
                .filter(|calls| *calls > 0)
                .map(|calls| ("ceph_calls".into(), calls)),
        );
        if let Some(entrance) = &self.entrance {
            figures.append(&mut entrance.figures());
        }
        figures
    }

    /// Gives the mount another weight, for a successor as well. The one that it had.
    fn weigh(&self, weight: &str) -> Result<Vec<u8>> {
        let weight = weight.parse().ok().filter(|weight| WEIGHTS.contains(weight)).ok_or(Errno::INVAL)?;
        let cache = self.cache.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let before = cache.stats().map(|stats| stats.weight).unwrap_or_default();
        if let Some(record) = &self.record {
            // First: what a successor does not go on with is not done.
            record.weigh(weight).map_err(|why| {
                tracing::error!("a weight: {why}");
                Error::new(Errno::IO, "a record")
            })?;
        }
        cache.set_weight(weight).map_err(|_| Errno::INVAL)?;
        Ok(before.to_string().into_bytes())
    }

    fn stats(&self) -> InstanceStats {
        let report = &self.report;
        InstanceStats {
            version: report.version.clone(),
            pid: report.pid,
            mountpoint: report.mountpoint.clone(),
            profile: report.profile.clone(),
            seconds: self.begun.elapsed().as_secs_f64(),
            figures: self.figures(),
            cache: self.cache.as_ref().and_then(Member::stats),
            ..InstanceStats::from_session(&self.session)
        }
    }

    /// Whether the caller may learn about layers: root or the one who mounted, and not inside a container that has
    /// processes of its own; what lies under its root is none of its business.
    fn may_inspect(&self, cx: &Context<'_>) -> bool {
        let (uid, _) = cx.ids();
        if uid != 0 && uid != self.owner {
            return false;
        }
        self.pid_depth.is_none() || pid_depth(cx.pid) == self.pid_depth
    }
}

impl Questions for Instance {
    fn answer(&self, cx: &Context<'_>, node: NodeId, question: &CStr) -> Result<Vec<u8>> {
        let unknown = || Error::from(Errno::NODATA);
        if question == MAP {
            return self.tree.mappable(node)?.map(|found| encode(&found).to_vec()).ok_or_else(unknown);
        }
        if question == WRITES {
            return Ok(self.session.writes().map(u64::to_ne_bytes).as_flattened().to_vec());
        }
        if question == SYNC {
            return self.tree.sync_all().map(|()| vec![1]);
        }
        if !self.may_inspect(cx) {
            return Err(unknown());
        }
        let json =
            |value: serde_json::Result<Vec<u8>>| value.map_err(|_| Error::new(Errno::IO, "inspection"));
        if question == INSTANCE {
            let mut report = self.report.clone();
            report.features = features(self.tree.duties());
            report.summary = tree::summary(&self.tree);
            if let Some(writeback) = self.writeback.as_ref().and_then(Weak::upgrade) {
                let (used, size) = writeback.bytes();
                report.summary.insert("to_be_written".to_owned(), format!("{used} of {size} bytes"));
            }
            return json(serde_json::to_vec(&report));
        }
        if question == STATS {
            return json(serde_json::to_vec(&self.stats()));
        }
        if question == NODE {
            return json(serde_json::to_vec(&tree::explain(&self.tree, node)?));
        }
        let text = question.to_str().map_err(|_| unknown())?;
        if let Some(weight) = text.strip_prefix(WEIGHT) {
            return self.weigh(weight);
        }
        let number = text.strip_prefix(LAYER).and_then(|number| number.parse::<usize>().ok());
        let path = number.and_then(|number| self.report.layers.get(number)).ok_or_else(unknown)?;
        Ok(path.as_bytes().to_vec())
    }

    fn set(&self, cx: &Context<'_>, node: NodeId, question: &CStr, value: &[u8]) -> Result<()> {
        if question != TOKEN {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.entrance.as_ref().ok_or(Errno::OPNOTSUPP)?.note(cx, node, value)
    }
}

/// The answer to [`MAP`].
fn encode(found: &Mappable) -> [u8; 40] {
    let mut answer = [0; 40];
    let small = [1, found.slot, found.serial, 0].map(u32::to_ne_bytes);
    let large = [found.generation, found.memory, found.size].map(u64::to_ne_bytes);
    let bytes = small.as_flattened().iter().chain(large.as_flattened());
    answer.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    answer
}

/// Names of the features, in the order in which reports list them.
fn features(duties: Duties) -> Vec<String> {
    const NAMES: [(Duties, &str); 6] = [
        (Duties::SERVES_FILES, "passthrough"),
        (Duties::OPENS_FILES, "no-open"),
        (Duties::COLLECTS_WRITES, "writeback"),
        (Duties::CHECKS_PERMISSION, "default-permissions"),
        (Duties::CHECKS_ACL, "posix-acl"),
        (Duties::OPENS_DIRS, "no-opendir"),
    ];
    NAMES.iter().filter(|(duty, _)| duties.contains(*duty)).map(|(_, name)| (*name).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_answer_has_a_fixed_format() {
        let found = Mappable { slot: 2, serial: 3, generation: 4, memory: 5, size: 6 };
        let answer = encode(&found);
        let words: Vec<u64> = answer.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [2 << 32 | 1, 3, 4, 5, 6]);
    }

    #[test]
    fn features_have_names() {
        assert_eq!(features(Duties::OPENS_FILES | Duties::COLLECTS_WRITES), ["no-open", "writeback"]);
    }
}
