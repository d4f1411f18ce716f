//! A whole tree as a value.

use crate::support::n;
use crate::world::{Bytes, StableAttr, attribute_names};
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use vellum_vfs::{BranchDir, FileKind, OpenMode, Result};

/// More than this of a file is not compared; sparse files can be large.
const COMPARE_MAX: u64 = 1 << 20;

#[derive(Debug, PartialEq)]
pub struct Node {
    attr: StableAttr,
    /// The first path, in order, of the same inode.
    same_as: String,
    data: Bytes,
    xattrs: BTreeMap<CString, Result<Bytes>>,
}

/// Everything below a directory, by path.
pub fn read(root: &dyn BranchDir) -> BTreeMap<String, Node> {
    let attr = root.stat().expect("stat").into();
    let node = Node { attr, same_as: String::new(), data: Bytes(Vec::new()), xattrs: BTreeMap::new() };
    let mut nodes = BTreeMap::from([(String::from("/"), node)]);
    walk(root, "", &mut nodes, &mut HashMap::new());
    nodes
}

fn walk(
    dir: &dyn BranchDir,
    path: &str,
    nodes: &mut BTreeMap<String, Node>,
    inodes: &mut HashMap<u64, String>,
) {
    let mut names: Vec<CString> = Vec::new();
    dir.list(&mut |item| {
        names.push(item.name.as_c_str().to_owned());
        Ok(())
    })
    .expect("list");
    names.sort();
    for name in &names {
        let path = format!("{path}/{}", name.to_string_lossy());
        let held = dir.hold(n(name)).expect("hold");
        let attr = held.stat().expect("stat");
        let mut data = Vec::new();
        match attr.kind() {
            FileKind::Regular => {
                let file = dir.open_file(n(name), OpenMode::READ).expect("open");
                data.resize(usize::try_from(attr.size.min(COMPARE_MAX)).expect("small"), 0);
                let count = file.read_at(&mut data, 0).expect("read");
                assert_eq!(count, data.len());
            }
            FileKind::Symlink => {
                data.resize(4096, 0);
                let count = held.read_link(&mut data).expect("read link");
                data.truncate(count);
            }
            _ => {}
        }
        let mut xattrs = BTreeMap::new();
        for attribute in attribute_names(&*held).expect("list attributes") {
            let mut buf = [0; 4096];
            let value = held.get_xattr(&attribute, &mut buf).map(|len| Bytes(buf[..len].to_vec()));
            xattrs.insert(attribute, value);
        }
        let same_as = inodes.entry(attr.ino).or_insert_with(|| path.clone()).clone();
        nodes.insert(path.clone(), Node { attr: attr.into(), same_as, data: Bytes(data), xattrs });
        if attr.is_dir() {
            walk(&*dir.open_dir(n(name)).expect("open directory"), &path, nodes, inodes);
        }
    }
}
