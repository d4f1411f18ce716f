//! A file becomes whole while others have it.

use crate::common::fault::FaultPlan;
use crate::common::watchdog::Watched;
use crate::common::{NO_HANDLE, ROOT, faulty, name, walk};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_union::{Extent, Union, UnionConfig};
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
    let mut config = faulty(disk, plan);
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

/// Marks that say nothing any more may stay on a file. A tree that has its layer below, and has looked it up before, does not go by
/// them.
#[test]
fn a_completed_file_is_complete_for_earlier_lookups() {
    let _watched = Watched::new("whole for others".into());
    for sidecars in [false, true] {
        let mut whole = 0;
        for fails in 0.. {
            let disk = disk(&[c"file"]);
            let plan = FaultPlan::new();
            let fs = union(&disk, &plan, sidecars);
            let file = node(&fs, "file");
            write(&fs, file, b"x");
            let lowers = ["upper", "lower"].map(|path| disk.subtree(path).unwrap() as Arc<dyn Branch>);
            let above = Union::new(UnionConfig { lowers: lowers.into(), ..UnionConfig::new() }).unwrap();
            let known = node(&above, "file");
            write(&fs, file, &[8; SIZE]);
            plan.reset();
            plan.fail_change(fails, Errno::IO);
            let _ = fs.fsync(&ROOT, file, NO_HANDLE, false);
            let changes = plan.changes();
            plan.reset();
            if fs.explain(file).unwrap().blocks.is_none() {
                whole += 1;
                // As it may look now that none of its holes shows the file below.
                fs.fallocate(&ROOT, file, NO_HANDLE, 4096, 8192, 3).unwrap();
                let what = format!("sidecars {sidecars}, change {fails} of {changes} failed");
                assert!(read(&above, known, &what) == read(&fs, file, &what), "{what}: other data");
            }
            if changes <= fails {
                break;
            }
        }
        assert!(whole > 1, "sidecars {sidecars}: none has stayed whole");
    }
}

fn read(fs: &Union, node: NodeId, what: &str) -> Vec<u8> {
    let mut data = vec![0; SIZE];
    let len = fs.read(&ROOT, node, NO_HANDLE, 0, &mut data).unwrap_or_else(|e| panic!("{what}: {e}"));
    data.truncate(len);
    data
}
