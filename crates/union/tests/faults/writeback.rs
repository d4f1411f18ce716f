//! Blocks of files in an upper layer that is written behind, on a storage that loses with the service what was not synced.

use crate::common::watchdog::Watched;
use crate::common::{NO_HANDLE, ROOT, name, walk};
use std::sync::Arc;
use std::time::Duration;
use vellum_branch::{MemoryBranch, ReplayOutcome, Writeback, WritebackLimits};
use vellum_union::{DURABLE, Union, UnionConfig, UpperConfig};
use vellum_vfs::{Branch, Filesystem, WriteFlags};

const BLOCK: usize = 4096;
/// Large enough to be copied block by block, and no whole number of blocks.
const SIZE: usize = (256 << 10) + 100;
const LIMITS: WritebackLimits =
    WritebackLimits { bytes: WritebackLimits::BYTES_MIN, age: Duration::from_secs(3600) };

/// A disk with a lower file, from which everything is kept.
fn disk() -> (Arc<MemoryBranch>, Vec<u8>) {
    let disk = MemoryBranch::new();
    let base: Vec<u8> = (0..SIZE).map(|at| (at / 7 % 251) as u8 + 1).collect();
    for layer in ["upper", "work", "lower"] {
        disk.subtree(layer).unwrap();
    }
    let file = disk.subtree("lower").unwrap().root().create(name(c"file"), 0o644).unwrap();
    file.write_at(&base, 0).unwrap();
    disk.record();
    (disk, base)
}

/// A union as a service makes it. `run`: what bits of blocks name that are not durable; None: that of the log.
fn union(disk: &MemoryBranch, writeback: &Arc<Writeback>, run: Option<[u8; 16]>) -> Union {
    let (branch, work) = writeback.branches();
    let mut config = UnionConfig::new();
    config.upper = Some(UpperConfig { branch, work });
    config.lowers = vec![disk.subtree("lower").unwrap()];
    config.background = false;
    config.sidecars = true;
    config.run = Some(run.unwrap_or_else(|| writeback.run()));
    Union::new(config).unwrap()
}

fn layers(disk: &MemoryBranch) -> (Arc<dyn Branch>, Arc<dyn Branch>) {
    (disk.subtree("upper").unwrap(), disk.subtree("work").unwrap())
}

fn new(disk: &MemoryBranch) -> Arc<Writeback> {
    let (upper, work) = layers(disk);
    Writeback::create(upper, work, LIMITS).unwrap()
}

fn write(fs: &Union, at: usize, data: &[u8]) {
    let node = walk(fs, "file").unwrap().unwrap().node;
    assert_eq!(fs.write(&ROOT, node, NO_HANDLE, at as u64, data, WriteFlags::empty()), Ok(data.len()));
}

fn sync(fs: &Union) {
    let node = walk(fs, "file").unwrap().unwrap().node;
    fs.fsync(&ROOT, node, NO_HANDLE, true).unwrap();
}

fn read(fs: &Union) -> Vec<u8> {
    let node = walk(fs, "file").unwrap().unwrap().node;
    let mut found = vec![0; SIZE];
    let mut done = 0;
    while done < SIZE {
        let n = fs.read(&ROOT, node, NO_HANDLE, done as u64, &mut found[done..]).unwrap();
        assert!(n > 0, "the file ends at {done}");
        done += n;
    }
    found
}

/// One service after the other dies in the middle of writes. With its log nothing that was answered is lost; without it each block is as it was
/// synced, or as some write has left it since, and never one that nobody wrote.
fn deaths(run: Option<[u8; 16]>) -> Result<(), String> {
    for seed in 0..60 {
        let mut choices = fastrand::Rng::with_seed(seed);
        let (mut disk, base) = disk();
        let mut writeback = new(&disk);
        let mut expected = base.clone();
        let mut synced = base.clone();
        let mut blocks: Vec<Vec<Vec<u8>>> = base.chunks(BLOCK).map(|block| vec![block.to_vec()]).collect();
        for turn in 0..4 {
            let fs = union(&disk, &writeback, run);
            for _ in 0..choices.usize(..12) {
                let at = choices.usize(..SIZE);
                let data = vec![choices.usize(..255) as u8 + 1; (1 + choices.usize(..9000)).min(SIZE - at)];
                write(&fs, at, &data);
                expected[at..at + data.len()].copy_from_slice(&data);
                for (block, seen) in expected.chunks(BLOCK).zip(&mut blocks) {
                    if seen.last().is_none_or(|last| last != block) {
                        seen.push(block.to_vec());
                    }
                }
            }
            if choices.usize(..3) == 0 {
                sync(&fs);
                synced.clone_from(&expected);
                blocks = expected.chunks(BLOCK).map(|block| vec![block.to_vec()]).collect();
            }
            if choices.usize(..3) == 0 {
                // Some is written meanwhile.
                writeback.write_all();
            }
            let left = disk.after_client_loss(&mut |n| choices.usize(..n)).unwrap();
            // The host dies, log and all.
            let (alone, other) = (left.fork().unwrap(), [0xee; 16]);
            let found = read(&union(&alone, &new(&alone), Some(run.unwrap_or(other))));
            for (number, (block, seen)) in found.chunks(BLOCK).zip(&blocks).enumerate() {
                if !seen.iter().any(|seen| seen == block) {
                    return Err(format!("seed {seed}, turn {turn}: block {number} is none that was written"));
                }
            }
            // The service dies.
            let memory = writeback.memory().try_clone_to_owned().unwrap();
            std::mem::forget((fs, Arc::clone(&writeback)));
            let (upper, work) = layers(&left);
            left.record();
            let (next, replayed) = Writeback::resume(upper, work, LIMITS, memory).unwrap();
            assert_eq!(
                replayed,
                ReplayOutcome { changes: replayed.changes, gone: replayed.gone, ..ReplayOutcome::default() }
            );
            let found = read(&union(&left, &next, run));
            let differs = found.iter().zip(&expected).position(|(one, other)| one != other);
            if let Some(at) = differs {
                return Err(format!("seed {seed}, turn {turn}: byte {at} is lost"));
            }
            (disk, writeback) = (left, next);
        }
    }
    Ok(())
}

#[test]
fn blocks_are_claimed_with_their_log_only() {
    let _watched = Watched::new("services die that write behind".into());
    deaths(None).unwrap();
    // Bits that were good in any run would say of blocks that they are there.
    let why = deaths(Some(DURABLE)).unwrap_err();
    assert!(why.contains("none that was written"), "{why}");
}
