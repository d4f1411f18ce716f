//! A file becomes whole while others have it.

use crate::common::watchdog::Watched;
use crate::common::{NO_HANDLE, ROOT, name, walk};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_branch::{FaultBranch, FaultPlan, MemoryBranch};
use vellum_union::{Extent, Union, UnionConfig, UpperConfig};
use vellum_vfs::{Branch, Errno, Filesystem, NodeId, WriteFlags};

/// Large enough to be copied block by block.
const SIZE: usize = 256 << 10;

fn disk(files: &[&CStr]) -> Arc<MemoryBranch> {
    let disk = MemoryBranch::new();
    let lower = disk.subtree("lower").unwrap().root();
    for file in files {
        lower.create(name(file), 0o644).unwrap().write_at(&vec![7; SIZE], 0).unwrap();
    }
    disk
}

fn union(disk: &MemoryBranch, plan: &Arc<FaultPlan>, sidecars: bool) -> Union {
    let branch =
        |path: &str| -> Arc<dyn Branch> { FaultBranch::new(disk.subtree(path).unwrap(), Arc::clone(plan)) };
    let mut config = UnionConfig::new();
    config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
    config.lowers = vec![branch("lower")];
    config.background = false;
    config.sidecars = sidecars;
    Union::new(config).unwrap()
}

fn node(fs: &Union, path: &str) -> NodeId {
    walk(fs, path).unwrap().unwrap().node
}

fn write(fs: &Union, node: NodeId, data: &[u8]) {
    fs.write(&ROOT, node, NO_HANDLE, 0, data, WriteFlags::empty()).map(drop).unwrap();
}

/// Somebody makes a file durable that has all its blocks while its layer is made whole: it is done with then, and the next one comes.
#[test]
fn a_file_that_others_complete_is_done_with() {
    let _watched = Watched::new("completed by others".into());
    let disk = disk(&[c"one", c"two"]);
    let fs = union(&disk, &FaultPlan::new(), false);
    for path in ["one", "two"] {
        write(&fs, node(&fs, path), b"x");
    }
    let sync = |path: &str| fs.fsync(&ROOT, node(&fs, path), NO_HANDLE, false).unwrap();
    let done = fs.flatten(Extent::ALL, &mut |state| {
        sync(&state.path);
        true
    });
    let done = done.unwrap();
    assert_eq!((done.files, done.files_done, done.files_failed), (2, 2, 0));
}
