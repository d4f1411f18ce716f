//! The tree of files, as the changes make it; and what is wrong with one.

use super::change::Change;
use super::error::{Error, Result};
use super::node::{
    NODE_LEN, Node, ROOT_NODE, Xattrs, check_entry_name, check_target, check_xattrs, xattrs_len,
};
use std::collections::{BTreeMap, BTreeSet};

/// The head of a change, on the device.
const HEAD: u64 = 4;
/// How much more than its length is counted for what may be longer than a record usually is, and so leaves records in part empty.
const LONG: u64 = 3;

/// The nodes and their names. In memory only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TreeState {
    /// By their numbers.
    pub(super) nodes: BTreeMap<u64, Node>,
    /// Of those that have some.
    pub(super) xattrs: BTreeMap<u64, Xattrs>,
    /// Where symbolic links lead.
    pub(super) targets: BTreeMap<u64, Vec<u8>>,
    /// By directory and name. Only directories that have some.
    pub(super) entries: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
    /// How many names each node has, if any.
    named: BTreeMap<u64, u32>,
    bytes: u64,
}

fn entry_len(name: &[u8]) -> u64 {
    HEAD + 16 + name.len() as u64
}

fn long_len(bytes: usize) -> u64 {
    LONG * (HEAD + 8 + bytes as u64)
}

impl TreeState {
    /// About how many bytes its changes have on the device, with what the sizes of its files take; never less.
    pub(super) fn encoded_len(&self) -> u64 {
        self.nodes.len() as u64 * (HEAD + NODE_LEN as u64 + 20) + self.bytes
    }

    fn get_node(&self, node: u64) -> Result<&Node> {
        self.nodes.get(&node).ok_or_else(|| Error::Damaged(format!("there is no node {node}")))
    }

    /// A node is made, or is something else of the same kind.
    pub(super) fn set_node(&mut self, number: u64, node: Node) -> Result<()> {
        const KIND: u32 = 0o170_000;
        let before = self.nodes.get(&number);
        let is_root_amiss = number == ROOT_NODE && !node.is_directory();
        if is_root_amiss || before.is_some_and(|before| (before.mode ^ node.mode) & KIND != 0) {
            return Error::damaged(format!("node {number} becomes something else"));
        }
        self.nodes.insert(number, node);
        Ok(())
    }

    /// Makes a change of the kinds that are only the tree's.
    pub(super) fn apply(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::Xattrs { node, xattrs } => {
                self.get_node(*node)?;
                check_xattrs(xattrs)?;
                self.forget_xattrs(*node);
                if !xattrs.is_empty() {
                    self.bytes += long_len(xattrs_len(xattrs));
                    self.xattrs.insert(*node, xattrs.clone());
                }
            }
            Change::Target { node, target } => {
                check_target(target)?;
                if !self.get_node(*node)?.is_symlink() {
                    return Error::damaged(format!("node {node} is no symbolic link"));
                }
                self.forget_target(*node);
                self.bytes += long_len(target.len());
                self.targets.insert(*node, target.clone());
            }
            Change::Enter { dir, node, name } => {
                check_entry_name(name)?;
                self.get_node(*node)?;
                if !self.get_node(*dir)?.is_directory() || *node == ROOT_NODE {
                    return Error::damaged(format!("node {node} cannot be in {dir}"));
                }
                *self.named.entry(*node).or_default() += 1;
                match self.entries.entry(*dir).or_default().insert(name.clone(), *node) {
                    Some(replaced) => self.drop_name(replaced),
                    None => self.bytes += entry_len(name),
                }
            }
            Change::Leave { dir, name } => {
                let Some(node) = self.entries.get_mut(dir).and_then(|entries| entries.remove(name)) else {
                    return Error::damaged(format!("a name that is not in directory {dir} is gone"));
                };
                self.drop_name(node);
                self.bytes -= entry_len(name);
                if self.entries.get(dir).is_some_and(BTreeMap::is_empty) {
                    self.entries.remove(dir);
                }
            }
            _ => return Error::damaged("no change of the tree"),
        }
        Ok(())
    }

    fn drop_name(&mut self, node: u64) {
        match self.named.get_mut(&node) {
            Some(names) if *names > 1 => *names -= 1,
            _ => drop(self.named.remove(&node)),
        }
    }

    fn forget_xattrs(&mut self, node: u64) {
        if let Some(xattrs) = self.xattrs.remove(&node) {
            self.bytes -= long_len(xattrs_len(&xattrs));
        }
    }

    fn forget_target(&mut self, node: u64) {
        if let Some(target) = self.targets.remove(&node) {
            self.bytes -= long_len(target.len());
        }
    }

    /// A node is gone. One that has a name, or names in it, is refused: the names would lead nowhere.
    pub(super) fn drop_node(&mut self, node: u64) -> Result<()> {
        if node == ROOT_NODE || self.entries.contains_key(&node) {
            return Error::damaged(format!("directory {node} is dropped, but is not empty"));
        }
        if self.named.contains_key(&node) {
            return Error::damaged(format!("node {node} is dropped, but has a name"));
        }
        self.nodes.remove(&node);
        self.forget_xattrs(node);
        self.forget_target(node);
        Ok(())
    }

    /// Whether a node can go: neither links nor names lead to it, and none are in it.
    fn is_unlinked(&self, number: u64, node: &Node) -> bool {
        node.nlink == 0 && !self.entries.contains_key(&number) && !self.named.contains_key(&number)
    }

    /// Removes the nodes that have no links: they were open when the store was left.
    pub(super) fn drop_unlinked(&mut self) {
        let is_unlinked = |(number, node): &(&u64, &Node)| self.is_unlinked(**number, node);
        let gone: Vec<u64> = self.nodes.iter().filter(is_unlinked).map(|(number, _)| *number).collect();
        for node in gone {
            // It is one that can go.
            let _ = self.drop_node(node);
        }
    }

    /// Whether nothing is left for [`Self::drop_unlinked`].
    pub(super) fn has_no_unlinked(&self) -> bool {
        self.nodes.iter().all(|(number, node)| *number == ROOT_NODE || !self.is_unlinked(*number, node))
    }

    /// The changes that make this from nothing, where the files' contents are there.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        let nodes = self.nodes.iter().map(|(node, is)| Change::Node { node: *node, is: *is });
        let xattrs =
            self.xattrs.iter().map(|(node, xattrs)| Change::Xattrs { node: *node, xattrs: xattrs.clone() });
        let targets =
            self.targets.iter().map(|(node, target)| Change::Target { node: *node, target: target.clone() });
        let entries = self.entries.iter().flat_map(|(dir, entries)| {
            entries.iter().map(|(name, node)| Change::Enter { dir: *dir, node: *node, name: name.clone() })
        });
        nodes.chain(xattrs).chain(targets).chain(entries)
    }

    /// What is wrong: names that lead nowhere, links that are counted otherwise, directories in two places, or in none.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.nodes.is_empty() && self.entries.is_empty() {
            return problems;
        }
        if !self.nodes.contains_key(&ROOT_NODE) {
            problems.push("the tree has no root".to_owned());
        }
        let mut links: BTreeMap<u64, u32> = BTreeMap::new();
        for (dir, entries) in &self.entries {
            for (name, node) in entries {
                let Some(found) = self.nodes.get(node) else {
                    let name = String::from_utf8_lossy(name);
                    problems.push(format!("{name:?} in directory {dir} leads to node {node}, which is none"));
                    continue;
                };
                *links.entry(*node).or_default() += 1;
                if found.is_directory() {
                    // Its `..`.
                    *links.entry(*dir).or_default() += 1;
                }
            }
        }
        for (number, node) in &self.nodes {
            let counted = links.get(number).copied().unwrap_or(0);
            // A directory is also linked by its `.`, and the root by what it is mounted on.
            let more = u32::from(node.is_directory() && node.nlink > 0) + u32::from(*number == ROOT_NODE);
            if node.nlink != counted + more {
                problems.push(format!("node {number} has {} links, not {}", node.nlink, counted + more));
            }
            if node.is_symlink() && !self.targets.contains_key(number) {
                problems.push(format!("symbolic link {number} leads nowhere"));
            }
        }
        self.lost_directories(&mut problems);
        problems
    }

    /// One name of each node that has some: the directory, and the name in it.
    pub(super) fn places(&self) -> BTreeMap<u64, (u64, &[u8])> {
        let mut places = BTreeMap::new();
        for (dir, entries) in &self.entries {
            for (name, node) in entries {
                places.insert(*node, (*dir, name.as_slice()));
            }
        }
        places
    }

    /// Every directory that has links is reached from the root, once.
    fn lost_directories(&self, problems: &mut Vec<String>) {
        let is_dir = |node: &u64| self.nodes.get(node).is_some_and(Node::is_directory);
        let mut seen = BTreeSet::from([ROOT_NODE]);
        let mut to_see = vec![ROOT_NODE];
        while let Some(dir) = to_see.pop() {
            for node in
                self.entries.get(&dir).into_iter().flat_map(BTreeMap::values).filter(|node| is_dir(node))
            {
                if seen.insert(*node) {
                    to_see.push(*node);
                } else {
                    problems.push(format!("directory {node} has two names"));
                }
            }
        }
        let lost = self
            .nodes
            .iter()
            .filter(|(number, node)| node.is_directory() && node.nlink > 0 && !seen.contains(*number));
        problems.extend(lost.map(|(number, _)| format!("directory {number} is in none")));
    }
}

/// A path of a node, from `/` on; for messages.
pub(super) fn path_of(places: &BTreeMap<u64, (u64, &[u8])>, node: u64) -> Vec<u8> {
    /// Names of a path that are told: a tree that makes no sense may have a circle.
    const DEEPEST: usize = 64;
    let mut path = Vec::new();
    let mut at = node;
    for _ in 0..DEEPEST {
        if at == ROOT_NODE {
            break;
        }
        let Some((dir, name)) = places.get(&at) else {
            return [format!("node {node}").into_bytes(), path].concat();
        };
        path = [b"/".as_slice(), name, &path].concat();
        at = *dir;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a checkpoint of such a tree says would not be a tree.
    #[test]
    fn a_node_that_has_a_name_is_not_dropped() {
        let mut tree = TreeState::default();
        let node = |mode| Node { mode, ..Node::default() };
        let (name, other) = (b"name".to_vec(), b"other".to_vec());
        tree.set_node(ROOT_NODE, node(0o040_755)).expect("a root");
        tree.set_node(16, node(0o010_644)).expect("a node");
        tree.set_node(17, node(0o010_644)).expect("another");
        let enter = |node, name: &Vec<u8>| Change::Enter { dir: ROOT_NODE, node, name: name.clone() };
        let leave = |name: &Vec<u8>| Change::Leave { dir: ROOT_NODE, name: name.clone() };
        for change in [enter(16, &name), enter(16, &other), leave(&name)] {
            tree.apply(&change).expect("a name");
        }
        assert!(tree.drop_node(16).is_err(), "it has a name still");
        tree.drop_unlinked();
        assert!(tree.nodes.contains_key(&16) && !tree.nodes.contains_key(&17), "one has a name");
        tree.apply(&enter(17, &other)).expect_err("it is gone");
        tree.set_node(18, node(0o010_644)).expect("a third");
        tree.apply(&enter(18, &other)).expect("in its place");
        tree.drop_node(16).expect("it has no name any more");
    }
}
