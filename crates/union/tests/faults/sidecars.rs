//! Blocks of files whose own blocks stand in sidecars, when nobody has made them durable.

use crate::common::fault::FaultPlan;
use crate::common::watchdog::Watched;
use crate::common::{NO_HANDLE, ROOT, faulty, name, walk};
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_union::{DURABLE, Union};
use vellum_vfs::{Branch, Errno, Filesystem, NodeId, WriteFlags};

const BLOCK: usize = 4096;
/// Large enough to be copied block by block, and no whole number of blocks.
const SIZE: usize = (256 << 10) + 100;

fn union(disk: &MemoryBranch, plan: &Arc<FaultPlan>, run: Option<[u8; 16]>) -> Union {
    let mut config = faulty(disk, plan);
    config.sidecars = true;
    config.run = run;
    Union::new(config).unwrap()
}

fn node(fs: &Union) -> NodeId {
    walk(fs, "file").unwrap().unwrap().node
}

fn write(fs: &Union, at: usize, data: &[u8]) -> Result<usize, Errno> {
    fs.write(&ROOT, node(fs), NO_HANDLE, at as u64, data, WriteFlags::empty()).map_err(|e| e.errno())
}

fn read(fs: &Union) -> Vec<u8> {
    let mut found = vec![0; SIZE];
    let mut done = 0;
    while done < SIZE {
        let n = fs.read(&ROOT, node(fs), NO_HANDLE, done as u64, &mut found[done..]).unwrap();
        assert!(n > 0, "the file ends at {done}");
        done += n;
    }
    found
}

fn disk() -> (Arc<MemoryBranch>, Vec<u8>) {
    let disk = MemoryBranch::new();
    let base: Vec<u8> = (0..SIZE).map(|at| (at / 7 % 251) as u8 + 1).collect();
    let file = disk.subtree("lower").unwrap().root().create(name(c"file"), 0o644).unwrap();
    file.write_at(&base, 0).unwrap();
    (disk, base)
}

fn same(found: &[u8], expected: &[u8], what: &str) {
    let differs = found.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!(differs, None, "{what}: the first byte that is another");
}

/// What is written in several places.
fn change(fs: &Union, expected: &mut [u8]) {
    for (at, data) in [(5, &b"one"[..]), (3 * BLOCK - 2, b"two"), (9 * BLOCK, &[9; BLOCK]), (SIZE - 2, b"en")]
    {
        assert_eq!(write(fs, at, data), Ok(data.len()));
        expected[at..at + data.len()].copy_from_slice(data);
    }
}

/// The next service finds all that was written, also when a few more have died meanwhile. After a crash of the machine each block is as it
/// was or as it was written.
#[test]
fn a_process_crash_loses_nothing() {
    let _watched = Watched::new("a process dies, with sidecars".into());
    let plan = FaultPlan::new();
    let run = |number: u8| Some([number; 16]);
    let (mut disk, base) = disk();
    let mut expected = base.clone();
    for turn in 0..3_u8 {
        let fs = union(&disk, &plan, run(1));
        same(&read(&fs), &expected, "the next turn");
        change(&fs, &mut expected);
        let at = (20 + usize::from(turn)) * BLOCK;
        assert_eq!(write(&fs, at, &[turn + 1; 10]), Ok(10));
        expected[at..at + 10].fill(turn + 1);
        same(&read(&fs), &expected, "written");
        // As a process that is killed leaves it.
        disk = disk.fork().unwrap();
    }
    for other in [run(2), None] {
        let fs = union(&disk.fork().unwrap(), &plan, other);
        for (at, block) in read(&fs).chunks(BLOCK).enumerate() {
            let of = |whole: &[u8]| whole[at * BLOCK..][..block.len()].to_vec();
            assert!(block == of(&base) || block == of(&expected), "run {other:?}, block {at}");
        }
    }
    // Bits of another run are not taken for those of this one.
    let other = disk.fork().unwrap();
    let fs = union(&other, &plan, run(2));
    assert_eq!(write(&fs, 40 * BLOCK, b"x"), Ok(1));
    let mut now = read(&fs);
    let fs = union(&other.fork().unwrap(), &plan, run(2));
    same(&read(&fs), &now, "another run");
    // What is durable is believed in every run.
    let again = disk.fork().unwrap();
    let fs = union(&again, &plan, run(1));
    fs.fsync(&ROOT, node(&fs), NO_HANDLE, false).unwrap();
    now = expected;
    same(&read(&union(&again.fork().unwrap(), &plan, run(3))), &now, "made durable");
}

/// Where every write is durable before the next one, the next service may run on another machine, and may not know it that way.
#[test]
fn a_layer_that_is_always_durable_moves_between_machines() {
    let _watched = Watched::new("a machine dies, with sidecars".into());
    let plan = FaultPlan::new();
    let (mut disk, base) = disk();
    let mut expected = base;
    for (turn, next) in [Some([1; 16]), None, Some(DURABLE)].into_iter().enumerate() {
        let fs = union(&disk, &plan, Some(DURABLE));
        change(&fs, &mut expected);
        let at = (30 + turn) * BLOCK + 1;
        assert_eq!(write(&fs, at, b"of this turn"), Ok(12));
        expected[at..at + 12].copy_from_slice(b"of this turn");
        disk = disk.fork().unwrap();
        let fs = union(&disk, &plan, next);
        same(&read(&fs), &expected, &format!("run {next:?}"));
        fs.fsync(&ROOT, node(&fs), NO_HANDLE, false).unwrap();
        disk = disk.fork().unwrap();
    }
}

/// Each change of the disk fails once: a write that was answered is found by the next service.
#[test]
fn answered_writes_survive_a_failed_change() {
    let _watched = Watched::new("changes fail, with sidecars".into());
    let run = Some([1; 16]);
    for fails in 0.. {
        let (disk, base) = disk();
        let plan = FaultPlan::new();
        let fs = union(&disk, &plan, run);
        plan.reset();
        plan.fail_change(fails, Errno::IO);
        let mut answered = base.clone();
        let mut maybe = base.clone();
        for (at, byte) in [(10, 1_u8), (5 * BLOCK, 2), (5 * BLOCK + 7, 3), (SIZE - 1, 4)] {
            maybe[at] = byte;
            if write(&fs, at, &[byte]) == Ok(1) {
                answered[at] = byte;
            }
        }
        let changes = plan.changes();
        plan.reset();
        let next = read(&union(&disk.fork().unwrap(), &plan, run));
        for (at, byte) in next.iter().enumerate() {
            assert!(*byte == answered[at] || *byte == maybe[at], "change {fails}, byte {at}: {byte}");
            assert!(answered[at] == base[at] || *byte == answered[at], "change {fails}, byte {at} is lost");
        }
        if changes <= fails {
            break;
        }
    }
}
