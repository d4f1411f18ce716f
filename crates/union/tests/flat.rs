//! The union against a flat tree: the same random operations go to a union of layers and to one plain tree in memory,
//! and everything that a user could see must be the same. Uppers become lowers as the sequence goes on, so that the
//! layers hold whatever the union itself records: whiteouts, opaque and moved directories, attributes without data.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_union::{Union, UnionConfig, UpperConfig};
use vellum_vfs::{
    Branch, BranchDir, Context, DirEntry, DirSink, Entry, Errno, FileKind, Filesystem, Handle, Name, NodeId,
    OpenMode, RenameFlags, SetAttr, WriteFlags, XattrFlags,
};

const ROOT_CONTEXT: Context<'static> = Context { uid: 0, gid: 0, pid: 1, umask: 0, groups: &[], who: None };

/// A path of one to three names out of three.
type Path = Vec<u8>;

#[derive(Clone, Debug)]
enum Op {
    Create(Path),
    Mkdir(Path),
    Symlink(Path),
    Fifo(Path),
    NullDevice(Path),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, u8),
    Write(Path, u16, u8),
    Truncate(Path, u16),
    Chmod(Path, u16),
    Chown(Path, u8),
    SetXattr(Path, u8),
    RemoveXattr(Path),
    Forget,
    Remount,
    Commit,
}

fn path() -> impl Strategy<Value = Path> {
    proptest::collection::vec(0u8..4, 1..4)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => path().prop_map(Op::Create),
        6 => path().prop_map(Op::Mkdir),
        1 => path().prop_map(Op::Symlink),
        1 => path().prop_map(Op::Fifo),
        1 => path().prop_map(Op::NullDevice),
        3 => (path(), path()).prop_map(|(a, b)| Op::Link(a, b)),
        4 => path().prop_map(Op::Unlink),
        3 => path().prop_map(Op::Rmdir),
        6 => (path(), path(), 0u8..3).prop_map(|(a, b, f)| Op::Rename(a, b, f)),
        4 => (path(), 0u16..10_000, any::<u8>()).prop_map(|(p, o, b)| Op::Write(p, o, b)),
        2 => (path(), 0u16..10_000).prop_map(|(p, s)| Op::Truncate(p, s)),
        3 => (path(), 0u16..0o1000).prop_map(|(p, m)| Op::Chmod(p, m)),
        1 => (path(), any::<u8>()).prop_map(|(p, u)| Op::Chown(p, u)),
        2 => (path(), any::<u8>()).prop_map(|(p, v)| Op::SetXattr(p, v)),
        1 => path().prop_map(Op::RemoveXattr),
        2 => Just(Op::Forget),
        1 => Just(Op::Remount),
        2 => Just(Op::Commit),
    ]
}

/// One of the names `a`, `b`, `c` and one that looks like a whiteout of `a`.
fn name_of(index: u8) -> &'static CStr {
    [c"a", c"b", c"c", c".wh.a"][usize::from(index) % 4]
}

struct World {
    disk: Arc<MemoryBranch>,
    layers: usize,
    union: Option<Union>,
    held: Vec<NodeId>,
    flat: Arc<MemoryBranch>,
    metacopy: bool,
    /// The union's number of each of the flat tree's inodes, once seen.
    inodes: BTreeMap<u64, u64>,
}

type Answer = Result<(), Errno>;

impl World {
    fn new(metacopy: bool) -> Self {
        let mut world = Self {
            disk: MemoryBranch::new(),
            layers: 1,
            union: None,
            held: Vec::new(),
            flat: MemoryBranch::new(),
            metacopy,
            inodes: BTreeMap::new(),
        };
        world.mount();
        world
    }

    fn layer(&self, number: usize) -> Arc<dyn Branch> {
        self.disk.subtree(&format!("layer{number}")).unwrap()
    }

    fn mount(&mut self) {
        let top = self.layers - 1;
        let mut config = UnionConfig::new();
        config.upper = Some(UpperConfig {
            branch: self.layer(top),
            work: self.disk.subtree(&format!("work{top}")).unwrap(),
        });
        config.lowers = (0..top).rev().map(|n| self.layer(n)).collect();
        config.metacopy = self.metacopy;
        config.background = false;
        self.union = Some(Union::new(config).unwrap());
    }

    fn remount(&mut self) {
        self.held.clear();
        self.union = None;
        self.mount();
    }

    fn fs(&self) -> &Union {
        self.union.as_ref().unwrap()
    }

    fn lookup(&mut self, parent: NodeId, name: &CStr) -> Result<Entry, Errno> {
        let found = self.fs().lookup(&ROOT_CONTEXT, parent, Name::new(name).unwrap());
        let entry = found.map_err(|e| e.errno())?.ok_or(Errno::NOENT)?;
        self.held.push(entry.node);
        Ok(entry)
    }

    fn node(&mut self, path: &[u8]) -> Result<NodeId, Errno> {
        let mut node = NodeId::ROOT;
        for index in path {
            node = self.lookup(node, name_of(*index))?.node;
        }
        Ok(node)
    }

    /// The directory of a path in the union, and the last name.
    fn place(&mut self, path: &[u8]) -> Result<(NodeId, Name<'static>), Errno> {
        let (last, parents) = path.split_last().unwrap();
        let node = self.node(parents)?;
        let attr = self.fs().getattr(&ROOT_CONTEXT, node, None).map_err(|e| e.errno())?;
        if !attr.attr.is_dir() {
            return Err(Errno::NOTDIR);
        }
        Ok((node, Name::new(name_of(*last)).unwrap()))
    }

    /// The same in the flat tree.
    fn flat_place(&self, path: &[u8]) -> Result<(Arc<dyn BranchDir>, Name<'static>), Errno> {
        let (last, parents) = path.split_last().unwrap();
        let mut dir = self.flat.root();
        for index in parents {
            let name = Name::new(name_of(*index)).unwrap();
            if !dir.stat_at(name).map_err(|e| e.errno())?.is_dir() {
                return Err(Errno::NOTDIR);
            }
            dir = dir.open_dir(name).map_err(|e| e.errno())?;
        }
        Ok((dir, Name::new(name_of(*last)).unwrap()))
    }

    fn keep(&mut self, made: vellum_vfs::Result<Entry>) -> Answer {
        let entry = made.map_err(|e| e.errno())?;
        self.held.push(entry.node);
        Ok(())
    }

    fn on_union(&mut self, op: &Op) -> Answer {
        let cx = &ROOT_CONTEXT;
        let errno = |e: vellum_vfs::Error| e.errno();
        match op {
            Op::Create(path) => {
                let (parent, name) = self.place(path)?;
                let made = self.fs().create(cx, parent, name, 0o644, 0o302).map(|(entry, _)| entry);
                self.keep(made)
            }
            Op::Mkdir(path) => {
                let (parent, name) = self.place(path)?;
                let made = self.fs().mkdir(cx, parent, name, 0o755);
                self.keep(made)
            }
            Op::Symlink(path) => {
                let (parent, name) = self.place(path)?;
                let made = self.fs().symlink(cx, parent, name, c"target");
                self.keep(made)
            }
            Op::Fifo(path) => {
                let (parent, name) = self.place(path)?;
                let made = self.fs().mknod(cx, parent, name, 0o010_600, 0);
                self.keep(made)
            }
            Op::NullDevice(path) => {
                let (parent, name) = self.place(path)?;
                let made = self.fs().mknod(cx, parent, name, 0o020_600, 0);
                self.keep(made)
            }
            Op::Link(from, to) => {
                let node = self.node(from)?;
                let (parent, name) = self.place(to)?;
                if self.fs().getattr(cx, node, None).map_err(errno)?.attr.is_dir() {
                    return Err(Errno::PERM);
                }
                let made = self.fs().link(cx, node, parent, name);
                self.keep(made)
            }
            Op::Unlink(path) => {
                let (parent, name) = self.place(path)?;
                self.fs().unlink(cx, parent, name).map_err(errno)
            }
            Op::Rmdir(path) => {
                let (parent, name) = self.place(path)?;
                self.fs().rmdir(cx, parent, name).map_err(errno)
            }
            Op::Rename(from, to, flags) => {
                let from = self.place(from)?;
                let to = self.place(to)?;
                self.fs().rename(cx, from, to, rename_flags(*flags)).map_err(errno)
            }
            Op::Write(path, offset, byte) => {
                let node = self.regular(path)?;
                let data = vec![*byte; 100];
                let written =
                    self.fs().write(cx, node, Handle(0), u64::from(*offset), &data, WriteFlags::empty());
                assert_eq!(written.map_err(errno)?, 100);
                Ok(())
            }
            Op::Truncate(path, size) => {
                let node = self.regular(path)?;
                let set = SetAttr { size: Some(u64::from(*size)), ..SetAttr::default() };
                self.fs().setattr(cx, node, None, &set).map(drop).map_err(errno)
            }
            Op::Chmod(path, mode) => {
                let node = self.node(path)?;
                if self.fs().getattr(cx, node, None).map_err(errno)?.attr.kind() == FileKind::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                let set = SetAttr { mode: Some(u32::from(*mode)), ..SetAttr::default() };
                self.fs().setattr(cx, node, None, &set).map(drop).map_err(errno)
            }
            Op::Chown(path, uid) => {
                let node = self.node(path)?;
                let set = SetAttr { uid: Some(u32::from(*uid)), ..SetAttr::default() };
                self.fs().setattr(cx, node, None, &set).map(drop).map_err(errno)
            }
            Op::SetXattr(path, value) => {
                let node = self.regular(path)?;
                self.fs().setxattr(cx, node, c"user.test", &[*value; 3], XattrFlags::empty()).map_err(errno)
            }
            Op::RemoveXattr(path) => {
                let node = self.regular(path)?;
                self.fs().removexattr(cx, node, c"user.test").map_err(errno)
            }
            Op::Forget => {
                for node in std::mem::take(&mut self.held) {
                    self.fs().forget(node, 1);
                }
                Ok(())
            }
            Op::Remount => {
                self.remount();
                Ok(())
            }
            Op::Commit => {
                if self.layers < 6 {
                    self.layers += 1;
                    self.remount();
                }
                Ok(())
            }
        }
    }

    fn regular(&mut self, path: &[u8]) -> Result<NodeId, Errno> {
        let node = self.node(path)?;
        let attr = self.fs().getattr(&ROOT_CONTEXT, node, None).map_err(|e| e.errno())?.attr;
        if attr.is_file() { Ok(node) } else { Err(Errno::INVAL) }
    }

    fn on_flat(&self, op: &Op) -> Answer {
        let errno = |e: vellum_vfs::Error| e.errno();
        let file = |path: &Path| -> Result<_, Errno> {
            let (dir, name) = self.flat_place(path)?;
            if !dir.stat_at(name).map_err(errno)?.is_file() {
                return Err(Errno::INVAL);
            }
            dir.open_file(name, OpenMode::READ | OpenMode::WRITE).map_err(errno)
        };
        match op {
            Op::Create(path) => {
                let (dir, name) = self.flat_place(path)?;
                dir.create(name, 0o644).map(drop).map_err(errno)
            }
            Op::Mkdir(path) => {
                let (dir, name) = self.flat_place(path)?;
                dir.make_dir(name, 0o755).map_err(errno)
            }
            Op::Symlink(path) => {
                let (dir, name) = self.flat_place(path)?;
                dir.make_symlink(name, c"target").map_err(errno)
            }
            Op::Fifo(path) => {
                let (dir, name) = self.flat_place(path)?;
                dir.make_node(name, 0o010_600, 0).map_err(errno)
            }
            Op::NullDevice(path) => {
                let (dir, name) = self.flat_place(path)?;
                dir.make_node(name, 0o020_600, 0).map_err(errno)
            }
            Op::Link(from, to) => {
                let (from_dir, from) = self.flat_place(from)?;
                let attr = from_dir.stat_at(from).map_err(errno)?;
                let (to_dir, to) = self.flat_place(to)?;
                if attr.is_dir() {
                    return Err(Errno::PERM);
                }
                from_dir.link(from, &*to_dir, to).map_err(errno)
            }
            Op::Unlink(path) => {
                let (dir, name) = self.flat_place(path)?;
                dir.remove(name).map_err(errno)
            }
            Op::Rmdir(path) => {
                let (dir, name) = self.flat_place(path)?;
                dir.remove_dir(name).map_err(errno)
            }
            Op::Rename(from, to, flags) => {
                let (from_dir, from) = self.flat_place(from)?;
                let (to_dir, to) = self.flat_place(to)?;
                from_dir.rename(from, &*to_dir, to, rename_flags(*flags)).map_err(errno)
            }
            Op::Write(path, offset, byte) => {
                let open = file(path)?;
                assert_eq!(open.write_at(&[*byte; 100], u64::from(*offset)).map_err(errno)?, 100);
                Ok(())
            }
            Op::Truncate(path, size) => file(path)?.truncate(u64::from(*size)).map_err(errno),
            Op::Chmod(path, mode) => {
                let (dir, name) = self.flat_place(path)?;
                dir.set_mode_at(name, u32::from(*mode)).map_err(errno)
            }
            Op::Chown(path, uid) => {
                let (dir, name) = self.flat_place(path)?;
                dir.set_owner_at(name, Some(u32::from(*uid)), None).map_err(errno)
            }
            Op::SetXattr(path, value) => file(path)?.set_xattr(c"user.test", &[*value; 3], 0).map_err(errno),
            Op::RemoveXattr(path) => file(path)?.remove_xattr(c"user.test").map_err(errno),
            Op::Forget | Op::Remount | Op::Commit => Ok(()),
        }
    }

    /// Compares everything that can be seen.
    fn compare(&mut self) {
        let root = self.flat.root();
        self.compare_dir(NodeId::ROOT, &*root, &mut String::new());
        let mut seen: Vec<u64> = self.inodes.values().copied().collect();
        seen.sort_unstable();
        let all = seen.len();
        seen.dedup();
        assert_eq!(all, seen.len(), "two files with one inode number: {:?}", self.inodes);
    }

    fn compare_dir(&mut self, node: NodeId, flat: &dyn BranchDir, at: &mut String) {
        let mut names: BTreeMap<CString, u64> = BTreeMap::new();
        flat.list(&mut |item| {
            names.insert(item.name.as_c_str().into(), item.ino);
            Ok(())
        })
        .unwrap();
        let listed = self.list(node);
        assert_eq!(names.keys().collect::<Vec<_>>(), listed.keys().collect::<Vec<_>>(), "names in {at:?}");
        for name in names.keys() {
            let name = Name::new(name).unwrap();
            let len = at.len();
            at.push('/');
            at.push_str(&name.to_string());
            self.compare_entry(node, flat, name, listed[name.as_c_str()], at);
            at.truncate(len);
        }
    }

    fn compare_entry(
        &mut self,
        node: NodeId,
        flat: &dyn BranchDir,
        name: Name<'_>,
        listed_ino: u64,
        at: &mut String,
    ) {
        let cx = &ROOT_CONTEXT;
        let expected = flat.stat_at(name).unwrap();
        let entry = self.lookup(node, name.as_c_str()).unwrap_or_else(|e| panic!("{at}: {e}"));
        let seen = entry.attr;
        let of = |a: &vellum_vfs::Attr| (a.mode, a.uid, a.gid, a.rdev);
        assert_eq!(of(&expected), of(&seen), "{at}: mode, owner, device");
        assert_eq!(listed_ino, seen.ino, "{at}: number in the listing");
        let first = *self.inodes.entry(expected.ino).or_insert(seen.ino);
        assert_eq!(first, seen.ino, "{at}: inode number has changed");
        if expected.is_dir() {
            self.compare_dir(entry.node, &*flat.open_dir(name).unwrap(), at);
            return;
        }
        assert_eq!(expected.nlink, seen.nlink, "{at}: links");
        assert_eq!(expected.size, seen.size, "{at}: size");
        if expected.kind() == FileKind::Symlink {
            let mut target = [0u8; 100];
            let n = self.fs().readlink(cx, entry.node, &mut target).unwrap();
            assert_eq!(&target[..n], b"target");
        }
        if expected.is_file() {
            let mut data = vec![0; expected.size as usize + 10];
            let n = self.fs().read(cx, entry.node, Handle(0), 0, &mut data).unwrap();
            data.truncate(n);
            let mut wanted = vec![0; expected.size as usize];
            let open = flat.open_file(name, OpenMode::READ).unwrap();
            open.read_at(&mut wanted, 0).unwrap();
            assert!(data == wanted, "{at}: data");
            let (mut a, mut b) = ([0u8; 10], [0u8; 10]);
            let want = open.get_xattr(c"user.test", &mut a).map_err(|e| e.errno());
            let have = self.fs().getxattr(cx, entry.node, c"user.test", &mut b).map_err(|e| e.errno());
            assert_eq!((want, a), (have, b), "{at}: attribute");
        }
    }

    fn list(&mut self, node: NodeId) -> BTreeMap<CString, u64> {
        let mut all = BTreeMap::new();
        let mut offset = 0;
        loop {
            let mut sink = Sink { room: 3, entries: Vec::new(), held: Vec::new() };
            let plus = self.layers.is_multiple_of(2);
            let done = if plus {
                self.fs().readdirplus(&ROOT_CONTEXT, node, Handle(0), offset, &mut sink)
            } else {
                self.fs().readdir(&ROOT_CONTEXT, node, Handle(0), offset, &mut sink)
            };
            done.unwrap();
            self.held.extend(sink.held);
            if sink.entries.is_empty() {
                return all;
            }
            for (cookie, ino, name) in sink.entries {
                assert!(cookie > offset, "offsets go up");
                offset = cookie;
                if name.to_bytes() != b"." && name.to_bytes() != b".." {
                    assert!(all.insert(name, ino).is_none(), "a name twice");
                }
            }
        }
    }
}

/// Takes three entries at a time.
struct Sink {
    room: usize,
    entries: Vec<(u64, u64, CString)>,
    held: Vec<NodeId>,
}

impl DirSink for Sink {
    fn fits(&self, _: usize) -> bool {
        self.entries.len() < self.room
    }
    fn push(&mut self, dirent: DirEntry<'_>, entry: Option<&Entry>) {
        self.held.extend(entry.map(|e| e.node));
        self.entries.push((dirent.cookie, dirent.ino, CString::new(dirent.name).unwrap()));
    }
}

fn rename_flags(flags: u8) -> RenameFlags {
    [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE][usize::from(flags) % 3]
}

fn run(ops: &[Op], metacopy: bool) {
    let mut world = World::new(metacopy);
    for (step, op) in ops.iter().enumerate() {
        let expected = world.on_flat(op);
        let seen = world.on_union(op);
        assert_eq!(expected, seen, "step {step}: {op:?}");
        if matches!(op, Op::Remount | Op::Commit | Op::Forget) {
            world.compare();
        }
    }
    world.compare();
    world.remount();
    world.compare();
}

/// VELLUM_TEST_CASES: how many sequences; the default keeps the test below half a minute without optimisation.
fn config() -> ProptestConfig {
    let cases = std::env::var("VELLUM_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(120);
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_union_is_a_tree(ops in proptest::collection::vec(op(), 1..80), metacopy: bool) {
        run(&ops, metacopy);
    }
}
