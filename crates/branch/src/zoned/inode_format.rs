//! Inodes as the store has them, and back.

use super::contents::FileData;
use crate::tree::{Body, ChangeSet, EntryChange, Inode, State};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use vellum_vfs::Timestamp;
use vellum_zoned::store::{Node, NodeTime, ROOT_NODE, TreeChange, TreeDump};

const fn moment(at: Timestamp) -> NodeTime {
    NodeTime { secs: at.secs, nanos: at.nanos }
}

const fn timestamp(at: NodeTime) -> Timestamp {
    Timestamp { secs: at.secs, nanos: at.nanos }
}

fn node_of<D>(inode: &Inode<D>) -> Node {
    Node {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        rdev: inode.rdev,
        atime: moment(inode.atime),
        mtime: moment(inode.mtime),
        ctime: moment(inode.ctime),
        btime: moment(inode.btime),
    }
}

/// What was touched, as one group of changes; and the inodes that are no more.
pub(super) fn groups(state: &mut State<Arc<FileData>>) -> (Vec<TreeChange>, Vec<u64>) {
    let later = std::mem::take(&mut state.touched.later);
    let touched =
        std::mem::replace(&mut state.touched, ChangeSet { is_kept: true, later, ..ChangeSet::default() });
    let mut changes = Vec::new();
    let is_made = |ino: &u64| touched.made.contains(ino);
    for ino in &touched.inodes {
        state.touched.later.remove(ino);
        let Some(inode) = state.inodes.get_mut(ino) else { continue };
        if is_made(ino) && matches!(inode.body, Body::Regular(_)) {
            changes.push(TreeChange::Contents(*ino));
        }
        changes.push(TreeChange::Node(*ino, node_of(inode)));
        if is_made(ino)
            && let Body::Symlink(target) = &inode.body
        {
            changes.push(TreeChange::Target(*ino, target.clone()));
        }
        if std::mem::take(&mut inode.xattrs.is_changed) {
            changes.push(TreeChange::Xattrs(*ino, inode.xattrs.clone().into()));
        }
    }
    changes.extend(touched.entries.into_iter().map(|EntryChange { dir, name, ino }| match ino {
        Some(node) => TreeChange::Enter { dir, name, node },
        None => TreeChange::Leave { dir, name },
    }));
    // What was made and is gone again was never there.
    let gone = touched.gone;
    let known = gone.iter().copied().filter(|ino| !touched.made.contains(ino));
    changes.extend(known.map(TreeChange::Drop));
    (changes, gone)
}

/// Makes the inodes of a tree. Those that have no links are left out, and returned.
pub(super) fn inodes_of(
    dump: TreeDump,
    block: u64,
    inodes: &mut HashMap<u64, Inode<Arc<FileData>>>,
) -> Vec<u64> {
    let TreeDump { nodes, mut xattrs, mut targets, mut entries, files } = dump;
    let parents: BTreeMap<u64, u64> = entries
        .iter()
        .flat_map(|(dir, entries)| entries.values().map(|node| (*node, *dir)))
        .filter(|(node, _)| nodes.get(node).is_some_and(Node::is_directory))
        .collect();
    let mut unlinked = Vec::new();
    for (number, node) in nodes {
        if node.nlink == 0 {
            unlinked.push(number);
            continue;
        }
        let body = if node.is_regular() {
            let shape = files.get(&number).cloned().unwrap_or_default();
            Body::Regular(Arc::new(FileData::from_shape(&shape, block)))
        } else if node.is_directory() {
            let parent = parents.get(&number).copied().unwrap_or(ROOT_NODE);
            Body::Directory { entries: entries.remove(&number).unwrap_or_default(), parent }
        } else if node.is_symlink() {
            Body::Symlink(targets.remove(&number).unwrap_or_default())
        } else {
            Body::Special
        };
        let inode = Inode {
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            nlink: node.nlink,
            rdev: node.rdev,
            atime: timestamp(node.atime),
            mtime: timestamp(node.mtime),
            ctime: timestamp(node.ctime),
            btime: timestamp(node.btime),
            xattrs: xattrs.remove(&number).unwrap_or_default().into(),
            body,
            linkable: false,
            pins: 0,
            writers: 0,
        };
        inodes.insert(number, inode);
    }
    unlinked
}
