//! Layers whose marks say anything at all: extended attributes and names, in memory.

use crate::Input;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_union::{OverrideStat, Union, UnionConfig, UpperConfig};
use vellum_vfs::{
    Branch, BranchDir, Context, DirEntry, DirSink, Entry, Filesystem, Handle, Name, NodeId, Object, OpenMode,
    RenameFlags, SetAttr, WriteFlags,
};

const ROOT: Context<'static> =
    Context { uid: 0, gid: 0, pid: 1, umask: 0, groups: &[], who: None, progress: &() };
const NO_HANDLE: Handle = Handle(0);
/// Layers, uppermost first; the first is written to, or read as the others are.
const LAYERS: [&str; 3] = ["upper", "middle", "low"];
/// Directories of each layer, and the files of each of them.
const DIRS: [&str; 4] = ["", "a", "a/b", "c"];
const FILES: [&CStr; 3] = [c"f", c"g", c"h"];
/// Names that mean something.
const NAMES: [&CStr; 8] =
    [c".wh.f", c".wh.a", c".wh..wh..opq", c".wh.", c"f", c".vellum.maps", c".wh..wh.plnk", c"a"];
/// Attributes that mean something.
const MARKS: [&CStr; 20] = [
    c"trusted.overlay.opaque",
    c"trusted.overlay.redirect",
    c"trusted.overlay.metacopy",
    c"trusted.overlay.whiteout",
    c"trusted.overlay.origin",
    c"trusted.overlay.impure",
    c"trusted.vellum.o",
    c"trusted.vellum.p",
    c"trusted.vellum.lowers",
    c"trusted.vellum.format",
    c"user.overlay.opaque",
    c"user.overlay.redirect",
    c"user.overlay.metacopy",
    c"user.overlay.whiteout",
    c"user.vellum.o",
    c"user.vellum.p",
    c"user.fuseoverlayfs.opaque",
    c"user.containers.override_stat",
    c"user.fuseoverlayfs.override_stat",
    c"user.vellum.format",
];
/// Most objects that are looked at, however often redirects make them show.
const LOOKS: usize = 32;

/// Layers that a sequence of instructions has marked, as a writable and as a read-only union.
pub(crate) fn marks(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let options = input.byte();
    let Some(disk) = layers() else { return false };
    let mut marked = false;
    let mut steps = 0;
    while !input.is_empty() && steps < 16 {
        steps += 1;
        marked |= matches!(instruction(&disk, &mut input), Ok(true));
    }
    try_union(&disk, options) && marked
}

/// One file with a record of what it has of its own over a file below, and a mark that says where it comes from. Both are right
/// in what nobody hits by chance, unless the first byte says otherwise: checksums (0x80), the time in the mark (0x40), the inode number and
/// time in the record (0x20).
pub(crate) fn record(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let (options, size) = (input.byte(), u64::from(input.byte()) << 9);
    let Some(disk) = layers() else { return false };
    let mut marked = || -> vellum_vfs::Result<()> {
        let low = disk.subtree(LAYERS[1])?.root().open_file(name(FILES[0])?, OpenMode::WRITE)?;
        low.write_at(&[7; 9000], 0)?;
        let below = low.stat()?;
        // Of the second version there is more.
        let len = if input.0.first() == Some(&2) { 64 } else { 32 };
        let mut record = input.bytes(len).to_vec();
        record.resize(len, 0);
        let mut mark = input.part().to_vec();
        if options & 0x20 == 0 && len == 64 {
            let known = [below.ino.to_le_bytes(), below.ctime.secs.to_le_bytes()];
            record[32..48].copy_from_slice(known.as_flattened());
            record[48..52].copy_from_slice(&below.ctime.nanos.to_le_bytes());
        }
        if options & 0x40 == 0 && mark.len() == 28 {
            mark[16..24].copy_from_slice(&below.mtime.secs.to_le_bytes());
            mark[24..28].copy_from_slice(&below.mtime.nanos.to_le_bytes());
        }
        if options & 0x80 == 0 {
            [&mut record, &mut mark].into_iter().for_each(|bytes| sign(bytes));
        }
        let upper = disk.subtree(LAYERS[0])?.root();
        upper.set_xattr(c"trusted.vellum.format", b"1", 0)?;
        let file = upper.open_file(name(FILES[0])?, OpenMode::WRITE)?;
        file.truncate(size)?;
        file.set_xattr(c"trusted.overlay.metacopy", b"p", 0)?;
        file.set_xattr(c"trusted.vellum.p", &record, 0)?;
        file.set_xattr(c"trusted.vellum.o", &mark, 0)
    };
    marked().is_ok() && try_union(&disk, options)
}

/// Writes the checksum into a mark or a record.
fn sign(bytes: &mut [u8]) {
    if let Some(sum) = bytes.get_mut(2..4) {
        sum.fill(0);
        let hash = bytes.iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
        bytes[2..4].copy_from_slice(&((hash ^ (hash >> 16)) as u16).to_le_bytes());
    }
}

fn name(name: &CStr) -> vellum_vfs::Result<Name<'_>> {
    Ok(Name::new(name)?)
}

/// Three layers with the same few files.
fn layers() -> Option<Arc<MemoryBranch>> {
    let disk = MemoryBranch::new();
    for (number, layer) in LAYERS.iter().enumerate() {
        for dir in DIRS {
            let dir = disk.subtree(&format!("{layer}/{dir}")).ok()?.root();
            for file in &FILES[..=number] {
                dir.create(name(file).ok()?, 0o644).ok()?.write_at(b"some data", 0).ok()?;
            }
        }
    }
    disk.subtree("work").ok()?;
    Some(disk)
}

/// Sets an attribute of an object (true), makes something with a name that means something, or removes something.
fn instruction(disk: &MemoryBranch, input: &mut Input<'_>) -> vellum_vfs::Result<bool> {
    let (place, what) = (input.byte(), input.byte());
    let layer = LAYERS[usize::from(place & 3) % LAYERS.len()];
    let dir = DIRS[usize::from(place >> 2 & 3)];
    let dir: Arc<dyn BranchDir> = disk.subtree(&format!("{layer}/{dir}"))?.root();
    let file = FILES[usize::from(place >> 4 & 3) % FILES.len()];
    let odd = NAMES[usize::from(what >> 3) % NAMES.len()];
    let is_mark = what & 7 > 5;
    match what & 7 {
        0 => dir.create(name(odd)?, 0o644).map(drop),
        1 => dir.make_node(name(odd)?, 0o020_000, 0),
        2 => dir.make_dir(name(odd)?, 0o755),
        3 => dir.remove(name(file)?),
        4 => dir.link(name(file)?, &*dir, name(odd)?),
        5 => dir.make_symlink(name(odd)?, c"../a/f"),
        6 => {
            let mark = MARKS[usize::from(input.byte()) % MARKS.len()];
            (&*dir as &dyn Object).set_xattr(mark, input.part(), 0)
        }
        _ => {
            let mark = MARKS[usize::from(input.byte()) % MARKS.len()];
            dir.hold(name(file)?)?.set_xattr(mark, input.part(), 0)
        }
    }?;
    Ok(is_mark)
}

/// Looks at all of it, changes it, and looks at what the changed layer shows as a lower one. True: all of it could be read the first
/// time.
fn try_union(disk: &Arc<MemoryBranch>, options: u8) -> bool {
    let layer = |number: usize| disk.subtree(LAYERS[number]).map(|branch| branch as Arc<dyn Branch>);
    let config = |first: usize| {
        let mut config = UnionConfig::new();
        config.lowers = (first..LAYERS.len()).filter_map(|number| layer(number).ok()).collect();
        config.background = false;
        config.metacopy = options & 1 == 0;
        config.override_stat = match options >> 3 & 3 {
            1 => Some(OverrideStat::Privileged),
            2 => Some(OverrideStat::User),
            _ => None,
        };
        config.sidecars = options & 4 != 0;
        config.partial_from = Some(4096);
        config
    };
    let mut writable = config(1);
    if let (Ok(branch), Ok(work)) = (layer(0), disk.subtree("work")) {
        writable.upper = Some(UpperConfig { branch, work });
    }
    let is_read = Union::new(writable).is_ok_and(|union| walk(&union, true));
    if let Ok(union) = Union::new(config(0)) {
        walk(&union, false);
    }
    is_read
}

/// Names of a directory.
#[derive(Default)]
struct Names(Vec<CString>);

impl DirSink for Names {
    fn fits(&self, _: usize) -> bool {
        self.0.len() < LOOKS
    }

    fn push(&mut self, entry: DirEntry<'_>, found: Option<&Entry>) {
        assert!(found.is_none(), "nobody has asked for it");
        self.0.extend(CString::new(entry.name).ok());
    }
}

/// True: nothing that was looked at was found damaged.
fn walk(union: &Union, change: bool) -> bool {
    let mut dirs = vec![NodeId::ROOT];
    let (mut looks, mut is_read) = (0, true);
    while let Some(dir) = dirs.pop() {
        let mut names = Names::default();
        let _ = union.readdir(&ROOT, dir, NO_HANDLE, 0, &mut names);
        for text in names.0.iter().map(CString::as_c_str).chain([c"f", c"new"]) {
            looks += 1;
            if looks > LOOKS || matches!(text.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(name) = Name::new(text) else { continue };
            let found = union.lookup(&ROOT, dir, name);
            is_read &= found.is_ok();
            let Ok(Some(entry)) = found else { continue };
            is_read &= look(union, &entry);
            if change {
                alter(union, dir, name, &entry);
            }
            if entry.attr.is_dir() {
                dirs.push(entry.node);
            }
        }
    }
    is_read
}

/// True: it has data, or needs none.
fn look(union: &Union, entry: &Entry) -> bool {
    let mut buffer = [0; 8192];
    let _ = union.getattr(&ROOT, entry.node, None);
    let _ = union.readlink(&ROOT, entry.node, &mut buffer);
    let _ = union.listxattr(&ROOT, entry.node, &mut buffer);
    let _ = union.getxattr(&ROOT, entry.node, c"user.overlay.redirect", &mut buffer);
    let end = entry.attr.size.saturating_sub(1);
    let read = [0, end].map(|at| union.read(&ROOT, entry.node, NO_HANDLE, at, &mut buffer));
    !entry.attr.is_file() || read.iter().all(Result::is_ok)
}

fn alter(union: &Union, dir: NodeId, name: Name<'_>, entry: &Entry) {
    let (node, size) = (entry.node, entry.attr.size);
    let _ = union.setattr(&ROOT, node, None, &SetAttr { mode: Some(0o700), ..SetAttr::default() });
    let none = WriteFlags::empty();
    for (at, byte) in [(0, 1), (size.saturating_sub(1), 2), (5000, 3)] {
        if matches!(union.write(&ROOT, node, NO_HANDLE, at, &[byte], none), Ok(1)) {
            let mut back = [0];
            let read = union.read(&ROOT, node, NO_HANDLE, at, &mut back).map_err(|error| error.errno());
            assert_eq!((read, back), (Ok(1), [byte]), "written at {at} and read back");
        }
    }
    for size in [size / 2, size.saturating_add(4096).min(1 << 20)] {
        let _ = union.setattr(&ROOT, node, None, &SetAttr { size: Some(size), ..SetAttr::default() });
    }
    let _ = union.fsync(&ROOT, node, NO_HANDLE, false);
    let Ok(moved) = Name::new(c"moved") else { return };
    let _ = union.rename(&ROOT, (dir, name), (NodeId::ROOT, moved), RenameFlags::empty());
    look(union, entry);
}
