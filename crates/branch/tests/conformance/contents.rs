//! Data of regular files.

use crate::support::*;
use vellum_vfs::{BranchFile, Errno, OpenMode, RenameFlags, Seek};

const KEEP: u32 = 1;
const PUNCH: u32 = 2;
const COLLAPSE: u32 = 8;
const ZERO: u32 = 0x10;
const INSERT: u32 = 0x20;
const UNSHARE: u32 = 0x40;
const BLOCK: u64 = 4096;

pub fn bytes_come_back(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"hello");
    assert_eq!(file.write_at(b"J", 0).unwrap(), 1);
    assert_eq!(file.write_at(b"", 100).unwrap(), 0);
    assert_eq!(get(&*file), b"Jello");
    let mut buf = [0; 10];
    assert_eq!(file.read_at(&mut buf, 2).unwrap(), 3);
    assert_eq!(&buf[..3], b"llo");
    assert_eq!(file.read_at(&mut buf, 5).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 500).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
    let big: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(file.write_at(&big, 3).unwrap(), big.len());
    assert_eq!(get(&*file)[3..], big);
    assert_eq!(get_at(&*root, c"f").len(), big.len() + 3);
}

pub fn holes_read_as_zeros_and_are_found(f: &Fixture) {
    let file = f.root().create(n(c"f"), 0o600).unwrap();
    file.write_at(b"a", 0).unwrap();
    file.write_at(b"b", 10 * BLOCK).unwrap();
    file.truncate(20 * BLOCK).unwrap();
    let mut buf = [1; 8];
    assert_eq!(file.read_at(&mut buf, 5 * BLOCK).unwrap(), 8);
    assert_eq!(buf, [0; 8]);
    assert_eq!(file.seek(0, Seek::Data).unwrap(), 0);
    assert_eq!(file.seek(0, Seek::Hole).unwrap(), BLOCK);
    assert_eq!(file.seek(BLOCK + 1, Seek::Hole).unwrap(), BLOCK + 1);
    assert_eq!(file.seek(BLOCK, Seek::Data).unwrap(), 10 * BLOCK);
    assert_eq!(file.seek(10 * BLOCK + 7, Seek::Data).unwrap(), 10 * BLOCK + 7);
    assert_eq!(file.seek(10 * BLOCK, Seek::Hole).unwrap(), 11 * BLOCK);
    assert_eq!(errno(file.seek(11 * BLOCK, Seek::Data)), Errno::NXIO);
}

pub fn truncate_cuts_and_grows(f: &Fixture) {
    let file = put(&*f.root(), c"f", &[7; 10_000]);
    file.truncate(5000).unwrap();
    file.truncate(9000).unwrap();
    let data = get(&*file);
    assert!(data[..5000].iter().all(|b| *b == 7) && data[5000..].iter().all(|b| *b == 0));
    assert_eq!(data.len(), 9000);
    file.truncate(0).unwrap();
    assert_eq!(file.stat().unwrap().size, 0);
}

pub fn open_modes_limit_what_can_be_done(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"data");
    let (r, w) =
        (root.open_file(n(c"f"), OpenMode::READ).unwrap(), root.open_file(n(c"f"), OpenMode::WRITE).unwrap());
    let mut buf = [0; 4];
    assert_eq!(r.read_at(&mut buf, 0).unwrap(), 4);
    assert_eq!(errno(r.write_at(b"x", 0)), Errno::BADF);
    assert_eq!(errno(r.truncate(0)), Errno::INVAL);
    assert_eq!(errno(r.allocate(0, 0, 1)), Errno::BADF);
    assert_eq!(errno(w.read_at(&mut buf, 0)), Errno::BADF);
    assert_eq!(errno(w.copy_range(0, &*w, 0, 1)), Errno::BADF);
    assert_eq!(errno(r.copy_range(0, &*r, 0, 1)), Errno::BADF);
    assert_eq!(w.copy_range(10, &*r, 0, 4).unwrap(), 4);
    w.truncate(2).unwrap();
    w.sync(false).unwrap();
    // The rest is not I/O and always possible.
    w.set_mode(0o600).unwrap();
    r.set_xattr(c"user.a", b"1", 0).unwrap();
    assert_eq!(r.seek(0, Seek::Data).unwrap(), 0);
    assert_eq!(w.seek(0, Seek::Data).unwrap(), 0);
    assert_eq!(r.stat().unwrap(), w.stat().unwrap());
    // No mode at all is reading.
    let none = root.open_file(n(c"f"), OpenMode::empty()).unwrap();
    assert_eq!(none.read_at(&mut buf, 0).unwrap(), 2);
}

pub fn open_can_truncate(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"data");
    root.open_file(n(c"f"), OpenMode::WRITE | OpenMode::TRUNCATE).unwrap();
    assert_eq!(root.stat_at(n(c"f")).unwrap().size, 0);
}

pub fn an_open_file_outlives_its_name(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"data");
    let held = root.hold(n(c"f")).unwrap();
    root.remove(n(c"f")).unwrap();
    file.write_at(b"D", 0).unwrap();
    assert_eq!(get(&*file), b"Data");
    assert_eq!(file.stat().unwrap().nlink, 0);
    file.set_mode(0o600).unwrap();
    file.set_xattr(c"user.x", b"y", 0).unwrap();
    let again = held.reopen(RW).unwrap();
    assert_eq!(get(&*again), b"Data");
    drop(file);
    drop(held);
    again.write_at(b"!", 4).unwrap();
    assert_eq!(get(&*again), b"Data!");
}

pub fn reopen_gives_other_modes(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"data");
    let r = root.open_file(n(c"f"), OpenMode::READ).unwrap();
    let w = r.reopen(OpenMode::WRITE).unwrap();
    w.write_at(b"D", 0).unwrap();
    assert_eq!(errno(w.read_at(&mut [0; 4], 0)), Errno::BADF);
    assert_eq!(get(&*r), b"Data");
    let held = root.hold(n(c"f")).unwrap();
    root.rename(n(c"f"), &*root, n(c"g"), RenameFlags::empty()).unwrap();
    put(&*root, c"f", b"other");
    assert_eq!(get(&*held.reopen(OpenMode::READ).unwrap()), b"Data");
    held.reopen(RW | OpenMode::TRUNCATE).unwrap();
    assert_eq!(get_at(&*root, c"g"), b"");
    assert_eq!(get_at(&*root, c"f"), b"other");
}

pub fn reopen_of_other_kinds_is_refused(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    root.make_symlink(n(c"l"), c"f").unwrap();
    root.make_node(n(c"p"), 0o010_600, 0).unwrap();
    root.make_node(n(c"c"), 0o020_600, rustix::fs::makedev(1, 3)).unwrap();
    put(&*root, c"f", b"");
    assert_eq!(errno(dir.reopen(OpenMode::READ)), Errno::ISDIR);
    assert_eq!(errno(root.hold(n(c"d")).unwrap().reopen(OpenMode::READ)), Errno::ISDIR);
    assert_eq!(errno(root.hold(n(c"l")).unwrap().reopen(OpenMode::READ)), Errno::LOOP);
    assert_eq!(errno(root.hold(n(c"p")).unwrap().reopen(OpenMode::READ)), Errno::NXIO);
    assert_eq!(errno(root.hold(n(c"c")).unwrap().reopen(OpenMode::READ)), Errno::NXIO);
}

pub fn allocate_and_its_modes(f: &Fixture) {
    let root = f.root();
    let file = root.create(n(c"f"), 0o600).unwrap();
    file.allocate(0, 0, 2 * BLOCK).unwrap();
    let attr = file.stat().unwrap();
    assert_eq!((attr.size, attr.blocks), (2 * BLOCK, 16));
    assert_eq!(errno(file.seek(0, Seek::Data)), Errno::NXIO, "allocated, but never written");
    file.allocate(KEEP, 2 * BLOCK, BLOCK).unwrap();
    let attr = file.stat().unwrap();
    assert_eq!((attr.size, attr.blocks), (2 * BLOCK, 24));
    file.write_at(&[5; 3 * BLOCK as usize], 0).unwrap();
    file.allocate(PUNCH | KEEP, 100, BLOCK).unwrap();
    let data = get(&*file);
    assert!(data[..100].iter().all(|b| *b == 5));
    assert!(data[100..100 + BLOCK as usize].iter().all(|b| *b == 0));
    assert!(data[100 + BLOCK as usize..].iter().all(|b| *b == 5));
    file.allocate(PUNCH | KEEP, BLOCK, BLOCK).unwrap();
    assert_eq!(file.seek(0, Seek::Hole).unwrap(), BLOCK);
    file.allocate(ZERO, 2 * BLOCK, 2 * BLOCK).unwrap();
    assert_eq!(file.stat().unwrap().size, 4 * BLOCK);
    assert!(get(&*file)[2 * BLOCK as usize..].iter().all(|b| *b == 0));
    file.allocate(ZERO | KEEP, 4 * BLOCK, BLOCK).unwrap();
    assert_eq!(file.stat().unwrap().size, 4 * BLOCK);

    let moved = root.create(n(c"g"), 0o600).unwrap();
    for block in 0..4_u8 {
        moved.write_at(&[block + 1; BLOCK as usize], u64::from(block) * BLOCK).unwrap();
    }
    moved.allocate(COLLAPSE, BLOCK, BLOCK).unwrap();
    moved.allocate(INSERT, 2 * BLOCK, BLOCK).unwrap();
    let data = get(&*moved);
    let firsts: Vec<u8> = data.chunks(BLOCK as usize).map(|chunk| chunk[0]).collect();
    assert_eq!(firsts, [1, 3, 0, 4]);
}

/// The last block is a hole once all of it is punched, and what lies beyond the size counts as punched only when the range
/// goes on behind the size.
pub fn a_hole_at_the_end(f: &Fixture) {
    for (from, to, hole) in [
        (2 * BLOCK, 10_000, 10_000),
        (2 * BLOCK, 10_001, 2 * BLOCK),
        (2 * BLOCK, 3 * BLOCK, 2 * BLOCK),
        (BLOCK, 10_000, BLOCK),
        (9000, 11_000, 10_000),
        (3 * BLOCK, 4 * BLOCK, 10_000),
    ] {
        let file = put(&*f.root(), c"f", &[7; 10_000]);
        file.allocate(PUNCH | KEEP, from, to - from).unwrap();
        assert_eq!(file.seek(0, Seek::Hole).unwrap(), hole, "punched from {from} to {to}");
        f.root().remove(n(c"f")).unwrap();
    }
    // What was allocated beyond the size stays.
    let file = put(&*f.root(), c"f", &[7; 10_000]);
    file.allocate(KEEP, 0, 10 * BLOCK).unwrap();
    file.allocate(PUNCH | KEEP, 5 * BLOCK, 20 * BLOCK).unwrap();
    assert_eq!(file.stat().unwrap().blocks, 10 * BLOCK / 512);
}

pub fn allocate_refuses_nonsense(f: &Fixture) {
    let file = put(&*f.root(), c"f", &[1; 3 * BLOCK as usize]);
    let cases = [
        (0, 0, 0, Errno::INVAL),
        (0, u64::MAX, 1, Errno::INVAL),
        (0, 0, u64::MAX, Errno::INVAL),
        (PUNCH, 0, BLOCK, Errno::OPNOTSUPP),
        (PUNCH | ZERO | KEEP, 0, BLOCK, Errno::OPNOTSUPP),
        (COLLAPSE | KEEP, 0, BLOCK, Errno::OPNOTSUPP),
        (COLLAPSE, 1, BLOCK, Errno::INVAL),
        (COLLAPSE, 0, 3 * BLOCK, Errno::INVAL),
        (INSERT, 0, 100, Errno::INVAL),
        (INSERT, 3 * BLOCK, BLOCK, Errno::INVAL),
        (UNSHARE, 0, BLOCK, Errno::OPNOTSUPP),
        (1 << 20, 0, BLOCK, Errno::OPNOTSUPP),
        (0, 1 << 62, BLOCK, Errno::FBIG),
    ];
    for (mode, offset, len, expected) in cases {
        assert_eq!(errno(file.allocate(mode, offset, len)), expected, "{mode:#x} {offset} {len}");
    }
    assert_eq!(get(&*file), [1; 3 * BLOCK as usize]);
}

pub fn seek_beyond_the_end_is_refused(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"abc");
    for whence in [Seek::Data, Seek::Hole] {
        assert_eq!(errno(file.seek(3, whence)), Errno::NXIO);
        assert_eq!(errno(file.seek(u64::MAX, whence)), Errno::NXIO);
    }
    assert_eq!(file.seek(2, Seek::Hole).unwrap(), 3);
}

pub fn sizes_have_a_limit(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"abc");
    assert_eq!(errno(file.truncate(1 << 62)), Errno::FBIG);
    assert_eq!(errno(file.truncate(u64::MAX)), Errno::INVAL);
    assert_eq!(errno(file.write_at(b"x", 1 << 62)), Errno::FBIG);
    assert_eq!(errno(file.write_at(b"x", u64::MAX)), Errno::INVAL);
    assert_eq!(errno(file.read_at(&mut [0], u64::MAX)), Errno::INVAL);
    file.truncate(1 << 40).unwrap();
    assert_eq!(file.stat().unwrap().size, 1 << 40);
    assert_eq!(file.read_at(&mut [9; 3], (1 << 40) - 2).unwrap(), 2);
}

pub fn copy_range_copies(f: &Fixture) {
    let root = f.root();
    let from = put(&*root, c"from", b"0123456789");
    let to = put(&*root, c"to", b"abcdef");
    assert_eq!(to.copy_range(3, &*from, 5, 100).unwrap(), 5);
    assert_eq!(get(&*to), b"abc56789");
    assert_eq!(to.copy_range(0, &*from, 10, 1).unwrap(), 0, "nothing after the end");
    assert_eq!(to.copy_range(0, &*from, 0, 0).unwrap(), 0);
    assert_eq!(from.copy_range(20, &*from, 0, 4).unwrap(), 4);
    assert_eq!(&get(&*from)[20..], b"0123");
}

pub fn copy_range_within_a_file_must_not_overlap(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"0123456789");
    assert_eq!(errno(file.copy_range(2, &*file, 0, 5)), Errno::INVAL);
    assert_eq!(file.copy_range(5, &*file, 0, 5).unwrap(), 5);
    assert_eq!(get(&*file), b"0123401234");
}

pub fn clone_shares_or_refuses(f: &Fixture) {
    let root = f.root();
    let from = put(&*root, c"from", b"0123456789");
    let to = put(&*root, c"to", b"abc");
    match BranchFile::clone_from(&*to, &*from) {
        Ok(()) => assert_eq!(get(&*to), b"0123456789"),
        Err(error) => {
            assert!(matches!(error.errno(), Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV), "{error}");
            assert_eq!(get(&*to), b"abc");
        }
    }
}

pub fn unnamed_files_get_a_name(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    let file = root.create_unnamed(0o640).unwrap();
    assert_eq!((file.stat().unwrap().mode, file.stat().unwrap().nlink), (0o100_640, 0));
    file.write_at(b"data", 0).unwrap();
    assert!(names(&*root).is_empty() || names(&*root) == ["d"]);
    put(&*dir, c"taken", b"");
    assert_eq!(errno(dir.link_object(&*file, n(c"taken"))), Errno::EXIST);
    dir.link_object(&*file, n(c"named")).unwrap();
    assert_eq!(file.stat().unwrap().nlink, 1);
    assert_eq!(get_at(&*dir, c"named"), b"data");
    dir.link_object(&*file, n(c"again")).unwrap();
    assert_eq!(file.stat().unwrap().nlink, 2);
    dir.remove(n(c"named")).unwrap();
    dir.remove(n(c"again")).unwrap();
    assert_eq!(errno(dir.link_object(&*file, n(c"late"))), Errno::NOENT);
}

pub fn unnamed_files_vanish(f: &Fixture) {
    let root = f.root();
    let file = root.create_unnamed(0o600).unwrap();
    file.write_at(b"data", 0).unwrap();
    let again = file.reopen(OpenMode::READ).unwrap();
    drop(file);
    assert_eq!(get(&*again), b"data");
    drop(again);
    assert!(names(&*root).is_empty());
}
