//! A file that an interrupted operation has touched grows to its old size and beyond. Data of before never come back by that: a mount
//! that is made then shows what this one shows.

use crate::common::fault::FaultPlan;
use crate::common::{NO_HANDLE, ROOT, name, walk};
use crate::stage::{self, Kind, Stage};
use crate::{Known, fresh};
use vellum_branch::MemoryBranch;
use vellum_union::Union;
use vellum_vfs::{Branch, FileKind, Filesystem, SetAttr, WriteFlags};

/// `disk`, `union`: as the interruption has left them, and mounted again. Files that are not as large as before have been cut.
pub fn restore_old_size(stage: &Stage, known: &Known, (disk, union): (&MemoryBranch, &Union), what: &str) {
    for (path, before) in &known.before {
        let is_changed = known.after.get(path).is_none_or(|after| after != before);
        let (FileKind::Regular, Some(size), true) = (before.kind, before.size, is_changed) else { continue };
        let Ok(Some(entry)) = walk(union, path) else { continue };
        if entry.attr.kind() != FileKind::Regular {
            continue;
        }
        for grown in [size, size + 4000] {
            let set = SetAttr { size: Some(grown), ..SetAttr::default() };
            let context = format!("{what}, {path} with {grown} bytes");
            union.setattr(&ROOT, entry.node, None, &set).unwrap_or_else(|e| panic!("{context}: {e}"));
            let written = union.write(&ROOT, entry.node, NO_HANDLE, 0, b"new", WriteFlags::empty());
            assert_eq!(written.unwrap_or_else(|e| panic!("{context}: {e}")), 3, "{context}");
            let other = fresh(stage, &disk.fork().unwrap());
            let text = stage::unlike(&stage.look(union), &stage.look(&other));
            assert!(text.is_empty(), "{context}: mounted, and mounted again\n{text}");
        }
    }
}

/// The last byte of each file is written that an operation, which has failed, would have changed: all others are as before.
pub fn write_last_bytes(stage: &Stage, known: &Known, disk: &MemoryBranch, what: &str) {
    let copy = disk.fork().unwrap();
    let union = fresh(stage, &copy);
    for (path, before) in &known.before {
        let is_changed = known.after.get(path).is_none_or(|after| after != before);
        let Some(last) = before.data.len().checked_sub(1).filter(|_| is_changed) else { continue };
        let Ok(Some(entry)) = walk(&union, path) else { continue };
        let written = union.write(&ROOT, entry.node, NO_HANDLE, last as u64, b"!", WriteFlags::empty());
        assert_eq!(written.unwrap_or_else(|e| panic!("{what}, {path}: {e}")), 1, "{what}, {path}");
        let now = stage.look(&union);
        let mut expected = before.data.clone();
        expected[last] = b'!';
        let seen = now.get(path).map(|seen| &seen.data);
        assert!(seen == Some(&expected), "{what}, {path}: has other data after a write of one byte");
    }
}

/// A copy of the attributes alone, as the kernel's overlayfs makes it, is written to in part, cut, and found again by the next mount.
#[test]
fn a_metacopy_of_overlayfs_keeps_its_data() {
    let stage = Stage::new(Kind::BLOCKS);
    for size in [9000, 7000, 100] {
        let disk = stage.disk();
        let root = disk.subtree("upper").unwrap().root();
        let copy = root.create(name(c"other"), 0o600).unwrap();
        copy.truncate(9000).unwrap();
        copy.set_xattr(c"trusted.overlay.metacopy", b"", 0).unwrap();
        let union = stage.mount(&disk, &FaultPlan::new());
        let node = walk(&union, "other").unwrap().unwrap().node;
        let expected: Vec<u8> = b"other".iter().copied().cycle().take(size).collect();
        if size < 9000 {
            let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
            union.setattr(&ROOT, node, None, &set).unwrap();
        } else {
            union.write(&ROOT, node, NO_HANDLE, 8000, &expected[8000..8001], WriteFlags::empty()).unwrap();
        }
        for fs in [&union, &fresh(&stage, &disk.fork().unwrap())] {
            let seen = stage.look(fs);
            assert!(seen["/other"].data == expected, "{size} bytes: {:?} bytes, others", seen["/other"].size);
        }
    }
}
