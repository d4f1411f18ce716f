//! Layers that were made to do harm.
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "modules of one test program")]

mod common;

use common::watchdog::Watched;
use common::{ROOT, bare, name};
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_union::{Union, UnionConfig};
use vellum_vfs::{Branch, BranchDir, Errno, Filesystem, NodeId, Object};

/// `a/a/a`, each with a redirect to `/a/a/a`, in many layers: followed to the end, that would be 3 to the power of the number
/// of layers.
#[test]
fn redirects_through_redirects_come_to_an_end() {
    const LAYERS: usize = 30;
    let _watched = Watched::new("redirects through redirects".into());
    let disk = MemoryBranch::new();
    let mut config = UnionConfig::new();
    for layer in 0..LAYERS {
        let branch = disk.subtree(&format!("layer{layer}")).unwrap();
        let mut dir = branch.root();
        for _ in 0..3 {
            dir.make_dir(name(c"a"), 0o755).unwrap();
            dir = dir.open_dir(name(c"a")).unwrap();
            redirect(&*dir);
        }
        config.lowers.push(branch as Arc<dyn Branch>);
    }
    let union = Union::new(config).unwrap();
    let found = bare(union.lookup(&ROOT, NodeId::ROOT, name(c"a")));
    assert_eq!(found.map(|entry| entry.is_some()), Err(Errno::LOOP));
}

fn redirect(dir: &dyn BranchDir) {
    (dir as &dyn Object).set_xattr(c"trusted.overlay.redirect", b"/a/a/a", 0).unwrap();
}
