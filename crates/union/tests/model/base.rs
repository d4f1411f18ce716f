//! Lower layers as others might have left them, and what they must look like when they are one tree.
//!
//! The merging here follows the formats' own documents and knows nothing of the union's code: it is one half of what
//! is compared.

use crate::common::tree::{self, CLOCKS_BEGIN_SECS};
use crate::common::{errno_of, name};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_vfs::{Branch, BranchDir, Errno, FileKind, NAME_MAX, Object, OpenMode, Seek, SetTime, Timestamp};

/// A few of the names of [`crate::world::NAMES`], by index.
pub type Path = Vec<u8>;

/// Something in a layer.
#[derive(Clone, Debug)]
pub enum Item {
    File {
        size: u16,
        byte: u8,
        hole: bool,
    },
    Dir(Opaque),
    Symlink,
    Fifo,
    Device,
    /// Another name of an item before.
    Link(u8),
    Whiteout(Whiteout),
    /// The parents of the path, and nothing else.
    Nothing,
    /// The last of these, and that it is opaque.
    OpaqueParent,
}

/// How a directory says that nothing shows through it.
#[derive(Clone, Copy, Debug)]
pub enum Opaque {
    No,
    Kernel,
    KernelUser,
    FuseOverlayfs,
    Aufs,
}

#[derive(Clone, Copy, Debug)]
pub enum Whiteout {
    Device,
    Aufs,
    /// By attribute, in a directory that says so.
    Attribute,
}

/// An item, where it is, and some of its attributes.
#[derive(Clone, Debug)]
pub struct Placed {
    pub path: Path,
    pub item: Item,
    pub mode: u16,
    pub owner: u8,
    pub mtime: Option<u32>,
    pub xattr: bool,
}

pub fn path() -> impl Strategy<Value = Path> {
    proptest::collection::vec(0u8..4, 1..4)
}

fn opaque() -> impl Strategy<Value = Opaque> {
    prop_oneof![
        8 => Just(Opaque::No),
        1 => Just(Opaque::Kernel),
        1 => Just(Opaque::KernelUser),
        1 => Just(Opaque::FuseOverlayfs),
        2 => Just(Opaque::Aufs),
    ]
}

fn item() -> impl Strategy<Value = Item> {
    let whiteout = prop_oneof![
        3 => Just(Whiteout::Device),
        3 => Just(Whiteout::Aufs),
        1 => Just(Whiteout::Attribute),
    ];
    prop_oneof![
        8 => (0u16..12_000, any::<u8>(), any::<bool>()).prop_map(|(size, byte, hole)| Item::File { size, byte, hole }),
        6 => opaque().prop_map(Item::Dir),
        1 => Just(Item::Symlink),
        1 => Just(Item::Fifo),
        1 => Just(Item::Device),
        3 => any::<u8>().prop_map(Item::Link),
        4 => whiteout.prop_map(Item::Whiteout),
        1 => Just(Item::Nothing),
        2 => Just(Item::OpaqueParent),
    ]
}

pub fn placed() -> impl Strategy<Value = Placed> {
    (path(), item(), 0u16..0o10_000, 0u8..3, proptest::option::of(0u32..1000), any::<bool>())
        .prop_map(|(path, item, mode, owner, mtime, xattr)| Placed { path, item, mode, owner, mtime, xattr })
}

/// Puts items into a layer. What does not fit (a name below a file, a taken name) is left out.
pub fn build(branch: &dyn Branch, items: &[Placed], privileged: bool) {
    let mut made: Vec<Arc<dyn Object>> = Vec::new();
    for placed in items {
        let Some((last, parents)) = placed.path.split_last() else { continue };
        // A service without privilege can copy no device up.
        if matches!(placed.item, Item::Device) && !privileged {
            continue;
        }
        let Some(dir) = open_parents(branch, parents, privileged) else { continue };
        let last = crate::world::name_at(*last);
        let object = put(&*dir, last, placed, &mut made);
        if let Some(object) = object {
            dress(&*object, placed, privileged);
        }
    }
}

/// What says that a layer has nothing about a directory but what is in it.
const IMPLIED: [&CStr; 2] = [c"trusted.vellum.implied", c"user.vellum.implied"];

/// The directory at a path, made where it is missing, as an unpacker does that. None: something else is there.
fn open_parents(branch: &dyn Branch, parents: &[u8], privileged: bool) -> Option<Arc<dyn BranchDir>> {
    let mut dir = branch.root();
    for part in parents {
        let part = name(crate::world::name_at(*part));
        let made = dir.make_dir(part, 0o755).is_ok();
        dir = dir.open_dir(part).ok()?;
        if made {
            dir.set_xattr(IMPLIED[usize::from(!privileged)], b"y", 0).expect("mark");
        }
    }
    Some(dir)
}

fn put(
    dir: &dyn BranchDir,
    at: &CStr,
    placed: &Placed,
    made: &mut Vec<Arc<dyn Object>>,
) -> Option<Arc<dyn Object>> {
    let at = name(at);
    let done = match &placed.item {
        Item::File { size, byte, hole } => dir.create(at, 0o644).map(|file| {
            let data = vec![*byte | 1; usize::from(*size)];
            if *hole {
                file.truncate(u64::from(*size) * 2).expect("truncate");
            }
            file.write_at(&data, 0).expect("write");
        }),
        Item::Dir(opaque) => dir.make_dir(at, 0o755).map(|()| {
            let made = dir.open_dir(at).expect("open");
            let mark = match opaque {
                Opaque::No => return,
                Opaque::Kernel => c"trusted.overlay.opaque",
                Opaque::KernelUser => c"user.overlay.opaque",
                Opaque::FuseOverlayfs => c"user.fuseoverlayfs.opaque",
                Opaque::Aufs => {
                    made.create(name(c".wh..wh..opq"), 0o644).expect("mark");
                    return;
                }
            };
            made.set_xattr(mark, b"y", 0).expect("mark");
        }),
        Item::Symlink => dir.make_symlink(at, c"some/where"),
        Item::Fifo => dir.make_node(at, 0o010_600, 0),
        Item::Device => dir.make_node(at, 0o020_600, 0x501),
        Item::Link(of) => match made.get(usize::from(*of) % made.len().max(1)) {
            Some(object) => dir.link_object(&**object, at),
            None => return None,
        },
        Item::Whiteout(kind) => {
            let _ = whiteout(dir, at.as_c_str(), *kind);
            return None;
        }
        Item::Nothing => return None,
        Item::OpaqueParent => {
            // Of a root it would say nothing.
            if placed.path.len() > 1 {
                let _ = dir.create(name(c".wh..wh..opq"), 0o644);
            }
            return None;
        }
    };
    done.ok()?;
    let object = dir.hold(at).expect("what was made");
    if object.stat().expect("stat").kind() != FileKind::Directory {
        made.push(Arc::clone(&object));
    }
    Some(object)
}

fn whiteout(dir: &dyn BranchDir, at: &CStr, kind: Whiteout) -> Result<(), Errno> {
    match kind {
        Whiteout::Device => errno_of(dir.make_node(name(at), 0o020_000, 0)),
        Whiteout::Aufs => {
            let hidden = [b".wh.", at.to_bytes()].concat();
            if hidden.len() > NAME_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            let hidden = CString::new(hidden).expect("no NUL");
            errno_of(dir.create(name(&hidden), 0o600)).map(drop)
        }
        Whiteout::Attribute => {
            let file = errno_of(dir.create(name(at), 0o600))?;
            errno_of(file.set_xattr(c"trusted.overlay.whiteout", b"", 0))?;
            errno_of(dir.set_xattr(c"trusted.overlay.opaque", b"x", 0))
        }
    }
}

fn dress(object: &dyn Object, placed: &Placed, privileged: bool) {
    let kind = object.stat().expect("stat").kind();
    if placed.owner > 0 {
        let owner = Some(1000 + u32::from(placed.owner));
        object.set_owner(owner, owner).expect("owner");
    }
    if kind != FileKind::Symlink {
        object.set_mode(u32::from(placed.mode)).expect("mode");
    }
    if placed.xattr && matches!(kind, FileKind::Regular | FileKind::Directory) {
        object.set_xattr(c"user.first", b"below", 0).expect("attribute");
        // A service without privilege cannot keep it over a copy-up.
        if privileged {
            object.set_xattr(c"trusted.second", b"", 0).expect("attribute");
        }
    }
    if let Some(secs) = placed.mtime {
        let time = |secs: u32| {
            let secs = i64::from(secs);
            assert!(secs < CLOCKS_BEGIN_SECS);
            Some(SetTime::At(Timestamp { secs, nanos: 7 }))
        };
        object.set_times(time(secs + 1), time(secs)).expect("times");
    }
}

/// Writes what the layers (uppermost first) make together into an empty branch. Returns the files (by their inode
/// numbers there) whose links in the layer are not all to be seen, so that their count is the layer's.
pub fn merge(layers: &[Arc<dyn Branch>], flat: &dyn Branch) -> HashSet<u64> {
    let mut merge = Merge { first: HashMap::new() };
    let parts: Vec<Part> =
        layers.iter().enumerate().map(|(layer, branch)| Part { layer, dir: branch.root() }).collect();
    let root = parts.first().map(|part| Arc::clone(&part.dir));
    merge.dir(&parts, &*flat.root(), root.as_deref());
    let vague = |(object, links): &(Arc<dyn Object>, u32)| {
        let attr = object.stat().expect("stat");
        (attr.nlink != *links).then_some(attr.ino)
    };
    merge.first.values().filter_map(vague).collect()
}

struct Part {
    layer: usize,
    dir: Arc<dyn BranchDir>,
}

struct Merge {
    /// The copy of each inode of a layer, and its links there.
    first: HashMap<(usize, u64), (Arc<dyn Object>, u32)>,
}

impl Merge {
    /// `described`: where the directory's attributes are.
    fn dir(&mut self, parts: &[Part], flat: &dyn BranchDir, described: Option<&dyn BranchDir>) {
        let mut shown: BTreeMap<CString, Vec<Part>> = BTreeMap::new();
        // What the layers above have settled: hidden, or complete.
        let mut settled: HashSet<CString> = HashSet::new();
        let attributes = attributes(parts);
        for part in parts {
            let mut settles: Vec<CString> = Vec::new();
            for (item, _) in tree::entries(&*part.dir) {
                if let Some(hidden) = hides(&*part.dir, &item) {
                    settles.extend(hidden);
                    continue;
                }
                if settled.contains(&item) {
                    continue;
                }
                let (complete, is_dir) = match part.dir.open_dir(name(&item)) {
                    Ok(inner) => (is_opaque(&*inner), true),
                    Err(_) => (true, false),
                };
                if complete {
                    settles.push(item.clone());
                }
                let found = shown.entry(item).or_default();
                // A file below a directory is covered by it.
                if found.is_empty() || is_dir {
                    found.push(Part { layer: part.layer, dir: Arc::clone(&part.dir) });
                }
            }
            settled.extend(settles);
        }
        for (item, found) in &shown {
            self.entry(item, found, flat, attributes.get(item).map(|dir| &**dir));
        }
        if let Some(described) = described {
            copy_attributes(described, flat);
        }
    }

    fn entry(
        &mut self,
        item: &CStr,
        found: &[Part],
        flat: &dyn BranchDir,
        described: Option<&dyn BranchDir>,
    ) {
        let at = name(item);
        let Some(top) = found.first() else { return };
        let from = top.dir.hold(at).expect("an entry");
        let attr = from.stat().expect("stat");
        if attr.is_dir() {
            flat.make_dir(at, 0o755).expect("mkdir");
            let inner: Vec<Part> = found
                .iter()
                .map(|part| Part { layer: part.layer, dir: part.dir.open_dir(at).expect("a directory") })
                .collect();
            let first = inner.first().map(|part| &*part.dir);
            self.dir(&inner, &*flat.open_dir(at).expect("open"), described.or(first));
            return;
        }
        let key = (top.layer, attr.ino);
        if let Some((first, _)) = self.first.get(&key) {
            flat.link_object(&**first, at).expect("link");
            return;
        }
        match attr.kind() {
            FileKind::Regular => copy_data(&*from, flat, at.as_c_str()),
            FileKind::Symlink => {
                let mut target = vec![0; 4096];
                let len = from.read_link(&mut target).expect("target");
                let target = CString::new(target.get(..len).expect("length")).expect("no NUL");
                flat.make_symlink(at, &target).expect("symlink");
            }
            _ => flat.make_node(at, attr.mode, attr.rdev).expect("mknod"),
        }
        let to = flat.hold(at).expect("what was made");
        copy_attributes(&*from, &*to);
        self.first.insert(key, (to, attr.nlink));
    }
}

/// For each name the uppermost directory of a layer that says something of itself, down to what hides it: an opaque one that says nothing
/// hides what is in those below, and not what they are.
fn attributes(parts: &[Part]) -> HashMap<CString, Arc<dyn BranchDir>> {
    let mut found: HashMap<CString, Arc<dyn BranchDir>> = HashMap::new();
    let mut closed: HashSet<CString> = HashSet::new();
    for part in parts {
        let mut closes: Vec<CString> = Vec::new();
        for (item, _) in tree::entries(&*part.dir) {
            if let Some(hidden) = hides(&*part.dir, &item) {
                closes.extend(hidden);
                continue;
            }
            if closed.contains(&item) || found.contains_key(&item) {
                continue;
            }
            match part.dir.open_dir(name(&item)) {
                Ok(dir) if IMPLIED.iter().any(|mark| has_value(&*dir, mark, b"y")) => {}
                Ok(dir) => drop(found.insert(item, dir)),
                Err(_) => closes.push(item),
            }
        }
        closed.extend(closes);
    }
    found
}

/// What an entry hides in the layers below; None: it is to be seen itself.
fn hides(dir: &dyn BranchDir, item: &CStr) -> Option<Vec<CString>> {
    let attr = dir.stat_at(name(item)).expect("stat");
    if attr.kind() == FileKind::CharDevice && attr.rdev == 0 {
        return Some(vec![item.into()]);
    }
    if attr.is_file()
        && let Some(hidden) = item.to_bytes().strip_prefix(b".wh.")
    {
        let hidden = CString::new(hidden).expect("no NUL");
        return Some(if item == c".wh..wh..opq" { Vec::new() } else { vec![hidden, item.into()] });
    }
    let by_attribute = attr.is_file()
        && attr.size == 0
        && has_value(dir, c"trusted.overlay.opaque", b"x")
        && dir.get_xattr_at(name(item), c"trusted.overlay.whiteout", &mut []).is_ok();
    by_attribute.then(|| vec![item.into()])
}

fn has_value(object: &dyn Object, attr: &CStr, value: &[u8]) -> bool {
    let mut buf = [0; 8];
    object.get_xattr(attr, &mut buf).is_ok_and(|len| buf.get(..len) == Some(value))
}

fn is_opaque(dir: &dyn BranchDir) -> bool {
    [c"trusted.overlay.opaque", c"user.overlay.opaque", c"user.fuseoverlayfs.opaque"]
        .iter()
        .any(|mark| has_value(dir, mark, b"y"))
        || dir.stat_at(name(c".wh..wh..opq")).is_ok_and(|attr| attr.is_file())
}

fn copy_data(from: &dyn Object, flat: &dyn BranchDir, at: &CStr) {
    let from = from.reopen(OpenMode::READ).expect("open");
    let to = flat.create(name(at), 0o600).expect("create");
    let size = from.stat().expect("stat").size;
    let mut offset = 0;
    while let Ok(start) = from.seek(offset, Seek::Data) {
        let end = from.seek(start, Seek::Hole).expect("hole");
        let mut data = vec![0; (end - start) as usize];
        let len = from.read_at(&mut data, start).expect("read");
        to.write_at(data.get(..len).expect("length"), start).expect("write");
        offset = end;
    }
    to.truncate(size).expect("truncate");
}

/// Everything but data and the marks of layers.
fn copy_attributes(from: &dyn Object, to: &dyn Object) {
    let attr = from.stat().expect("stat");
    to.set_owner(Some(attr.uid), Some(attr.gid)).expect("owner");
    if attr.kind() != FileKind::Symlink {
        to.set_mode(attr.perm()).expect("mode");
    }
    for (xattr, value) in tree::see_object(from).xattrs {
        let private: [&[u8]; 5] = [
            b"trusted.overlay.",
            b"user.overlay.",
            b"user.fuseoverlayfs.",
            b"trusted.vellum.",
            b"user.vellum.",
        ];
        if !private.iter().any(|prefix| xattr.starts_with(prefix)) {
            let xattr = CString::new(xattr).expect("no NUL");
            to.set_xattr(&xattr, &value, 0).expect("attribute");
        }
    }
    to.set_times(Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime))).expect("times");
}
