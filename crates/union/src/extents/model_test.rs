//! A partial file against an array of bytes: every operation, with the file opened again at any moment, and with the
//! service killed in the middle of any change.

use super::{BlockIndex, Holes, PartialFile, Record, Sidecar};
use crate::fault::{FaultBranch, FaultPlan};
use proptest::prelude::*;
use std::sync::Arc;
use vellum_branch::{MemoryBranch, MemoryOptions};
use vellum_vfs::{Branch, BranchFile, Errno, Name, Object, OpenMode, Result, Seek};

const BLOCK: u64 = 4096;
/// Largest size that is tried.
const MAX: u64 = 40 * BLOCK;
const RECORD: &std::ffi::CStr = c"trusted.vellum.p";
const KEEP: u32 = 1;
const PUNCH: u32 = 2;
const ZERO: u32 = 16;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, usize, u8),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Reserve(u64, u64, bool),
    Copy(u64, u64, u64),
    Read(u64, usize),
    Sync,
    Reopen,
    Fill(u64),
    Finish,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = || prop_oneof![3 => 0..MAX, 2 => (0..MAX / BLOCK).prop_map(|block| block * BLOCK)];
    let len =
        || prop_oneof![3 => 1..3 * BLOCK, 2 => (1..6_u64).prop_map(|blocks| blocks * BLOCK), 1 => 1..20_u64];
    let op = prop_oneof![
        10 => (at(), len(), 1..=255_u8).prop_map(|(at, len, byte)| Op::Write(at, len as usize, byte)),
        3 => at().prop_map(Op::Truncate),
        2 => (at(), len()).prop_map(|(at, len)| Op::Punch(at, len)),
        2 => (at(), len(), any::<bool>()).prop_map(|(at, len, keep)| Op::Zero(at, len, keep)),
        1 => (at(), len(), any::<bool>()).prop_map(|(at, len, keep)| Op::Reserve(at, len, keep)),
        1 => (at(), at(), len()).prop_map(|(from, to, len)| Op::Copy(from, to, len)),
        4 => (at(), len()).prop_map(|(at, len)| Op::Read(at, len as usize)),
        1 => Just(Op::Sync),
        2 => Just(Op::Reopen),
        1 => at().prop_map(Op::Fill),
        1 => Just(Op::Finish),
    ];
    proptest::collection::vec(op, 1..40)
}

/// What lies below: sizes that end within a block or not, with holes or without.
fn base() -> impl Strategy<Value = (u64, Vec<u64>)> {
    let size = prop_oneof![1..MAX / 2, (1..MAX / 2 / BLOCK).prop_map(|blocks| blocks * BLOCK)];
    (size, proptest::collection::vec(0..MAX / BLOCK, 0..6))
}

struct World {
    disk: Arc<MemoryBranch>,
    /// `disk`, with faults.
    faulty: Arc<dyn Branch>,
    sidecar: bool,
    /// What it was copied from, apart from what is written.
    base: Vec<u8>,
}

fn named(level: usize) -> std::ffi::CString {
    std::ffi::CString::new(format!("level{level}")).expect("a name")
}

impl World {
    /// `depth` levels of partial files above a whole one; the last one is written to.
    fn new((size, holes): &(u64, Vec<u64>), depth: usize, sidecar: bool, plan: &Arc<FaultPlan>) -> Self {
        let disk = MemoryBranch::with_options(MemoryOptions { page_cache: true, ..MemoryOptions::default() });
        let faulty: Arc<dyn Branch> =
            FaultBranch::new(Arc::clone(&disk) as Arc<dyn Branch>, Arc::clone(plan));
        let mut base: Vec<u8> = (0..*size).map(|at| (at / 7 % 251) as u8 + 1).collect();
        let root = disk.root();
        let file = root.create(Name::new(&named(0)).unwrap(), 0o600).unwrap();
        file.write_at(&base, 0).unwrap();
        for hole in holes {
            file.allocate(PUNCH | KEEP, hole * BLOCK, BLOCK).unwrap();
            let end = ((hole + 1) * BLOCK).min(*size);
            base.get_mut((hole * BLOCK) as usize..end as usize).unwrap_or_default().fill(0);
        }
        for level in 1..=depth {
            let file = root.create(Name::new(&named(level)).unwrap(), 0o600).unwrap();
            file.truncate(*size).unwrap();
            let record = Record {
                shift: 12,
                limit: *size,
                origin_size: *size,
                sidecar: sidecar.then_some(level as u64),
                origin: None,
            };
            file.set_xattr(RECORD, &record.encode(), 0).unwrap();
            let map = std::ffi::CString::new(format!("map{level}")).unwrap();
            drop(root.create(Name::new(&map).unwrap(), 0o600).unwrap());
        }
        let world = Self { disk, faulty, sidecar, base };
        // Something of their own in the middle of the chain.
        for level in 1..depth {
            let file = world.open(&*world.disk, level).unwrap();
            let at = (level as u64 * 3 * BLOCK + 100).min(size - 1);
            file.write_at(&[level as u8], at).unwrap();
            file.sync(true).unwrap();
        }
        let mut world = world;
        for level in 1..depth {
            let at = (level as u64 * 3 * BLOCK + 100).min(size - 1) as usize;
            if let Some(byte) = world.base.get_mut(at) {
                *byte = level as u8;
            }
        }
        world
    }

    fn open(&self, branch: &dyn Branch, top: usize) -> Result<Arc<PartialFile>> {
        let root = branch.root();
        let mode = OpenMode::READ | OpenMode::WRITE;
        let mut below = root.open_file(Name::new(&named(0))?, OpenMode::READ)?;
        let mut last = None;
        for level in 1..=top {
            let upper = root.open_file(Name::new(&named(level))?, mode)?;
            let index: Box<dyn BlockIndex> = if self.sidecar {
                let map = std::ffi::CString::new(format!("map{level}")).expect("a name");
                Box::new(Sidecar::new(root.open_file(Name::new(&map)?, mode)?, None, None))
            } else {
                Box::new(Holes)
            };
            let record = match Record::read(&*upper as &dyn Object, RECORD) {
                Ok(record) => record,
                // Finished: it is whole.
                Err(_) => Record {
                    shift: 12,
                    limit: 0,
                    origin_size: below.stat()?.size,
                    sidecar: None,
                    origin: None,
                },
            };
            let file = Arc::new(PartialFile::new(upper, below, index, record, RECORD)?);
            below = Arc::clone(&file) as Arc<dyn BranchFile>;
            last = Some(file);
        }
        last.ok_or(Errno::INVAL.into())
    }
}

/// Carries an operation out on an array.
fn apply(model: &mut Vec<u8>, op: &Op) {
    let grow = |model: &mut Vec<u8>, end: u64| {
        if end as usize > model.len() {
            model.resize(end as usize, 0);
        }
    };
    match *op {
        Op::Write(at, len, byte) => {
            grow(model, at + len as u64);
            model[at as usize..at as usize + len].fill(byte);
        }
        Op::Truncate(size) => model.resize(size as usize, 0),
        Op::Punch(at, len) | Op::Zero(at, len, _) => {
            if matches!(op, Op::Zero(_, _, false)) {
                grow(model, at + len);
            }
            let end = ((at + len) as usize).min(model.len());
            if (at as usize) < end {
                model[at as usize..end].fill(0);
            }
        }
        Op::Reserve(at, len, false) => grow(model, at + len),
        Op::Copy(from, to, len) => {
            let end = ((from + len) as usize).min(model.len());
            let bytes = model.get(from as usize..end).unwrap_or_default().to_vec();
            if !bytes.is_empty() {
                grow(model, to + bytes.len() as u64);
                model[to as usize..to as usize + bytes.len()].copy_from_slice(&bytes);
            }
        }
        _ => {}
    }
}

/// Does it on the file; None: the file must be opened again.
fn act(file: &Arc<PartialFile>, op: &Op) -> Result<bool> {
    match *op {
        Op::Write(at, len, byte) => {
            let n = file.write_at(&vec![byte; len], at)?;
            if n < len {
                return Err(Errno::NOSPC.into());
            }
        }
        Op::Truncate(size) => file.truncate(size)?,
        Op::Punch(at, len) => file.allocate(PUNCH | KEEP, at, len)?,
        Op::Zero(at, len, keep) => file.allocate(ZERO | if keep { KEEP } else { 0 }, at, len)?,
        Op::Reserve(at, len, keep) => file.allocate(if keep { KEEP } else { 0 }, at, len)?,
        Op::Copy(from, to, len) => {
            file.copy_range(to, &**file, from, len)?;
        }
        Op::Sync => file.sync(true)?,
        Op::Fill(from) => {
            file.fill(from)?;
        }
        Op::Finish => {
            file.finish(true, |object| match object.remove_xattr(RECORD) {
                Err(e) if e.errno() != Errno::NODATA => Err(e),
                _ => Ok(()),
            })?;
        }
        Op::Reopen => return Ok(true),
        Op::Read(..) => {}
    }
    Ok(false)
}

fn whole(file: &PartialFile) -> Vec<u8> {
    let size = file.stat().unwrap().size;
    let mut bytes = vec![0xee; size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Where the file says that it has holes, it has zeros; and data and holes take turns to the end.
fn holes_are_zeros(file: &PartialFile, model: &[u8]) {
    let size = model.len() as u64;
    let mut at = 0;
    while at < size {
        let data = match file.seek(at, Seek::Data) {
            Ok(data) => data,
            Err(e) => {
                assert_eq!(e.errno(), Errno::NXIO);
                size
            }
        };
        assert!(data >= at);
        assert!(model[at as usize..data as usize].iter().all(|byte| *byte == 0), "data in a hole at {at}");
        if data >= size {
            break;
        }
        let hole = file.seek(data, Seek::Hole).unwrap();
        assert!(hole > data && hole <= size, "hole {hole} after data {data} of {size}");
        at = hole;
    }
    assert_eq!(file.seek(size, Seek::Data).unwrap_err().errno(), Errno::NXIO);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(10_000), ..ProptestConfig::default() })]
    #[test]
    fn a_partial_file_is_an_array_of_bytes(base in base(), depth in 1..4_usize, sidecar: bool, ops in ops()) {
        let world = World::new(&base, depth, sidecar, &FaultPlan::new());
        let mut file = world.open(&*world.disk, depth).unwrap();
        let mut model = world.base.clone();
        for op in &ops {
            if act(&file, op).unwrap() {
                drop(file);
                file = world.open(&*world.disk, depth).unwrap();
            }
            apply(&mut model, op);
            if let Op::Read(at, len) = *op {
                let mut bytes = vec![0xee; len];
                let n = file.read_at(&mut bytes, at).unwrap();
                let end = (at as usize + len).min(model.len());
                prop_assert_eq!(&bytes[..n], model.get(at as usize..end).unwrap_or_default());
            }
            prop_assert_eq!(file.stat().unwrap().size, model.len() as u64, "size after {:?}", op);
        }
        prop_assert!(whole(&file) == model, "contents differ after {:?}", ops);
        holes_are_zeros(&file, &model);
        drop(file);
        prop_assert!(whole(&world.open(&*world.disk, depth).unwrap()) == model, "contents differ when opened again");
    }

    /// The service dies in the middle of a change; what was synced is there, and every byte is one that it has had since.
    #[test]
    fn a_crash_leaves_old_or_new_bytes(
        base in base(), depth in 1..3_usize, sidecar: bool, torn: bool, ops in ops(), kill in 1..60_u64, later in ops(),
    ) {
        let plan = FaultPlan::new();
        let world = World::new(&base, depth, sidecar, &plan);
        let mut file = world.open(&*world.faulty, depth).unwrap();
        let mut model = world.base.clone();
        // States since the last sync: what a byte may be is what it was in one of them.
        let mut states = vec![model.clone()];
        plan.set_torn(torn);
        plan.kill_at_change(kill);
        for op in &ops {
            // What is not noted when a service is killed is noted when it ends by itself.
            if matches!(op, Op::Reopen) && sidecar {
                continue;
            }
            let result = act(&file, op);
            apply(&mut model, op);
            states.push(model.clone());
            if plan.is_dead() {
                break;
            }
            match result {
                Ok(true) => match world.open(&*world.faulty, depth) {
                    Ok(new) => file = new,
                    Err(_) => break,
                },
                Ok(false) => {}
                Err(error) => return Err(TestCaseError::fail(format!("{op:?}: {error}"))),
            }
            if matches!(op, Op::Sync) || matches!(op, Op::Finish) && !sidecar {
                states = vec![model.clone()];
            }
        }
        let after = world.disk.fork().unwrap();
        drop(file);
        let bytes = whole(&world.open(&*after, depth).unwrap());
        for (at, byte) in bytes.iter().enumerate() {
            // A byte that a shorter state did not have was zero in effect.
            let possible = states.iter().any(|state| state.get(at).copied().unwrap_or(0) == *byte);
            prop_assert!(possible, "byte {} is {} after a crash in {:?}", at, byte, ops);
        }
        let sizes: Vec<usize> = states.iter().map(Vec::len).collect();
        prop_assert!(
            sizes.iter().any(|size| *size <= bytes.len()) && sizes.iter().any(|size| *size >= bytes.len()),
            "size {} is none of {:?}", bytes.len(), sizes
        );
        goes_on(&World { disk: after, ..world }, depth, bytes, &later)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(10_000), ..ProptestConfig::default() })]
    /// The machine loses its power: what was synced is there, and every byte is one that it has had since.
    #[test]
    fn a_loss_of_power_leaves_old_or_new_bytes(
        base in base(), depth in 1..3_usize, sidecar: bool, ops in ops(), later in ops(), seed: u64,
    ) {
        let world = World::new(&base, depth, sidecar, &FaultPlan::new());
        world.disk.record();
        let mut file = world.open(&*world.disk, depth).unwrap();
        let mut model = world.base.clone();
        let mut states = vec![model.clone()];
        let mut choices = fastrand::Rng::with_seed(seed);
        let end = choices.usize(..ops.len().max(1)) + 1;
        let (mut begun, mut synced) = (0, false);
        for op in ops.iter().take(end) {
            if synced {
                states.drain(..states.len() - 1);
            }
            begun = world.disk.moment();
            let again = act(&file, op).unwrap();
            apply(&mut model, op);
            states.push(model.clone());
            if again {
                drop(file);
                file = world.open(&*world.disk, depth).unwrap();
            }
            // It is lost within the last operation, so that what went before that counts.
            synced = matches!(op, Op::Sync);
        }
        for _ in 0..8 {
            let after = world.disk.after_power_loss(begun, &mut |n| choices.usize(..n)).unwrap();
            let bytes = whole(&world.open(&*after, depth).unwrap());
            for (at, byte) in bytes.iter().enumerate() {
                let possible = states.iter().any(|state| state.get(at).copied().unwrap_or(0) == *byte);
                prop_assert!(possible, "byte {} is {} without power after {:?}", at, byte, ops);
            }
            let sizes: Vec<usize> = states.iter().map(Vec::len).collect();
            prop_assert!(
                sizes.iter().any(|size| *size <= bytes.len()) && sizes.iter().any(|size| *size >= bytes.len()),
                "size {} is none of {:?}", bytes.len(), sizes
            );
            let left = World { disk: after, faulty: Arc::clone(&world.faulty), sidecar, base: Vec::new() };
            goes_on(&left, depth, bytes, &later)?;
        }
    }
}

/// From what a crash has left, a file goes on like any other.
fn goes_on(
    world: &World,
    depth: usize,
    mut model: Vec<u8>,
    ops: &[Op],
) -> std::result::Result<(), TestCaseError> {
    let mut file = world.open(&*world.disk, depth).unwrap();
    for op in ops {
        if act(&file, op).unwrap() {
            drop(file);
            file = world.open(&*world.disk, depth).unwrap();
        }
        apply(&mut model, op);
        prop_assert!(whole(&file) == model, "after a crash, contents differ after {:?} of {:?}", op, ops);
    }
    drop(file);
    prop_assert!(whole(&world.open(&*world.disk, depth).unwrap()) == model, "after a crash, opened again");
    Ok(())
}

/// VELLUM_TEST_CASES, for a longer run by hand.
fn cases(usual: u32) -> u32 {
    std::env::var("VELLUM_TEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn one_byte_copies_one_block() {
    let world = World::new(&(30 * BLOCK, vec![]), 1, false, &FaultPlan::new());
    let file = world.open(&*world.disk, 1).unwrap();
    assert_eq!(file.own_bytes().unwrap(), 0);
    file.write_at(b"x", 5 * BLOCK + 7).unwrap();
    assert_eq!(file.own_bytes().unwrap(), BLOCK);
    assert_eq!(file.stat().unwrap().blocks, BLOCK / 512);
    assert!(!file.is_complete());
}

#[test]
fn a_changed_origin_is_detected() {
    let world = World::new(&(30 * BLOCK, vec![]), 1, false, &FaultPlan::new());
    let root = world.disk.root();
    root.open_file(Name::new(&named(0)).unwrap(), OpenMode::WRITE).unwrap().truncate(29 * BLOCK).unwrap();
    assert_eq!(world.open(&*world.disk, 1).err().map(|e| e.errno()), Some(Errno::IO));
}

/// Writers of one block lose nothing of each other, whatever they do at the same time.
#[test]
fn writers_of_one_block_do_not_undo_each_other() {
    const WRITERS: usize = 8;
    for round in 0..50 {
        let world = World::new(&(30 * BLOCK, vec![]), 1, round % 2 == 1, &FaultPlan::new());
        let file = world.open(&*world.disk, 1).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let file = &file;
                scope.spawn(move || {
                    for block in 0..30 {
                        let at = block * BLOCK + (writer * 16) as u64;
                        file.write_at(&[writer as u8 + 100; 16], at).unwrap();
                    }
                });
            }
        });
        let mut model = world.base.clone();
        for block in 0..30 {
            for writer in 0..WRITERS {
                let at = block * BLOCK as usize + writer * 16;
                model[at..at + 16].fill(writer as u8 + 100);
            }
        }
        assert!(whole(&file) == model, "round {round}");
        assert!(file.is_complete());
    }
}
