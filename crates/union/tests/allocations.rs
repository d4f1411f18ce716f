//! What is done again and again allocates nothing, on real files.
#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "modules of one test program")]

mod common;

use common::{NO_HANDLE, ROOT, name, walk};
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use vellum_branch::LocalBranch;
use vellum_union::{Union, UnionConfig, UpperConfig};
use vellum_vfs::{Branch, Filesystem, NodeId, SetAttr, SetTime, Timestamp, WriteFlags};

const BIG: usize = 1 << 20;

fn union(dir: &Path) -> Union {
    let branch = |of: &str| -> Arc<dyn Branch> { LocalBranch::open(dir.join(of)).unwrap() };
    for of in ["lower", "upper", "work"] {
        fs::create_dir_all(dir.join(of)).unwrap();
    }
    fs::create_dir(dir.join("lower/dir")).unwrap();
    fs::write(dir.join("lower/dir/file"), vec![1; 10_000]).unwrap();
    fs::write(dir.join("lower/big"), vec![2; BIG]).unwrap();
    fs::write(dir.join("upper/own"), vec![3; 10_000]).unwrap();
    let mut config = UnionConfig::new();
    config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
    config.lowers = vec![branch("lower")];
    config.background = false;
    config.partial_from = Some(128 << 10);
    Union::new(config).unwrap()
}

/// Allocations of `act`, once it has been done before.
fn again(what: &str, mut act: impl FnMut()) {
    const TIMES: u64 = 100;
    act();
    let counted = allocation_counter::measure(|| (0..TIMES).for_each(|_| act()));
    assert_eq!(counted.count_total, 0, "{what}: allocations in {TIMES} operations");
}

#[test]
fn repeated_operations_allocate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fs = &union(dir.path());
    let node = |path: &str| walk(fs, path).unwrap().unwrap().node;
    let (low, own, big, within) = (node("dir/file"), node("own"), node("big"), node("dir"));
    let mut buf = [0; 4096];
    let mut reads = |what: &str, of: NodeId, at: u64| {
        again(what, || assert_eq!(fs.read(&ROOT, of, NO_HANDLE, at, &mut buf).unwrap(), 4096));
    };
    reads("read of a lower file", low, 100);
    reads("read of an upper file", own, 100);
    let writes = |what: &str, of: NodeId, at: u64, len: usize| {
        let data = [7; 8192];
        again(what, || {
            let n = fs.write(&ROOT, of, NO_HANDLE, at, &data[..len], WriteFlags::empty()).unwrap();
            assert_eq!(n, len);
        });
    };
    writes("write to an upper file", own, 100, 4096);
    writes("write to an own block of a partial file", big, 8192, 4096);
    reads("read of an own block of a partial file", big, 8192);
    reads("read of a block below", big, 65_536);
    reads("read of both", big, 6144);
    let mut next = 0;
    again("write of a byte to a block below", || {
        next += 2;
        fs.write(&ROOT, big, NO_HANDLE, 131_072 + next * 4096, b"x", WriteFlags::empty()).unwrap();
    });
    for (what, of) in [("lower", low), ("upper", own), ("partial", big), ("directory", within)] {
        again(&format!("attributes, {what}"), || {
            black_box(fs.getattr(&ROOT, of, None).unwrap());
        });
    }
    again("lookup of a known name, and forgetting it", || {
        let entry = fs.lookup(&ROOT, within, name(c"file")).unwrap().unwrap();
        fs.forget(entry.node, 1);
    });
    again("times", || {
        let time = Some(SetTime::At(Timestamp { secs: 5, nanos: 5 }));
        let set = SetAttr { mtime: time, ..SetAttr::default() };
        black_box(fs.setattr(&ROOT, own, None, &set).unwrap());
    });
    again("fsync", || fs.fsync(&ROOT, own, NO_HANDLE, false).unwrap());
    again("statfs", || {
        black_box(fs.statfs(&ROOT, NodeId::ROOT).unwrap());
    });
}
