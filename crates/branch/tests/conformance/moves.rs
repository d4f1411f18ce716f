//! Renames and links.

use crate::support::*;
use vellum_branch::{LocalBranch, MemoryBranch};
use vellum_vfs::{Branch, BranchDir, BranchFile, Errno, FileKind, OpenMode, RenameFlags, SetTime, Timestamp};

const PLAIN: RenameFlags = RenameFlags::empty();

pub fn rename_moves_and_replaces(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    put(&*root, c"a", b"A");
    root.rename(n(c"a"), &*dir, n(c"b"), PLAIN).unwrap();
    assert_eq!(errno(root.stat_at(n(c"a"))), Errno::NOENT);
    assert_eq!(get_at(&*dir, c"b"), b"A");
    let old = put(&*root, c"old", b"old");
    dir.rename(n(c"b"), &*root, n(c"old"), PLAIN).unwrap();
    assert_eq!(get_at(&*root, c"old"), b"A");
    assert_eq!(get(&*old), b"old", "what was replaced lives on while it is open");
    assert_eq!(old.stat().unwrap().nlink, 0);
    assert_eq!(errno(root.rename(n(c"none"), &*root, n(c"x"), PLAIN)), Errno::NOENT);
    assert_eq!(names(&*root), ["d", "old"]);
}

pub fn rename_checks_kinds(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"");
    subdir(&*root, c"empty");
    let full = subdir(&*root, c"full");
    put(&*full, c"x", b"");
    root.make_symlink(n(c"l"), c"empty").unwrap();
    assert_eq!(errno(root.rename(n(c"f"), &*root, n(c"empty"), PLAIN)), Errno::ISDIR);
    assert_eq!(errno(root.rename(n(c"empty"), &*root, n(c"f"), PLAIN)), Errno::NOTDIR);
    assert_eq!(errno(root.rename(n(c"empty"), &*root, n(c"full"), PLAIN)), Errno::NOTEMPTY);
    assert_eq!(errno(root.rename(n(c"empty"), &*root, n(c"l"), PLAIN)), Errno::NOTDIR);
    root.rename(n(c"full"), &*root, n(c"empty"), PLAIN).unwrap();
    assert_eq!(names(&*root.open_dir(n(c"empty")).unwrap()), ["x"]);
    root.rename(n(c"l"), &*root, n(c"f"), PLAIN).unwrap();
    assert_eq!(root.stat_at(n(c"f")).unwrap().kind(), FileKind::Symlink);
}

pub fn rename_onto_itself_does_nothing(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"x");
    subdir(&*root, c"d");
    root.rename(n(c"f"), &*root, n(c"f"), PLAIN).unwrap();
    root.rename(n(c"d"), &*root, n(c"d"), PLAIN).unwrap();
    assert_eq!(names(&*root), ["d", "f"]);
    assert_eq!(get_at(&*root, c"f"), b"x");
}

pub fn rename_onto_itself_with_flags(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"x");
    root.rename(n(c"f"), &*root, n(c"f"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(errno(root.rename(n(c"f"), &*root, n(c"f"), RenameFlags::NOREPLACE)), Errno::EXIST);
    assert_eq!(names(&*root), ["f"]);
}

pub fn rename_between_two_names_of_one_file_does_nothing(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"x");
    root.link(n(c"f"), &*root, n(c"g")).unwrap();
    root.rename(n(c"f"), &*root, n(c"g"), PLAIN).unwrap();
    assert_eq!(names(&*root), ["f", "g"]);
    assert_eq!(root.stat_at(n(c"f")).unwrap().nlink, 2);
}

pub fn noreplace_keeps_what_is_there(f: &Fixture) {
    let root = f.root();
    put(&*root, c"a", b"A");
    put(&*root, c"b", b"B");
    assert_eq!(errno(root.rename(n(c"a"), &*root, n(c"b"), RenameFlags::NOREPLACE)), Errno::EXIST);
    assert_eq!(errno(root.rename(n(c"x"), &*root, n(c"b"), RenameFlags::NOREPLACE)), Errno::NOENT);
    root.rename(n(c"a"), &*root, n(c"c"), RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(&*root), ["b", "c"]);
}

pub fn exchange_swaps(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    put(&*dir, c"inner", b"I");
    put(&*root, c"f", b"F");
    root.rename(n(c"f"), &*root, n(c"d"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(get_at(&*root, c"d"), b"F");
    assert_eq!(names(&*root.open_dir(n(c"f")).unwrap()), ["inner"]);
    assert_eq!(errno(root.rename(n(c"d"), &*root, n(c"x"), RenameFlags::EXCHANGE)), Errno::NOENT);
    assert_eq!(errno(root.rename(n(c"x"), &*root, n(c"d"), RenameFlags::EXCHANGE)), Errno::NOENT);
}

pub fn a_whiteout_stays_behind(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"F");
    root.rename(n(c"f"), &*root, n(c"g"), RenameFlags::WHITEOUT).unwrap();
    assert_eq!(get_at(&*root, c"g"), b"F");
    let left = root.stat_at(n(c"f")).unwrap();
    assert_eq!((left.mode, left.rdev), (FileKind::CharDevice.mode_bits(), 0));
    let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    assert_eq!(errno(root.rename(n(c"g"), &*root, n(c"f"), both)), Errno::EXIST);
    root.rename(n(c"g"), &*root, n(c"f"), RenameFlags::WHITEOUT).unwrap();
    assert_eq!(get_at(&*root, c"f"), b"F");
}

/// ext4 writes the whiteout before it looks at what is to be replaced.
pub fn a_whiteout_that_was_taken_back_shows_in_the_times(f: &Fixture) {
    let root = f.root();
    let (from, to) = (subdir(&*root, c"from"), subdir(&*root, c"to"));
    subdir(&*from, c"d");
    put(&*subdir(&*to, c"full"), c"x", b"");
    let old = Timestamp { secs: 1, nanos: 0 };
    let moved = |flags: RenameFlags| {
        for dir in [c"from", c"to"] {
            root.set_times_at(n(dir), None, Some(SetTime::At(old))).unwrap();
        }
        assert_eq!(errno(from.rename(n(c"d"), &*to, n(c"full"), flags)), Errno::NOTEMPTY);
        [c"from", c"to"].map(|dir| root.stat_at(n(dir)).unwrap().mtime != old)
    };
    assert_eq!(moved(PLAIN), [false, false]);
    assert_eq!(moved(RenameFlags::WHITEOUT), [true, false]);
    assert_eq!((names(&*from), names(&*to)), (vec!["d".to_owned()], vec!["full".to_owned()]));
}

pub fn flags_exclude_each_other(f: &Fixture) {
    let root = f.root();
    put(&*root, c"a", b"A");
    put(&*root, c"b", b"B");
    for other in [RenameFlags::NOREPLACE, RenameFlags::WHITEOUT] {
        let flags = RenameFlags::EXCHANGE | other;
        assert_eq!(errno(root.rename(n(c"a"), &*root, n(c"b"), flags)), Errno::INVAL);
    }
    let unknown = RenameFlags::from_bits_retain(1 << 10);
    assert_eq!(errno(root.rename(n(c"a"), &*root, n(c"b"), unknown)), Errno::INVAL);
}

pub fn a_directory_cannot_go_into_itself(f: &Fixture) {
    let root = f.root();
    let a = subdir(&*root, c"a");
    let b = subdir(&*a, c"b");
    assert_eq!(errno(root.rename(n(c"a"), &*b, n(c"x"), PLAIN)), Errno::INVAL);
    assert_eq!(errno(root.rename(n(c"a"), &*a, n(c"b"), PLAIN)), Errno::INVAL);
    assert_eq!(errno(b.rename(n(c"x"), &*root, n(c"a"), PLAIN)), Errno::NOENT);
    put(&*b, c"x", b"");
    assert_eq!(errno(b.rename(n(c"x"), &*root, n(c"a"), PLAIN)), Errno::NOTEMPTY);
    assert_eq!(errno(b.rename(n(c"x"), &*root, n(c"a"), RenameFlags::EXCHANGE)), Errno::INVAL);
    assert_eq!(errno(a.rename(n(c"b"), &*root, n(c"a"), PLAIN)), Errno::NOTEMPTY);
    assert_eq!(names(&*b), ["x"]);
}

pub fn directories_move_with_their_contents(f: &Fixture) {
    let root = f.root();
    let a = subdir(&*root, c"a");
    let b = subdir(&*root, c"b");
    let inner = subdir(&*a, c"inner");
    put(&*inner, c"f", b"F");
    a.rename(n(c"inner"), &*b, n(c"moved"), PLAIN).unwrap();
    assert_eq!(get_at(&*inner, c"f"), b"F", "a held directory goes along");
    put(&*inner, c"g", b"G");
    assert_eq!(names(&*f.branch.open_dir_path(c"b/moved").unwrap()), ["f", "g"]);
    assert!(names(&*a).is_empty());
}

pub fn link_makes_another_name(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    put(&*root, c"f", b"F");
    root.make_symlink(n(c"l"), c"f").unwrap();
    root.link(n(c"f"), &*dir, n(c"g")).unwrap();
    assert_eq!(root.stat_at(n(c"f")).unwrap(), dir.stat_at(n(c"g")).unwrap());
    root.link(n(c"l"), &*dir, n(c"m")).unwrap();
    assert_eq!(dir.stat_at(n(c"m")).unwrap().kind(), FileKind::Symlink, "the link itself");
    dir.open_file(n(c"g"), OpenMode::WRITE).unwrap().write_at(b"G", 0).unwrap();
    assert_eq!(get_at(&*root, c"f"), b"G");
}

pub fn link_refusals(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"F");
    subdir(&*root, c"d");
    assert_eq!(errno(root.link(n(c"f"), &*root, n(c"d"))), Errno::EXIST);
    assert_eq!(errno(root.link(n(c"f"), &*root, n(c"f"))), Errno::EXIST);
    assert_eq!(errno(root.link(n(c"x"), &*root, n(c"y"))), Errno::NOENT);
    assert_eq!(errno(root.link(n(c"x"), &*root, n(c"f"))), Errno::NOENT);
    assert_eq!(errno(root.link(n(c"d"), &*root, n(c"e"))), Errno::PERM);
    assert_eq!(errno(root.link_object(&*root.open_dir(n(c"d")).unwrap(), n(c"e"))), Errno::PERM);
}

pub fn link_object_names_what_is_held(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"F");
    root.make_symlink(n(c"l"), c"f").unwrap();
    root.make_node(n(c"p"), 0o010_600, 0).unwrap();
    root.make_node(n(c"c"), 0o020_600, 0).unwrap();
    for (name, again) in [(c"f", c"f2"), (c"l", c"l2"), (c"p", c"p2"), (c"c", c"c2")] {
        let held = root.hold(n(name)).unwrap();
        root.link_object(&*held, n(again)).unwrap();
        assert_eq!(held.stat().unwrap().nlink, 2);
        assert_eq!(root.stat_at(n(again)).unwrap(), root.stat_at(n(name)).unwrap(), "{name:?}");
        assert_eq!(errno(root.link_object(&*held, n(again))), Errno::EXIST);
        root.remove(n(name)).unwrap();
        root.link_object(&*held, n(name)).unwrap();
        root.remove(n(name)).unwrap();
        root.remove(n(again)).unwrap();
        assert_eq!(errno(root.link_object(&*held, n(name))), Errno::NOENT, "{name:?} is gone");
    }
    subdir(&*root, c"d");
    let held = root.hold(n(c"d")).unwrap();
    assert_eq!(errno(root.link_object(&*held, n(c"e"))), Errno::PERM);
}

pub fn other_branches_are_refused(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"F");
    let held = root.hold(n(c"f")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other: std::sync::Arc<dyn Branch> =
        if f.dir.is_some() { MemoryBranch::new() } else { LocalBranch::open(elsewhere.path()).unwrap() };
    let there: &dyn BranchDir = &*other.root();
    let peer = put(there, c"g", b"G");
    assert_eq!(errno(root.rename(n(c"f"), there, n(c"x"), PLAIN)), Errno::XDEV);
    assert_eq!(errno(root.link(n(c"f"), there, n(c"x"))), Errno::XDEV);
    assert_eq!(errno(there.link_object(&*held, n(c"x"))), Errno::XDEV);
    assert_eq!(errno(there.link_object(&*file, n(c"x"))), Errno::XDEV);
    assert_eq!(errno(peer.copy_range(0, &*file, 0, 1)), Errno::XDEV);
    assert_eq!(errno(BranchFile::clone_from(&*peer, &*file)), Errno::XDEV);
    let second = MemoryBranch::new();
    let third = put(&*second.root(), c"h", b"");
    assert_eq!(errno(third.copy_range(0, &*peer, 0, 1)), Errno::XDEV);
}

pub fn handles_follow_renames(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    put(&*root, c"f", b"F");
    let held = root.hold(n(c"f")).unwrap();
    root.rename(n(c"f"), &*dir, n(c"g"), PLAIN).unwrap();
    held.set_mode(0o600).unwrap();
    held.set_xattr(c"user.a", b"b", 0).unwrap();
    assert_eq!(dir.stat_at(n(c"g")).unwrap().perm(), 0o600);
    assert_eq!(dir.get_xattr_at(n(c"g"), c"user.a", &mut []).unwrap(), 1);
}
