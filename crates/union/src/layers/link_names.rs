//! All paths of the union by which a file may be found that has several names in a layer.

use crate::layers::Layers;
use crate::layers::layer::Layer;
use crate::layers::marks::OwnMark;
use crate::layers::moves::{DEPTH_MAX, ELSEWHERE_BYTES, add_places};
use crate::nodes::node::Node;
use crate::nodes::recovery::ledger::Ledger;
use crate::nodes::recovery::search::SearchKey;
use std::collections::BTreeSet;
use std::sync::Arc;
use vellum_vfs::Result;

impl Layers {
    /// Paths of the union that may lead to an inode of a layer, by any of its names. `ledger`: where a search is that was interrupted.
    pub(crate) fn paths_to(
        &self,
        layer: u16,
        ino: u64,
        ledger: Option<&Ledger>,
    ) -> Result<BTreeSet<Vec<u8>>> {
        self.paths_in(
            SearchKey { first: layer, last: layer, ino, deepest: DEPTH_MAX, filesystem: 0 },
            &|_| true,
            ledger,
        )
    }

    /// Paths in the union that may lead to the lower file from which a copy with this mark comes.
    pub(crate) fn paths_to_origin(
        &self,
        own: &OwnMark,
        ledger: Option<&Ledger>,
    ) -> Result<BTreeSet<Vec<u8>>> {
        let last = u16::try_from(self.stack.len()).unwrap_or(u16::MAX).saturating_sub(1);
        if !own.origin || last == 0 {
            return Ok(BTreeSet::new());
        }
        self.paths_in(
            SearchKey {
                first: 1,
                last,
                ino: own.ino,
                deepest: DEPTH_MAX,
                filesystem: 1 << 32 | u64::from(own.fsid),
            },
            &|layer| layer.fsid == own.fsid,
            ledger,
        )
    }

    fn paths_in(
        &self,
        wanted: SearchKey,
        is_wanted: &dyn Fn(&Layer) -> bool,
        ledger: Option<&Ledger>,
    ) -> Result<BTreeSet<Vec<u8>>> {
        let branch = |at: u16| self.layer(at).filter(|layer| is_wanted(layer)).map(|layer| &*layer.branch);
        let found = ledger.map_or(Ok(None), |ledger| ledger.search(wanted, &branch))?;
        let mut paths = BTreeSet::new();
        for at in wanted.first..=wanted.last {
            let Some((branch, links)) = branch(at).zip(self.links.get(usize::from(at))) else { continue };
            let names: BTreeSet<Vec<u8>> = match &found {
                Some(found) => found.iter().filter(|one| one.0 == at).map(|one| one.1.clone()).collect(),
                None => {
                    let names = links.paths(branch, wanted.ino, ledger)?;
                    names.iter().map(|path| path.to_bytes().to_vec()).collect()
                }
            };
            paths.append(&mut self.shown_at(at, wanted.ino, names)?);
        }
        Ok(paths)
    }

    /// Where the union may show paths of a layer.
    fn shown_at(&self, layer: u16, ino: u64, mut paths: BTreeSet<Vec<u8>>) -> Result<BTreeSet<Vec<u8>>> {
        if paths.is_empty() {
            return Ok(paths);
        }
        let at = usize::from(layer);
        // On the way up, each layer may have moved the directories in which the names are.
        let mut above = Vec::new();
        for (links, layer) in self.links.iter().zip(&self.stack).take(at).rev() {
            above.push(links.moved(&*layer.branch, layer.marking.spaces)?);
        }
        if !add_places(&mut paths, above.iter().map(|moves| &**moves), ELSEWHERE_BYTES) {
            let layer = self.layer(layer).map(|holder| holder.branch.describe());
            tracing::warn!(
                layer,
                ino,
                "too many paths may lead to a file: copy-up does not find all its names"
            );
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
