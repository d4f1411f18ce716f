//! The tree of files in a store, beside named objects: what is changed is there when the store is opened again, all of a group or none of it,
//! and contents by blocks.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use vellum_zoned::device::emulator::{Fault, LARGE_ZONE, SMALL_ZONE, Survival, Trigger};
use vellum_zoned::device::{Conventional, Emulated, ZonedDevice};
use vellum_zoned::store::{
    Class, Error, FileShape, Node, NodeTime, Placement, ROOT_NODE, Store, TreeChange, TreeDump, XATTRS_MAX,
    Xattrs,
};

const BLOCK: usize = 4096;

fn at(secs: i64) -> NodeTime {
    NodeTime { secs, nanos: 1 }
}

fn node(mode: u32, nlink: u32) -> Node {
    Node { mode, nlink, uid: 1, gid: 2, mtime: at(-5), ..Node::default() }
}

fn root_of(store: &Store) -> TreeDump {
    store.tree((1, 2), at(7)).expect("a tree")
}

fn name(number: u8) -> Vec<u8> {
    vec![b'n', b'0' + number % 10]
}

/// What a store should have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    tree: TreeDump,
    bytes: BTreeMap<u64, Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Op {
    File { name: u8 },
    Dir { name: u8 },
    Symlink { name: u8, len: usize },
    Remove { name: u8 },
    Rename { from: u8, to: u8 },
    Xattrs { name: u8, len: usize },
    Write { name: u8, at: u64, count: usize, fill: u8 },
    Size { name: u8, size: u64 },
    Punch { name: u8, at: u64, count: u64 },
    Image { name: u8, len: usize },
    Sync,
    Collect,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let name = || 0..6_u8;
    prop_oneof![
        3 => name().prop_map(|name| Op::File { name }),
        1 => name().prop_map(|name| Op::Dir { name }),
        1 => (name(), 1..4000_usize).prop_map(|(name, len)| Op::Symlink { name, len }),
        2 => name().prop_map(|name| Op::Remove { name }),
        1 => (name(), name()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => (name(), 0..4000_usize).prop_map(|(name, len)| Op::Xattrs { name, len }),
        6 => (name(), 0..12_u64, 1..9_usize, any::<u8>())
            .prop_map(|(name, at, count, fill)| Op::Write { name, at, count, fill }),
        2 => (name(), 0..100_000_u64).prop_map(|(name, size)| Op::Size { name, size }),
        2 => (name(), 0..20_u64, 0..9_u64).prop_map(|(name, at, count)| Op::Punch { name, at, count }),
        1 => (name(), 0..60_000_usize).prop_map(|(name, len)| Op::Image { name, len }),
        2 => Just(Op::Sync),
        1 => Just(Op::Collect),
        1 => Just(Op::Reopen),
    ]
}

impl Model {
    fn entry(&self, name: &[u8]) -> Option<u64> {
        self.tree.entries.get(&ROOT_NODE)?.get(name).copied()
    }

    fn file(&self, name: &[u8]) -> Option<u64> {
        self.entry(name).filter(|node| self.tree.files.contains_key(node))
    }

    /// The root counts its directories.
    fn count_links(&mut self) -> Node {
        let entries = self.tree.entries.get(&ROOT_NODE);
        let dirs = entries
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter(|node| self.tree.nodes[*node].is_directory());
        let nlink = 2 + dirs.count() as u32;
        let root = self.tree.nodes.get_mut(&ROOT_NODE).expect("a root");
        root.nlink = nlink;
        *root
    }

    fn forget(&mut self, node: u64) {
        self.tree.nodes.remove(&node);
        self.tree.xattrs.remove(&node);
        self.tree.targets.remove(&node);
        self.tree.files.remove(&node);
        self.bytes.remove(&node);
    }

    fn leave(&mut self, name: &[u8]) {
        let entries = self.tree.entries.get_mut(&ROOT_NODE).expect("entries");
        entries.remove(name);
        if entries.is_empty() {
            self.tree.entries.remove(&ROOT_NODE);
        }
    }

    fn enter(&mut self, name: &[u8], node: u64) {
        self.tree.entries.entry(ROOT_NODE).or_default().insert(name.to_vec(), node);
    }

    /// Contents have changed: their size, and where blocks are.
    fn reshape(&mut self, node: u64, size: usize, blocks: impl Fn(u64) -> Option<bool>) {
        let bytes = self.bytes.get_mut(&node).expect("bytes");
        let shape = self.tree.files.get_mut(&node).expect("a file");
        let mut is_there: Vec<bool> = vec![false; size.div_ceil(BLOCK).max(64)];
        for (at, count) in &shape.extents {
            (*at..at + count)
                .filter(|at| *at < size.div_ceil(BLOCK) as u64)
                .for_each(|at| is_there[at as usize] = true);
        }
        for (at, there) in is_there.iter_mut().enumerate() {
            *there = blocks(at as u64).unwrap_or(*there);
        }
        shape.size = size as u64;
        shape.extents.clear();
        for (at, _) in is_there.iter().enumerate().filter(|(_, there)| **there) {
            match shape.extents.last_mut() {
                Some((first, count)) if *first + *count == at as u64 => *count += 1,
                _ => shape.extents.push((at as u64, 1)),
            }
        }
        // What is beyond the size is kept in whole blocks.
        bytes.resize(size.next_multiple_of(BLOCK), 0);
    }
}

fn make(
    store: &Store,
    model: &mut Model,
    name: &[u8],
    node: Node,
    target: Option<Vec<u8>>,
) -> Result<(), Error> {
    if model.entry(name).is_some() {
        return Ok(());
    }
    store.check_room()?;
    let number = store.new_numbers(1);
    model.tree.nodes.insert(number, node);
    model.enter(name, number);
    let mut group = Vec::new();
    if node.is_regular() {
        group.push(TreeChange::Contents(number));
        model.tree.files.insert(number, FileShape::default());
        model.bytes.insert(number, Vec::new());
    }
    group.push(TreeChange::Node(number, node));
    if let Some(target) = target {
        model.tree.targets.insert(number, target.clone());
        group.push(TreeChange::Target(number, target));
    }
    group.push(TreeChange::Enter { dir: ROOT_NODE, name: name.to_vec(), node: number });
    group.push(TreeChange::Node(ROOT_NODE, model.count_links()));
    store.change_tree(group)
}

fn act(store: &mut Store, device: &Arc<dyn ZonedDevice>, model: &mut Model, op: &Op) -> Result<(), Error> {
    match op {
        Op::File { name: number } => make(store, model, &name(*number), node(0o100_640, 1), None),
        Op::Dir { name: number } => make(store, model, &name(*number), node(0o040_755, 2), None),
        Op::Symlink { name: number, len } => {
            make(store, model, &name(*number), node(0o120_777, 1), Some(vec![b't'; *len]))
        }
        Op::Remove { name: number } => {
            let Some(node) = model.entry(&name(*number)) else { return Ok(()) };
            model.leave(&name(*number));
            model.forget(node);
            store.change_tree(vec![
                TreeChange::Leave { dir: ROOT_NODE, name: name(*number) },
                TreeChange::Node(ROOT_NODE, model.count_links()),
                TreeChange::Drop(node),
            ])
        }
        Op::Rename { from, to } => {
            let Some(node) = model.entry(&name(*from)).filter(|_| from != to) else { return Ok(()) };
            let replaced = model.entry(&name(*to));
            model.leave(&name(*from));
            model.enter(&name(*to), node);
            let mut group = vec![
                TreeChange::Leave { dir: ROOT_NODE, name: name(*from) },
                TreeChange::Enter { dir: ROOT_NODE, name: name(*to), node },
            ];
            if let Some(replaced) = replaced {
                model.forget(replaced);
                group.push(TreeChange::Drop(replaced));
            }
            group.push(TreeChange::Node(ROOT_NODE, model.count_links()));
            store.change_tree(group)
        }
        Op::Xattrs { name: number, len } => {
            let Some(node) = model.entry(&name(*number)) else { return Ok(()) };
            store.check_room()?;
            let xattrs =
                Xattrs::from([(b"user.a".to_vec(), vec![1; *len]), (b"user.b".to_vec(), vec![2; *len])]);
            let xattrs = if *len == 0 { Xattrs::new() } else { xattrs };
            model.tree.xattrs.remove(&node);
            if !xattrs.is_empty() {
                model.tree.xattrs.insert(node, xattrs.clone());
            }
            store.change_tree(vec![TreeChange::Xattrs(node, xattrs)])
        }
        Op::Write { name: number, at, count, fill } => {
            let Some(node) = model.file(&name(*number)) else { return Ok(()) };
            let data = vec![*fill; count * BLOCK];
            let end = (*at as usize + count) * BLOCK;
            // Not always to the end of a block.
            let size = (model.tree.files[&node].size as usize).max(end - usize::from(*fill));
            let (done, result) = store.write_blocks(node, *at, &data, size as u64);
            result?;
            assert_eq!(done, *count as u64);
            let written = *at..at + done;
            model.reshape(node, size, |at| written.contains(&at).then_some(true));
            model.bytes.get_mut(&node).expect("bytes")[*at as usize * BLOCK..end].fill(*fill);
            Ok(())
        }
        Op::Size { name: number, size } => {
            let Some(node) = model.file(&name(*number)) else { return Ok(()) };
            let end = size.div_ceil(BLOCK as u64);
            store.set_size(node, *size)?;
            model.reshape(node, *size as usize, |at| (at >= end).then_some(false));
            Ok(())
        }
        Op::Punch { name: number, at, count } => {
            let Some(node) = model.file(&name(*number)) else { return Ok(()) };
            store.punch(node, *at, *count)?;
            let gone = *at..at + count;
            let size = model.tree.files[&node].size as usize;
            model.reshape(node, size, |at| gone.contains(&at).then_some(false));
            let bytes = model.bytes.get_mut(&node).expect("bytes");
            let len = bytes.len();
            bytes[len.min(*at as usize * BLOCK)..len.min((at + count) as usize * BLOCK)].fill(0);
            Ok(())
        }
        Op::Image { name: number, len } => {
            match store.put(&name(*number), Class::Checkpoint, &vec![*number; *len]) {
                Err(Error::NoSpace) => Ok(()),
                other => other,
            }
        }
        Op::Sync => store.sync(),
        Op::Collect => store.collect().map(drop),
        Op::Reopen => {
            store.sync()?;
            *store = Store::open(Arc::clone(device))?;
            Ok(())
        }
    }
}

fn compare(store: &Store, model: &Model, what: &str) {
    let tree = root_of(store);
    assert_eq!(tree, model.tree, "{what}");
    for (node, bytes) in &model.bytes {
        let mut held = vec![9; bytes.len()];
        store.read_blocks(*node, 0, &mut held).expect("read");
        assert!(held == *bytes, "{what}: node {node} holds something else");
        let mut beyond = vec![9; BLOCK];
        store.read_blocks(*node, 1 << 30, &mut beyond).expect("read");
        assert!(beyond.iter().all(|byte| *byte == 0));
    }
}

fn check_clean(store: &Store, what: &str) {
    let report = store.check().expect("a check");
    assert!(report.is_clean(), "{what}: {report:?}");
}

fn emulated_devices() -> [Arc<Emulated>; 2] {
    [SMALL_ZONE.scaled(48, 16).with_limits(12, 12), LARGE_ZONE.scaled(40, 48).with_limits(14, 14)]
        .map(|profile| Arc::new(Emulated::in_memory(profile, 1).expect("a device")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_matches_a_model_of_its_changes(ops in prop::collection::vec(op(), 1..80)) {
        let conventional = Conventional::create(tempfile::tempfile().expect("a file"), 4096, 40, 32).expect("a device");
        let mut devices: Vec<Arc<dyn ZonedDevice>> = vec![Arc::new(conventional)];
        devices.extend(emulated_devices().map(|device| device as Arc<dyn ZonedDevice>));
        for device in devices {
            let mut store = Store::format(Arc::clone(&device), Placement::NONE).expect("a store");
            let mut model = Model { tree: root_of(&store), ..Model::default() };
            for op in &ops {
                match act(&mut store, &device, &mut model, op) {
                    // Files are small enough for all devices.
                    Ok(()) => {}
                    Err(error) => panic!("{op:?}: {error}"),
                }
            }
            compare(&store, &model, "before");
            store.sync().expect("sync");
            check_clean(&store, "before");
            drop(store);
            let store = Store::open(device).expect("a store");
            compare(&store, &model, "after");
            store.sync().expect("sync");
            check_clean(&store, "after");
        }
    }
}

/// A history of groups, each of which makes a file, writes to it, and replaces one with it.
fn history(store: &Store, device: &Arc<dyn ZonedDevice>, moments: &mut Vec<Model>, synced: &mut usize) {
    let mut store = store.clone();
    let mut model = Model { tree: root_of(&store), ..Model::default() };
    let ops = (0..30_u8).flat_map(|step| {
        let one = step % 4;
        [
            Op::File { name: 8 },
            Op::Write { name: 8, at: u64::from(step % 3), count: 2, fill: step + 1 },
            Op::Xattrs { name: 8, len: usize::from(step) * 50 },
            Op::Rename { from: 8, to: one },
            if step % 3 == 0 { Op::Sync } else { Op::Size { name: one, size: 5000 } },
            if step % 7 == 0 { Op::Remove { name: one } } else { Op::Punch { name: one, at: 1, count: 1 } },
            if step % 5 == 0 { Op::Symlink { name: 5, len: 3000 } } else { Op::Remove { name: 5 } },
        ]
    });
    moments.push(model.clone());
    *synced = 0;
    for op in ops {
        let done = act(&mut store, device, &mut model, &op);
        moments.push(model.clone());
        match done {
            Ok(()) if matches!(op, Op::Sync) => *synced = moments.len() - 1,
            Ok(()) => {}
            Err(_) => return,
        }
    }
}

#[test]
fn each_group_of_changes_is_atomic_at_power_loss() {
    let profiles = emulated_devices().into_iter().map(|device| device.profile().clone());
    let profiles = profiles.flat_map(|profile| [profile.clone(), profile.running_ahead()]);
    for (number, profile) in profiles.enumerate() {
        let mut losses = 0;
        for at in 0.. {
            let device = Arc::new(Emulated::in_memory(profile.clone(), 1).expect("a device"));
            let dynamic = || Arc::clone(&device) as Arc<dyn ZonedDevice>;
            let store = Store::format(dynamic(), Placement::NONE).expect("a store");
            root_of(&store);
            store.sync().expect("sync");
            device.inject(Trigger::Change(at), Fault::PowerLoss);
            let (mut moments, mut synced) = (Vec::new(), 0);
            history(&store, &dynamic(), &mut moments, &mut synced);
            if device.has_power() {
                break;
            }
            for survival in
                [Survival::Nothing, Survival::Everything, Survival::Drawn(at), Survival::Drawn(at * 7)]
            {
                let what = format!("device {number}, change {at}, {survival:?}");
                let after: Arc<dyn ZonedDevice> =
                    Arc::new(device.after_power_loss(survival).expect("a device"));
                let store = Store::open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
                let tree = root_of(&store);
                let moment = moments[synced..].iter().find(|moment| moment.tree == tree);
                compare(&store, moment.unwrap_or_else(|| panic!("{what}: {tree:?} never was")), &what);
                store.sync().expect("sync");
                check_clean(&store, &what);
                losses += 1;
            }
        }
        println!("device {number}: {losses} losses");
    }
}

/// What the tree's user must not do is said, and nothing is written any more.
#[test]
fn changes_that_do_not_fit_are_refused() {
    let refused = |changes: Vec<TreeChange>| {
        let [device, _] = emulated_devices();
        let store =
            Store::format(Arc::clone(&device) as Arc<dyn ZonedDevice>, Placement::NONE).expect("a store");
        root_of(&store);
        store.put(b"image", Class::Normal, b"1").expect("put");
        store.sync().expect("sync");
        let error = store.change_tree(changes).expect_err("it cannot be");
        assert!(matches!(store.put(b"b", Class::Normal, b"x"), Err(Error::ReadOnly(_))), "{error}");
        let store = Store::open(device).expect("a store");
        assert!(store.check().expect("a check").is_clean());
        error
    };
    let file = node(0o100_644, 1);
    let name = || b"a".to_vec();
    // A file without contents, a directory with some, an entry that leads nowhere or is in a file, and names that are none.
    refused(vec![TreeChange::Node(40, file)]);
    refused(vec![TreeChange::Contents(40), TreeChange::Node(40, node(0o040_755, 2))]);
    refused(vec![TreeChange::Enter { dir: ROOT_NODE, name: name(), node: 40 }]);
    refused(vec![
        TreeChange::Contents(40),
        TreeChange::Node(40, file),
        TreeChange::Enter { dir: 40, name: name(), node: 40 },
    ]);
    for bad in [b"".as_slice(), b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        refused(vec![
            TreeChange::Node(40, node(0o010_644, 1)),
            TreeChange::Enter { dir: ROOT_NODE, name: bad.to_vec(), node: 40 },
        ]);
    }
    refused(vec![TreeChange::Leave { dir: ROOT_NODE, name: name() }]);
    refused(vec![TreeChange::Drop(ROOT_NODE)]);
    refused(vec![TreeChange::Target(ROOT_NODE, name())]);
    refused(vec![TreeChange::Node(ROOT_NODE, node(0o010_644, 1))]);
    refused(vec![TreeChange::Xattrs(ROOT_NODE, Xattrs::from([(name(), vec![0; XATTRS_MAX])]))]);
}

/// A tree that makes no sense is found by a check, and is not used.
#[test]
fn an_inconsistent_tree_is_detected() {
    let [device, _] = emulated_devices();
    let store = Store::format(device, Placement::NONE).expect("a store");
    root_of(&store);
    store
        .change_tree(vec![
            TreeChange::Node(40, node(0o040_755, 2)),
            TreeChange::Node(41, node(0o040_755, 3)),
            TreeChange::Enter { dir: 40, name: b"loop".to_vec(), node: 41 },
            TreeChange::Enter { dir: 41, name: b"loop".to_vec(), node: 40 },
        ])
        .expect("each of them fits");
    store.sync().expect("sync");
    let report = store.check().expect("a check");
    assert!(report.problems.iter().any(|problem| problem.contains("is in none")), "{report:?}");
    assert!(matches!(store.tree((0, 0), at(0)), Err(Error::Damaged(_))));
}

/// A file of which a block holds something else is told by its path, and only that file suffers.
#[test]
fn a_corrupt_block_is_an_error_of_its_file() {
    let [device, _] = emulated_devices();
    let store = Store::format(Arc::clone(&device) as Arc<dyn ZonedDevice>, Placement::NONE).expect("a store");
    root_of(&store);
    for (number, name) in [(40, b"one"), (41, b"two")] {
        let enter = TreeChange::Enter { dir: ROOT_NODE, name: name.to_vec(), node: number };
        let group = [TreeChange::Contents(number), TreeChange::Node(number, node(0o100_600, 1)), enter];
        store.change_tree(group.to_vec()).expect("a file");
        store.write_blocks(number, 0, &[number as u8; 2 * BLOCK], 2 * BLOCK as u64).1.expect("write");
        store.sync().expect("sync");
    }
    let mut held = vec![0; BLOCK];
    let is_first_of_one = |zone: u32, block: u64| {
        let mut bytes = vec![0; BLOCK];
        device.read(zone, block, &mut bytes).is_ok() && bytes.iter().all(|byte| *byte == 40)
    };
    let places = (0..48_u32).flat_map(|zone| (0..16_u64).map(move |block| (zone, block)));
    let (zone, block) =
        places.into_iter().find(|(zone, block)| is_first_of_one(*zone, *block)).expect("its block");
    device.corrupt(zone, block);
    let report = store.check().expect("a check");
    let names: Vec<&[u8]> = report.unreadable.iter().map(|(name, _)| name.as_slice()).collect();
    assert_eq!(names, [b"/one"]);
    assert!(matches!(store.read_blocks(40, 0, &mut held), Err(Error::Unreadable { .. })));
    store.read_blocks(40, 1, &mut held).expect("the other block");
    store.read_blocks(41, 0, &mut held).expect("the other file");
    store.write_blocks(40, 0, &[9; BLOCK], 2 * BLOCK as u64).1.expect("it is written anew");
    store.read_blocks(40, 0, &mut held).expect("and read");
}
