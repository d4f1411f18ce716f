//! An instance: a tree with a way to ask about it.
//!
//! The questions come through the mount itself, as extended attributes whose names begin with [`PREFIX`]: no socket, no
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
use crate::instance::inspect::{Explain, InstanceReport};
use crate::instance::stats::InstanceStats;
use crate::layers::cache::Member;
use crate::pool::RecordFile;
use crate::process::node_memory;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use vellum_branch::Writeback;
use vellum_door::Entrance;
use vellum_fuse::SessionHandle;
use vellum_ring::files::TOKEN;
use vellum_union::Mappable;
use vellum_vfs::{
    AttrReply, Client, Connection, Context, DirName, DirSink, Duties, Entry, Errno, Error, ExportFile,
    Filesystem, Handle, Handout, HandoutFlags, Name, NodeId, OpenReply, OwnOpens, RenameFlags, Result, Seek,
    SetAttr, StatFs, Verdict, WriteFlags, XattrFlags,
};

/// How the names of the questions begin.
pub const PREFIX: &str = "vellum.";

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

/// Forgotten nodes after which memory is worth being given back to the system: the allocator keeps it otherwise, and the kernel
/// forgets by the hundred thousand when it needs memory itself.
const MANY_FORGOTTEN: u32 = 4096;

/// A tree, and what is known of it beside its files.
pub struct Instance<F> {
    inner: F,
    report: InstanceReport,
    duties: OnceLock<Duties>,
    /// The session that serves it.
    session: OnceLock<SessionHandle>,
    begun: Instant,
    /// Which privileges the process has given up.
    confined: OnceLock<BTreeMap<String, String>>,
    /// Whether processors are kept awake, or why not.
    processors: OnceLock<String>,
    /// How deep the service's pid namespace lies below that of /proc, where it can be told.
    pid_depth: Option<usize>,
    /// Effective user of the service.
    owner: u32,
    /// Nodes forgotten since memory was last given back.
    forgotten: AtomicU32,
    /// How programs come to its files; None where none are handed out.
    entrance: OnceLock<Arc<Entrance>>,
    /// None where layers are read as they are.
    cache: OnceLock<Member>,
    /// What its upper layer is written behind by; None where each change is written before it is answered.
    writeback: OnceLock<Weak<Writeback>>,
    /// What a successor will find of the mount.
    record: OnceLock<Arc<RecordFile>>,
}

impl<F: Filesystem + Explain> Instance<F> {
    /// Puts a tree and what is to be told of it together.
    pub fn new(inner: F, report: InstanceReport) -> Self {
        Self {
            inner,
            report,
            duties: OnceLock::new(),
            session: OnceLock::new(),
            begun: Instant::now(),
            confined: OnceLock::new(),
            processors: OnceLock::new(),
            pid_depth: pid_depth(std::process::id()),
            owner: rustix::process::geteuid().as_raw(),
            forgotten: AtomicU32::new(0),
            entrance: OnceLock::new(),
            cache: OnceLock::new(),
            writeback: OnceLock::new(),
            record: OnceLock::new(),
        }
    }

    /// Says which session serves it, so that it can be asked what it has done.
    pub(crate) fn served_by(&self, session: SessionHandle) {
        let _ = self.session.set(session);
    }

    /// Says which privileges the process has given up.
    pub(crate) fn confined_by(&self, parts: BTreeMap<String, String>) {
        let _ = self.confined.set(parts);
    }

    /// Says whether processors are kept awake, or why not.
    pub(crate) fn has_processors(&self, what: String) {
        let _ = self.processors.set(what);
    }

    /// Says through which cache layers are read.
    pub(crate) fn reads_through(&self, cache: Member) {
        let _ = self.cache.set(cache);
    }

    /// Says what its upper layer is written behind by.
    pub(crate) fn is_written_by(&self, writeback: &Arc<Writeback>) {
        let _ = self.writeback.set(Arc::downgrade(writeback));
    }

    /// Sees to it that what is cached makes way where memory is short, and where a mount is idle. Call once threads may be started.
    pub(crate) fn watch_cache(&self) {
        if let Some(Err(why)) = self.cache.get().map(Member::watch) {
            tracing::warn!("the cache shrinks only as it is used, and no mount counts as idle: {why}");
        }
    }

    /// Says where it is written down what a successor begins with.
    pub(crate) fn recorded_by(&self, record: Arc<RecordFile>) {
        let _ = self.record.set(record);
    }

    /// Lets programs show that they may write to a directory or a file.
    pub(crate) fn entered_by(&self, entrance: Arc<Entrance>) {
        let _ = self.entrance.set(entrance);
    }

    fn figures(&self) -> BTreeMap<String, u64> {
        let mut figures = self.inner.figures();
        // Of all mounts of the service.
        figures.extend(
            Some(vellum_branch::ceph_calls())
                .filter(|calls| *calls > 0)
                .map(|calls| ("ceph_calls".into(), calls)),
        );
        if let Some(entrance) = self.entrance.get() {
            figures.append(&mut entrance.figures());
        }
        figures
    }

    /// Gives the mount another weight, for a successor as well. The one that it had.
    fn weigh(&self, weight: &str) -> Result<Vec<u8>> {
        let weight = weight.parse().ok().filter(|weight| WEIGHTS.contains(weight)).ok_or(Errno::INVAL)?;
        let cache = self.cache.get().ok_or(Errno::OPNOTSUPP)?;
        let before = cache.stats().map(|stats| stats.weight).unwrap_or_default();
        if let Some(record) = self.record.get() {
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
        let done = self.session.get().map(InstanceStats::from_session).unwrap_or_default();
        let report = &self.report;
        InstanceStats {
            version: report.version.clone(),
            pid: report.pid,
            mountpoint: report.mountpoint.clone(),
            profile: report.profile.clone(),
            seconds: self.begun.elapsed().as_secs_f64(),
            figures: self.figures(),
            cache: self.cache.get().and_then(Member::stats),
            ..done
        }
    }

    /// The tree.
    pub(crate) const fn inner(&self) -> &F {
        &self.inner
    }

    /// Whether the caller may learn about layers: root or the one who mounted, and not inside a container that has
    /// processes of its own; what lies under its root is none of its business.
    fn may_ask(&self, cx: &Context<'_>) -> bool {
        let (uid, _) = cx.ids();
        if uid != 0 && uid != self.owner {
            return false;
        }
        self.pid_depth.is_none() || pid_depth(cx.pid) == self.pid_depth
    }

    fn answer(&self, cx: &Context<'_>, node: NodeId, question: &CStr) -> Result<Vec<u8>> {
        let unknown = || Error::from(Errno::NODATA);
        if question == MAP {
            return self.inner.mappable(node)?.map(|found| encode(&found).to_vec()).ok_or_else(unknown);
        }
        if question == WRITES {
            let writes = self.session.get().map(SessionHandle::writes).ok_or_else(unknown)?;
            return Ok(writes.map(u64::to_ne_bytes).as_flattened().to_vec());
        }
        if question == SYNC {
            return self.inner.sync_all().map(|()| vec![1]);
        }
        if !self.may_ask(cx) {
            return Err(unknown());
        }
        let json =
            |value: serde_json::Result<Vec<u8>>| value.map_err(|_| Error::new(Errno::IO, "inspection"));
        if question == INSTANCE {
            let mut report = self.report.clone();
            report.features = features(self.duties.get().copied().unwrap_or(Duties::empty()));
            report.sandbox = self.confined.get().cloned().unwrap_or_default();
            report.processors = self.processors.get().cloned().unwrap_or_default();
            report.summary = self.inner.summary();
            if let Some(writeback) = self.writeback.get().and_then(Weak::upgrade) {
                let (used, size) = writeback.bytes();
                report.summary.insert("to_be_written".to_owned(), format!("{used} of {size} bytes"));
            }
            return json(serde_json::to_vec(&report));
        }
        if question == STATS {
            return json(serde_json::to_vec(&self.stats()));
        }
        if question == NODE {
            return json(serde_json::to_vec(&self.inner.explain(node)?));
        }
        let text = question.to_str().map_err(|_| unknown())?;
        if let Some(weight) = text.strip_prefix(WEIGHT) {
            return self.weigh(weight);
        }
        let number = text.strip_prefix(LAYER).and_then(|number| number.parse::<usize>().ok());
        let path = number.and_then(|number| self.report.layers.get(number)).ok_or_else(unknown)?;
        Ok(path.as_bytes().to_vec())
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

fn is_question(name: &CStr) -> bool {
    name.to_bytes().starts_with(PREFIX.as_bytes())
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

/// Passes calls on as they are.
macro_rules! pass_on {
    ($trait:ident: $(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(#[inline]
        fn $name(&self, $($arg: $type),*) $(-> $result)? {
            $trait::$name(&self.inner, $($arg),*)
        })*
    };
}

impl<F: Filesystem + Explain> Filesystem for Instance<F> {
    fn start(&self, connection: Connection) {
        let _ = self.duties.set(connection.duties);
        self.inner.start(connection);
    }

    fn forget(&self, node: NodeId, count: u64) {
        self.inner.forget(node, count);
        if self.forgotten.fetch_add(1, Relaxed) == MANY_FORGOTTEN {
            self.forgotten.store(0, Relaxed);
            node_memory::limit().has_forgotten();
        }
    }

    fn getxattr(&self, cx: &Context<'_>, node: NodeId, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        if !is_question(name) {
            return self.inner.getxattr(cx, node, name, buf);
        }
        let answer = self.answer(cx, node, name)?;
        if !buf.is_empty() {
            buf.get_mut(..answer.len()).ok_or(Errno::RANGE)?.copy_from_slice(&answer);
        }
        Ok(answer.len())
    }

    fn setxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &CStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        if name == TOKEN {
            return self.entrance.get().ok_or(Errno::OPNOTSUPP)?.note(cx, node, value);
        }
        if is_question(name) {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.inner.setxattr(cx, node, name, value, flags)
    }

    fn removexattr(&self, cx: &Context<'_>, node: NodeId, name: &CStr) -> Result<()> {
        if is_question(name) {
            return Err(Errno::NODATA.into());
        }
        self.inner.removexattr(cx, node, name)
    }

    pass_on! {
        Filesystem:
        fn stop();
        fn lookup(cx: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<Option<Entry>>;
        fn negative_ttl(parent: NodeId, name: Name<'_>) -> Duration;
        fn lookup_node(cx: &Context<'_>, node: NodeId) -> Result<Entry>;
        fn lookup_parent(cx: &Context<'_>, node: NodeId) -> Result<Entry>;
        fn getattr(cx: &Context<'_>, node: NodeId, handle: Option<Handle>) -> Result<AttrReply>;
        fn setattr(cx: &Context<'_>, node: NodeId, handle: Option<Handle>, set: &SetAttr) -> Result<AttrReply>;
        fn readlink(cx: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize>;
        fn mknod(cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32, rdev: u64) -> Result<Entry>;
        fn mkdir(cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32) -> Result<Entry>;
        fn symlink(cx: &Context<'_>, parent: NodeId, name: Name<'_>, target: &CStr) -> Result<Entry>;
        fn link(cx: &Context<'_>, node: NodeId, parent: NodeId, name: Name<'_>) -> Result<Entry>;
        fn unlink(cx: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()>;
        fn rmdir(cx: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()>;
        fn rename(cx: &Context<'_>, from: (NodeId, Name<'_>), to: (NodeId, Name<'_>), flags: RenameFlags) -> Result<()>;
        fn open(cx: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenReply>;
        fn create(cx: &Context<'_>, parent: NodeId, name: Name<'_>, mode: u32, flags: u32) -> Result<(Entry, OpenReply)>;
        fn tmpfile(cx: &Context<'_>, parent: NodeId, mode: u32, flags: u32) -> Result<(Entry, OpenReply)>;
        fn read(cx: &Context<'_>, node: NodeId, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;
        fn write(cx: &Context<'_>, node: NodeId, handle: Handle, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize>;
        fn flush(cx: &Context<'_>, node: NodeId, handle: Handle) -> Result<()>;
        fn release(node: NodeId, handle: Handle);
        fn fsync(cx: &Context<'_>, node: NodeId, handle: Handle, datasync: bool) -> Result<()>;
        fn opendir(cx: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenReply>;
        fn readdir(cx: &Context<'_>, node: NodeId, handle: Handle, offset: u64, sink: &mut dyn DirSink) -> Result<()>;
        fn readdirplus(cx: &Context<'_>, node: NodeId, handle: Handle, offset: u64, sink: &mut dyn DirSink) -> Result<()>;
        fn releasedir(node: NodeId, handle: Handle);
        fn fsyncdir(cx: &Context<'_>, node: NodeId, handle: Handle, datasync: bool) -> Result<()>;
        fn statfs(cx: &Context<'_>, node: NodeId) -> Result<StatFs>;
        fn listxattr(cx: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize>;
        fn access(cx: &Context<'_>, node: NodeId, mask: u32) -> Result<()>;
        fn fallocate(cx: &Context<'_>, node: NodeId, handle: Handle, offset: u64, len: u64, mode: u32) -> Result<()>;
        fn lseek(cx: &Context<'_>, node: NodeId, handle: Handle, offset: u64, whence: Seek) -> Result<u64>;
        fn copy_file_range(cx: &Context<'_>, from: (NodeId, Handle, u64), to: (NodeId, Handle, u64), len: u64) -> Result<u64>;
        fn flags(cx: &Context<'_>, node: NodeId) -> Result<u32>;
        fn set_flags(cx: &Context<'_>, node: NodeId, flags: u32) -> Result<()>;
        fn own_opens(node: NodeId) -> OwnOpens;
        fn keep_own_opens(node: NodeId, opens: OwnOpens);
        fn each_own_opens(each: &mut dyn FnMut(NodeId, OwnOpens));
    }
}

impl<F: Filesystem + Explain + Handout> Handout for Instance<F> {
    type Dir = F::Dir;

    pass_on! {
        Handout:
        fn enter(node: NodeId) -> Verdict<F::Dir>;
        fn ino(dir: &F::Dir) -> u64;
        fn node(dir: &F::Dir) -> NodeId;
        fn below(client: &Client<'_>, dir: &F::Dir, name: Name<'_>) -> Verdict<NodeId>;
        fn open(client: &Client<'_>, at: &DirName<'_, F::Dir>, flags: HandoutFlags) -> Verdict<ExportFile>;
        fn create(client: &Client<'_>, at: &DirName<'_, F::Dir>, flags: HandoutFlags, mode: u32) -> Verdict<ExportFile>;
        fn mkdir(client: &Client<'_>, at: &DirName<'_, F::Dir>, mode: u32) -> Verdict<Option<F::Dir>>;
        fn symlink(client: &Client<'_>, at: &DirName<'_, F::Dir>, target: &CStr) -> Verdict<()>;
        fn reopen(client: &Client<'_>, node: NodeId, flags: HandoutFlags) -> Verdict<ExportFile>;
        fn setattr(client: &Client<'_>, at: &DirName<'_, F::Dir>, set: &SetAttr, follows: bool) -> Verdict<()>;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call with a default body that is not passed on would be lost without a word from the compiler.
    #[test]
    fn every_call_is_passed_on() {
        let traits = include_str!("../../../vfs/src/filesystem.rs");
        let (_, wanted) = traits.split_once("pub trait Filesystem").unwrap();
        let here = include_str!("mod.rs");
        let calls: Vec<&str> =
            wanted.lines().filter_map(|line| line.strip_prefix("    fn ")?.split('(').next()).collect();
        assert!(calls.len() > 30, "{calls:?}");
        for call in calls {
            assert!(here.contains(&format!("    fn {call}(")), "{call} is not passed on");
        }
    }

    #[test]
    fn what_a_client_needs_to_map_a_file_has_a_fixed_form() {
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
