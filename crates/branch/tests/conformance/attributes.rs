//! Modes, owners, times, links.

use crate::support::*;
use vellum_vfs::{Attr, BranchDir, Errno, FileKind, OpenMode, RenameFlags, SetTime, Timestamp};

pub fn modes_are_kept(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"");
    let dir = subdir(&*root, c"d");
    for mode in [0, 0o777, 0o4755, 0o2711, 0o1777, 0o7777] {
        file.set_mode(mode).unwrap();
        assert_eq!(root.stat_at(n(c"f")).unwrap().mode, 0o100_000 | mode);
        dir.set_mode(mode).unwrap();
        assert_eq!(dir.stat().unwrap().mode, 0o040_000 | mode);
        root.set_mode_at(n(c"f"), 0o1).unwrap();
        assert_eq!(file.stat().unwrap().perm(), 0o1);
        root.hold(n(c"f")).unwrap().set_mode(0o2).unwrap();
        assert_eq!(file.stat().unwrap().perm(), 0o2);
    }
    dir.set_mode(0o755).unwrap();
    // Type bits are not the caller's to change.
    file.set_mode(FileKind::Directory.mode_bits() | 0o600).unwrap();
    assert_eq!(file.stat().unwrap().mode, 0o100_600);
}

pub fn owners_are_kept(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"");
    root.make_symlink(n(c"l"), c"f").unwrap();
    file.set_owner(Some(10), Some(20)).unwrap();
    file.set_owner(None, Some(21)).unwrap();
    file.set_owner(Some(11), None).unwrap();
    file.set_owner(None, None).unwrap();
    root.set_owner_at(n(c"l"), Some(30), Some(40)).unwrap();
    let owner = |attr: Attr| (attr.uid, attr.gid);
    assert_eq!(owner(file.stat().unwrap()), (11, 21));
    assert_eq!(owner(root.stat_at(n(c"l")).unwrap()), (30, 40));
    root.hold(n(c"l")).unwrap().set_owner(Some(31), None).unwrap();
    assert_eq!(owner(root.stat_at(n(c"l")).unwrap()), (31, 40));
    root.set_owner(Some(1), Some(2)).unwrap();
    assert_eq!(owner(root.stat().unwrap()), (1, 2));
    root.set_owner(Some(0), Some(0)).unwrap();
    assert_eq!(errno(file.set_owner(Some(u32::MAX), None)), Errno::INVAL);
    assert_eq!(errno(root.set_owner_at(n(c"f"), None, Some(u32::MAX))), Errno::INVAL);
    file.set_owner(Some(u32::MAX - 1), Some(u32::MAX - 1)).unwrap();
}

pub fn a_new_owner_takes_set_id_bits_away(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"");
    file.set_mode(0o6755).unwrap();
    file.set_owner(Some(1), None).unwrap();
    assert_eq!(file.stat().unwrap().perm(), 0o755);
    // Without permission to execute, set-group-id means something else (mandatory locking, once).
    file.set_mode(0o6745).unwrap();
    file.set_owner(None, Some(1)).unwrap();
    assert_eq!(file.stat().unwrap().perm(), 0o2745);
    let dir = subdir(&*root, c"d");
    dir.set_mode(0o6755).unwrap();
    dir.set_owner(Some(1), Some(1)).unwrap();
    assert_eq!(dir.stat().unwrap().perm(), 0o6755);
}

pub fn times_are_kept(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"");
    let at = |secs, nanos| Timestamp { secs, nanos };
    file.set_times(Some(SetTime::At(at(1, 2))), Some(SetTime::At(at(5, 999_999_999)))).unwrap();
    let attr = root.stat_at(n(c"f")).unwrap();
    assert_eq!((attr.atime, attr.mtime), (at(1, 2), at(5, 999_999_999)));
    root.set_times_at(n(c"f"), None, Some(SetTime::At(at(7, 0)))).unwrap();
    let attr = file.stat().unwrap();
    assert_eq!((attr.atime, attr.mtime), (at(1, 2), at(7, 0)));
    file.set_times(Some(SetTime::Now), None).unwrap();
    let attr = file.stat().unwrap();
    assert!(attr.atime > at(1_500_000_000, 0));
    assert_eq!(attr.mtime, at(7, 0));
    let ctime = attr.ctime;
    file.set_times(None, None).unwrap();
    assert_eq!(file.stat().unwrap().ctime, ctime);
    root.make_symlink(n(c"l"), c"f").unwrap();
    root.set_times_at(n(c"l"), None, Some(SetTime::At(at(9, 9)))).unwrap();
    root.hold(n(c"l")).unwrap().set_times(Some(SetTime::At(at(8, 8))), None).unwrap();
    let link = root.stat_at(n(c"l")).unwrap();
    assert_eq!((link.atime, link.mtime), (at(8, 8), at(9, 9)));
    assert_eq!(file.stat().unwrap().mtime, at(7, 0), "the link was not followed");
    root.set_times(Some(SetTime::At(at(3, 3))), Some(SetTime::At(at(4, 4)))).unwrap();
    assert_eq!(root.stat().unwrap().mtime, at(4, 4));
}

pub fn times_before_1970_are_kept(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"");
    let at = Timestamp { secs: -5, nanos: 999_999_999 };
    file.set_times(None, Some(SetTime::At(at))).unwrap();
    assert_eq!(file.stat().unwrap().mtime, at);
}

pub fn times_have_limits(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"");
    let at = |secs, nanos| Some(SetTime::At(Timestamp { secs, nanos }));
    // The two values that utimensat(2) gives a meaning of its own are no times either.
    for nanos in [1_000_000_000, 0x3fff_ffff, 0x3fff_fffe, u32::MAX] {
        assert_eq!(errno(file.set_times(at(0, nanos), None)), Errno::INVAL);
        assert_eq!(errno(f.root().set_times_at(n(c"f"), None, at(0, nanos))), Errno::INVAL);
    }
    file.set_times(at(1 << 40, 5), at(-(1 << 40), 5)).unwrap();
    let attr = file.stat().unwrap();
    assert_eq!(attr.atime, Timestamp { secs: 0x3_7fff_ffff, nanos: 0 });
    assert_eq!(attr.mtime, Timestamp { secs: -(1 << 31), nanos: 0 });
}

/// Which of (mtime, ctime) of `name` an operation moves. Times of a disk may be coarse, hence the old ones first.
fn moved(dir: &dyn BranchDir, name: Option<&std::ffi::CStr>, act: impl FnOnce()) -> (bool, bool) {
    let old = Some(SetTime::At(Timestamp { secs: 1000, nanos: 0 }));
    let stat = || match name {
        Some(name) => dir.stat_at(n(name)).unwrap(),
        None => dir.stat().unwrap(),
    };
    match name {
        Some(name) => dir.set_times_at(n(name), None, old).unwrap(),
        None => dir.set_times(None, old).unwrap(),
    }
    let before = stat();
    std::thread::sleep(std::time::Duration::from_millis(10));
    act();
    let after = stat();
    (after.mtime != before.mtime, after.ctime != before.ctime)
}

pub fn changes_move_times_forward(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"0123456789");
    let name = Some(c"f");
    assert_eq!(moved(&*root, name, || done(file.write_at(b"x", 0).unwrap())), (true, true));
    assert_eq!(moved(&*root, name, || done(file.write_at(b"", 0).unwrap())), (false, false));
    assert_eq!(moved(&*root, name, || file.truncate(10).unwrap()), (true, true), "to the same size too");
    assert_eq!(moved(&*root, name, || done(file.copy_range(20, &*file, 0, 4).unwrap())), (true, true));
    assert_eq!(moved(&*root, name, || file.set_mode(0o644).unwrap()), (false, true));
    assert_eq!(moved(&*root, name, || file.set_owner(None, None).unwrap()), (false, true));
    assert_eq!(moved(&*root, name, || file.set_xattr(c"user.a", b"", 0).unwrap()), (false, true));
    assert_eq!(moved(&*root, name, || file.remove_xattr(c"user.a").unwrap()), (false, true));
    assert_eq!(moved(&*root, name, || root.link(n(c"f"), &*root, n(c"g")).unwrap()), (false, true));
    assert_eq!(moved(&*root, name, || root.remove(n(c"g")).unwrap()), (false, true));
    assert_eq!(moved(&*root, name, || done(file.read_at(&mut [0; 4], 0).unwrap())), (false, false));
    let truncate = || drop(root.open_file(n(c"f"), RW | OpenMode::TRUNCATE).unwrap());
    assert_eq!(moved(&*root, name, truncate), (true, true));
    assert_eq!(moved(&*root, name, truncate), (true, true));
    // And of directories.
    let rename = |from, to| root.rename(n(from), &*root, n(to), RenameFlags::empty()).unwrap();
    assert_eq!(moved(&*root, None, || drop(root.create(n(c"x"), 0o600).unwrap())), (true, true));
    assert_eq!(moved(&*root, None, || rename(c"x", c"y")), (true, true));
    assert_eq!(moved(&*root, None, || root.remove(n(c"y")).unwrap()), (true, true));
    assert_eq!(moved(&*root, None, || root.make_dir(n(c"y"), 0o700).unwrap()), (true, true));
    assert_eq!(moved(&*root, None, || root.remove_dir(n(c"y")).unwrap()), (true, true));
    assert_eq!(moved(&*root, None, || done(names(&*root))), (false, false));
    assert_eq!(moved(&*root, name, || rename(c"f", c"f")), (false, false));
    let there_and_back = || {
        rename(c"f", c"h");
        rename(c"h", c"f");
    };
    assert_eq!(moved(&*root, name, there_and_back), (false, true));
}

pub fn allocation_moves_times_forward(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"0123456789");
    assert_eq!(moved(&*root, Some(c"f"), || file.allocate(1, 0, 4096).unwrap()), (true, true));
}

pub fn an_unnamed_file_moves_no_times(f: &Fixture) {
    let root = f.root();
    assert_eq!(moved(&*root, None, || drop(root.create_unnamed(0o600).unwrap())), (false, false));
}

pub fn symlinks_have_no_mode_of_their_own(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"");
    root.make_symlink(n(c"l"), c"f").unwrap();
    let before = root.stat_at(n(c"f")).unwrap();
    assert_eq!(errno(root.set_mode_at(n(c"l"), 0o600)), Errno::OPNOTSUPP);
    assert_eq!(errno(root.hold(n(c"l")).unwrap().set_mode(0o600)), Errno::OPNOTSUPP);
    assert_eq!(root.stat_at(n(c"f")).unwrap(), before);
}

pub fn links_are_counted(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"");
    for (count, name) in [(2, c"g"), (3, c"h")] {
        root.link(n(c"f"), &*root, n(name)).unwrap();
        assert_eq!(file.stat().unwrap().nlink, count);
    }
    root.rename(n(c"g"), &*root, n(c"i"), RenameFlags::empty()).unwrap();
    assert_eq!(file.stat().unwrap().nlink, 3);
    put(&*root, c"j", b"");
    root.rename(n(c"j"), &*root, n(c"h"), RenameFlags::empty()).unwrap();
    assert_eq!(file.stat().unwrap().nlink, 2);
    root.remove(n(c"f")).unwrap();
    root.remove(n(c"i")).unwrap();
    assert_eq!(file.stat().unwrap().nlink, 0);
}

pub fn directories_count_their_children(f: &Fixture) {
    let root = f.root();
    let (a, b) = (subdir(&*root, c"a"), subdir(&*root, c"b"));
    assert_eq!(root.stat().unwrap().nlink, 4);
    subdir(&*a, c"x");
    put(&*a, c"f", b"");
    assert_eq!(a.stat().unwrap().nlink, 3);
    a.rename(n(c"x"), &*b, n(c"y"), RenameFlags::empty()).unwrap();
    assert_eq!((a.stat().unwrap().nlink, b.stat().unwrap().nlink), (2, 3));
    b.remove_dir(n(c"y")).unwrap();
    assert_eq!(b.stat().unwrap().nlink, 2);
    root.rename(n(c"a"), &*b, n(c"a"), RenameFlags::empty()).unwrap();
    assert_eq!((root.stat().unwrap().nlink, b.stat().unwrap().nlink), (3, 3));
}

pub fn exchanged_directories_are_counted(f: &Fixture) {
    let root = f.root();
    let (a, b) = (subdir(&*root, c"a"), subdir(&*root, c"b"));
    put(&*a, c"f", b"");
    subdir(&*b, c"y");
    a.rename(n(c"f"), &*b, n(c"y"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((a.stat().unwrap().nlink, b.stat().unwrap().nlink), (3, 2));
}
