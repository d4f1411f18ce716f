//! Extended attributes and ACLs.

use crate::support::*;
use std::ffi::{CStr, CString};
use vellum_vfs::{Errno, Object};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;
const ACCESS: &CStr = c"system.posix_acl_access";
const DEFAULT: &CStr = c"system.posix_acl_default";

fn value(object: &dyn Object, name: &CStr) -> Vec<u8> {
    let mut buf = [0; 4096];
    let len = object.get_xattr(name, &mut buf).unwrap();
    assert_eq!(object.get_xattr(name, &mut []).unwrap(), len, "asking for the length only");
    buf[..len].to_vec()
}

fn list(object: &dyn Object) -> Vec<String> {
    let mut buf = [0; 4096];
    let len = object.list_xattr(&mut buf).unwrap();
    assert_eq!(object.list_xattr(&mut []).unwrap(), len);
    let mut names: Vec<String> = buf[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .filter(|name| !name.starts_with("security.selinux"))
        .collect();
    names.sort();
    names
}

pub fn values_come_back(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"");
    let dir = subdir(&*root, c"d");
    let held = root.hold(n(c"f")).unwrap();
    let held_dir = root.hold(n(c"d")).unwrap();
    let objects: [(&dyn Object, &CStr); 4] =
        [(&*file, c"f"), (&*held, c"f"), (&*dir, c"d"), (&*held_dir, c"d")];
    for (object, name) in objects {
        object.set_xattr(c"user.one", b"1\0\xff", 0).unwrap();
        object.set_xattr(c"user.empty", b"", 0).unwrap();
        assert_eq!(value(object, c"user.one"), b"1\0\xff");
        assert_eq!(value(object, c"user.empty"), b"");
        assert_eq!(list(object), ["user.empty", "user.one"]);
        let mut buf = [0; 8];
        assert_eq!(root.get_xattr_at(n(name), c"user.one", &mut buf).unwrap(), 3);
        assert_eq!(root.get_xattr_at(n(name), c"user.one", &mut []).unwrap(), 3);
        assert_eq!(errno(root.get_xattr_at(n(name), c"user.one", &mut buf[..2])), Errno::RANGE);
        assert_eq!(errno(object.get_xattr(c"user.one", &mut buf[..2])), Errno::RANGE);
        assert_eq!(errno(object.list_xattr(&mut buf[..2])), Errno::RANGE);
        object.set_xattr(c"user.one", b"other", 0).unwrap();
        assert_eq!(value(object, c"user.one"), b"other");
        object.remove_xattr(c"user.one").unwrap();
        assert_eq!(errno(object.get_xattr(c"user.one", &mut buf)), Errno::NODATA);
        assert_eq!(errno(root.get_xattr_at(n(name), c"user.one", &mut buf)), Errno::NODATA);
        assert_eq!(errno(object.remove_xattr(c"user.one")), Errno::NODATA);
        object.remove_xattr(c"user.empty").unwrap();
        assert!(list(object).is_empty());
    }
}

pub fn flags_decide_about_existing_ones(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"");
    let dir = subdir(&*f.root(), c"d");
    for object in [&*file as &dyn Object, &*dir as &dyn Object] {
        assert_eq!(errno(object.set_xattr(c"user.a", b"", REPLACE)), Errno::NODATA);
        object.set_xattr(c"user.a", b"1", CREATE).unwrap();
        assert_eq!(errno(object.set_xattr(c"user.a", b"2", CREATE)), Errno::EXIST);
        object.set_xattr(c"user.a", b"3", REPLACE).unwrap();
        assert_eq!(value(object, c"user.a"), b"3");
        assert_eq!(errno(object.set_xattr(c"user.a", b"", 4)), Errno::INVAL);
    }
}

pub fn bad_names_and_sizes(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"");
    let dir = subdir(&*f.root(), c"d");
    let long = CString::new(format!("user.{}", "x".repeat(251))).unwrap();
    let longest = CString::new(format!("user.{}", "x".repeat(250))).unwrap();
    for object in [&*file as &dyn Object, &*dir as &dyn Object] {
        for (name, expected) in [
            (c"", Errno::RANGE),
            (long.as_c_str(), Errno::RANGE),
            (c"nonsense", Errno::OPNOTSUPP),
            (c"nonsense.x", Errno::OPNOTSUPP),
            (c"user", Errno::OPNOTSUPP),
            (c"user.", Errno::INVAL),
        ] {
            assert_eq!(errno(object.set_xattr(name, b"", 0)), expected, "set {name:?}");
            assert_eq!(errno(object.get_xattr(name, &mut [0; 8])), expected, "get {name:?}");
            assert_eq!(errno(object.remove_xattr(name)), expected, "remove {name:?}");
        }
        object.set_xattr(&longest, b"v", 0).unwrap();
        assert_eq!(value(object, &longest), b"v");
        assert_eq!(errno(object.set_xattr(c"user.big", &vec![0; 65537], 0)), Errno::TOOBIG);
    }
}

pub fn user_attributes_are_for_files_and_directories(f: &Fixture) {
    let root = f.root();
    root.make_symlink(n(c"l"), c"nowhere").unwrap();
    root.make_node(n(c"p"), 0o010_600, 0).unwrap();
    root.make_node(n(c"c"), 0o020_600, 0).unwrap();
    for name in [c"l", c"p", c"c"] {
        let held = root.hold(n(name)).unwrap();
        assert_eq!(errno(held.set_xattr(c"user.a", b"", 0)), Errno::PERM, "{name:?}");
        assert_eq!(errno(held.remove_xattr(c"user.a")), Errno::PERM, "{name:?}");
        assert_eq!(errno(held.get_xattr(c"user.a", &mut [0; 8])), Errno::NODATA, "{name:?}");
        assert_eq!(errno(root.get_xattr_at(n(name), c"user.a", &mut [0; 8])), Errno::NODATA, "{name:?}");
    }
}

pub fn trusted_attributes_are_for_everything(f: &Fixture) {
    let root = f.root();
    put(&*root, c"f", b"");
    subdir(&*root, c"d");
    root.make_symlink(n(c"l"), c"nowhere").unwrap();
    root.make_node(n(c"p"), 0o010_600, 0).unwrap();
    root.make_node(n(c"c"), 0o020_600, 0).unwrap();
    for name in [c"f", c"d", c"l", c"p", c"c"] {
        let held = root.hold(n(name)).unwrap();
        held.set_xattr(c"trusted.overlay.x", b"y", 0).unwrap();
        assert_eq!(value(&*held, c"trusted.overlay.x"), b"y");
        let mut buf = [0; 8];
        assert_eq!(root.get_xattr_at(n(name), c"trusted.overlay.x", &mut buf).unwrap(), 1);
        assert_eq!(list(&*held), ["trusted.overlay.x"]);
        held.remove_xattr(c"trusted.overlay.x").unwrap();
        assert!(list(&*held).is_empty());
    }
}

pub fn capabilities_have_a_form(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"");
    for (head, len, expected) in [
        ([0, 0, 0, 2], 20, Ok(())),
        ([1, 0, 0, 2], 20, Ok(())),
        ([2, 0, 0, 2], 20, Err(Errno::INVAL)),
        ([0, 0, 1, 2], 20, Err(Errno::INVAL)),
        ([0, 0, 0, 2], 24, Err(Errno::INVAL)),
        ([0, 0, 0, 1], 12, Err(Errno::INVAL)),
        ([0, 0, 0, 3], 20, Err(Errno::INVAL)),
    ] {
        let mut value = head.to_vec();
        value.resize(len, 0);
        let set = file.set_xattr(c"security.capability", &value, 0).map_err(|error| error.errno());
        assert_eq!(set, expected, "{head:?}, {len} bytes");
    }
}

pub fn too_much_does_not_fit(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"");
    file.set_xattr(c"user.a", &[1; 3000], 0).unwrap();
    assert_eq!(errno(file.set_xattr(c"user.b", &[2; 3000], 0)), Errno::NOSPC);
    assert_eq!(list(&*file), ["user.a"]);
    file.set_xattr(c"user.a", &[3; 100], 0).unwrap();
    file.set_xattr(c"user.b", &[2; 3000], 0).unwrap();
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const NOBODY: u32 = u32::MAX;

pub fn an_access_acl_shows_in_the_mode(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"");
    let named = acl(&[(1, 6, NOBODY), (2, 7, 1000), (4, 4, NOBODY), (0x10, 5, NOBODY), (0x20, 0, NOBODY)]);
    file.set_xattr(ACCESS, &named, 0).unwrap();
    assert_eq!(file.stat().unwrap().perm(), 0o650);
    assert_eq!(value(&*file, ACCESS), named);
    assert_eq!(list(&*file), [ACCESS.to_str().unwrap()]);
    file.set_mode(0o4701).unwrap();
    let changed = acl(&[(1, 7, NOBODY), (2, 7, 1000), (4, 4, NOBODY), (0x10, 0, NOBODY), (0x20, 1, NOBODY)]);
    assert_eq!(value(&*file, ACCESS), changed);
    assert_eq!(file.stat().unwrap().perm(), 0o4701);
    // A list that says no more than a mode is a mode.
    file.set_xattr(ACCESS, &acl(&[(1, 6, NOBODY), (4, 4, NOBODY), (0x20, 4, NOBODY)]), 0).unwrap();
    assert_eq!(file.stat().unwrap().perm(), 0o4644);
    assert_eq!(errno(file.get_xattr(ACCESS, &mut [0; 100])), Errno::NODATA);
    file.remove_xattr(ACCESS).unwrap();
    let bad = acl(&[(1, 6, NOBODY), (2, 7, 1000), (4, 4, NOBODY), (0x20, 4, NOBODY)]);
    assert_eq!(errno(file.set_xattr(ACCESS, &bad, 0)), Errno::INVAL);
    assert_eq!(errno(file.set_xattr(ACCESS, b"xyz", 0)), Errno::INVAL);
    assert_eq!(errno(file.set_xattr(ACCESS, &[1, 0, 0, 0], 0)), Errno::OPNOTSUPP);
}

fn a_default_acl() -> Vec<u8> {
    acl(&[(1, 7, NOBODY), (2, 6, 1000), (4, 5, NOBODY), (0x10, 7, NOBODY), (0x20, 1, NOBODY)])
}

pub fn an_unnamed_file_inherits_an_acl(f: &Fixture) {
    let dir = subdir(&*f.root(), c"d");
    dir.set_xattr(DEFAULT, &a_default_acl(), 0).unwrap();
    assert_eq!(dir.create_unnamed(0o600).unwrap().stat().unwrap().perm(), 0o600);
}

pub fn a_default_acl_is_inherited(f: &Fixture) {
    let root = f.root();
    let dir = subdir(&*root, c"d");
    let default = a_default_acl();
    dir.set_xattr(DEFAULT, &default, 0).unwrap();
    assert_eq!(dir.stat().unwrap().perm(), 0o755);
    let file = dir.create(n(c"f"), 0o664).unwrap();
    assert_eq!(file.stat().unwrap().perm(), 0o660);
    let expected = acl(&[(1, 6, NOBODY), (2, 6, 1000), (4, 5, NOBODY), (0x10, 6, NOBODY), (0x20, 0, NOBODY)]);
    assert_eq!(value(&*file, ACCESS), expected);
    assert_eq!(errno(file.get_xattr(DEFAULT, &mut [0; 100])), Errno::NODATA);
    let sub = subdir(&*dir, c"sub");
    assert_eq!(value(&*sub, DEFAULT), default);
    assert_eq!(sub.stat().unwrap().perm(), 0o751);
    dir.make_node(n(c"p"), 0o010_666, 0).unwrap();
    assert_eq!(dir.stat_at(n(c"p")).unwrap().perm(), 0o660);
    dir.make_symlink(n(c"l"), c"f").unwrap();
    assert_eq!(dir.stat_at(n(c"l")).unwrap().perm(), 0o777);
    dir.remove_xattr(DEFAULT).unwrap();
    assert_eq!(dir.create(n(c"g"), 0o664).unwrap().stat().unwrap().perm(), 0o664);
}

pub fn acls_have_their_place(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"");
    let list = acl(&[(1, 6, NOBODY), (4, 4, NOBODY), (0x20, 4, NOBODY)]);
    assert_eq!(errno(file.set_xattr(DEFAULT, &list, 0)), Errno::ACCESS);
    root.make_symlink(n(c"l"), c"f").unwrap();
    let link = root.hold(n(c"l")).unwrap();
    assert_eq!(errno(link.set_xattr(ACCESS, &list, 0)), Errno::OPNOTSUPP);
    assert_eq!(errno(link.get_xattr(ACCESS, &mut [0; 100])), Errno::OPNOTSUPP);
}

fn a_capability() -> (&'static CStr, [u8; 20]) {
    let mut capability = [0; 20];
    capability[3] = 2;
    capability[4] = 1;
    (c"security.capability", capability)
}

pub fn allocation_takes_capabilities_away(f: &Fixture) {
    let file = put(&*f.root(), c"f", b"data");
    let (name, capability) = a_capability();
    file.set_xattr(name, &capability, 0).unwrap();
    file.allocate(0, 0, 10).unwrap();
    assert_eq!(errno(file.get_xattr(name, &mut [0; 32])), Errno::NODATA);
}

pub fn writing_takes_capabilities_away(f: &Fixture) {
    let root = f.root();
    let file = put(&*root, c"f", b"data");
    let (name, capability) = a_capability();
    let mut buf = [0; 32];
    let changes: [(&str, &dyn Fn()); 4] = [
        ("write", &|| done(file.write_at(b"x", 0).unwrap())),
        ("truncate", &|| file.truncate(2).unwrap()),
        ("owner", &|| file.set_owner(None, None).unwrap()),
        ("copy", &|| done(file.copy_range(10, &*file, 0, 1).unwrap())),
    ];
    for (what, change) in changes {
        file.set_xattr(name, &capability, 0).unwrap();
        assert_eq!(file.get_xattr(name, &mut buf).unwrap(), 20);
        change();
        assert_eq!(errno(file.get_xattr(name, &mut buf)), Errno::NODATA, "{what}");
    }
    file.set_xattr(name, &capability, 0).unwrap();
    file.set_mode(0o755).unwrap();
    assert_eq!(file.get_xattr(name, &mut buf).unwrap(), 20, "a new mode leaves it");
    assert_eq!(errno(file.set_xattr(name, b"junk", 0)), Errno::INVAL);
}
