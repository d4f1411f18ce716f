//! All paths of the union by which a file may be found that has several names in a layer.

use crate::layers::Layers;
use crate::layers::marks::Own;
use crate::layers::moves::{ELSEWHERE_BYTES, add_places};
use crate::nodes::node::Node;
use std::collections::BTreeSet;
use std::sync::Arc;
use vellum_vfs::Result;

impl Layers {
    /// Paths of the union that may lead to an inode of a layer, by any of its names.
    pub(crate) fn paths_to(&self, layer: u16, ino: u64) -> Result<BTreeSet<Vec<u8>>> {
        let at = usize::from(layer);
        let Some((links, holder)) = self.links.get(at).zip(self.stack.get(at)) else {
            return Ok(BTreeSet::new());
        };
        let names = links.paths(&*holder.branch, ino)?;
        let mut paths: BTreeSet<Vec<u8>> = names.iter().map(|path| path.to_bytes().to_vec()).collect();
        // On the way up, each layer may have moved the directories in which the names are.
        let mut above = Vec::new();
        for (links, layer) in self.links.iter().zip(&self.stack).take(at).rev() {
            above.push(links.moved(&*layer.branch, layer.marking.spaces)?);
        }
        if !add_places(&mut paths, above.iter().map(|moves| &**moves), ELSEWHERE_BYTES) {
            let layer = holder.branch.describe();
            tracing::warn!(
                layer,
                ino,
                "too many paths may lead to a file: copy-up does not find all its names"
            );
        }
        Ok(paths)
    }

    /// Paths in the union that may lead to the lower file from which a copy with this mark comes.
    pub(crate) fn paths_to_origin(&self, own: &Own) -> Result<BTreeSet<Vec<u8>>> {
        let mut paths = BTreeSet::new();
        let layers =
            self.stack.iter().zip(0..).skip(1).filter(|(layer, _)| own.origin && layer.fsid == own.fsid);
        for (_, layer) in layers {
            paths.append(&mut self.paths_to(layer, own.ino)?);
        }
        Ok(paths)
    }

    /// What was found out of moved directories of the upper layer no longer holds.
    pub(crate) fn note_moved(&self, nodes: &[&Arc<Node>]) {
        if nodes.iter().any(|node| node.as_dir().is_some())
            && let Some(links) = self.links.first()
        {
            links.moved_again();
        }
    }
}
