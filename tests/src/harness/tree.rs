//! Whole trees, taken down and compared.

use super::outcome::{DuringContext, Outcome, ensure};
use rustix::fs::{AtFlags, CWD, FileType};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Most bytes of a file that are kept to be compared; beyond, a sum stands for them.
const KEEP: usize = 256;

/// Everything that can be seen of one object.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// Type and permissions.
    pub(crate) mode: u32,
    /// Owner and group.
    pub(crate) owner: (u32, u32),
    /// Bytes, 0 for directories (whose size means nothing).
    pub(crate) size: u64,
    /// Hard links, 1 for directories.
    pub(crate) nlink: u64,
    /// Device number.
    pub(crate) rdev: u64,
    /// Last change of data: seconds and nanoseconds, 0 when it is younger than the tree's `since`.
    pub(crate) mtime: (i64, i64),
    /// Sum of the data, or of a link's target.
    pub(crate) sum: u64,
    /// First bytes of the data, or of a link's target.
    pub(crate) head: Vec<u8>,
    /// Extended attributes.
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Inode number; not compared.
    pub(crate) ino: u64,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:o} {}:{} size {} nlink {} rdev {:x} mtime {:?} sum {:x}",
            self.mode, self.owner.0, self.owner.1, self.size, self.nlink, self.rdev, self.mtime, self.sum
        )?;
        if !self.head.is_empty() {
            write!(f, " {:?}", String::from_utf8_lossy(&self.head[..self.head.len().min(24)]))?;
        }
        for (name, value) in &self.xattrs {
            write!(f, " {}={:?}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))?;
        }
        Ok(())
    }
}

/// A tree: path below the root to what is there. The root's path is empty.
pub(crate) type Tree = BTreeMap<String, Node>;

/// What is left out of a comparison.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ignore {
    /// The numbers of links.
    pub(crate) nlink: bool,
    /// The times.
    pub(crate) mtime: bool,
}

/// Takes down the tree at `root`. Times at or after `since` (seconds since 1970) count as equal: they are
/// those of the machine's clock. Also checks that directories state the types and inode numbers that stat does.
pub(crate) fn take(root: &Path, since: i64) -> Outcome<Tree> {
    let mut tree = Tree::new();
    walk(root, String::new(), since, true, &mut tree)?;
    Ok(tree)
}

/// Takes a tree that the kernel's overlayfs shows. Its directories may state other inode numbers than stat: those of a fifo's new
/// hard link, for one, after a remount.
pub(crate) fn take_overlayfs(root: &Path, since: i64) -> Outcome<Tree> {
    let mut tree = Tree::new();
    walk(root, String::new(), since, false, &mut tree)?;
    Ok(tree)
}

fn walk(root: &Path, path: String, since: i64, numbers: bool, tree: &mut Tree) -> Outcome {
    let full = if path.is_empty() { root.to_owned() } else { root.join(&path) };
    let node = look(&full, since).doing(format!("looking at {}", full.display()))?;
    let is_dir = node.mode & libc::S_IFMT == libc::S_IFDIR;
    tree.insert(path.clone(), node);
    if !is_dir {
        return Ok(());
    }
    let dir = rustix::fs::open(&full, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty())
        .doing(format!("opening directory {path:?}"))?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(dir).doing(format!("opendir {path:?}"))? {
        let entry = entry.doing(format!("reading directory {path:?}"))?;
        let name = entry.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push((name, entry.file_type(), entry.ino()));
        }
    }
    names.sort_by(|a, b| a.0.cmp(&b.0));
    for pair in names.windows(2) {
        ensure!(pair[0].0 != pair[1].0, "{path:?} lists {:?} twice", String::from_utf8_lossy(&pair[0].0));
    }
    for (name, kind, ino) in names {
        let name = std::ffi::OsString::from_vec(name);
        let below = if path.is_empty() {
            name.to_string_lossy().into_owned()
        } else {
            format!("{path}/{}", name.to_string_lossy())
        };
        walk(root, below.clone(), since, numbers, tree)?;
        if let Some(node) = tree.get(&below) {
            let seen = FileType::from_raw_mode(node.mode);
            ensure!(
                kind == FileType::Unknown || kind == seen,
                "{below:?}: the directory says {kind:?}, stat says {seen:?}"
            );
            ensure!(
                !numbers || ino == node.ino,
                "{below:?}: the directory says inode {ino}, stat says {}",
                node.ino
            );
        }
    }
    Ok(())
}

/// Looks at one object, not following a symbolic link.
pub(crate) fn look(path: &Path, since: i64) -> Result<Node, std::io::Error> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let data = match kind {
        FileType::RegularFile => fs::read(path)?,
        FileType::Symlink => fs::read_link(path)?.into_os_string().into_vec(),
        _ => Vec::new(),
    };
    if kind == FileType::RegularFile && data.len() as u64 != stat.st_size as u64 {
        return Err(std::io::Error::other(format!("size {} but {} bytes", stat.st_size, data.len())));
    }
    let is_dir = kind == FileType::Directory;
    Ok(Node {
        mode: stat.st_mode,
        owner: (stat.st_uid, stat.st_gid),
        size: if is_dir { 0 } else { stat.st_size as u64 },
        nlink: if is_dir { 1 } else { stat.st_nlink as u64 },
        rdev: if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            stat.st_rdev
        } else {
            0
        },
        mtime: if stat.st_mtime >= since { (0, 0) } else { (stat.st_mtime, stat.st_mtime_nsec as i64) },
        sum: sum(&data),
        head: data[..data.len().min(KEEP)].to_vec(),
        xattrs: xattrs(path)?,
        ino: stat.st_ino,
    })
}

/// The extended attributes of an object, a symbolic link's own included.
pub(crate) fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, std::io::Error> {
    let mut list = vec![0; 65_536];
    let len = match rustix::fs::llistxattr(path, &mut list[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut found = BTreeMap::new();
    for name in list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value[..])?;
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

/// A sum of bytes.
pub(crate) fn sum(data: &[u8]) -> u64 {
    vellum_sys::fnv1a(data.iter().copied())
}

/// The differences of two trees, a line each.
pub(crate) fn differences(left: &Tree, right: &Tree, ignore: Ignore) -> Vec<String> {
    let clean = |node: &Node| {
        let mut node = node.clone();
        node.ino = 0;
        if ignore.nlink {
            node.nlink = 0;
        }
        if ignore.mtime {
            node.mtime = (0, 0);
        }
        node
    };
    let mut lines = Vec::new();
    for (path, node) in left {
        match right.get(path) {
            None => lines.push(format!("{path:?}: only on the left: {node:?}")),
            Some(other) if clean(node) != clean(other) => {
                lines.push(format!("{path:?}:\n    left  {node:?}\n    right {other:?}"));
            }
            Some(_) => {}
        }
    }
    for (path, node) in right {
        if !left.contains_key(path) {
            lines.push(format!("{path:?}: only on the right: {node:?}"));
        }
    }
    lines
}

/// Fails when two trees differ; `what` says which they are.
pub(crate) fn same(what: &str, left: &Tree, right: &Tree, ignore: Ignore) -> Outcome {
    let lines = differences(left, right, ignore);
    ensure!(
        lines.is_empty(),
        "{what}: {} differences\n{}",
        lines.len(),
        lines[..lines.len().min(20)].join("\n")
    );
    Ok(())
}

/// Fails when two objects that are no links of each other share an inode number, or links do not.
pub(crate) fn inodes_are_unique(tree: &Tree) -> Outcome {
    let mut seen: BTreeMap<u64, (&String, &Node)> = BTreeMap::new();
    for (path, node) in tree {
        if let Some((other, twin)) = seen.insert(node.ino, (path, node)) {
            ensure!(
                node.nlink > 1 && twin.nlink > 1,
                "inode {} is both {other:?} (nlink {}) and {path:?} (nlink {})",
                node.ino,
                twin.nlink,
                node.nlink
            );
        }
    }
    Ok(())
}
