//! What a predecessor was told to forget and has not noted is forgotten; so is what it has counted once too often, when the kernel has
//! forgotten it.

use std::sync::{Arc, Weak};
use std::time::Duration;
use vellum_union::{LostForgets, Union};

/// How often there is a look whether the kernel has been told to go on.
const STEP: Duration = Duration::from_millis(100);
/// Longer than a program needs to take an answer that has been given to it.
const ANSWERS_ARRIVE: Duration = Duration::from_secs(5);
/// From one look to the next: the first time, and at most. A look asks the kernel for each node that a predecessor knew.
const FIRST: Duration = Duration::from_secs(60);
const LAST: Duration = Duration::from_secs(3600);

/// Starts the thread that does it, in a service that goes on with a mount.
pub(crate) fn start(tree: &Arc<Union>) -> std::io::Result<()> {
    let tree = Arc::downgrade(tree);
    let body = move || watch(&tree, std::thread::sleep);
    std::thread::Builder::new().name("vellum-lost".into()).spawn(body)?;
    Ok(())
}

/// What a look has found.
enum Look<T> {
    /// The kernel has not begun to ask.
    Early,
    /// It holds all that the predecessor knew.
    Nothing,
    /// These it does not.
    Some(T),
    /// Nothing of the predecessor is left.
    Over,
}

/// Who holds records of a predecessor.
trait Successor {
    type Lost;
    fn look(&self) -> Look<Self::Lost>;
    /// Forgets what is lost still.
    fn forget(&self, lost: &Self::Lost);
}

impl Successor for Union {
    type Lost = LostForgets;

    fn look(&self) -> Look<LostForgets> {
        match self.lost_forgets() {
            None => Look::Early,
            Some(found) if found.is_last() => Look::Over,
            Some(found) if found.is_empty() => Look::Nothing,
            Some(found) => Look::Some(found),
        }
    }

    fn forget(&self, lost: &LostForgets) {
        let nodes = self.forget_lost(lost);
        tracing::debug!(nodes, "forgotten for a predecessor");
    }
}

fn watch<T: Successor>(successor: &Weak<T>, sleep: impl Fn(Duration)) {
    let mut pause = STEP;
    loop {
        sleep(pause);
        let Some(look) = successor.upgrade().map(|successor| successor.look()) else { return };
        match look {
            Look::Early => continue,
            Look::Over => return,
            Look::Nothing => {}
            Look::Some(lost) => {
                sleep(ANSWERS_ARRIVE);
                if let Some(successor) = successor.upgrade() {
                    successor.forget(&lost);
                }
            }
        }
        pause = (pause * 2).clamp(FIRST, LAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// The kernel holds a node at first that was counted once too often.
    #[derive(Default)]
    struct Counted(AtomicU64, AtomicU64);

    impl Successor for Counted {
        type Lost = u64;

        fn look(&self) -> Look<u64> {
            match self.0.fetch_add(1, Relaxed) {
                0 => Look::Early,
                1 | 2 => Look::Nothing,
                _ if self.1.load(Relaxed) > 0 => Look::Over,
                look => Look::Some(look),
            }
        }

        fn forget(&self, lost: &u64) {
            self.1.store(*lost, Relaxed);
        }
    }

    #[test]
    fn late_forgets_reach_the_predecessors_nodes() {
        let (successor, slept) = (Arc::new(Counted::default()), Cell::new(Duration::ZERO));
        watch(&Arc::downgrade(&successor), |time| slept.set(slept.get() + time));
        assert_eq!(successor.1.load(Relaxed), 3, "it was not looked for again");
        assert!(slept.get() > 3 * FIRST, "it looks too often");
        drop(successor);
        watch(&Weak::<Counted>::new(), |_| ());
    }
}
