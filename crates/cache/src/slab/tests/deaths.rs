//! A death at every step leaves only blocks that are whole, and between two operations all of them. That is so while a successor goes on,
//! too.

use super::*;
use crate::shares::Container;
use crate::store::FileLoan;
use std::cell::RefCell;
use std::rc::Rc;
use vellum_sys::crash_point::at_each;

const BLOCKS_OF_FILE: u64 = 3;
const FILES: u64 = 9;

/// In a process of its own, for what is looked at is all memory files that are open.
#[test]
fn a_crash_at_any_step_leaves_only_complete_files() {
    let tests = ["a_store", "a_successor"].map(|name| format!("slab::tests::deaths::{name}"));
    for test in tests {
        let this = std::env::current_exe().unwrap();
        let mut command = std::process::Command::new(this);
        let output = command.args(["--exact", &test, "--ignored", "--nocapture"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let ran = said.contains("1 passed");
        assert!(output.status.success() && ran, "{test}: {said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Copies of all memory files that this process has open.
fn all_open() -> PredecessorFds {
    let (mut tables, mut files) = (vec![], vec![]);
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let Ok(link) = std::fs::read_link(&path) else { continue };
        let is = |name: &CStr| link.to_str() == Some(&format!("/memfd:{} (deleted)", name.to_str().unwrap()));
        let open = || File::open(&path).unwrap();
        if is(SlabMemory::RECORDS) {
            tables.push(copy(open(), SlabMemory::RECORDS));
        } else if is(SlabMemory::FILES) {
            let number = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            files.push((number, copy(open(), SlabMemory::FILES)));
        }
    }
    left(tables, files)
}

fn says(version: Version, block: u64) -> Option<Vec<u8>> {
    Some(content(version, block))
}

/// A cache that is used at random.
struct Used {
    store: Store<SharedMemory<SlabMemory>>,
    member: Container,
    versions: [u64; FILES as usize],
    lent: Vec<FileLoan>,
    loans: usize,
    /// xorshift.
    random: u64,
}

impl Used {
    fn new(seed: u64) -> Self {
        let config = Config { capacity: 10 * BLOCK_BYTES, files: 4, policy: S3Fifo::queue };
        let mut store = Store::new(config, SharedMemory(Arc::new(SlabMemory::resumable().unwrap())));
        let member = store.join(1).unwrap();
        Self { store, member, versions: [1; FILES as usize], lent: vec![], loans: 0, random: seed }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    /// Small ones, those of three blocks, and one whose bits do not fit into its record.
    fn version(&self, inode: u64) -> Version {
        let size = match inode {
            0 => 600 * BLOCK_BYTES,
            1..=4 => inode * 15_000,
            _ => (BLOCKS_OF_FILE - 1) * BLOCK_BYTES + inode * 1000,
        };
        file(inode, self.versions[inode as usize], size)
    }

    fn go(&mut self) {
        let inode = self.below(FILES);
        let version = self.version(inode);
        match self.below(20) {
            0 => self.store.invalidate(version.key.object),
            1 => self.versions[inode as usize] += 1,
            2..=5 => {
                let lent = self.store.lend(version.key, self.member).unwrap();
                self.loans += usize::from(lent.is_some());
                self.lent.extend(lent);
            }
            6..=8 if !self.lent.is_empty() => {
                let at = self.below(self.lent.len() as u64) as usize;
                self.store.return_loan(self.lent.swap_remove(at));
            }
            9 => drop(self.store.limit(self.random % (10 * BLOCK_BYTES), usize::MAX)),
            10 => drop(self.store.limit(u64::MAX, 0)),
            _ => {
                let block = self.below(version.blocks().min(BLOCKS_OF_FILE + 1));
                let block = if inode == 0 { block * 190 } else { block };
                let fill = self.store.begin(version, BlockIndex(block)).unwrap();
                self.store.insert(fill, self.member, &content(version, block)).unwrap();
            }
        }
    }

    /// Blocks that can be found.
    fn blocks(&self) -> usize {
        let of = |inode: u64| {
            let is_there = |(version, block)| {
                let key = Key { version, ..self.version(inode).key };
                self.store.contains(key, BlockIndex(block))
            };
            let versions = 1..=self.versions[inode as usize];
            versions
                .flat_map(|version| (0..600).map(move |block| (version, block)))
                .filter(|at| is_there(*at))
                .count()
        };
        (0..FILES).map(of).sum()
    }
}

#[test]
#[ignore = "looks at all that is open: run by another test"]
fn a_store() {
    let look = || {
        let left = all_open();
        // The last of the sheets goes after the records.
        let claimed = left.records.first().map_or(0, claimed);
        // Nor is anything told of that would be missed only then.
        assert_eq!(recover(left, LIMITS, says), claimed as usize);
    };
    let mut points = 0;
    for seed in [7, 20_261_124, 3, 31] {
        let mut used = Used::new(seed);
        for _ in 0..150 {
            points += at_each(look, || used.go()).1;
            used.store.audit();
            assert_eq!(recover(all_open(), LIMITS, says), used.blocks());
        }
        assert!(used.loans > 3, "{} loans", used.loans);
        points += at_each(look, || drop(used)).1;
    }
    assert!(points > 2000, "{points} steps");
}

#[test]
#[ignore = "looks at all that is open: run by another test"]
fn a_successor() {
    let mut used = Used::new(99);
    (0..120).for_each(|_| used.go());
    let blocks = used.blocks();
    let first = all_open();
    drop(used);
    let found = Rc::new(RefCell::new(vec![]));
    let look = {
        let found = Rc::clone(&found);
        move || found.borrow_mut().push(recover(all_open(), LIMITS, says))
    };
    let (adopted, points) = at_each(look, || SlabMemory::adopt(first, LIMITS));
    let (memory, last) = adopted.unwrap();
    // At whatever step of it one dies: the next one finds all of it.
    let found = found.borrow();
    assert!(
        points > 100 && found.len() == points && found.iter().all(|found| *found == blocks),
        "{blocks}: {found:?}"
    );
    assert_eq!(last.iter().map(|found| found.blocks.len()).sum::<usize>(), blocks);
    drop((memory, last));
}
