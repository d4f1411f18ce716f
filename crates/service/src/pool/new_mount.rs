//! A mount that somebody has made and nobody serves yet: its tree, its session, and what a successor will find of it.

use super::handout_mounts::HandoutMounts;
use super::mount_memory::MountMemory;
use super::mount_record::{MountRecord, RecordFile};
use super::wire::MountRequest;
use crate::config::{Cache, Config, WEIGHT_USUAL};
use crate::failure::Failure;
use crate::instance::Instance;
use crate::instance::inspect::InstanceReport;
use crate::instance::tree;
use crate::layers::OpenLayers;
use crate::layers::cache::Member;
use crate::layers::writeback;
use crate::mounts::session_setup::{report, session_options};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use vellum_branch::Writeback;
use vellum_fuse::{FuseMount, Session, SessionOptions};
use vellum_union::{Generations, Union};
use vellum_vfs::Export;

/// A mount that only has to be run.
pub(super) struct NewMount {
    pub(super) config: Config,
    pub(super) instance: Instance,
    pub(super) session: Session<Union>,
    pub(super) beside: SessionResources,
}

/// What is held beside a session.
pub(super) struct SessionResources {
    pub(super) record: RecordFile,
    pub(super) locks: Vec<OwnedFd>,
    /// None: no program can reach the service.
    pub(super) generations: Option<Arc<Generations>>,
    pub(super) handouts: Option<HandoutMounts>,
}

/// A tree that is ready to be served.
pub(super) struct PreparedTree {
    pub(super) config: Config,
    pub(super) tree: Arc<Union>,
    pub(super) report: InstanceReport,
    pub(super) options: SessionOptions,
    pub(super) locks: Vec<OwnedFd>,
    /// Where lower layers are read through a cache.
    pub(super) cache: Option<Member>,
    /// What the upper layer is written behind by.
    pub(super) writeback: Option<Arc<Writeback>>,
}

/// The tree of a request, and what goes with it.
pub(super) fn make(
    request: &MountRequest,
    layers: OpenLayers,
    memory: &mut MountMemory,
    export: Option<Arc<dyn Export>>,
) -> Result<PreparedTree, Failure> {
    let config = request.config.clone();
    config.check()?;
    let mut layers = layers.into_branches()?;
    let left = memory.log.take();
    let writeback =
        config.write_behind.map(|limits| writeback::write(&mut layers, limits, left)).transpose()?;
    let weight = config.weight.unwrap_or(WEIGHT_USUAL);
    let cache = config.cache.map(|cache| Member::new(cache, weight)).transpose()?;
    if let Some((cache, Cache { sharing, .. })) = cache.as_ref().zip(config.cache) {
        layers.lowers = layers.lowers.into_iter().map(|layer| cache.layer(layer, sharing)).collect();
    }
    let locks = std::mem::take(&mut layers.locks).into_iter().map(Into::into).collect();
    let mut options = session_options(&config, &layers);
    options.inflight = Some(Arc::clone(&memory.inflight));
    let report = report(&config, &layers, &options);
    let tree = tree::build(&config, layers, |tree| {
        tree.ledger = Some(Arc::clone(&memory.ledger));
        tree.generations = memory.generations.clone();
        tree.export = export;
        // What is written behind is found in the log, and not without.
        tree.run = writeback.as_ref().map(|writeback| writeback.run()).or(tree.run);
    })?;
    options.allow_idmap &= !tree.can_hand_out();
    Ok(PreparedTree { config, tree: Arc::new(tree), report, options, locks, cache, writeback })
}

impl NewMount {
    /// Makes the tree and agrees with the kernel on how it is served. `programs`: some may reach the service beside the mount.
    pub(super) fn prepare(
        request: &MountRequest,
        descriptors: Vec<OwnedFd>,
        programs: bool,
    ) -> Result<Self, Failure> {
        let wanted = request.descriptors();
        let mut all = descriptors.into_iter();
        if all.len() != wanted {
            return Err(Failure::system(format!("{} descriptors where {wanted} belong", all.len())));
        }
        let missing = || Failure::system("a descriptor is missing");
        let device = all.next().ok_or_else(missing)?;
        let mut layers = OpenLayers::from_roots(&request.config, &mut all, Vec::new())?;
        let locks: Vec<OwnedFd> = all.by_ref().take(request.locks).collect();
        let handouts = all.by_ref().take(request.handouts.into()).next();
        layers.store_socket = all.by_ref().take(request.door.into()).next();
        let mut memory = MountMemory::create(programs)?;
        // Only what stays open may be named in the record: a successor loses a mount of which a descriptor is missing.
        let root = handouts.as_ref().map(AsRawFd::as_raw_fd);
        let (handouts, export) = handouts.and_then(|root| HandoutMounts::clone_mount(root, request)).unzip();
        let root = root.filter(|_| export.is_some());
        let mut record =
            MountRecord::new(request.clone(), &device, &layers, &locks, root, memory.numbers(None));
        let made = make(request, layers, &mut memory, export)?;
        record.memory = memory.numbers(made.writeback.as_deref());
        let mountpoint = made.config.mountpoint.clone();
        let mounted = FuseMount { device, mountpoint: mountpoint.clone() };
        let session = Session::new(Arc::clone(&made.tree), mounted, made.options)
            .map_err(|e| Failure::system(format!("mount point {}", mountpoint.display())).because(e))?;
        let mut instance = Instance::new(made.tree, session.handle(), made.report);
        (instance.cache, instance.writeback) = (made.cache, made.writeback.as_ref().map(Arc::downgrade));
        record.negotiated = session.handle().negotiated().to_numbers();
        let record = RecordFile::create(&record)?;
        let beside = SessionResources { record, locks, generations: memory.generations, handouts };
        Ok(Self { config: made.config, instance, session, beside })
    }
}
