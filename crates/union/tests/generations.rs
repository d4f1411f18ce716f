//! Whoever has mapped a file learns that it may have become shorter, by whatever way that comes about, and from nothing else.
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "modules of one test program")]

mod common;

use common::{NO_HANDLE, ROOT, name, walk};
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use vellum_branch::LocalBranch;
use vellum_sys::PersistentMemory;
use vellum_union::{Generations, Union, UnionConfig, UpperConfig};
use vellum_vfs::{
    Branch, Errno, Filesystem, NodeId, OpenFlags, Profile, SetAttr, SetTime, Timestamp, WriteFlags,
};

const O_WRONLY: OpenFlags = OpenFlags::WRONLY;
const O_TRUNC: OpenFlags = OpenFlags::TRUNC;

struct Ground {
    fs: Union,
    words: PersistentMemory,
}

impl Ground {
    fn new(dir: &Path, profile: Profile) -> Self {
        let branch = |of: &str| -> Arc<dyn Branch> { LocalBranch::open(dir.join(of)).unwrap() };
        for of in ["lower", "upper", "work"] {
            fs::create_dir_all(dir.join(of)).unwrap();
        }
        fs::write(dir.join("lower/low"), vec![1; 10_000]).unwrap();
        fs::write(dir.join("lower/big"), vec![2; 2 << 20]).unwrap();
        fs::write(dir.join("upper/own"), vec![3; 10_000]).unwrap();
        let generations = Arc::new(Generations::create().unwrap());
        let words = generations.as_fd().try_clone_to_owned().unwrap();
        let words = PersistentMemory::open(&Generations::MEMORY, words).unwrap();
        let mut config = UnionConfig::new();
        config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
        config.lowers = vec![branch("lower")];
        config.profile = profile;
        config.background = false;
        config.partial_from = Some(128 << 10);
        config.generations = Some(generations);
        Self { fs: Union::new(config).unwrap(), words }
    }

    fn node(&self, path: &str) -> NodeId {
        walk(&self.fs, path).unwrap().unwrap().node
    }

    /// The slot's word as a client sees it.
    fn word(&self, node: NodeId) -> u64 {
        self.words.word(512 + node.0 as u32 as usize).unwrap().load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Maps, does something, and says whether the mapping is still to be believed.
    fn mapping_holds(&self, node: NodeId, act: impl FnOnce()) -> bool {
        let told = self.fs.mappable(node).unwrap().unwrap();
        assert_eq!(u64::from(told.slot) | u64::from(told.serial) << 32, node.0);
        assert_eq!((told.generation, told.size), (self.word(node), self.size(node)));
        act();
        self.word(node) == told.generation
    }

    fn size(&self, node: NodeId) -> u64 {
        self.fs.getattr(&ROOT, node, None).unwrap().attr.size
    }

    fn cut(&self, node: NodeId, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.setattr(&ROOT, node, None, &set).unwrap();
    }

    fn write(&self, node: NodeId, at: u64) {
        self.fs.write(&ROOT, node, NO_HANDLE, at, b"x", WriteFlags::empty()).unwrap();
    }
}

#[test]
fn only_a_truncation_advances_the_generation() {
    for profile in [Profile::Cached, Profile::Passthrough] {
        let dir = tempfile::tempdir().unwrap();
        let ground = Ground::new(dir.path(), profile);
        for path in ["low", "big", "own"] {
            let node = ground.node(path);
            let what = format!("{path}, {profile:?}");
            let times = SetTime::At(Timestamp { secs: 5, nanos: 5 });
            let set = SetAttr { mtime: Some(times), mode: Some(0o600), ..SetAttr::default() };
            assert!(
                ground.mapping_holds(node, || assert!(ground.fs.setattr(&ROOT, node, None, &set).is_ok())),
                "{what}"
            );
            assert!(ground.mapping_holds(node, || ground.write(node, 100)), "{what}: a write, and a copy-up");
            assert!(
                ground.mapping_holds(node, || ground.write(node, ground.size(node))),
                "{what}: an append"
            );
            assert!(
                ground.mapping_holds(node, || ground.fs.fsync(&ROOT, node, NO_HANDLE, false).unwrap()),
                "{what}"
            );
            assert!(!ground.mapping_holds(node, || ground.cut(node, 5000)), "{what}: a cut");
            assert!(!ground.mapping_holds(node, || ground.cut(node, 0)), "{what}: a cut to nothing");
            ground.write(node, 9000);
            let opened = |flags| ground.fs.open(&ROOT, node, flags).map(drop);
            if profile == Profile::Passthrough || opened(OpenFlags::empty()).is_ok() {
                assert!(
                    !ground.mapping_holds(node, || opened(O_WRONLY | O_TRUNC).unwrap()),
                    "{what}: O_TRUNC"
                );
            }
        }
    }
}

#[test]
fn a_file_with_a_new_node_is_mapped_through_that_one() {
    let dir = tempfile::tempdir().unwrap();
    let ground = Ground::new(dir.path(), Profile::Passthrough);
    let old = ground.node("low");
    ground.fs.open(&ROOT, old, OpenFlags::empty()).unwrap();
    assert!(!ground.mapping_holds(old, || {
        let error = ground.fs.open(&ROOT, old, O_WRONLY).map(drop).unwrap_err();
        assert_eq!(error.errno(), Errno::STALE);
    }));
    assert_eq!(ground.fs.mappable(old).unwrap(), None);
    let new = ground.node("low");
    assert_ne!(old, new);
    assert!(!ground.mapping_holds(new, || ground.cut(old, 100)), "cut through the old node");
    assert!(!ground.mapping_holds(new, || ground.cut(new, 10)));
}

#[test]
fn a_reused_slot_has_another_generation() {
    let dir = tempfile::tempdir().unwrap();
    let ground = Ground::new(dir.path(), Profile::Cached);
    let node = ground.node("own");
    assert!(!ground.mapping_holds(node, || {
        ground.fs.unlink(&ROOT, NodeId::ROOT, name(c"own")).unwrap();
        ground.fs.forget(node, 100);
    }));
}

#[test]
fn directories_and_links_are_not_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let ground = Ground::new(dir.path(), Profile::Cached);
    ground.fs.mkdir(&ROOT, NodeId::ROOT, name(c"dir"), 0o755).unwrap();
    ground.fs.symlink(&ROOT, NodeId::ROOT, name(c"link"), c"own").unwrap();
    for path in ["dir", "link"] {
        assert_eq!(ground.fs.mappable(ground.node(path)).unwrap(), None, "{path}");
    }
}
