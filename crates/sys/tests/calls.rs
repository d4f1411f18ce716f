//! The calls that are not mere wrappers of a safe crate's.
#![allow(clippy::unwrap_used, reason = "one test program")]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/file_handle.rs"]
mod file_handle;

use faulty::Faulty;
use file_handle::FileHandle;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use vellum_sys::{Call, LockKind, Real, Sys, XattrTarget};

fn scratch() -> (tempfile::TempDir, OwnedFd) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
    (dir, fd)
}

const CREATE: OFlags = OFlags::CREATE.union(OFlags::RDWR).union(OFlags::CLOEXEC);
const HOLD: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[test]
fn kinds_are_numbered_in_their_order() {
    for (number, call) in Call::ALL.iter().enumerate() {
        assert_eq!(*call as usize, number);
    }
    assert!(Call::Rename.mutates() && !Call::StatAt.mutates());
}

#[test]
fn the_real_implementation_has_no_state() {
    assert_eq!(size_of::<Real>(), 0);
}

#[test]
fn handles_find_their_file_again() {
    let (dir, fd) = scratch();
    let file = Real.open(fd.as_fd(), c"f", CREATE, 0o600).unwrap();
    let handle = match FileHandle::lookup(fd.as_fd(), c"f") {
        Err(Errno::OPNOTSUPP) => return eprintln!("SKIPPED: no file handles on this filesystem"),
        result => result.unwrap(),
    };
    assert_eq!(FileHandle::lookup(fd.as_fd(), c"f").unwrap(), handle);
    let mount = std::fs::File::open(dir.path()).unwrap();
    let again = match handle.open(mount.as_fd(), OFlags::RDONLY) {
        Err(Errno::PERM) => return eprintln!("SKIPPED: opening by handle needs CAP_DAC_READ_SEARCH"),
        result => result.unwrap(),
    };
    assert_eq!(Real.stat(again.as_fd()).unwrap().ino, Real.stat(file.as_fd()).unwrap().ino);
    drop((again, file));
    Real.unlink(fd.as_fd(), c"f").unwrap();
    assert_eq!(handle.open(mount.as_fd(), OFlags::RDONLY).err(), Some(Errno::STALE));
}

#[test]
fn locks_exclude_each_other_within_one_process() {
    let (_dir, fd) = scratch();
    let one = Real.open(fd.as_fd(), c"lock", CREATE, 0o600).unwrap();
    let two = Real.open(fd.as_fd(), c"lock", CREATE, 0o600).unwrap();
    Real.ofd_lock(one.as_fd(), LockKind::Exclusive).unwrap();
    assert_eq!(Real.ofd_lock(two.as_fd(), LockKind::Exclusive), Err(Errno::AGAIN));
    assert_eq!(Real.ofd_lock(two.as_fd(), LockKind::Shared), Err(Errno::AGAIN));
    Real.ofd_lock(one.as_fd(), LockKind::Unlock).unwrap();
    Real.ofd_lock(two.as_fd(), LockKind::Shared).unwrap();
    Real.ofd_lock(one.as_fd(), LockKind::Shared).unwrap();
    drop(two);
    Real.ofd_lock(one.as_fd(), LockKind::Exclusive).unwrap();
}

#[test]
fn attributes_are_reached_by_every_way() {
    let (_dir, fd) = scratch();
    let file = Real.open(fd.as_fd(), c"f", CREATE, 0o600).unwrap();
    let held = Real.open(fd.as_fd(), c"f", HOLD, 0).unwrap();
    let ways = [
        XattrTarget::File(file.as_fd()),
        XattrTarget::Held(held.as_fd()),
        XattrTarget::Name(fd.as_fd(), c"f"),
    ];
    for set in ways {
        Real.set_xattr(set, c"user.a", b"value", 0).unwrap();
        for get in ways {
            let mut buf = [0; 16];
            assert_eq!(Real.get_xattr(get, c"user.a", &mut buf).unwrap(), 5, "{set:?} {get:?}");
            assert_eq!(&buf[..5], b"value");
            assert_eq!(Real.list_xattr(get, &mut buf).unwrap(), 7);
        }
        Real.remove_xattr(set, c"user.a").unwrap();
        assert_eq!(Real.get_xattr(set, c"user.a", &mut []), Err(Errno::NODATA));
    }
    Real.set_xattr(XattrTarget::Dir(fd.as_fd()), c"user.d", b"", 0).unwrap();
    assert_eq!(Real.get_xattr(XattrTarget::Dir(fd.as_fd()), c"user.d", &mut []), Ok(0));
}

#[test]
fn path_descriptors_are_changed_without_opening() {
    let (_dir, fd) = scratch();
    drop(Real.open(fd.as_fd(), c"f", CREATE, 0o600).unwrap());
    Real.make_symlink(c"target", fd.as_fd(), c"l").unwrap();
    let held = Real.open(fd.as_fd(), c"f", HOLD, 0).unwrap();
    Real.set_mode(held.as_fd(), 0o640).unwrap();
    assert_eq!(Real.stat_at(fd.as_fd(), c"f").unwrap().mode, 0o100_640);
    assert_eq!(Real.read_link(held.as_fd(), c"", &mut [0; 8]), Err(Errno::INVAL));
    Real.link_fd(held.as_fd(), fd.as_fd(), c"g").unwrap();
    assert_eq!(Real.stat(held.as_fd()).unwrap().nlink, 2);
    let link = Real.open(fd.as_fd(), c"l", HOLD, 0).unwrap();
    let mut buf = [0; 8];
    assert_eq!(Real.read_link(link.as_fd(), c"", &mut buf), Ok(6));
    assert_eq!(&buf[..6], b"target");
    assert_eq!(Real.set_mode(link.as_fd(), 0o600), Err(Errno::OPNOTSUPP));
}

#[test]
fn resolution_stays_beneath_the_directory() {
    let (_dir, fd) = scratch();
    Real.make_dir(fd.as_fd(), c"a", 0o700).unwrap();
    Real.make_dir(fd.as_fd(), c"a/b", 0o700).unwrap();
    Real.make_symlink(c"a", fd.as_fd(), c"l").unwrap();
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match Real.open_beneath(fd.as_fd(), c"a/b", flags) {
        Err(Errno::NOSYS) => return eprintln!("SKIPPED: this kernel has no openat2"),
        result => drop(result.unwrap()),
    }
    assert_eq!(Real.open_beneath(fd.as_fd(), c"..", flags).err(), Some(Errno::XDEV));
    assert_eq!(Real.open_beneath(fd.as_fd(), c"/etc", flags).err(), Some(Errno::XDEV));
    assert_eq!(Real.open_beneath(fd.as_fd(), c"l/b", flags).err(), Some(Errno::LOOP));
    assert!(Real.open_beneath(CWD, c"none such", flags).is_err());
}

#[test]
fn a_faulty_call_does_nothing() {
    let (_dir, fd) = scratch();
    let sys = Faulty::new();
    sys.fail_nth(Some(Call::MakeDir), 0, Errno::NOSPC);
    assert_eq!(sys.make_dir(fd.as_fd(), c"d", 0o700), Err(Errno::NOSPC));
    assert_eq!(sys.stat_at(fd.as_fd(), c"d").err(), Some(Errno::NOENT));
    sys.make_dir(fd.as_fd(), c"d", 0o700).unwrap();
    assert_eq!((sys.total(), sys.count(Call::MakeDir), sys.count(Call::StatAt)), (3, 2, 1));
    let clone = sys.clone();
    clone.kill_at(0);
    assert_eq!(sys.stat_at(fd.as_fd(), c"d").err(), Some(faulty::DEAD));
    assert!(clone.is_dead());
}
