//! The store on zoned devices as a branch: what it does by blocks, what is there after it was opened again, and after losses of power.

#![allow(unreachable_pub, clippy::unwrap_used, reason = "a test program")]

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use support::{Fixture, RW, errno, get, get_at, n, names, put, subdir};
use vellum_branch::{MemoryBranch, MemoryOptions, ZonedBranch, ZonedTree};
use vellum_vfs::{Branch, BranchDir, Errno, FileKind, RenameFlags, Seek};
use vellum_zoned::device::emulator::{Fault, LARGE_ZONE, Profile, Random, SMALL_ZONE, Survival, Trigger};
use vellum_zoned::device::{Emulated, ZonedDevice};
use vellum_zoned::store::{Class, Placement, Store};

const BLOCK: u64 = 4096;
const KEEP: u32 = 1;
const PUNCH: u32 = 2;
const ZERO: u32 = 0x10;

fn branch_of(store: Store) -> Arc<ZonedBranch> {
    let tree = ZonedTree::open(store).unwrap();
    ZonedBranch::open(&tree, c"", "zoned".to_owned()).unwrap()
}

fn emulated(profile: Profile) -> Arc<Emulated> {
    Arc::new(Emulated::in_memory(profile, 1).unwrap())
}

fn small() -> Profile {
    SMALL_ZONE.scaled(64, 32).with_limits(12, 12)
}

#[test]
fn holes_are_by_block_whether_written_or_waiting() {
    for fixture in Fixture::all_zoned() {
        for is_synced in [false, true] {
            let root = fixture.root();
            let file = put(&*root, c"f", &[7; 10 * BLOCK as usize]);
            let settle = || {
                if is_synced {
                    file.sync(false).unwrap();
                }
            };
            settle();
            file.allocate(PUNCH | KEEP, 100, 3 * BLOCK).unwrap();
            settle();
            assert_eq!(file.seek(0, Seek::Hole).unwrap(), BLOCK);
            assert_eq!(file.seek(BLOCK, Seek::Data).unwrap(), 3 * BLOCK);
            assert_eq!(file.stat().unwrap().blocks, 8 * BLOCK / 512);
            file.allocate(ZERO, 9 * BLOCK, 2 * BLOCK).unwrap();
            settle();
            assert_eq!(file.stat().unwrap().size, 11 * BLOCK);
            assert_eq!(file.seek(3 * BLOCK, Seek::Hole).unwrap(), 9 * BLOCK);
            assert_eq!(errno(file.seek(9 * BLOCK, Seek::Data)), Errno::NXIO);
            file.allocate(ZERO | KEEP, 4 * BLOCK + 1, 20 * BLOCK).unwrap();
            settle();
            assert_eq!(file.stat().unwrap().size, 11 * BLOCK);
            let data = get(&*file);
            assert!(data[..100].iter().all(|byte| *byte == 7));
            assert!(data[100..100 + 3 * BLOCK as usize].iter().all(|byte| *byte == 0));
            assert!(data[100 + 3 * BLOCK as usize..=4 * BLOCK as usize].iter().all(|byte| *byte == 7));
            assert!(data[4 * BLOCK as usize + 1..].iter().all(|byte| *byte == 0));
            assert_eq!(errno(file.allocate(0, 0, BLOCK)), Errno::OPNOTSUPP);
            root.remove(n(c"f")).unwrap();
        }
    }
}

/// What was cut off never comes back, wherever it was.
#[test]
fn truncated_blocks_read_as_zeros() {
    for fixture in Fixture::all_zoned() {
        for synced in 0..8 {
            let file = put(&*fixture.root(), c"f", &[7; 10_000]);
            let settle = |bit: u32| {
                if synced & bit != 0 {
                    file.sync(false).unwrap();
                }
            };
            settle(1);
            file.truncate(5000).unwrap();
            settle(2);
            file.write_at(b"x", 20_000).unwrap();
            settle(4);
            let data = get(&*file);
            assert!(data[..5000].iter().all(|byte| *byte == 7), "{synced}");
            assert!(data[5000..20_000].iter().all(|byte| *byte == 0), "{synced}");
            file.truncate(4500).unwrap();
            file.truncate(9000).unwrap();
            assert!(get(&*file)[4500..].iter().all(|byte| *byte == 0), "{synced}");
            fixture.root().remove(n(c"f")).unwrap();
        }
    }
}

#[test]
fn small_appends_are_written_once() {
    let device = emulated(small());
    let branch = branch_of(Store::format(device, Placement::NONE).unwrap());
    let file = branch.root().create(n(c"f"), 0o600).unwrap();
    let before = branch.tree().store().stats().written_blocks;
    for at in 0..1000 {
        file.write_at(&[at as u8; 100], at * 100).unwrap();
    }
    file.sync(false).unwrap();
    let written = branch.tree().store().stats().written_blocks - before;
    assert!(written <= 100_000 / BLOCK + 1, "{written} blocks");
    assert_eq!(get(&*file).len(), 100_000);
    assert_eq!(branch.tree().waiting_blocks(), 0);
}

/// Everything is there when the store is opened again, but for what had no name.
#[test]
fn a_reopened_store_has_its_tree() {
    let device = emulated(small());
    let dynamic = || Arc::clone(&device) as Arc<dyn ZonedDevice>;
    let branch = branch_of(Store::format(dynamic(), Placement::NONE).unwrap());
    branch.tree().store().put(b"image", Class::Checkpoint, &[9; 50_000]).unwrap();
    let root = branch.root();
    let dir = subdir(&*root, c"dir");
    put(&*dir, c"file", b"contents").set_xattr(c"user.a", b"value", 0).unwrap();
    dir.link(n(c"file"), &*root, n(c"link")).unwrap();
    root.make_symlink(n(c"symlink"), c"dir/file").unwrap();
    root.make_node(n(c"fifo"), 0o010_600, 0).unwrap();
    root.make_node(n(c"device"), 0o020_600, rustix::fs::makedev(1, 3)).unwrap();
    let nameless = root.create_unnamed(0o600).unwrap();
    nameless.write_at(b"nothing", 0).unwrap();
    let unlinked = put(&*root, c"unlinked", b"nothing");
    root.remove(n(c"unlinked")).unwrap();
    nameless.sync(false).unwrap();
    unlinked.sync(false).unwrap();
    let nodes = branch.tree().store().stats().nodes;
    let before = walk(&*root);
    // The process is killed.
    std::mem::forget((nameless, unlinked));
    branch.sync().unwrap();
    std::mem::forget(Arc::clone(&branch));
    drop((branch, root, dir));
    let branch = branch_of(Store::open(dynamic()).unwrap());
    assert_eq!(walk(&*branch.root()), before);
    assert_eq!(names(&*branch.root()), ["device", "dir", "fifo", "link", "symlink"]);
    assert_eq!(get_at(&*branch.root(), c"link"), b"contents");
    let store = branch.tree().store();
    assert_eq!(store.stats().nodes, nodes - 2);
    assert_eq!(store.get(b"image").unwrap(), [9; 50_000]);
    assert!(store.check().unwrap().is_clean());
}

/// A full store says so when it is written to, and everything can be removed then.
#[test]
fn a_full_store_refuses_writes_and_accepts_removals() {
    let file = tempfile::tempfile().unwrap();
    let file = Arc::new(vellum_zoned::device::Conventional::create(file, 4096, 32, 64).unwrap());
    let devices: [Arc<dyn ZonedDevice>; 2] = [emulated(small()), file];
    for device in devices {
        let branch = branch_of(Store::format(Arc::clone(&device), Placement::NONE).unwrap());
        let root = branch.root();
        for round in 0..3 {
            let mut count = 0_u32;
            let name = |number: u32| CString::new(format!("f{number}")).unwrap();
            let refused = loop {
                assert!(count < 1000, "it is never full");
                let file = match root.create(n(&name(count)), 0o600) {
                    Ok(file) => file,
                    Err(error) => break error,
                };
                count += 1;
                match file.write_at(&[count as u8; 100_000], 0) {
                    Ok(100_000) => file
                        .sync(false)
                        .unwrap_or_else(|error| panic!("file {count} of round {round}: {error}")),
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.errno(), Errno::NOSPC);
            assert!(count > 20, "{count} files");
            branch.sync().unwrap();
            // What is there can still be cut.
            let first = root.open_file(n(c"f0"), RW).unwrap();
            first.truncate(50_001).unwrap();
            first.sync(false).unwrap();
            for number in 0..count {
                root.remove(n(&name(number))).unwrap();
                root.sync_dir().unwrap();
            }
            let report = branch.tree().store().check().unwrap();
            assert!(report.is_clean(), "{report:?}");
        }
        assert_eq!(branch.tree().store().stats().live_blocks, 0);
    }
}

/// What a write has answered and is not written out yet finds its room, whatever an image takes meanwhile.
#[test]
fn an_image_leaves_room_for_pending_blocks() {
    let device = emulated(small());
    let branch = branch_of(Store::format(device, Placement::NONE).unwrap());
    let (root, store) = (branch.root(), branch.tree().store());
    let fill = put(&*root, c"fill", &[1; 100 * BLOCK as usize]);
    let mut at = 0;
    while branch.statfs().unwrap().bavail > 400 {
        assert_eq!(fill.write_at(&[1; 50 * BLOCK as usize], at).unwrap(), 50 * BLOCK as usize);
        fill.sync(false).unwrap();
        at += 50 * BLOCK;
    }
    let file = put(&*root, c"file", &[2; 250 * BLOCK as usize]);
    assert_eq!(branch.tree().waiting_blocks(), 250);
    let mut image = store.writer(Class::Checkpoint).unwrap();
    let mut zones = 0;
    // What is refused to it once may be there later; it takes what it can get.
    while image.write(&[3; 32 * BLOCK as usize]).and_then(|()| image.flush()).is_ok() {
        zones += 1;
        assert!(zones < 64, "it is never full");
    }
    file.sync(false).unwrap();
    assert_eq!(get(&*file), [2; 250 * BLOCK as usize]);
    // With nothing that waits an image may have all.
    drop(image);
    branch.tree().sync().unwrap();
    let mut image = store.writer(Class::Checkpoint).unwrap();
    let mut more = 0;
    while image.write(&[3; 32 * BLOCK as usize]).and_then(|()| image.flush()).is_ok() {
        more += 1;
    }
    println!("{zones} zones beside blocks that wait, and {more} beside none");
}

/// An object in a tree, with what must be the same after it was opened again.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    rdev: u64,
    target: Vec<u8>,
    xattr: Vec<u8>,
    same_as: String,
}

type Tree = BTreeMap<String, Found>;

fn walk(dir: &dyn BranchDir) -> Tree {
    fn step(dir: &dyn BranchDir, above: &str, tree: &mut Tree, inodes: &mut BTreeMap<u64, String>) {
        for name in names(dir) {
            let path = format!("{above}/{name}");
            let name = CString::new(name).unwrap();
            let attr = dir.stat_at(n(&name)).unwrap();
            let mut buf = [0; 5000];
            let target = if attr.kind() == FileKind::Symlink {
                dir.read_link_at(n(&name), &mut buf).map(|len| buf[..len].to_vec()).unwrap()
            } else {
                Vec::new()
            };
            let xattr =
                dir.get_xattr_at(n(&name), c"user.a", &mut buf).map_or(Vec::new(), |len| buf[..len].to_vec());
            let same_as = inodes.entry(attr.ino).or_insert_with(|| path.clone()).clone();
            let owner = (attr.uid, attr.gid);
            let (mode, nlink, rdev) = (attr.mode, attr.nlink, attr.rdev);
            tree.insert(path.clone(), Found { mode, nlink, owner, rdev, target, xattr, same_as });
            if attr.is_dir() {
                step(&*dir.open_dir(n(&name)).unwrap(), &path, tree, inodes);
            }
        }
    }
    let mut tree = Tree::new();
    step(dir, "", &mut tree, &mut BTreeMap::new());
    tree
}

/// Contents of the files that have names, by their number in the model, and the names of these.
fn contents(dir: &dyn BranchDir) -> BTreeMap<u64, (String, Vec<u8>)> {
    fn step(dir: &dyn BranchDir, above: &str, files: &mut BTreeMap<u64, (String, Vec<u8>)>) {
        for name in names(dir) {
            let path = format!("{above}/{name}");
            let name = CString::new(name).unwrap();
            let attr = dir.stat_at(n(&name)).unwrap();
            if attr.is_dir() {
                step(&*dir.open_dir(n(&name)).unwrap(), &path, files);
            } else if attr.is_file() {
                files.entry(attr.ino).or_insert_with(|| (path, get_at(dir, &name)));
            }
        }
    }
    let mut files = BTreeMap::new();
    step(dir, "", &mut files);
    files
}

/// The model at some moment.
struct Moment {
    tree: Tree,
    files: BTreeMap<u64, (String, Vec<u8>)>,
}

/// What was done to the branch, and to the model beside it.
struct Past {
    moments: Vec<Moment>,
    /// The last moment that a sync has made sure, of names and attributes.
    synced: usize,
    /// And of files' contents.
    files_synced: BTreeMap<u64, usize>,
}

const NAMES: [&CStr; 5] = [c"a", c"b", c"c", c"d0", c"d1"];

/// A directory of both, drawn.
fn some_dir(random: &mut Random, dirs: &[Arc<dyn BranchDir>; 2]) -> Option<[Arc<dyn BranchDir>; 2]> {
    let name = match random.below(3) {
        0 => c"d0",
        1 => c"d1",
        _ => return Some(dirs.clone()),
    };
    let found = dirs.each_ref().map(|dir| dir.open_dir(n(name)).ok());
    assert_eq!(found[0].is_some(), found[1].is_some());
    let [Some(one), Some(other)] = found else { return None };
    Some([one, other])
}

/// Does the same to both; the model says whether it is possible. False: the device has no power.
fn step(random: &mut Random, both: &[Arc<dyn BranchDir>; 2], past: &mut Past, branch: &dyn Branch) -> bool {
    let Some(dirs) = some_dir(random, both) else { return true };
    let Some(others) = some_dir(random, both) else { return true };
    let (name, to) = (n(NAMES[random.below(5) as usize]), n(NAMES[random.below(5) as usize]));
    let (seed, offset, len) = (random.draw(), random.below(30_000), random.below(20_000));
    let open = |dir: &Arc<dyn BranchDir>| dir.open_file(name, RW);
    // Names that are free are taken, and what is there is changed.
    let kind = match (random.below(32), dirs[0].stat_at(name)) {
        (24.., Err(_)) => 0,
        (24..=28, Ok(_)) => 6,
        (29.., Ok(_)) => 21,
        (kind, _) => kind,
    };
    let act = |which: usize| -> vellum_vfs::Result<()> {
        let (dir, other) = (&dirs[which], &others[which]);
        let bytes: Vec<u8> = (0..len).map(|at| (seed as u8).wrapping_add((at / 512) as u8)).collect();
        match kind {
            0..=3 => dir.create(name, 0o640).map(drop),
            4 => dir.make_dir(name, 0o755),
            5 => dir.make_symlink(name, c"some/where"),
            6..=9 => open(dir)?.write_at(&bytes, offset).map(drop),
            10 => open(dir)?.truncate(offset),
            11 => open(dir)?.allocate(PUNCH | KEEP, offset, len + 1),
            12 => dir.remove(name),
            13 => dir.remove_dir(name),
            14 => dir.rename(name, &**other, to, RenameFlags::empty()),
            15 => dir.rename(name, &**other, to, RenameFlags::EXCHANGE),
            16 => dir.link(name, &**other, to),
            17 => dir.hold(name)?.set_xattr(c"user.a", &seed.to_le_bytes(), 0),
            18 => dir.set_mode_at(name, 0o600 | (seed as u32 & 0o77)),
            19 => dir.set_owner_at(name, Some(seed as u32 & 0xff), None),
            20 => dir.rename(name, &**other, to, RenameFlags::WHITEOUT),
            21 => open(dir)?.sync(false),
            22 => dir.sync_dir(),
            _ => Ok(()),
        }
    };
    let expected = act(0);
    let done = act(1);
    let synced_file = (kind == 21 && expected.is_ok()).then(|| dirs[0].stat_at(name).unwrap().ino);
    past.moments.push(Moment { tree: walk(&*both[0]), files: contents(&*both[0]) });
    let last = past.moments.len() - 1;
    match (&expected, &done) {
        (Ok(()), Ok(())) => {}
        (Err(a), Err(b)) if a.errno() == b.errno() => return true,
        (_, Err(error)) if matches!(error.errno(), Errno::IO | Errno::ROFS) => return false,
        _ => panic!("kind {kind}: {expected:?} in the model, {done:?} in the store"),
    }
    if let Some(ino) = synced_file {
        (past.synced, _) = (last, past.files_synced.insert(ino, last));
    }
    if kind == 22 {
        past.synced = last;
    }
    if kind == 23 {
        if branch.sync().is_err() {
            return false;
        }
        past.synced = last;
        past.files_synced = past.moments[last].files.keys().map(|ino| (*ino, last)).collect();
    }
    true
}

/// Runs a history that follows from `seed`, until the device loses power at its change number `at`.
fn run(device: &Arc<Emulated>, placement: Placement, seed: u64, steps: usize, at: Option<u64>) -> Past {
    let mut random = Random::new(seed);
    let mut past = Past {
        moments: vec![Moment { tree: Tree::new(), files: BTreeMap::new() }],
        synced: 0,
        files_synced: BTreeMap::new(),
    };
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let model = MemoryBranch::with_options(MemoryOptions { owner, ..MemoryOptions::default() });
    let opened = Store::format(Arc::clone(device) as Arc<dyn ZonedDevice>, placement).and_then(|store| {
        store.tree(owner, vellum_zoned::store::NodeTime::default())?;
        store.sync()?;
        Ok(store)
    });
    let branch = branch_of(opened.unwrap());
    if let Some(at) = at {
        device.inject(Trigger::Change(at), Fault::PowerLoss);
    }
    let both = [model.root(), branch.root()];
    for dir in &both {
        dir.make_dir(n(c"d0"), 0o755).unwrap();
        dir.make_dir(n(c"d1"), 0o700).unwrap();
    }
    past.moments.push(Moment { tree: walk(&*both[0]), files: BTreeMap::new() });
    for number in 0..steps {
        if !step(&mut random, &both, &mut past, &*branch) {
            break;
        }
        if number % 8 == 0 && device.has_power() {
            let [model, held] = both.each_ref().map(|dir| by_path(&**dir));
            assert!(model == held, "seed {seed}, step {number}: the store has something else than the model");
        }
    }
    past
}

fn by_path(dir: &dyn BranchDir) -> (Tree, BTreeMap<String, Vec<u8>>) {
    (walk(dir), contents(dir).into_values().collect())
}

fn found(device: &Arc<Emulated>, past: &Past, what: &str) {
    let store =
        Store::open(Arc::clone(device) as Arc<dyn ZonedDevice>).unwrap_or_else(|e| panic!("{what}: {e}"));
    store.sync().unwrap();
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{what}: {report:?}");
    let branch = branch_of(store);
    let (tree, files) = (walk(&*branch.root()), contents(&*branch.root()));
    let block = branch.tree().store().block_size() as usize;
    let is_one = |moment: &Moment| {
        moment.tree == tree
            && moment.files.iter().all(|(ino, (path, _))| {
                let held = files.values().find(|(known, _)| known == path);
                held.is_some_and(|(_, bytes)| is_old_or_new(past, *ino, bytes, block))
            })
    };
    let at = past.moments[past.synced..].iter().position(is_one);
    if at.is_none() {
        let same: Vec<usize> = (0..past.moments.len()).filter(|at| past.moments[*at].tree == tree).collect();
        panic!(
            "{what}: synced up to {} of {}, the tree is that of {same:?}",
            past.synced,
            past.moments.len()
        );
    }
    // And it can be used.
    put(&*branch.root(), c"after", b"power").sync(false).unwrap();
    assert_eq!(get_at(&*branch.root(), c"after"), b"power");
}

/// Each block is as it was when the file was last synced, or as it has been since.
fn is_old_or_new(past: &Past, ino: u64, bytes: &[u8], block_size: usize) -> bool {
    let since = past.files_synced.get(&ino).copied().unwrap_or(0);
    let versions: Vec<&[u8]> =
        past.moments[since..].iter().filter_map(|moment| Some(&*moment.files.get(&ino)?.1)).collect();
    let most = versions.iter().map(|version| version.len()).max().unwrap_or(0);
    let never_synced = !past.files_synced.contains_key(&ino);
    let least =
        if never_synced { 0 } else { versions.iter().map(|version| version.len()).min().unwrap_or(0) };
    let block_of = |version: &[u8], at: usize, len: usize| {
        let mut block =
            version.get(at.min(version.len())..(at + len).min(version.len())).unwrap_or(&[]).to_vec();
        block.resize(len, 0);
        block
    };
    (least..=most).contains(&bytes.len())
        && bytes.chunks(block_size).enumerate().all(|(number, block)| {
            let at = number * block_size;
            let is_hole = never_synced && block.iter().all(|byte| *byte == 0);
            is_hole || versions.iter().any(|version| block_of(version, at, block.len()) == block)
        })
}

/// The first one also with pointers that are found ahead of what was written.
fn profiles() -> [(Profile, Placement); 4] {
    let groups = Placement { groups: 4, checkpoint_groups: 1, stripe: 2 };
    let small = SMALL_ZONE.scaled(64, 16).with_limits(12, 12);
    [
        (small.clone(), groups),
        (small.running_ahead(), groups),
        (LARGE_ZONE.scaled(48, 48).with_limits(14, 14), Placement::NONE),
        (SMALL_ZONE.with_block_size(512).scaled(64, 128).with_limits(12, 12), Placement::NONE),
    ]
}

fn every_loss(seed: u64, steps: usize, stride: usize) {
    let mut losses = 0;
    for (profile, placement) in profiles() {
        let whole = emulated(profile.clone());
        run(&whole, placement, seed, 0, None);
        let before = whole.changes();
        let whole = emulated(profile.clone());
        run(&whole, placement, seed, steps, None);
        let changes = whole.changes().saturating_sub(before);
        assert!(changes > 20, "{changes} changes");
        for at in (0..changes).step_by(stride) {
            let device = emulated(profile.clone());
            let past = run(&device, placement, seed, steps, Some(at));
            for survival in
                [Survival::Nothing, Survival::Everything, Survival::Drawn(seed + at), Survival::Drawn(at)]
            {
                let after = Arc::new(device.after_power_loss(survival).unwrap());
                found(&after, &past, &format!("{}, seed {seed}, change {at}, {survival:?}", profile.name));
                losses += 1;
            }
        }
    }
    println!("seed {seed}: {losses} losses");
}

/// Names, attributes and contents that were synced are there; everything else is as it was at one moment since, contents by blocks.
#[test]
fn synced_data_survives_power_loss_at_every_change() {
    (0..4).for_each(|seed| every_loss(seed, 80, 1));
}

#[test]
fn synced_data_survives_power_loss_in_a_long_history() {
    (100..104).for_each(|seed| every_loss(seed, 400, 17));
}

/// Threads do what they like, in one directory each, and one that syncs beside them.
#[test]
fn threads_side_by_side() {
    let device = emulated(LARGE_ZONE.scaled(64, 256).with_limits(14, 14));
    let branch =
        branch_of(Store::format(Arc::clone(&device) as Arc<dyn ZonedDevice>, Placement::NONE).unwrap());
    branch.tree().start_flush_thread().unwrap();
    let root = branch.root();
    std::thread::scope(|scope| {
        for thread in 0..3_u8 {
            let root = Arc::clone(&root);
            scope.spawn(move || {
                let name = CString::new(format!("d{thread}")).unwrap();
                let dir = subdir(&*root, &name);
                for round in 0..100_u8 {
                    let file = put(&*dir, c"f", &[round; 20_000]);
                    file.write_at(&[round.wrapping_add(1); 5000], 3000).unwrap();
                    if round % 5 == 0 {
                        file.sync(false).unwrap();
                    }
                    let mut bytes = vec![round; 20_000];
                    bytes[3000..8000].fill(round.wrapping_add(1));
                    assert!(get(&*file) == bytes);
                    dir.rename(n(c"f"), &*dir, n(c"g"), RenameFlags::empty()).unwrap();
                    assert!(get_at(&*dir, c"g") == bytes);
                    if round % 3 == 0 {
                        dir.remove(n(c"g")).unwrap();
                    }
                }
            });
        }
        let tree = Arc::clone(branch.tree());
        scope.spawn(move || {
            for _ in 0..200 {
                tree.sync().unwrap();
                tree.store().collect().unwrap();
            }
        });
    });
    branch.sync().unwrap();
    let before = walk(&*root);
    let report = branch.tree().store().check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop((branch, root));
    let branch = branch_of(Store::open(device as Arc<dyn ZonedDevice>).unwrap());
    assert_eq!(walk(&*branch.root()), before);
    assert_eq!(names(&*branch.root()), ["d0", "d1", "d2"]);
}
