//! What nodes take of the service's memory: bounded where that is limited, and given back when the kernel has forgotten them.
//!
//! The kernel remembers what programs have looked at, and the service has a node for each, for as long. Where a control group limits the
//! service's memory, whoever looks at enough names would have it killed, for all who use the pool. So from a part of the limit on the
//! kernel is asked to forget what nobody uses, and lists of names name no nodes that are not there. All of that is done by one
//! thread, which answers nothing: it may wait for the kernel, and the kernel for answers.

use crate::process::memory_group;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use vellum_union::{LimitEvent, NodeLimit, Union};
use vellum_vfs::Errno;

/// Memory of a node in bytes, with what directories and records take of it.
const NODE: u64 = 640;
/// One part of so many of the memory is for nodes.
const PART: u64 = 2;
/// Nodes that there may be in any case.
const FEWEST: usize = 4096;
/// When there are too many, so many parts of this of them may stay.
const STAY: (usize, usize) = (7, 8);
/// Nodes that the kernel is asked to forget before there is a look how many it has forgotten.
const STEP: usize = 2048;
/// How long it has for that.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long nothing has to happen until memory is given back, and lists name nodes again.
const QUIET: Duration = Duration::from_secs(1);
/// What waits for quiet does not wait longer.
const LATEST: Duration = Duration::from_secs(5);

/// The limit of all trees of this process.
pub(crate) fn limit() -> &'static Arc<NodeLimit> {
    static LIMIT: OnceLock<Arc<NodeLimit>> = OnceLock::new();
    LIMIT.get_or_init(Arc::default)
}

/// Trees of this process, and whether the thread has been started.
static TREES: Mutex<(Vec<Weak<Union>>, bool)> = Mutex::new((Vec::new(), false));

/// Watches over a tree's nodes from now on. Call once threads may be started.
pub(crate) fn watch(tree: &Arc<Union>) -> std::io::Result<()> {
    let mut trees = TREES.lock();
    trees.0.retain(|tree| tree.strong_count() > 0);
    trees.0.push(Arc::downgrade(tree));
    if !trees.1 {
        std::thread::Builder::new().name("vellum-nodes".into()).spawn(serve)?;
        trees.1 = true;
    }
    drop(trees);
    look();
    set_alarms(&self::trees());
    Ok(())
}

/// Looks how much memory there is: a pool may be given more, or less.
pub(crate) fn look() {
    let most = memory_group::limit()
        .map_or(usize::MAX, |bytes| usize::try_from(bytes / PART / NODE).unwrap_or(usize::MAX).max(FEWEST));
    if limit().most() != most {
        limit().set_most(most);
        set_alarms(&trees());
    }
}

/// A tree as far as its nodes are concerned.
trait Nodes {
    fn nodes(&self) -> usize;
    fn set_node_alarm(&self, at: usize);
    /// As [`Union::prune`].
    fn prune(&self, from: usize, wanted: usize) -> vellum_vfs::Result<usize>;
}

impl Nodes for Union {
    fn nodes(&self) -> usize {
        Self::nodes(self)
    }

    fn set_node_alarm(&self, at: usize) {
        Self::set_node_alarm(self, at);
    }

    fn prune(&self, from: usize, wanted: usize) -> vellum_vfs::Result<usize> {
        Self::prune(self, from, wanted)
    }
}

/// None is held: a mount ends when its last user lets go of its tree, however long this thread waits for a kernel.
fn trees() -> Vec<Weak<Union>> {
    TREES.lock().0.clone()
}

/// Those that are there, each held for the time of a look.
fn each<T>(trees: &[Weak<T>]) -> impl Iterator<Item = Arc<T>> + '_ {
    trees.iter().filter_map(Weak::upgrade)
}

fn nodes<T: Nodes>(trees: &[Weak<T>]) -> usize {
    each(trees).map(|tree| tree.nodes()).sum()
}

/// Each tree says when it has its share of what is left.
fn set_alarms<T: Nodes>(trees: &[Weak<T>]) {
    let most = limit().most();
    let left = most.saturating_sub(nodes(trees)) / each(trees).count().max(1);
    for tree in each(trees) {
        let at = if most == usize::MAX { most } else { tree.nodes() + left.max(1) };
        tree.set_node_alarm(at);
    }
}

fn serve() {
    let mut forgotten: Option<Instant> = None;
    let mut pruner = Pruner::default();
    loop {
        let waits = forgotten.is_some() || limit().is_short();
        let rung = limit().wait(waits.then_some(QUIET));
        if rung == LimitEvent::Crowded {
            pruner.relieve(&trees());
        }
        if rung == LimitEvent::Forgotten {
            forgotten.get_or_insert_with(Instant::now);
        }
        if rung == LimitEvent::Nothing {
            limit().set_short(false);
        }
        if forgotten.is_some_and(|since| rung == LimitEvent::Nothing || since.elapsed() > LATEST) {
            forgotten = None;
            each(&trees()).for_each(|tree| tree.trim());
            vellum_sys::trim_memory();
        }
    }
}

#[derive(Default)]
struct Pruner {
    /// The kernel cannot be asked.
    is_deaf: bool,
    /// It has been said that too many are in use.
    has_said: bool,
}

impl Pruner {
    /// Has the kernel forget until there are few enough.
    fn relieve<T: Nodes>(&mut self, trees: &[Weak<T>]) {
        let most = limit().most();
        let enough = most / STAY.1 * STAY.0;
        let mut now = nodes(trees);
        if now >= most {
            limit().set_short(true);
            if !self.is_deaf {
                now = self.prune(trees, enough);
            }
        }
        // What cannot be forgotten is in use; it is asked again when it has become more.
        if now >= most && most != usize::MAX {
            for tree in each(trees) {
                let nodes = tree.nodes();
                tree.set_node_alarm(nodes + (nodes / STAY.1).max(FEWEST / STAY.1));
            }
        } else {
            set_alarms(trees);
        }
    }

    /// Asks the kernel until there are no more than `enough`, or all have been asked about; how many there are.
    fn prune<T: Nodes>(&mut self, trees: &[Weak<T>], enough: usize) -> usize {
        let mut now = nodes(trees);
        for tree in trees {
            let mut at = 0;
            // Twice: a directory can go when what is in it has gone.
            let mut rounds = 0;
            while now > enough && rounds < 2 {
                let Some(pruned) = tree.upgrade().map(|tree| tree.prune(at, STEP)) else { break };
                match pruned {
                    Ok(next) => at = next,
                    Err(error) if error.errno() == Errno::NOSYS => {
                        tracing::warn!(
                            "the kernel cannot be asked to forget files (Linux 6.18 can): the service is killed if programs look at more \
                             than its memory is for, {} files",
                            limit().most()
                        );
                        self.is_deaf = true;
                        return now;
                    }
                    // It has ended, or will.
                    Err(error) => {
                        tracing::debug!(%error, "not forgotten");
                        break;
                    }
                }
                rounds += u32::from(at == 0);
                let before = now;
                vellum_sys::wait_until(PATIENCE, Duration::from_millis(1), || {
                    now = nodes(trees);
                    now + STEP / 2 <= before
                });
            }
        }
        if now > enough && !std::mem::replace(&mut self.has_said, true) {
            tracing::warn!("{now} files are in use, and the service's memory is for {}", limit().most());
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A tree of which another one ends while the kernel is asked.
    struct Asked(Mutex<Option<Arc<Asked>>>, AtomicUsize);

    impl Nodes for Asked {
        fn nodes(&self) -> usize {
            self.1.load(Relaxed)
        }

        fn set_node_alarm(&self, _: usize) {}

        fn prune(&self, _: usize, wanted: usize) -> vellum_vfs::Result<usize> {
            if let Some(other) = self.0.lock().take() {
                let other = Arc::into_inner(other);
                assert!(other.is_some(), "a tree that ends is held by who waits for another one's kernel");
            }
            self.1.fetch_update(Relaxed, Relaxed, |nodes| Some(nodes.saturating_sub(wanted))).unwrap();
            Ok(0)
        }
    }

    #[test]
    fn trees_end_while_others_are_pruned() {
        let other = Arc::new(Asked(Mutex::new(None), AtomicUsize::new(10)));
        let second = Arc::downgrade(&other);
        let first = Arc::new(Asked(Mutex::new(Some(other)), AtomicUsize::new(3 * STEP)));
        let trees = [Arc::downgrade(&first), second];
        assert_eq!(Pruner::default().prune(&trees, 100), STEP);
    }
}
