//! The layers that operations fail on.

use crate::common::fault::{FaultBranch, FaultExport, FaultPlan, ObjectExport};
use crate::common::tree::{self, Seen, Tree};
use crate::common::{Deaf, NO_HANDLE, ROOT, name, walk};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_branch::{MemoryBranch, MemoryOptions};
use vellum_union::{Union, UnionConfig, UpperConfig};
use vellum_vfs::{
    Branch, BranchDir, Connection, Duties, FileKind, Filesystem, NodeId, Notifier, Object, OpenFlags,
    Profile, RenameFlags, SetAttr, SetTime, Timestamp, WriteFlags,
};

/// What the disk can do, and how copies are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub privileged: bool,
    pub unnamed: bool,
    pub rename_whiteout: bool,
    pub exchange: bool,
    pub metacopy: bool,
    /// Files are copied block by block.
    pub blocks: bool,
    /// Clients go past the kernel.
    pub handout: bool,
}

impl Kind {
    pub const USUAL: Self = Self {
        privileged: true,
        unnamed: true,
        rename_whiteout: true,
        exchange: true,
        metacopy: true,
        blocks: false,
        handout: false,
    };

    pub const BLOCKS: Self = Self { blocks: true, ..Self::USUAL };

    pub const HANDOUT: Self = Self { handout: true, ..Self::USUAL };

    pub const ALL: [Self; 7] = [
        Self::USUAL,
        Self { metacopy: false, ..Self::USUAL },
        Self { unnamed: false, rename_whiteout: false, ..Self::USUAL },
        Self { privileged: false, ..Self::USUAL },
        Self { unnamed: false, exchange: false, ..Self::BLOCKS },
        Self::BLOCKS,
        Self::HANDOUT,
    ];
}

pub struct Stage {
    pub kind: Kind,
    /// The disk before each operation: two lowers, an upper, its work directory.
    prepared: Arc<MemoryBranch>,
}

impl Stage {
    pub fn new(kind: Kind) -> Self {
        let disk = MemoryBranch::with_options(MemoryOptions {
            unnamed: kind.unnamed,
            rename_whiteout: kind.rename_whiteout,
            exchange: kind.exchange,
            devices: kind.privileged,
            trusted: kind.privileged,
            ..MemoryOptions::default()
        });
        build_lower(&*disk.subtree("lower0").unwrap().root());
        build_lowest(&*disk.subtree("lower1").unwrap().root());
        let stage = Self { kind, prepared: disk };
        let union = stage.mount(&stage.prepared, &FaultPlan::new());
        prepare(&union);
        drop(union);
        stage
    }

    /// A copy of the disk, to be spoilt.
    pub fn disk(&self) -> Arc<MemoryBranch> {
        self.prepared.fork().unwrap()
    }

    /// Mounts the layers on a disk; `plan` rules over the upper and the work directory, and the lowers.
    pub fn mount(&self, disk: &MemoryBranch, plan: &Arc<FaultPlan>) -> Union {
        self.mount_under(disk, plan, Arc::new(Deaf::default()))
    }

    /// As [`mount`](Self::mount), under a kernel that is told of changes.
    pub fn mount_under(
        &self,
        disk: &MemoryBranch,
        plan: &Arc<FaultPlan>,
        notifier: Arc<dyn Notifier>,
    ) -> Union {
        let branch = |path: &str| -> Arc<dyn Branch> {
            FaultBranch::new(disk.subtree(path).unwrap(), Arc::clone(plan))
        };
        let mut config = UnionConfig::new();
        config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
        config.lowers = vec![branch("lower0"), branch("lower1")];
        config.background = false;
        config.metacopy = self.kind.metacopy;
        config.partial_from = self.kind.blocks.then_some(4096);
        if self.kind.handout {
            config.profile = Profile::Passthrough;
            config.export =
                Some(FaultExport::new(ObjectExport::new(disk.subtree("upper").unwrap()), Arc::clone(plan)));
        }
        let union = Union::new(config).unwrap();
        if self.kind.handout {
            let duties = Duties::SERVES_FILES;
            union.start(Connection { duties, notifier });
        }
        union
    }

    pub fn look(&self, fs: &Union) -> Tree {
        // Without privilege only files and directories can keep their numbers.
        let numbered = |kind| self.kind.privileged || matches!(kind, FileKind::Regular | FileKind::Directory);
        tree::of_union_with(fs, false, &mut { numbered })
    }

    /// The work directory holds nothing but what every mount puts there.
    pub fn check_work(&self, disk: &MemoryBranch, what: &str) {
        let work = disk.subtree("work").unwrap().root().open_dir(name(c"work")).unwrap();
        let left: Vec<CString> = tree::entries(&*work).into_iter().map(|(left, _)| left).collect();
        let fixed: &[&CStr] = if self.kind.privileged && self.kind.exchange { &[c"whiteout"] } else { &[] };
        assert_eq!(left, fixed, "{what}: left in the work directory");
    }
}

fn file(dir: &dyn BranchDir, at: &CStr, len: usize) -> Arc<dyn Object> {
    let file = dir.create(name(at), 0o644).unwrap();
    // No two files are alike.
    let data: Vec<u8> = at.to_bytes().iter().copied().cycle().take(len).collect();
    file.write_at(&data, 0).unwrap();
    dress(&*file);
    dir.hold(name(at)).unwrap()
}

/// Attributes that a copy must keep.
fn dress(object: &dyn Object) {
    object.set_owner(Some(1000), Some(1001)).unwrap();
    object.set_xattr(c"user.kept", b"value", 0).unwrap();
    let time = |secs| Some(SetTime::At(Timestamp { secs, nanos: 5 }));
    object.set_times(time(1111), time(2222)).unwrap();
}

fn dir(parent: &dyn BranchDir, at: &CStr) -> Arc<dyn BranchDir> {
    parent.make_dir(name(at), 0o755).unwrap();
    parent.open_dir(name(at)).unwrap()
}

fn build_lower(root: &dyn BranchDir) {
    let plain = dir(root, c"dir");
    for at in [c"file", c"other", c"gone", c"meta", c"meta2", c"swap", c"over", c"part", c"part2"] {
        file(root, at, 9000);
    }
    // With a hole, and set-id bits.
    let holey = file(root, c"holey", 5000);
    holey.reopen(vellum_vfs::OpenMode::WRITE).unwrap().truncate(60_000).unwrap();
    dress(&*holey);
    holey.set_mode(0o4755).unwrap();
    let linked = file(root, c"linked", 100);
    dir(root, c"links").link_object(&*linked, name(c"linked2")).unwrap();
    dress(&*linked);
    let nested = dir(&*dir(&*plain, c"sub"), c"deep");
    file(&*nested, c"leaf", 50);
    file(&*plain, c"inner", 50);
    dress(&*plain);
    dress(&*nested);
    root.make_symlink(name(c"symlink"), c"target").unwrap();
    root.make_node(name(c"fifo"), 0o010_640, 0).unwrap();
    file(&*dir(root, c"merged"), c"low", 20);
    file(&*dir(root, c"emptied"), c"low", 20);
    file(&*dir(root, c"gonedir"), c"low", 20);
    file(&*dir(root, c"dir2"), c"low", 20);
    dir(root, c"empty");
    let given = dir(root, c"setgid");
    given.set_owner(None, Some(77)).unwrap();
    given.set_mode(0o2775).unwrap();
    file(&*given, c"hidden", 20);
}

fn build_lowest(root: &dyn BranchDir) {
    file(&*dir(root, c"dir"), c"lowest", 50);
    file(&*dir(root, c"merged"), c"lowest", 20);
}

/// What was done with the union before.
fn prepare(fs: &Union) {
    let node = |path: &str| walk(fs, path).unwrap().unwrap().node;
    let root = NodeId::ROOT;
    let create = |parent, at: &CStr| {
        let entry = fs.create(&ROOT, parent, name(at), 0o644, OpenFlags::EXCL).unwrap().0;
        let flags = vellum_vfs::WriteFlags::empty();
        fs.write(&ROOT, entry.node, vellum_vfs::Handle(0), 0, &at.to_bytes().repeat(500), flags).unwrap();
    };
    for at in [c"upper", c"upper2", c"over_target"] {
        create(root, at);
    }
    let directory = fs.mkdir(&ROOT, root, name(c"updir"), 0o755).unwrap().node;
    create(directory, c"in");
    let shared = fs.mkdir(&ROOT, root, name(c"shared"), 0o777).unwrap().node;
    create(shared, c"theirs");
    fs.mkdir(&ROOT, root, name(c"upempty"), 0o755).unwrap();
    fs.unlink(&ROOT, root, name(c"gone")).unwrap();
    fs.unlink(&ROOT, node("gonedir"), name(c"low")).unwrap();
    fs.rmdir(&ROOT, root, name(c"gonedir")).unwrap();
    // Empty in the union, with a whiteout in the upper.
    fs.unlink(&ROOT, node("emptied"), name(c"low")).unwrap();
    fs.unlink(&ROOT, node("setgid"), name(c"hidden")).unwrap();
    create(node("merged"), c"up");
    // Only their attributes are in the upper, where that is done.
    for at in ["meta", "meta2"] {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        fs.setattr(&ROOT, node(at), None, &set).unwrap();
    }
    // Some blocks of these are in the upper, where that is done.
    for at in ["part", "part2"] {
        fs.write(&ROOT, node(at), NO_HANDLE, 5000, b"written", WriteFlags::empty()).unwrap();
    }
    // A file of the upper over one of a lower.
    let flags = RenameFlags::empty();
    fs.rename(&ROOT, (root, name(c"over_target")), (root, name(c"over")), flags).unwrap();
}

/// How two trees differ, apart from holes, and from inode numbers, of which only the equal ones must be equal. Times may be of now where
/// they were old: what fails is allowed to have touched a file or a directory on the way.
pub fn unlike(expected: &Tree, seen: &Tree) -> String {
    let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
    let mut text = tree::differences(expected, seen, |_, expected, seen| {
        let time = |expected, seen: Option<Timestamp>| if seen.is_none() { None } else { expected };
        let expected = Seen {
            mtime: time(expected.mtime, seen.mtime),
            atime: time(expected.atime, seen.atime),
            ..expected.clone()
        };
        // Whether what was not written is a hole depends on how the file was copied, which may fail one way and succeed another.
        let same = Seen { ino: expected.ino, extents: expected.extents.clone(), ..seen.clone() };
        expected == same
    });
    for (path, expected) in expected {
        if let Some(seen) = seen.get(path)
            && *numbers.entry(expected.ino).or_insert(seen.ino) != seen.ino
        {
            text.push_str(&format!("{path}: is no longer the same file as before\n"));
        }
    }
    text
}
