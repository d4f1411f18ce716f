//! A whole tree as its users see it, taken from a union or from a plain branch, and compared.

use super::{NO_HANDLE, ROOT, errno_of, list_all, name};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use vellum_union::Union;
use vellum_vfs::{
    Attr, BranchDir, BranchFile, Errno, FileKind, Filesystem, NodeId, Object, OpenMode, Seek, Timestamp,
};

/// Times before this were set by somebody; later ones come from a disk's clock, and cannot be compared.
pub const CLOCKS_BEGIN_SECS: i64 = 1_000_000_000;

/// What can be seen of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// None for directories, whose size and links the layers count in their own ways.
    pub size: Option<u64>,
    pub nlink: Option<u32>,
    pub rdev: u64,
    /// None: the disk's clock.
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Contents of a regular file, and where it has data.
    pub data: Vec<u8>,
    pub extents: Vec<(u64, u64)>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Inode number, as the tree shows it.
    pub ino: u64,
}

/// All objects by path; the root is the empty path.
pub type Tree = BTreeMap<String, Seen>;

fn explicit(time: Timestamp) -> Option<Timestamp> {
    (time.secs < CLOCKS_BEGIN_SECS).then_some(time)
}

impl Seen {
    /// The part that attributes tell.
    pub fn of_attr(attr: &Attr) -> Self {
        let dir = attr.is_dir();
        Self {
            kind: attr.kind(),
            mode: attr.perm(),
            uid: attr.uid,
            gid: attr.gid,
            size: (!dir).then_some(attr.size),
            nlink: (!dir).then_some(attr.nlink),
            rdev: attr.rdev,
            atime: explicit(attr.atime),
            mtime: explicit(attr.mtime),
            target: Vec::new(),
            data: Vec::new(),
            extents: Vec::new(),
            xattrs: BTreeMap::new(),
            ino: attr.ino,
        }
    }
}

/// Reads a list and a value in the two steps of the xattr calls.
fn sized(mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let len = read(&mut [])?;
    let mut buf = vec![0; len];
    if len > 0 {
        let again = read(&mut buf)?;
        buf.truncate(again);
    }
    Ok(buf)
}

fn xattrs(
    mut list: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut get: impl FnMut(&CStr, &mut [u8]) -> Result<usize, Errno>,
) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let names = match sized(&mut list) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => Vec::new(),
        Err(errno) => panic!("list of attributes: {errno}"),
    };
    let mut all = BTreeMap::new();
    for attr in names.split(|byte| *byte == 0).filter(|attr| !attr.is_empty()) {
        let c_attr = CString::new(attr).expect("no NUL");
        let value = sized(|buf| get(&c_attr, buf)).unwrap_or_else(|e| panic!("{c_attr:?}: {e}"));
        all.insert(attr.to_vec(), value);
    }
    all
}

fn extents(mut seek: impl FnMut(u64, Seek) -> Result<u64, Errno>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(at, Seek::Data) {
        let end = seek(start, Seek::Hole).expect("data end in a hole");
        assert!(start >= at && end > start, "extents out of order");
        found.push((start, end));
        at = end;
    }
    found
}

/// Everything that can be seen of a node. `data`: its contents, too.
pub fn see_node(fs: &Union, node: NodeId, attr: &Attr, data: bool) -> Seen {
    let mut seen = Seen::of_attr(attr);
    seen.xattrs = xattrs(
        |buf| errno_of(fs.listxattr(&ROOT, node, buf)),
        |attr, buf| errno_of(fs.getxattr(&ROOT, node, attr, buf)),
    );
    match seen.kind {
        FileKind::Symlink => {
            let mut target = vec![0; 4096];
            let len = fs.readlink(&ROOT, node, &mut target).expect("target");
            target.truncate(len);
            seen.target = target;
        }
        FileKind::Regular if data => {
            // One byte more, so that a file that is too long is noticed.
            seen.data = vec![0; attr.size as usize + 1];
            let len = fs.read(&ROOT, node, NO_HANDLE, 0, &mut seen.data).expect("data");
            seen.data.truncate(len);
            seen.extents = extents(|at, whence| errno_of(fs.lseek(&ROOT, node, NO_HANDLE, at, whence)));
        }
        _ => {}
    }
    seen
}

/// Everything that can be seen of an object of a plain branch.
pub fn see_object(object: &dyn Object) -> Seen {
    let attr = object.stat().expect("attributes");
    let mut seen = Seen::of_attr(&attr);
    seen.xattrs =
        xattrs(|buf| errno_of(object.list_xattr(buf)), |attr, buf| errno_of(object.get_xattr(attr, buf)));
    match seen.kind {
        FileKind::Symlink => {
            let mut target = vec![0; 4096];
            let len = object.read_link(&mut target).expect("target");
            target.truncate(len);
            seen.target = target;
        }
        FileKind::Regular => {
            let file = object.reopen(OpenMode::READ).expect("open");
            (seen.data, seen.extents) = contents(&*file, attr.size);
        }
        _ => {}
    }
    seen
}

fn contents(file: &dyn BranchFile, size: u64) -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut data = vec![0; size as usize + 1];
    let len = file.read_at(&mut data, 0).expect("data");
    data.truncate(len);
    (data, extents(|at, whence| errno_of(file.seek(at, whence))))
}

/// The tree of a union. All lookups are given back. The listing's numbers and kinds must be those of the lookups.
pub fn of_union(fs: &Union, plus: bool) -> Tree {
    of_union_with(fs, plus, &mut |_| true)
}

/// The tree of a union, as [`of_union`] takes it; `numbered` says whether a listing must know an object's inode number.
pub fn of_union_with(fs: &Union, plus: bool, numbered: &mut dyn FnMut(FileKind) -> bool) -> Tree {
    let mut tree = Tree::new();
    let attr = fs.getattr(&ROOT, NodeId::ROOT, None).expect("the root").attr;
    tree.insert(String::new(), see_node(fs, NodeId::ROOT, &attr, true));
    add_union_dir(fs, NodeId::ROOT, "", plus, numbered, &mut tree);
    tree
}

fn add_union_dir(
    fs: &Union,
    node: NodeId,
    path: &str,
    plus: bool,
    numbered: &mut dyn FnMut(FileKind) -> bool,
    tree: &mut Tree,
) {
    let listed = list_all(fs, node, plus).unwrap_or_else(|e| panic!("listing {path:?}: {e}"));
    for item in listed {
        let path = format!("{path}/{}", item.name.to_string_lossy());
        let found =
            fs.lookup(&ROOT, node, name(&item.name)).unwrap_or_else(|e| panic!("lookup {path:?}: {e}"));
        let Some(entry) = found else { panic!("{path:?} is listed and not found") };
        let same = item.ino == entry.attr.ino || !numbered(entry.attr.kind());
        assert!(same, "{path:?}: {} in the listing, {}, plus {plus}", item.ino, entry.attr.ino);
        assert!(item.kind.is_none_or(|kind| kind == entry.attr.kind()), "{path:?}: the listing's kind");
        let now = fs.getattr(&ROOT, entry.node, None).expect("attributes").attr;
        assert_eq!(now, entry.attr, "{path:?}: attributes of lookup and getattr");
        tree.insert(path.clone(), see_node(fs, entry.node, &entry.attr, true));
        if entry.attr.is_dir() {
            add_union_dir(fs, entry.node, &path, plus, numbered, tree);
        }
        fs.forget(entry.node, 1);
    }
}

/// The tree of a plain branch.
pub fn of_branch(root: &dyn BranchDir) -> Tree {
    let mut tree = Tree::new();
    tree.insert(String::new(), see_object(root));
    add_branch_dir(root, "", &mut tree);
    tree
}

fn add_branch_dir(dir: &dyn BranchDir, path: &str, tree: &mut Tree) {
    for (item, kind) in entries(dir) {
        let path = format!("{path}/{}", item.to_string_lossy());
        tree.insert(path.clone(), see_object(&*dir.hold(name(&item)).expect("an entry")));
        if kind == FileKind::Directory {
            add_branch_dir(&*dir.open_dir(name(&item)).expect("a directory"), &path, tree);
        }
    }
}

/// Names and kinds in a directory of a plain branch.
pub fn entries(dir: &dyn BranchDir) -> Vec<(CString, FileKind)> {
    let mut all = Vec::new();
    let listed = dir.list(&mut |item| {
        all.push((item.name.as_c_str().into(), item.kind.unwrap_or(FileKind::Regular)));
        Ok(())
    });
    match errno_of(listed) {
        // A directory that has been removed.
        Ok(()) | Err(Errno::NOENT) => all,
        Err(errno) => panic!("listing: {errno}"),
    }
}

/// Where two trees differ; empty if they do not. `same` says whether two objects count as equal.
pub fn differences(left: &Tree, right: &Tree, mut same: impl FnMut(&str, &Seen, &Seen) -> bool) -> String {
    let mut text = String::new();
    for (path, seen) in left {
        match right.get(path) {
            None => text.push_str(&format!("only in the first: {path:?} {seen:?}\n")),
            Some(other) if same(path, seen, other) => {}
            Some(other) => {
                text.push_str(&format!("{path:?}\n first: {}\nsecond: {}\n", brief(seen), brief(other)));
            }
        }
    }
    for path in right.keys().filter(|path| !left.contains_key(*path)) {
        text.push_str(&format!("only in the second: {path:?} {:?}\n", right.get(path)));
    }
    text
}

/// An object without its bytes.
pub fn brief(seen: &Seen) -> String {
    let sum = seen.data.iter().fold(0u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte));
    let zeros = seen.data.iter().filter(|byte| **byte == 0).count();
    let short = Seen { data: Vec::new(), ..seen.clone() };
    format!("{short:?} bytes {} (zero {zeros}) sum {sum:08x}", seen.data.len())
}
