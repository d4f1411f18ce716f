//! A view of a directory of the upper layer: a program looks at its names there itself, without asking.
//!
//! That means the same as asking only where the upper layer alone says what is in the directory ([`PureDirs`](crate::coherence::pure_dirs::PureDirs)), and for names that the
//! kernel does not know: nothing is mounted over these. A word in shared memory, the directory's own among the
//! [generations](crate::coherence::generations), says how long that holds. Its upper half changes for good before the kernel is told a name. It is odd
//! while something is being made that takes several steps, and goes on by two with each such change: who looks reads it before and
//! after, and believes what he saw in between if it was even, and is the same.

use crate::coherence::generations::Generations;
use crate::coherence::names::By;
use crate::coherence::writers::Handouts;
use crate::nodes::ids::slot_of;
use crate::nodes::node::{Dir, Node, Place};
use crate::union::Core;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use vellum_vfs::{NodeId, Refused, Verdict, View};

/// A change of a directory that programs may have in view; it is under way until this is dropped.
#[must_use]
pub(crate) struct SeqWrite<'a>(Option<(&'a Generations, NodeId)>);

impl Drop for SeqWrite<'_> {
    fn drop(&mut self) {
        if let Some((generations, id)) = self.0 {
            generations.step(id);
        }
    }
}

fn upper_ino(dir: &Dir) -> Option<u64> {
    dir.upper.lock().as_ref().map(|upper| upper.ino)
}

impl Core {
    /// To be called when the kernel is told a name in a directory: after that counts as known, and before it is told. Also before the
    /// kernel changes names there.
    pub(crate) fn ends_view(&self, node: &Node) {
        if let (Some(dir), Some(generations)) = (node.as_dir(), &self.config.generations)
            && dir.lease.viewed.load(SeqCst)
            && dir.lease.viewed.swap(false, SeqCst)
        {
            generations.leave(node.id);
        }
    }

    /// To be called before a change of several steps in a directory, by who holds its `ops` exclusively.
    pub(super) fn seq_write(&self, node: &Node, dir: &Dir) -> SeqWrite<'_> {
        let generations = self.config.generations.as_deref().filter(|_| dir.lease.viewed.load(SeqCst));
        let changing = generations.map(|generations| (generations, node.id));
        if let Some((generations, id)) = changing {
            generations.begin_step(id);
        }
        SeqWrite(changing)
    }

    /// A directory has been made in the upper layer, with nothing in it.
    pub(super) fn is_made_pure(&self, ino: u64) {
        if let Some(handouts) = &self.handouts {
            handouts.pure_dirs.add(ino);
        }
    }

    /// Something with a mark is made in a directory.
    pub(super) fn is_not_pure(&self, dir: &Dir) {
        if let (Some(handouts), Some(ino)) = (&self.handouts, upper_ino(dir)) {
            handouts.pure_dirs.remove(ino);
        }
    }

    fn is_pure(&self, dir: &Dir) -> bool {
        // A number may have come to be another directory's by copy-up.
        let is_noted = |handouts: &Handouts| upper_ino(dir).is_some_and(|ino| handouts.pure_dirs.has(ino));
        dir.lowers.is_empty() && self.handouts.as_ref().is_some_and(is_noted)
    }

    /// Something that had these names gets one in a directory. Of very many names none is looked at: asking is always right.
    pub(super) fn comes_from(&self, names: &[Place], to: &Dir) {
        const LOOKED_AT_MAX: usize = 64;
        let is_pure = |place: &Place| place.parent.as_dir().is_some_and(|dir| self.is_pure(dir));
        if names.is_empty() || names.len() > LOOKED_AT_MAX || !names.iter().all(is_pure) {
            self.is_not_pure(to);
        }
    }

    /// Names in a directory that the kernel knows; None: more than `most`.
    fn known_names(&self, dir: &Dir, most: usize) -> Option<Vec<Box<CStr>>> {
        // Dropped after the lock.
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut known = Vec::new();
        dir.entries.each_node(|name, node| {
            if !self.is_unknown_to_kernel(&node) {
                known.push(name.into());
            }
            nodes.push(node);
            known.len() <= most
        });
        (known.len() <= most).then_some(known)
    }

    /// A view of a directory, without a mount of it. [`Refused::Known`]: not while the kernel knows more than `most` names in it.
    /// [`Refused::Kernel`]: nor later.
    pub(crate) fn view_of(&self, node: &Arc<Node>, dir: &Dir, most: usize) -> Verdict<View> {
        let generations = self.config.generations.as_deref().ok_or(Refused::Kernel)?;
        let slot = u32::try_from(slot_of(node.id).0).map_err(|_| Refused::Kernel)?;
        // Nothing is made meanwhile.
        let _names = self.lock_names(node, By::Client)?;
        let marked = dir.upper.lock().as_ref().is_none_or(|upper| upper.xwhiteouts || upper.impure);
        if node.id == NodeId::ROOT || marked || !self.is_pure(dir) {
            return Err(Refused::Kernel);
        }
        let word = generations.settle(node.id).ok_or(Refused::Kernel)?;
        // First that it is in view, then what the kernel knows: `ends_view` does it the other way round.
        dir.lease.viewed.store(true, SeqCst);
        let known = self.known_names(dir, most).ok_or(Refused::Known)?;
        Ok(View { memory: generations.id(), slot, word, known, mount: None })
    }
}
