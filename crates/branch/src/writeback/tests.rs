//! What a death at any moment leaves, what a hostile log does, and what is told of failures; over a disk that keeps changes of files until
//! they are synced.

use super::limits::RING_MIN;
use super::*;
use crate::MemoryBranch;
use crate::fault::{FaultBranch, FaultPlan};
use fastrand::Rng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use vellum_sys::crash_point::{at_each, copy};
use vellum_sys::{MemoryKind, PersistentMemory};
use vellum_vfs::{Name, RenameFlags};

const LIMITS: WritebackLimits = WritebackLimits { bytes: RING_MIN, age: Duration::from_secs(3600) };

fn pair(disk: &MemoryBranch) -> (Arc<dyn Branch>, Arc<dyn Branch>) {
    (disk.subtree("upper").unwrap(), disk.subtree("work").unwrap())
}

/// A disk with an upper layer and a work directory, of which everything is kept.
fn disk() -> Arc<MemoryBranch> {
    let disk = MemoryBranch::new();
    drop(pair(&disk));
    disk.record();
    disk
}

/// A file as it is found: contents, mode, owner, group, and two attributes.
type FileSnapshot = (Vec<u8>, u32, u32, u32, Vec<u8>);

fn see(branch: &dyn Branch) -> BTreeMap<Vec<u8>, FileSnapshot> {
    let root = branch.root();
    let mut names: Vec<CString> = Vec::new();
    root.list(&mut |item| {
        names.push(item.name.as_c_str().to_owned());
        Ok(())
    })
    .unwrap();
    let look = |name: &CString| {
        let file = root.open_file(Name::new(name).unwrap(), OpenMode::READ).unwrap();
        let attr = file.stat().unwrap();
        let mut data = vec![0; usize::try_from(attr.size).unwrap()];
        let len = file.read_at(&mut data, 0).unwrap();
        assert_eq!(len, data.len());
        let mut value = vec![0; 8];
        let len = file.get_xattr(c"user.a", &mut value).unwrap_or(0);
        value.truncate(len);
        let mut list = vec![0; 64];
        let len = file.get_xattr(ACCESS_ACL, &mut list).unwrap_or(0);
        value.extend(list.iter().take(len));
        (name.to_bytes().to_vec(), (data, attr.mode & 0o7777, attr.uid, attr.gid, value))
    };
    names.iter().map(look).collect()
}

/// The log's memory as a successor finds it.
fn copied(log: &Log) -> OwnedFd {
    copy(log.memory(), c"copy").unwrap()
}

/// What a successor serves, of a disk that was left and a log.
fn after(left: &MemoryBranch, memory: OwnedFd) -> BTreeMap<Vec<u8>, FileSnapshot> {
    let (upper, work) = pair(left);
    let (writeback, replayed) = Writeback::resume(Arc::clone(&upper), work, LIMITS, memory).unwrap();
    assert_eq!((replayed.failed, replayed.unread), (0, 0));
    assert_eq!(writeback.bytes().0, 0);
    let seen = see(&*upper);
    // Nothing of it depends on the log any more.
    drop(writeback);
    seen
}

fn name(number: usize) -> CString {
    CString::new(format!("f{number}")).unwrap()
}

const FILES: usize = 4;

/// A list that says something beyond a mode: user 5 may do some of it.
fn acl(perm: usize) -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    };
    let (perm, none) = (u16::try_from(perm).unwrap(), u32::MAX);
    let entries =
        [entry(1, 6, none), entry(2, perm, 5), entry(4, 4, none), entry(16, perm, none), entry(32, 0, none)];
    [vec![2, 0, 0, 0], entries.concat()].concat()
}

/// One thing that a program does. Whether it was done does not matter.
fn act(
    upper: &Arc<dyn Branch>,
    writeback: &Writeback,
    open: &mut BTreeMap<CString, Arc<dyn BranchFile>>,
    chance: &mut Rng,
) {
    let root = upper.root();
    let one = name(chance.usize(..FILES));
    let at = Name::new(&one).unwrap();
    let file = open.get(&one).cloned().or_else(|| root.open_file(at, OpenMode::READ | OpenMode::WRITE).ok());
    match (chance.usize(..20), file) {
        (0..=1, _) => drop(root.create(at, 0o640).map(|file| open.insert(one, file))),
        (2..=8, Some(file)) => {
            let data: Vec<u8> =
                (0..1 + chance.usize(..6000)).map(|_| chance.usize(..255) as u8 + 1).collect();
            let offset = chance.usize(..9000) as u64;
            assert_eq!(file.write_at(&data, offset).unwrap(), data.len());
        }
        (9..=10, Some(file)) => file.truncate(chance.usize(..9000) as u64).unwrap(),
        (11, Some(_)) => root.set_mode_at(at, 0o600 + chance.usize(..64) as u32).unwrap_or_default(),
        (12, Some(file)) => file.set_owner(Some(chance.usize(..9) as u32), None).unwrap(),
        (13, Some(file)) => file.sync(true).unwrap(),
        (14, Some(file)) => file.set_xattr(c"user.a", &[chance.usize(..255) as u8], 0).unwrap(),
        (15, Some(file)) if chance.usize(..2) == 0 => {
            file.set_xattr(ACCESS_ACL, &acl(chance.usize(..8)), 0).unwrap()
        }
        (15, _) => {
            open.remove(&one);
            drop(root.remove(at));
        }
        (16, _) => {
            let two = name(chance.usize(..FILES));
            if root.rename(at, &*root, Name::new(&two).unwrap(), RenameFlags::empty()).is_ok() && one != two {
                open.remove(&two);
                let moved = open.remove(&one);
                open.extend(moved.map(|file| (two, file)));
            }
        }
        (17, _) => drop(root.link(at, &*root, Name::new(&name(chance.usize(..FILES))).unwrap())),
        (18, _) => writeback.write_due(Instant::now() + Duration::from_secs(chance.usize(..2) as u64 * 7200)),
        (19, Some(_)) => drop(root.open_file(at, OpenMode::WRITE | OpenMode::TRUNCATE)),
        (_, _) => {}
    }
}

/// Whatever the moment, what is served afterwards is what was there before an operation, or what is there after it.
#[test]
fn a_crash_at_any_moment_loses_no_answered_write() {
    let (mut moments, mut points, mut wrapped, mut late) = (0, 0, 0, 0);
    for seed in 0..12 {
        let mut chance = Rng::with_seed(seed);
        let disk = disk();
        let (upper, work) = pair(&disk);
        let writeback = Writeback::create(Arc::clone(&upper), work, LIMITS).unwrap();
        let (tree, _) = writeback.branches();
        let mut open = BTreeMap::new();
        for turn in 0..60 {
            let before = see(&*upper);
            let seen = Rc::new(RefCell::new(Vec::new()));
            let look = {
                let (disk, writeback, seen) =
                    (Arc::clone(&disk), Arc::downgrade(&writeback), Rc::clone(&seen));
                let mut chance = Rng::with_seed(seed * 1000 + turn);
                move || {
                    let Some(writeback) = writeback.upgrade() else { return };
                    let left = disk.after_client_loss(&mut |n| chance.usize(..n)).unwrap();
                    seen.borrow_mut()
                        .push((see(&*left.subtree("upper").unwrap()), after(&left, copied(&writeback.log))));
                }
            };
            points += at_each(look, || act(&tree, &writeback, &mut open, &mut chance)).1;
            let now = see(&*upper);
            for (bare, served) in seen.borrow().iter() {
                moments += 1;
                late += usize::from(bare != served);
                // A write of more than a record is some, and so is one that has changed something past the log.
                let is_part = || {
                    served.keys().eq(now.keys())
                        && served.iter().all(|(name, file)| is_between(before.get(name), &now[name], file))
                };
                assert!(
                    *served == before || *served == now || is_part(),
                    "seed {seed}, turn {turn}: {}",
                    differs(served, &now)
                );
            }
        }
        wrapped += usize::from(writeback.log.head() > writeback.log.size());
    }
    assert_eq!(moments, points, "each was looked at");
    assert!(
        moments > 2600 && wrapped > 6 && late > 500,
        "{moments} moments, {wrapped} logs went round, {late} took the log"
    );
}

/// Whether a file is what it was up to some byte and what it will be, or the other way.
fn is_between(before: Option<&FileSnapshot>, now: &FileSnapshot, file: &FileSnapshot) -> bool {
    let Some(before) = before else { return file == now };
    file == before
        || file == now
        || (file.1 == now.1 || file.1 == before.1)
            && file
                .0
                .iter()
                .enumerate()
                .all(|(at, byte)| now.0.get(at) == Some(byte) || before.0.get(at).unwrap_or(&0) == byte)
}

fn differs(one: &BTreeMap<Vec<u8>, FileSnapshot>, other: &BTreeMap<Vec<u8>, FileSnapshot>) -> String {
    let brief = |seen: &BTreeMap<Vec<u8>, FileSnapshot>| {
        let each = seen.iter().map(|(name, (data, mode, uid, _, value))| {
            format!(
                "{}: {} bytes, {mode:o}, {uid}, {value:?}, {:x}",
                String::from_utf8_lossy(name),
                data.len(),
                crc32c::crc32c(data)
            )
        });
        each.collect::<Vec<_>>().join("; ")
    };
    format!("found {}, should be {}", brief(one), brief(other))
}

/// Changes that are in a log of their own, and the disk as a dead client has left it.
fn left() -> (Arc<MemoryBranch>, OwnedFd, BTreeMap<Vec<u8>, FileSnapshot>) {
    let disk = disk();
    let (upper, work) = pair(&disk);
    let writeback = Writeback::create(Arc::clone(&upper), work, LIMITS).unwrap();
    let root = writeback.branches().0.root();
    for number in 0..FILES {
        let file = root.create(Name::new(&name(number)).unwrap(), 0o644).unwrap();
        file.write_at(&[number as u8 + 1; 2000], 0).unwrap();
        file.truncate(1500).unwrap();
        file.write_at(&[0xee; 100], 1600).unwrap();
        file.set_mode(0o600).unwrap();
        file.set_owner(Some(7), Some(8)).unwrap();
    }
    let should = see(&*upper);
    let left = disk.after_client_loss(&mut |_| 0).unwrap();
    let memory = copied(&writeback.log);
    assert_ne!(see(&*left.subtree("upper").unwrap()), should);
    (left, memory, should)
}

#[test]
fn a_successor_may_crash_too() {
    let (left, memory, should) = left();
    left.record();
    let (upper, work) = pair(&left);
    let own = memory.try_clone().unwrap();
    let look = {
        let (left, should) = (Arc::clone(&left), should.clone());
        let mut chance = Rng::with_seed(7);
        move || {
            let again = left.after_client_loss(&mut |n| chance.usize(..n)).unwrap();
            assert_eq!(after(&again, copy(&own, c"copy").unwrap()), should);
        }
    };
    let (went_on, points) = at_each(look, || Writeback::resume(Arc::clone(&upper), work, LIMITS, memory));
    let (writeback, replayed) = went_on.unwrap();
    assert_eq!((replayed.changes, points > 20), (20, true), "{points} moments");
    assert_eq!(see(&*upper), should);
    drop(writeback);
}

/// Whatever is in the memory: what is believed was written as a record, and nothing outside is touched.
#[test]
fn a_corrupt_log_is_read_up_to_its_damage() {
    let mut chance = Rng::with_seed(99);
    let (mut refused, mut cut, mut whole) = (0, 0, 0);
    for _ in 0..400 {
        let (left, memory, _) = left();
        let outside = left.subtree("").unwrap().root().create(Name::new(c"outside").unwrap(), 0o600).unwrap();
        outside.write_at(b"outside", 0).unwrap();
        for _ in 0..1 + chance.usize(..3) {
            // The first page and the first records.
            let at = if chance.usize(..2) == 0 { chance.usize(..5) * 8 } else { 4096 + chance.usize(..9000) };
            let bytes: Vec<u8> = match chance.usize(..3) {
                0 => vec![chance.usize(..256) as u8],
                1 => vec![0xff; 8],
                _ => (0..chance.usize(..80)).map(|_| chance.usize(..256) as u8).collect(),
            };
            rustix::io::pwrite(&memory, &bytes, at as u64).unwrap();
        }
        let (upper, work) = pair(&left);
        match Writeback::resume(upper, work, LIMITS, memory) {
            Err(error) => {
                assert_eq!(error.errno(), Errno::BADMSG);
                refused += 1;
            }
            Ok((_, ReplayOutcome { unread: 0, .. })) => whole += 1,
            Ok(_) => cut += 1,
        }
        let mut found = [0; 8];
        assert_eq!((outside.read_at(&mut found, 0).unwrap(), &found[..7]), (7, &b"outside"[..]));
    }
    assert!(refused > 20 && cut > 50 && whole > 10, "{refused} refused, {cut} cut, {whole} whole");
}

/// A record that is good in itself, and names a file that is not one of the layer's.
#[test]
fn only_files_of_the_layer_are_written_to() {
    let disk = disk();
    let (upper, work) = pair(&disk);
    let outside = disk.root().create(Name::new(c"outside").unwrap(), 0o600).unwrap();
    let writeback = Writeback::create(upper, work, LIMITS).unwrap();
    for ino in [outside.stat().unwrap().ino, disk.root().stat().unwrap().ino, 0, u64::MAX] {
        let room = writeback.log.reserve(3).unwrap();
        writeback.log.append(room, ino, Change::Write(0, b"bad"), now()).unwrap();
    }
    let memory = copied(&writeback.log);
    let (upper, work) = pair(&disk);
    let (_, replayed) = Writeback::resume(upper, work, LIMITS, memory).unwrap();
    assert_eq!(replayed, ReplayOutcome { gone: 4, ..ReplayOutcome::default() });
    assert_eq!(outside.stat().unwrap().size, 0);
}

#[test]
fn memory_without_a_log_is_refused() {
    const OTHER: MemoryKind = MemoryKind { name: c"x", magic: 1, words: 1..=1 << 20 };
    for words in [1, 4096, (RING_MIN / 8) as usize + PersistentMemory::HEADER] {
        let memory = PersistentMemory::create(&OTHER, words).unwrap();
        assert_eq!(Log::open(memory.as_fd().try_clone_to_owned().unwrap()).err(), Some(Errno::BADMSG));
    }
    assert_eq!(Log::create(RING_MIN - 1).err(), Some(Errno::INVAL));
}

/// What could not be written is told by the next sync, once to each who has the file open, and to one who comes later if nobody knows.
#[test]
fn a_write_error_is_reported_once_per_open_file() {
    let disk = disk();
    let plan = FaultPlan::new();
    let of = |branch| FaultBranch::new(branch, Arc::clone(&plan)) as Arc<dyn Branch>;
    let (upper, work) = pair(&disk);
    let writeback = Writeback::create(of(upper), of(work), LIMITS).unwrap();
    let root = writeback.branches().0.root();
    let at = Name::new(c"f").unwrap();
    let [one, two] = [root.create(at, 0o600), root.open_file(at, OpenMode::READ)].map(Result::unwrap);
    one.write_at(b"data", 0).unwrap();
    plan.fail_change(0, Errno::DQUOT);
    writeback.write_due(Instant::now() + Duration::from_secs(7200));
    assert_eq!(writeback.bytes().0, 0, "it is not kept for ever");
    let later = root.open_file(at, OpenMode::READ).unwrap();
    for file in [&one, &two, &later] {
        assert_eq!(file.sync(false).unwrap_err().errno(), Errno::DQUOT);
        file.sync(false).unwrap();
    }
    root.open_file(at, OpenMode::READ).unwrap().sync(false).unwrap();
    // Another file has nothing to do with it.
    let other = root.create(Name::new(c"g").unwrap(), 0o600).unwrap();
    other.write_at(b"data", 0).unwrap();
    other.sync(false).unwrap();
    // What fails at once is told at once, and not made again.
    plan.fail_change(0, Errno::NOSPC);
    assert_eq!(one.write_at(b"more", 4).unwrap_err().errno(), Errno::NOSPC);
    assert_eq!(writeback.bytes().0, 0);
}

#[test]
fn the_log_stays_within_its_limits() {
    let disk = disk();
    let (upper, work) = pair(&disk);
    let limits = WritebackLimits { age: Duration::from_secs(10), ..LIMITS };
    let writeback = Writeback::create(upper, work, limits).unwrap();
    let root = writeback.branches().0.root();
    let files = [0, 1, 2, 3].map(|number| root.create(Name::new(&name(number)).unwrap(), 0o600).unwrap());
    for at in 0..100 {
        files[at as usize % 4].write_at(&[1; 3000], at * 3000).unwrap();
        let (used, size) = writeback.bytes();
        assert!(used <= size, "{used} of {size}");
    }
    writeback.write_due(Instant::now());
    assert!(writeback.bytes().0 <= writeback.log.size() / 2);
    assert!(writeback.bytes().0 > 0);
    writeback.write_due(Instant::now() + Duration::from_secs(9));
    assert!(writeback.bytes().0 > 0);
    writeback.write_due(Instant::now() + Duration::from_secs(11));
    assert_eq!(writeback.bytes().0, 0);
    // Files that go take their changes with them.
    let syncs = disk.moment();
    let gone = root.create(Name::new(c"g").unwrap(), 0o600).unwrap();
    gone.write_at(b"gone", 0).unwrap();
    root.remove(Name::new(c"g").unwrap()).unwrap();
    assert_eq!(writeback.bytes().0, 0);
    assert!(disk.moment() > syncs);
}

/// Times are those that were set, and of a file that was written to the time of that.
#[test]
fn replayed_times_match_the_answered_ones() {
    let disk = disk();
    let (upper, work) = pair(&disk);
    let writeback = Writeback::create(upper, work, LIMITS).unwrap();
    let root = writeback.branches().0.root();
    let set = Timestamp { secs: 77, nanos: 5 };
    let of = |file: &CStr| root.create(Name::new(file).unwrap(), 0o600).unwrap();
    let (kept, written) = (of(c"kept"), of(c"written"));
    kept.write_at(b"data", 0).unwrap();
    for file in [&kept, &written] {
        file.set_times(None, Some(SetTime::At(set))).unwrap();
        file.set_times(Some(SetTime::At(set)), None).unwrap();
    }
    written.write_at(b"data", 0).unwrap();
    let seen = written.stat().unwrap().mtime;
    let left = disk.after_client_loss(&mut |_| 0).unwrap();
    let (upper, work) = pair(&left);
    Writeback::resume(Arc::clone(&upper), work, LIMITS, copied(&writeback.log)).unwrap();
    let at = |file: &CStr| upper.root().stat_at(Name::new(file).unwrap()).unwrap();
    assert_eq!((at(c"kept").mtime, at(c"kept").atime, at(c"written").atime), (set, set, set));
    assert_eq!(at(c"written").mtime, seen);
}

#[test]
fn set_id_bits_never_meet_another_owner() {
    let disk = disk();
    let (upper, work) = pair(&disk);
    let writeback = Writeback::create(upper, work, LIMITS).unwrap();
    let root = writeback.branches().0.root();
    let at = Name::new(c"f").unwrap();
    let file = root.create(at, 0o4755).unwrap();
    file.set_owner(Some(1000), Some(1000)).unwrap();
    let left = disk.after_client_loss(&mut |_| 0).unwrap().subtree("upper").unwrap();
    assert_eq!(left.root().stat_at(at).unwrap().uid, 1000, "not left to later");
}

/// What several threads change of one file stands in the log in the order in which it was made.
#[test]
fn changes_of_many_threads_have_one_order() {
    for seed in 0..150 {
        let disk = disk();
        let (upper, work) = pair(&disk);
        let writeback = Writeback::create(Arc::clone(&upper), work, LIMITS).unwrap();
        let root = writeback.branches().0.root();
        let files = [0, 1].map(|number| root.create(Name::new(&name(number)).unwrap(), 0o600).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let files = &files;
                scope.spawn(move || {
                    let mut chance = Rng::with_seed(seed * 10 + thread);
                    let mut pauses = chance.clone();
                    // Others come at any step.
                    let pause = move || (0..pauses.usize(..4)).for_each(|_| std::thread::yield_now());
                    at_each(pause, || {
                        for _ in 0..6 {
                            let file = &files[chance.usize(..4) / 3];
                            if chance.usize(..10) == 0 {
                                file.truncate(chance.usize(..600) as u64).unwrap();
                            } else {
                                let data = vec![chance.usize(..255) as u8 + 1; 1 + chance.usize(..200)];
                                file.write_at(&data, chance.usize(..400) as u64).unwrap();
                            }
                        }
                    });
                });
            }
            scope.spawn(|| (0..2).for_each(|_| writeback.write_due(Instant::now())));
        });
        let should = see(&*upper);
        let mut chance = Rng::with_seed(seed);
        let left = disk.after_client_loss(&mut |n| chance.usize(..n)).unwrap();
        assert_eq!(after(&left, copied(&writeback.log)), should, "seed {seed}");
    }
}

/// From its first word in the log until it has been made, no other change of the file comes between.
#[test]
fn a_logged_change_and_its_execution_are_atomic() {
    let disk = disk();
    let (upper, work) = pair(&disk);
    let writeback = Writeback::create(upper, work, LIMITS).unwrap();
    let root = writeback.branches().0.root();
    let file = root.create(Name::new(c"f").unwrap(), 0o600).unwrap();
    let tracked = writeback.tracked(file.stat().unwrap().ino);
    let look = move || assert!(tracked.order.try_lock().is_none());
    let ((), points) = at_each(look, || {
        file.write_at(b"data", 0).unwrap();
        file.truncate(2).unwrap();
        file.set_mode(0o644).unwrap();
    });
    assert!(points > 30, "{points} steps");
}
