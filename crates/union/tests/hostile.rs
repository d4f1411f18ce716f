//! Layers that were made to do harm.
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "modules of one test program")]

mod common;

use common::watchdog::Watched;
use common::{ROOT, errno_of, name, walk};
use std::sync::Arc;
use vellum_branch::{MemoryBranch, MemoryOptions};
use vellum_union::{Union, UnionConfig, UpperConfig};
use vellum_vfs::{Branch, BranchDir, Errno, Filesystem, NodeId, Object, RenameFlags, SetAttr};

/// `a/a/a`, each with a redirect to `/a/a/a`, in many layers: followed to the end, that would be 3 to the power of the number
/// of layers.
#[test]
fn nested_redirects_terminate() {
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
    let found = errno_of(union.lookup(&ROOT, NodeId::ROOT, name(c"a")));
    assert_eq!(found.map(|entry| entry.is_some()), Err(Errno::LOOP));
}

fn redirect(dir: &dyn BranchDir) {
    redirect_to(dir, "/a/a/a");
}

fn redirect_to(dir: &dyn BranchDir, path: &str) {
    (dir as &dyn Object).set_xattr(c"trusted.overlay.redirect", path.as_bytes(), 0).unwrap();
}

/// An upper layer in which so many directories have moved, and below it a file with two names. Says the links of the file when it
/// was copied up, by the names that it has in its own directory and in the last of those that show it as well.
fn links_below_moved_directories(count: usize) -> [u32; 3] {
    let disk = MemoryBranch::new();
    let [upper, work, lower] = ["upper", "work", "lower"].map(|name| disk.subtree(name).unwrap());
    let dir = lower.subtree("d").unwrap().root();
    dir.create(name(c"f"), 0o600).unwrap();
    dir.link_object(&*dir.hold(name(c"f")).unwrap(), name(c"g")).unwrap();
    for n in 1..count {
        redirect_to(&*upper.subtree(&format!("m{n}")).unwrap().root(), &format!("/m{n}"));
    }
    redirect_to(&*upper.subtree("z").unwrap().root(), "/d");
    let mut config = UnionConfig::new();
    config.upper = Some(UpperConfig { branch: upper, work });
    config.lowers = vec![lower];
    config.background = false;
    let fs = Union::new(config).unwrap();
    let file = walk(&fs, "d/f").unwrap().unwrap().node;
    fs.setattr(&ROOT, file, None, &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    ["d/f", "d/g", "z/f"].map(|path| walk(&fs, path).unwrap().unwrap().attr.nlink)
}

#[test]
fn too_many_moved_directories_break_hard_links_only() {
    assert_eq!(links_below_moved_directories(10), [4; 3]);
    assert_eq!(links_below_moved_directories((1 << 15) + 1), [2; 3]);
}

/// Where a storage cannot exchange two names, a union on it cannot either, and says so before it marks anything.
#[test]
fn an_upper_without_exchange_refuses_it() {
    let disk = MemoryBranch::with_options(MemoryOptions { exchange: false, ..MemoryOptions::default() });
    let [upper, work, lower] =
        ["upper", "work", "lower"].map(|name| disk.subtree(name).unwrap() as Arc<dyn Branch>);
    for dir in [c"a", c"b"] {
        lower.root().make_dir(name(dir), 0o755).unwrap();
    }
    let config = UpperConfig { branch: Arc::clone(&upper), work };
    let fs =
        Union::new(UnionConfig { upper: Some(config), lowers: vec![lower], ..UnionConfig::new() }).unwrap();
    let rename = |flags| fs.rename(&ROOT, (NodeId::ROOT, name(c"a")), (NodeId::ROOT, name(c"b")), flags);
    assert_eq!(rename(RenameFlags::EXCHANGE).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(upper.root().stat_at(name(c"a")).unwrap_err().errno(), Errno::NOENT);
    rename(RenameFlags::empty()).unwrap();
    assert!(walk(&fs, "a").unwrap().is_none() && walk(&fs, "b").unwrap().is_some());
    upper.root().stat_at(name(c".wh.a")).unwrap();
}
