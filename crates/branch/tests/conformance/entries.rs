//! Making, finding, listing and removing entries.

use crate::support::*;
use std::collections::HashMap;
use vellum_vfs::{BranchDir, Errno, Error, FileKind, Name, OpenMode};

pub fn a_new_branch_is_empty(f: &Fixture) {
    let root = f.root();
    assert!(names(&*root).is_empty());
    assert!(root.stat().unwrap().is_dir());
    assert_eq!(root.stat().unwrap().nlink, 2);
    assert_eq!(errno(root.stat_at(n(c"x"))), Errno::NOENT);
    assert_eq!(errno(root.open_dir(n(c"x"))), Errno::NOENT);
    assert_eq!(errno(root.open_file(n(c"x"), RW)), Errno::NOENT);
    assert_eq!(errno(root.hold(n(c"x"))), Errno::NOENT);
    assert_eq!(errno(root.remove(n(c"x"))), Errno::NOENT);
    assert_eq!(errno(root.remove_dir(n(c"x"))), Errno::NOENT);
    assert_eq!(errno(root.read_link_at(n(c"x"), &mut [0; 8])), Errno::NOENT);
    assert_eq!(errno(root.get_xattr_at(n(c"x"), c"user.a", &mut [0; 8])), Errno::NOENT);
    assert_eq!(errno(root.set_mode_at(n(c"x"), 0o600)), Errno::NOENT);
    assert_eq!(errno(root.set_owner_at(n(c"x"), Some(0), None)), Errno::NOENT);
    assert_eq!(errno(root.set_times_at(n(c"x"), Some(vellum_vfs::SetTime::Now), None)), Errno::NOENT);
    assert!(!f.branch.describe().is_empty());
}

pub fn create_makes_a_file_once(f: &Fixture) {
    let root = f.root();
    let file = root.create(n(c"f"), 0o640).unwrap();
    let attr = file.stat().unwrap();
    assert_eq!((attr.mode, attr.nlink, attr.size, attr.blocks), (0o100_640, 1, 0, 0));
    assert_eq!(root.stat_at(n(c"f")).unwrap(), attr);
    assert_eq!(errno(root.create(n(c"f"), 0o640)), Errno::EXIST);
    root.make_symlink(n(c"dangling"), c"nowhere").unwrap();
    assert_eq!(errno(root.create(n(c"dangling"), 0o640)), Errno::EXIST, "never followed");
    assert_eq!(names(&*root), ["dangling", "f"]);
    assert_eq!(root.create(n(c"special"), 0o7777).unwrap().stat().unwrap().perm(), 0o7777);
}

pub fn make_dir_makes_a_directory_once(f: &Fixture) {
    let root = f.root();
    root.make_dir(n(c"d"), 0o1750).unwrap();
    assert_eq!(root.stat_at(n(c"d")).unwrap().mode, 0o041_750);
    assert_eq!(errno(root.make_dir(n(c"d"), 0o700)), Errno::EXIST);
    put(&*root, c"f", b"");
    assert_eq!(errno(root.make_dir(n(c"f"), 0o700)), Errno::EXIST);
    let dir = root.open_dir(n(c"d")).unwrap();
    assert_eq!(dir.stat().unwrap(), root.stat_at(n(c"d")).unwrap());
    // mkdir(2) has no set-id bits.
    root.make_dir(n(c"e"), 0o7777).unwrap();
    assert_eq!(root.stat_at(n(c"e")).unwrap().perm(), 0o1777);
}

pub fn open_dir_wants_a_directory(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"");
    subdir(&*root, c"d");
    root.make_symlink(n(c"l"), c"d").unwrap();
    assert_eq!(errno(root.open_dir(n(c"f"))), Errno::NOTDIR);
    let of_link = errno(root.open_dir(n(c"l")));
    assert!(matches!(of_link, Errno::NOTDIR | Errno::LOOP), "{of_link}");
}

pub fn open_file_wants_a_regular_file(f: &Fixture) {
    let root = f.root();
    subdir(&*root, c"d");
    root.make_symlink(n(c"l"), c"f").unwrap();
    put(&*root, c"f", b"");
    root.make_node(n(c"fifo"), 0o010_644, 0).unwrap();
    root.make_node(n(c"sock"), 0o140_644, 0).unwrap();
    root.make_node(n(c"dev"), 0o020_644, rustix::fs::makedev(1, 3)).unwrap();
    for mode in [OpenMode::READ, OpenMode::WRITE, RW, RW | OpenMode::TRUNCATE] {
        assert_eq!(errno(root.open_file(n(c"d"), mode)), Errno::ISDIR, "{mode:?}");
        assert_eq!(errno(root.open_file(n(c"l"), mode)), Errno::LOOP, "{mode:?}");
        for special in [c"fifo", c"sock", c"dev"] {
            assert_eq!(errno(root.open_file(n(special), mode)), Errno::NXIO, "{special:?} {mode:?}");
        }
    }
}

pub fn make_node_makes_every_kind(f: &Fixture) {
    let root = f.root();
    let dev = rustix::fs::makedev(259, 70_000);
    let kinds = [
        (c"reg", FileKind::Regular),
        (c"fifo", FileKind::Fifo),
        (c"sock", FileKind::Socket),
        (c"chr", FileKind::CharDevice),
        (c"blk", FileKind::BlockDevice),
    ];
    for (name, kind) in kinds {
        root.make_node(n(name), kind.mode_bits() | 0o604, dev).unwrap();
        let attr = root.stat_at(n(name)).unwrap();
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        assert_eq!((attr.mode, attr.nlink), (kind.mode_bits() | 0o604, 1), "{kind:?}");
        assert_eq!(attr.rdev, if device { dev } else { 0 }, "{kind:?}");
        assert_eq!(errno(root.make_node(n(name), kind.mode_bits(), 0)), Errno::EXIST);
    }
    root.make_node(n(c"whiteout"), FileKind::CharDevice.mode_bits(), 0).unwrap();
    assert_eq!(root.stat_at(n(c"whiteout")).unwrap().rdev, 0);
    let dir = FileKind::Directory.mode_bits();
    assert_eq!(errno(root.make_node(n(c"no"), dir, 0)), Errno::PERM);
    assert_eq!(errno(root.make_node(n(c"no"), FileKind::Symlink.mode_bits(), 0)), Errno::INVAL);
    let mut seen = HashMap::new();
    root.list(&mut |item| {
        seen.insert(item.name.to_string(), item.kind);
        Ok(())
    })
    .unwrap();
    for (name, kind) in kinds {
        assert_eq!(seen[name.to_str().unwrap()], Some(kind));
    }
}

pub fn symlinks_keep_their_target(f: &Fixture) {
    let root = f.root();
    root.make_symlink(n(c"l"), c"../a b").unwrap();
    let attr = root.stat_at(n(c"l")).unwrap();
    assert_eq!((attr.mode, attr.size, attr.nlink), (0o120_777, 6, 1));
    let mut buf = [0; 64];
    assert_eq!(root.read_link_at(n(c"l"), &mut buf).unwrap(), 6);
    assert_eq!(&buf[..6], b"../a b");
    let held = root.hold(n(c"l")).unwrap();
    assert_eq!(held.read_link(&mut buf[..4]).unwrap(), 4, "cut to the buffer");
    assert_eq!(errno(held.read_link(&mut [])), Errno::INVAL);
    assert_eq!(errno(root.make_symlink(n(c"l"), c"x")), Errno::EXIST);
    assert_eq!(errno(root.make_symlink(n(c"m"), c"")), Errno::NOENT);
    root.make_symlink(n(c"longest"), &long_name(4095)).unwrap();
    let mut big = [0; 5000];
    assert_eq!(root.read_link_at(n(c"longest"), &mut big).unwrap(), 4095);
    assert_eq!(errno(root.make_symlink(n(c"longer"), &long_name(4096))), Errno::NAMETOOLONG);
    let file = put(&*root, c"f", b"");
    assert_eq!(errno(root.read_link_at(n(c"f"), &mut buf)), Errno::INVAL);
    assert_eq!(errno(file.read_link(&mut buf)), Errno::INVAL);
    assert_eq!(errno(root.read_link(&mut buf)), Errno::INVAL);
    assert_eq!(errno(root.hold(n(c"f")).unwrap().read_link(&mut buf)), Errno::INVAL);
}

pub fn names_of_255_bytes_are_the_longest(f: &Fixture) {
    let root = f.root();
    let longest = long_name(255);
    put(&*root, &longest, b"x");
    assert_eq!(get_at(&*root, &longest), b"x");
    assert_eq!(names(&*root), [longest.to_str().unwrap()]);
    assert_eq!(Name::new(&long_name(256)), Err(Errno::NAMETOOLONG));
    let odd = c"\x01\xff\n \\";
    put(&*root, odd, b"odd");
    let mut found = false;
    root.list(&mut |item| {
        found |= item.name.as_c_str() == odd;
        Ok(())
    })
    .unwrap();
    assert!(found);
}

pub fn remove_takes_anything_but_directories(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"");
    root.make_symlink(n(c"l"), c"d").unwrap();
    root.make_node(n(c"p"), 0o010_600, 0).unwrap();
    subdir(&*root, c"d");
    for name in [c"f", c"l", c"p"] {
        assert_eq!(errno(root.remove_dir(n(name))), Errno::NOTDIR, "{name:?}");
        root.remove(n(name)).unwrap();
    }
    assert_eq!(errno(root.remove(n(c"d"))), Errno::ISDIR);
    assert_eq!(names(&*root), ["d"]);
}

pub fn remove_dir_takes_empty_directories_only(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    put(&*dir, c"f", b"");
    assert_eq!(errno(root.remove_dir(n(c"d"))), Errno::NOTEMPTY);
    dir.remove(n(c"f")).unwrap();
    root.remove_dir(n(c"d")).unwrap();
    assert_eq!(errno(root.open_dir(n(c"d"))), Errno::NOENT);
}

pub fn a_removed_directory_takes_nothing_more(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    put(&*root, c"f", b"");
    root.remove_dir(n(c"d")).unwrap();
    assert_eq!(dir.stat().unwrap().nlink, 0);
    assert_eq!(errno(dir.create(n(c"x"), 0o600)), Errno::NOENT);
    assert_eq!(errno(dir.create_unnamed(0o600)), Errno::PERM, "as ext4 says");
    assert_eq!(errno(dir.make_dir(n(c"x"), 0o700)), Errno::NOENT);
    assert_eq!(errno(dir.make_symlink(n(c"x"), c"y")), Errno::NOENT);
    assert_eq!(errno(dir.make_node(n(c"x"), 0o010_600, 0)), Errno::NOENT);
    assert_eq!(errno(root.link(n(c"f"), &*dir, n(c"x"))), Errno::NOENT);
    assert_eq!(errno(root.rename(n(c"f"), &*dir, n(c"x"), vellum_vfs::RenameFlags::empty())), Errno::NOENT);
    assert_eq!(errno(dir.stat_at(n(c"x"))), Errno::NOENT);
    assert_eq!(errno(dir.list(&mut |_| Ok(()))), Errno::NOENT);
    dir.set_mode(0o700).unwrap();
    assert_eq!(dir.stat().unwrap().perm(), 0o700);
}

pub fn set_group_id_directories_hand_their_group_on(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    dir.set_owner(None, Some(1234)).unwrap();
    dir.set_mode(0o2775).unwrap();
    put(&*dir, c"f", b"");
    dir.make_dir(n(c"sub"), 0o700).unwrap();
    dir.make_symlink(n(c"l"), c"x").unwrap();
    assert_eq!(dir.stat_at(n(c"f")).unwrap().gid, 1234);
    assert_eq!(dir.stat_at(n(c"l")).unwrap().gid, 1234);
    let sub = dir.stat_at(n(c"sub")).unwrap();
    assert_eq!((sub.gid, sub.perm()), (1234, 0o2700));
}

pub fn an_unnamed_file_gets_its_directorys_group(f: &Fixture) {
    let dir = subdir(&*f.root(), c"d");
    dir.set_owner(None, Some(1234)).unwrap();
    dir.set_mode(0o2775).unwrap();
    assert_eq!(dir.create_unnamed(0o600).unwrap().stat().unwrap().gid, 1234);
}

pub fn list_shows_every_entry_once(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"");
    subdir(&*root, c"d");
    root.make_symlink(n(c"l"), c"d").unwrap();
    let mut seen = Vec::new();
    root.list(&mut |item| {
        assert_eq!(item.ino, root.stat_at(item.name).unwrap().ino);
        seen.push((item.name.to_string(), item.kind.unwrap()));
        Ok(())
    })
    .unwrap();
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [("d", FileKind::Directory), ("f", FileKind::Regular), ("l", FileKind::Symlink)];
    assert_eq!(seen, expected.map(|(name, kind)| (name.to_owned(), kind)));
}

pub fn list_ends_with_the_error_of_its_callback(f: &Fixture) {
    let root = f.root();
    for name in [c"a", c"b", c"c"] {
        put(&*root, name, b"");
    }
    let mut calls = 0;
    let result = root.list(&mut |_| {
        calls += 1;
        if calls == 2 { Err(Error::new(Errno::NOBUFS, "enough")) } else { Ok(()) }
    });
    assert_eq!((errno(result), calls), (Errno::NOBUFS, 2));
    assert_eq!(names(&*root).len(), 3);
}

pub fn list_can_be_nested_and_change_the_directory(f: &Fixture) {
    let root = f.root();
    for name in [c"a", c"b"] {
        put(&*subdir(&*root, name), c"inside", b"");
    }
    let mut inner = Vec::new();
    root.list(&mut |item| {
        let dir = root.open_dir(item.name)?;
        inner.extend(names(&*dir));
        dir.remove(n(c"inside"))?;
        root.remove_dir(item.name)
    })
    .unwrap();
    assert_eq!(inner, ["inside", "inside"]);
    assert!(names(&*root).is_empty());
}

pub fn list_of_many(f: &Fixture) {
    const COUNT: usize = 5000;
    let dir = subdir(&*f.root(), c"many");
    for number in 0..COUNT {
        let name = std::ffi::CString::new(format!("a rather long name, number {number}")).unwrap();
        dir.create(n(&name), 0o600).unwrap();
    }
    let mut seen = names(&*dir);
    assert_eq!(seen.len(), COUNT);
    seen.dedup();
    assert_eq!(seen.len(), COUNT);
}

pub fn paths_lead_down_only(f: &Fixture) {
    let root = f.root();
    let a = subdir(&*root, c"a");
    let b = subdir(&*a, c"b");
    put(&*b, c"f", b"");
    b.make_symlink(n(c"l"), c"..").unwrap();
    assert_eq!(f.branch.open_dir_path(c"a/b").unwrap().stat().unwrap().ino, b.stat().unwrap().ino);
    assert_eq!(f.branch.open_dir_path(c"").unwrap().stat().unwrap().ino, root.stat().unwrap().ino);
    for bad in [c"..", c"a/..", c"a/../a", c"/a", c"a//b", c"a/", c".", c"a/./b", c"/"] {
        assert_eq!(errno(f.branch.open_dir_path(bad)), Errno::INVAL, "{bad:?}");
    }
    assert_eq!(errno(f.branch.open_dir_path(c"a/x")), Errno::NOENT);
    assert_eq!(errno(f.branch.open_dir_path(c"a/b/f")), Errno::NOTDIR);
    assert_eq!(errno(f.branch.open_dir_path(c"a/b/l")), Errno::NOTDIR);
    assert_eq!(errno(f.branch.open_dir_path(c"a/b/l/b")), Errno::NOTDIR);
    // Longer than a path may be for the kernel at once.
    let mut dir = root;
    let mut path = Vec::new();
    let name = long_name(250);
    for _ in 0..20 {
        dir = subdir(&*dir, &name);
        path.extend_from_slice(name.to_bytes());
        path.push(b'/');
    }
    path.pop();
    let path = std::ffi::CString::new(path).unwrap();
    assert_eq!(f.branch.open_dir_path(&path).unwrap().stat().unwrap().ino, dir.stat().unwrap().ino);
}

pub fn hold_anything(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"data");
    subdir(&*root, c"d");
    root.make_symlink(n(c"l"), c"nowhere").unwrap();
    root.make_node(n(c"p"), 0o010_600, 0).unwrap();
    root.make_node(n(c"c"), 0o020_600, rustix::fs::makedev(1, 3)).unwrap();
    for name in [c"f", c"d", c"l", c"p", c"c"] {
        let held = root.hold(n(name)).unwrap();
        let before = root.stat_at(n(name)).unwrap();
        assert_eq!(held.stat().unwrap(), before, "{name:?}");
        held.set_owner(Some(12), Some(34)).unwrap();
        let after = root.stat_at(n(name)).unwrap();
        assert_eq!((after.uid, after.gid), (12, 34), "{name:?}");
        if name == c"d" {
            root.remove_dir(n(name)).unwrap();
        } else {
            root.remove(n(name)).unwrap();
        }
        assert_eq!(held.stat().unwrap().nlink, 0, "{name:?}");
    }
}

pub fn the_filesystem_says_how_big_it_is(f: &Fixture) {
    let found = f.branch.statfs().unwrap();
    assert!(found.blocks > 0 && found.frsize > 0 && found.bsize > 0 && found.fstype != 0);
    assert!(found.bavail <= found.bfree && found.bfree <= found.blocks);
    assert_eq!(found.namelen, 255);
}

pub fn everything_can_be_synced(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"x");
    file.sync(true).unwrap();
    file.sync(false).unwrap();
    let dir: &dyn BranchDir = &*subdir(&*root, c"d");
    dir.sync_dir().unwrap();
    root.sync_dir().unwrap();
    f.branch.sync().unwrap();
}
