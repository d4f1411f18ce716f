//! Going on with the mounts of a predecessor.

use super::abort;
use super::handout_mounts::HandoutMounts;
use super::mount_memory::MountMemory;
use super::mount_record::{self, RecordFile, RecordedMount};
use super::new_mount::{self, NewMount, PreparedTree, SessionResources};
use super::pool_service::PoolService;
use super::wire::MountRequest;
use crate::failure::Failure;
use crate::instance::Instance;
use crate::layers::OpenLayers;
use crate::layers::cache::PredecessorCache;
use crate::layers::ceph;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use vellum_fuse::{Session, SessionParameters, resend};
use vellum_sys::InheritedFds;

/// Time between two attempts to reach a cluster.
const PAUSE: Duration = Duration::from_secs(1);

/// A mount as a predecessor has left it, with everything that belongs to it.
struct PredecessorMount {
    request: MountRequest,
    session: SessionParameters,
    device: OwnedFd,
    layers: OpenLayers,
    handouts: Option<OwnedFd>,
    memory: MountMemory,
    /// What the ledger names, by its numbers.
    held: HashMap<RawFd, OwnedFd>,
    file: RecordFile,
    /// Held until the mount has it, too.
    warm: Option<PredecessorCache>,
}

/// Goes on with what a predecessor was serving.
pub(super) fn all(service: &Arc<PoolService>, mut inherited: InheritedFds) {
    let (found, all) = mount_record::find(&mut inherited);
    let caches = found.iter().filter_map(|found| found.request.config.cache);
    let warm =
        caches.map(|cache| cache.bytes).max().and_then(|bytes| PredecessorCache::take(&mut inherited, bytes));
    for found in found {
        let end = End::new(&found.request, &found.device, &found.memory.ledger);
        let resumed = PredecessorMount::take(found, &mut inherited, warm.as_ref()).and_then(|left| {
            let on_a_cluster = left.request.config.ceph_layers().next().is_some();
            if on_a_cluster { later(service, left) } else { one(service, left) }
        });
        if let Err(failure) = resumed {
            end.report(&failure);
        }
    }
    // Now that nothing waits at them any more: further descriptors of the connections, and whatever the predecessor was in the
    // middle of. Connections of mounts that are served lose nothing but what the kernel can ask for again.
    if all { drop(inherited.take_rest()) } else { abort::end_all(inherited) }
}

impl PredecessorMount {
    fn take(
        found: RecordedMount,
        inherited: &mut InheritedFds,
        warm: Option<&PredecessorCache>,
    ) -> Result<Self, Failure> {
        let RecordedMount { request, negotiated, device, mut layers, handouts, memory, file } = found;
        layers.check_persistent()?;
        layers.go_on = true;
        let session = SessionParameters::from_numbers(negotiated)
            .ok_or_else(|| Failure::system("its record says nothing sensible of the connection"))?;
        let memory = MountMemory::open(memory)?;
        let held = memory
            .ledger
            .held_descriptors()
            .into_iter()
            .filter_map(|fd| {
                let found = inherited.take(fd)?;
                // The predecessor may have died after it had closed what it held, when the number was a connection's already. With
                // that a request would be closed before the kernel is asked for it again.
                if abort::is_device(&found) {
                    inherited.give_back(found);
                    return None;
                }
                Some((fd, found))
            })
            .collect();
        let warm = warm.filter(|_| request.config.cache.is_some()).cloned();
        Ok(Self { request, session, device, layers, handouts, memory, held, file, warm })
    }
}

/// Goes on with a mount as soon as the clusters of its layers can be reached. Until then those who use it wait, as they would have if the
/// service had lived on; other mounts do not.
fn later(service: &Arc<PoolService>, left: PredecessorMount) -> Result<(), Failure> {
    // Before further descriptors of the connection are closed: with them goes what had been read by them.
    if let Err(error) = resend(&left.device) {
        tracing::debug!(%error, "nothing is sent again");
    }
    let expected = service.expect();
    let again = Arc::clone(service);
    let work = move || {
        let mut said = false;
        let reached = loop {
            let config = &left.request.config;
            match ceph::reach(config) {
                Ok(reached) => break reached,
                Err(_) if !is_connected(&left.device) => return,
                Err(failure) if !said => {
                    let mountpoint = config.mountpoint.display();
                    tracing::error!("{mountpoint} waits for its cluster: {failure}");
                    said = true;
                }
                Err(_) => {}
            }
            std::thread::sleep(PAUSE);
        };
        let end = End::new(&left.request, &left.device, &left.memory.ledger.descriptor());
        if let Err(failure) = one(&again, left) {
            end.report(&failure);
        }
        drop((reached, expected));
    };
    let started = std::thread::Builder::new().name("vellum-resume".into()).spawn(work);
    started.map(drop).map_err(|e| Failure::system("cannot start a thread").because(e))
}

fn is_connected(device: &OwnedFd) -> bool {
    let mut state = [PollFd::new(device, PollFlags::IN)];
    poll(&mut state, Some(&Timespec::default())).is_err()
        || !state.iter().any(|state| state.revents().contains(PollFlags::ERR))
}

fn one(service: &Arc<PoolService>, left: PredecessorMount) -> Result<(), Failure> {
    let PredecessorMount { request, session, device, layers, handouts, mut memory, held, file, warm } = left;
    let (handouts, export) = handouts.and_then(|root| HandoutMounts::clone_mount(root, &request)).unzip();
    let made = new_mount::make(&request, layers, &mut memory, export)?;
    drop(warm);
    made.tree.resume(held);
    let mountpoint = Some(made.config.mountpoint.clone());
    let PreparedTree { config, tree, report, options, locks, cache, writeback } = made;
    let session = Session::from_fd(Arc::clone(&tree), device, session, options, mountpoint);
    let mut instance = Instance::new(tree, session.handle(), report);
    (instance.cache, instance.writeback) = (cache, writeback.as_ref().map(Arc::downgrade));
    // What had been read and not answered comes again. Before anything is read here, or that would come twice. A connection that
    // has ended has nothing to send.
    if let Err(error) = session.handle().notifier().resend() {
        tracing::debug!(%error, "nothing is sent again");
    }
    let beside = SessionResources { record: file, locks, generations: memory.generations, handouts };
    service.run(NewMount { config, instance, session, beside })
}

/// What is left to do for a mount that cannot be gone on with.
struct End {
    mountpoint: String,
    device: Option<OwnedFd>,
    ledger: Option<OwnedFd>,
}

impl End {
    fn new(request: &MountRequest, device: &impl AsFd, ledger: &impl AsFd) -> Self {
        let mountpoint = request.config.mountpoint.to_string_lossy().into_owned();
        let copy = |of: BorrowedFd<'_>| of.try_clone_to_owned().ok();
        Self { mountpoint, device: copy(device.as_fd()), ledger: copy(ledger.as_fd()) }
    }

    fn report(self, failure: &Failure) {
        tracing::error!(mountpoint = self.mountpoint, "a mount is lost: {failure}");
        abort::end(self.device.as_slice(), self.ledger.into_iter().collect());
    }
}
