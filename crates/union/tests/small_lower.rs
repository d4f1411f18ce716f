//! Small files of lower layers in `passthrough`: the kernel takes opens through its cache or opens of a layer's file, never both at a time.

#![allow(unreachable_pub, clippy::unwrap_used, missing_docs, reason = "a test")]

use std::ffi::CString;
use std::sync::{Arc, Barrier};
use vellum_branch::LocalBranch;
use vellum_union::{PASSTHROUGH_FROM, Union, UnionConfig, UpperConfig};
use vellum_vfs::{Branch, Context, Errno, Filesystem, Name, NodeId, OpenFlags, OpenIo, Profile, Result};

const ROOT: Context<'static> =
    Context { uid: 0, gid: 0, pid: 1, umask: 0, groups: &[], who: None, progress: &() };
const O_RDONLY: OpenFlags = OpenFlags::empty();
const O_RDWR: OpenFlags = OpenFlags::RDWR;
const FILES: usize = 1500;

/// Whether an open goes through the kernel's cache.
fn is_cached(union: &Union, node: NodeId, flags: OpenFlags) -> Result<bool> {
    union.open(&ROOT, node, flags).map(|reply| matches!(reply.io, OpenIo::Cached { .. }))
}

#[test]
fn concurrent_opens_are_of_one_kind() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["lower", "upper", "work"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    for number in 0..FILES {
        std::fs::write(dir.path().join(format!("lower/{number}")), b"small").unwrap();
    }
    let branch = |name: &str| -> Arc<dyn Branch> { LocalBranch::open(dir.path().join(name)).unwrap() };
    let mut config = UnionConfig::new();
    config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
    config.lowers = vec![branch("lower")];
    config.background = false;
    config.profile = Profile::Passthrough;
    config.passthrough_from = PASSTHROUGH_FROM;
    let union = Union::new(config).unwrap();
    let mut kinds = [0; 3];
    for number in 0..FILES {
        let name = CString::new(number.to_string()).unwrap();
        let name = Name::new(&name).unwrap();
        let node = union.lookup(&ROOT, NodeId::ROOT, name).unwrap().unwrap().node;
        let begin = Barrier::new(2);
        let (read, write) = std::thread::scope(|scope| {
            // It comes somewhere in the copy-up, or after it.
            let read = scope.spawn(|| {
                begin.wait();
                (0..number * 41 % 20_000).for_each(|_| std::hint::spin_loop());
                is_cached(&union, node, O_RDONLY)
            });
            begin.wait();
            let write = is_cached(&union, node, O_RDWR);
            (read.join().unwrap(), write.unwrap())
        });
        match read {
            Ok(read) => {
                assert_eq!(read, write, "file {number}");
                kinds[usize::from(read)] += 1;
            }
            Err(e) => {
                assert_eq!(e.errno(), Errno::STALE);
                kinds[2] += 1;
                // The kernel looks the name up and opens it again.
                let node = union.lookup(&ROOT, NodeId::ROOT, name).unwrap().unwrap().node;
                assert_eq!(is_cached(&union, node, O_RDONLY).unwrap(), write, "file {number}, again");
            }
        }
    }
    println!("passed through {}, cached {}, opened again {}", kinds[0], kinds[1], kinds[2]);
}
