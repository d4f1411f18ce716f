//! Nothing in a local branch leads out of it, blocks, or touches a device.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "one test program")]

#[path = "../../sys/tests/support/faulty.rs"]
mod faulty;
mod support;

use faulty::Faulty;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::*;
use vellum_branch::LocalBranch;
use vellum_sys::Call;
use vellum_vfs::{Branch, Errno, Name, OpenMode, RenameFlags};

/// A directory with a secret in it, outside every branch.
fn outside() -> tempfile::TempDir {
    let dir = scratch();
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    std::fs::set_permissions(dir.path().join("secret"), PermissionsExt::from_mode(0o640)).unwrap();
    dir
}

fn untouched(outside: &Path) {
    assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
    let mode = std::fs::metadata(outside.join("secret")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    assert_eq!(std::fs::read_dir(outside).unwrap().count(), 1);
}

#[test]
fn symbolic_links_are_never_followed() {
    let f = Fixture::local();
    let out = outside();
    let root = f.root();
    symlink(out.path(), f.path().join("dir")).unwrap();
    symlink(out.path().join("secret"), f.path().join("file")).unwrap();
    symlink("..", f.path().join("up")).unwrap();
    symlink("/proc/self/root", f.path().join("magic")).unwrap();
    for name in [c"dir", c"up", c"magic"] {
        assert_eq!(errno(root.open_dir(n(name))), Errno::NOTDIR, "{name:?}");
        assert_eq!(errno(f.branch.open_dir_path(name)), Errno::NOTDIR, "{name:?}");
    }
    assert_eq!(errno(f.branch.open_dir_path(c"dir/sub")), Errno::NOTDIR);
    assert_eq!(errno(f.branch.open_dir_path(c"up/x")), Errno::NOTDIR);
    for mode in [OpenMode::READ, OpenMode::WRITE, RW | OpenMode::TRUNCATE] {
        assert_eq!(errno(root.open_file(n(c"file"), mode)), Errno::LOOP);
        let held = root.hold(n(c"file")).unwrap();
        assert_eq!(errno(held.reopen(mode)), Errno::LOOP);
    }
    assert_eq!(errno(root.create(n(c"file"), 0o600)), Errno::EXIST);
    assert_eq!(errno(root.set_mode_at(n(c"file"), 0o777)), Errno::OPNOTSUPP);
    root.set_times_at(n(c"file"), Some(vellum_vfs::SetTime::Now), None).unwrap();
    let _ = root.get_xattr_at(n(c"file"), c"user.x", &mut []);
    let held = root.hold(n(c"file")).unwrap();
    assert!(held.set_xattr(c"user.x", b"y", 0).is_err());
    if is_root() {
        root.set_owner_at(n(c"file"), Some(1), Some(1)).unwrap();
        held.set_owner(Some(2), Some(2)).unwrap();
        held.set_xattr(c"trusted.x", b"y", 0).unwrap();
    }
    root.rename(n(c"dir"), &*root, n(c"renamed"), RenameFlags::empty()).unwrap();
    root.link(n(c"file"), &*root, n(c"linked")).unwrap();
    root.remove(n(c"file")).unwrap();
    root.remove(n(c"renamed")).unwrap();
    untouched(out.path());
    assert!(std::fs::symlink_metadata(f.path().join("linked")).unwrap().is_symlink());
}

#[test]
fn names_cannot_lead_up() {
    assert_eq!(Name::new(c".."), Err(Errno::INVAL));
    assert_eq!(Name::new(c"a/b"), Err(Errno::INVAL));
    let f = Fixture::local();
    for path in [c"..", c"../..", c"a/../..", c"/etc", c"./.."] {
        assert_eq!(errno(f.branch.open_dir_path(path)), Errno::INVAL, "{path:?}");
    }
}

/// While one thread exchanges a directory (file) with a symbolic link that leads out, whatever is opened must lie
/// inside.
#[test]
fn links_that_are_swapped_in_meanwhile_are_not_followed() {
    const ROUNDS: usize = 3000;
    let f = Fixture::local();
    let out = outside();
    let root = f.root();
    let inner = subdir(&*root, c"d");
    put(&*inner, c"secret", b"inside");
    put(&*root, c"f", b"inside");
    symlink(out.path(), f.path().join("d-link")).unwrap();
    symlink(out.path().join("secret"), f.path().join("f-link")).unwrap();
    let stop = AtomicBool::new(false);
    let swapper = f.root();
    let (mut opened, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                swapper.rename(n(c"d"), &*swapper, n(c"d-link"), RenameFlags::EXCHANGE).unwrap();
                swapper.rename(n(c"f"), &*swapper, n(c"f-link"), RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..ROUNDS {
            for dir in [root.open_dir(n(c"d")), f.branch.open_dir_path(c"d")] {
                match dir {
                    Ok(dir) => {
                        assert_eq!(get_at(&*dir, c"secret"), b"inside");
                        opened += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOTDIR);
                        refused += 1;
                    }
                }
            }
            match root.open_file(n(c"f"), RW) {
                Ok(file) => assert_eq!(get(&*file), b"inside"),
                Err(error) => assert_eq!(error.errno(), Errno::LOOP),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{opened} opened, {refused} refused");
    untouched(out.path());
}

#[test]
fn fifos_do_not_block() {
    let f = Fixture::local();
    let root = f.root();
    root.make_node(n(c"fifo"), 0o010_666, 0).unwrap();
    let start = Instant::now();
    for mode in [OpenMode::READ, OpenMode::WRITE, RW] {
        assert_eq!(errno(root.open_file(n(c"fifo"), mode)), Errno::NXIO);
        assert_eq!(errno(root.hold(n(c"fifo")).unwrap().reopen(mode)), Errno::NXIO);
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// Opening a device can already do something (rewind a tape, arm a watchdog), whatever is asked of it then.
#[test]
fn devices_are_not_opened() {
    if !is_root() {
        eprintln!("SKIPPED: needs root, to make a device");
        return;
    }
    let f = Fixture::local();
    let sys = Faulty::new();
    let branch = LocalBranch::open_with(sys.clone(), f.path()).unwrap();
    let root = branch.root();
    root.make_node(n(c"null"), 0o020_666, rustix::fs::makedev(1, 3)).unwrap();
    root.make_node(n(c"sock"), 0o140_666, 0).unwrap();
    for name in [c"null", c"sock"] {
        let held = root.hold(n(name)).unwrap();
        let before = sys.count(Call::Open);
        for mode in [OpenMode::READ, OpenMode::WRITE, RW] {
            assert_eq!(errno(root.open_file(n(name), mode)), Errno::NXIO);
            assert_eq!(errno(held.reopen(mode)), Errno::NXIO);
        }
        assert_eq!(sys.count(Call::Open), before);
    }
}

#[test]
fn a_branch_does_not_care_where_its_directory_moves() {
    let parent = outside();
    let path = parent.path().join("layer");
    std::fs::create_dir(&path).unwrap();
    let branch = LocalBranch::open(&path).unwrap();
    put(&*branch.root(), c"f", b"x");
    std::fs::rename(&path, parent.path().join("moved")).unwrap();
    symlink("/etc", &path).unwrap();
    assert_eq!(names(&*branch.root()), ["f"]);
    assert_eq!(get_at(&*branch.root(), c"f"), b"x");
}

#[test]
fn only_directories_become_branches() {
    let out = outside();
    let failed = LocalBranch::open(out.path().join("secret")).err().unwrap();
    assert_eq!(failed.errno(), Errno::NOTDIR);
    assert!(failed.to_string().contains("secret"), "{failed}");
    assert_eq!(LocalBranch::open(out.path().join("none")).err().unwrap().errno(), Errno::NOENT);
    let file = std::fs::File::open(out.path().join("secret")).unwrap();
    assert_eq!(LocalBranch::from_fd(file.into(), "x").err().unwrap().errno(), Errno::NOTDIR);
    let dir = std::fs::File::open(out.path()).unwrap();
    let branch = LocalBranch::from_fd(dir.into(), "here").unwrap();
    assert_eq!(names(&*branch.root()), ["secret"]);
    assert_eq!(branch.describe(), "here");
    // A symbolic link to a layer is fine: that is the administrator's word, not the layer's.
    symlink(out.path(), out.path().join("self")).unwrap();
    assert_eq!(names(&*LocalBranch::open(out.path().join("self")).unwrap().root()).len(), 2);
}

/// Descriptors of this process that lead into `dir`.
fn descriptors(dir: &Path) -> usize {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter(|entry| {
            std::fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|target| target.starts_with(dir))
        })
        .count()
}

#[test]
fn no_descriptor_is_left_and_none_is_inherited() {
    let f = Fixture::local();
    let root = f.root();
    let path = f.path().canonicalize().unwrap();
    assert_eq!(descriptors(&path), 1);
    {
        let dir = subdir(&*root, c"d");
        let file = put(&*dir, c"f", b"x");
        let again = file.reopen(OpenMode::READ).unwrap();
        let held = dir.hold(n(c"f")).unwrap();
        let unnamed = dir.create_unnamed(0o600).unwrap();
        root.list(&mut |_| Ok(())).unwrap();
        root.sync_dir().unwrap();
        f.branch.sync().unwrap();
        assert!(dir.open_file(n(c"none"), RW).is_err());
        assert!(root.open_file(n(c"d"), OpenMode::READ).is_err());
        assert_eq!(descriptors(&path), 6);
        for file in [&file, &again, &unnamed] {
            let fd = file.descriptor().unwrap();
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            let flags = u32::from_str_radix(flags, 8).unwrap();
            assert_ne!(flags & libc::O_CLOEXEC as u32, 0, "close on exec: {flags:o}");
        }
        drop(held);
    }
    assert_eq!(descriptors(&path), 1);
}

#[test]
fn the_access_time_of_files_is_left_alone() {
    let f = Fixture::local();
    let root = f.root();
    let old = vellum_vfs::Timestamp { secs: 1000, nanos: 0 };
    put(&*root, c"f", b"x").set_times(Some(vellum_vfs::SetTime::At(old)), None).unwrap();
    let dir = subdir(&*root, c"d");
    dir.set_times(Some(vellum_vfs::SetTime::At(old)), None).unwrap();
    assert_eq!(get_at(&*root, c"f"), b"x");
    names(&*dir);
    assert_eq!(root.stat_at(n(c"f")).unwrap().atime, old);
    assert_eq!(dir.stat().unwrap().atime, old);
}

/// Runs `test` in a thread that is an ordinary user; the rest of the process stays what it is.
fn as_nobody(test: impl FnOnce() + Send + 'static) {
    const NOBODY: u32 = 65534;
    std::thread::spawn(move || {
        let (uid, gid) = (rustix::fs::Uid::from_raw(NOBODY), rustix::fs::Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        test();
    })
    .join()
    .unwrap();
}

#[test]
fn unprivileged_users_can_use_their_own_files() {
    if !is_root() {
        eprintln!("SKIPPED: needs root, to become somebody else");
        return;
    }
    let f = Fixture::local();
    let root = f.root();
    root.set_mode(0o755).unwrap();
    put(&*root, c"foreign", b"foreign");
    put(&*root, c"private", b"private").set_mode(0o600).unwrap();
    let dir = subdir(&*root, c"his");
    dir.set_owner(Some(65534), Some(65534)).unwrap();
    let blind = subdir(&*root, c"blind");
    put(&*blind, c"f", b"x");
    blind.set_mode(0o711).unwrap();
    let branch = Arc::clone(&f.branch);
    as_nobody(move || {
        let root = branch.root();
        // The file of another cannot be read without moving its access time, but it can be read.
        assert_eq!(get_at(&*root, c"foreign"), b"foreign");
        assert_eq!(errno(root.open_file(n(c"foreign"), RW)), Errno::ACCESS);
        assert_eq!(errno(root.open_file(n(c"private"), OpenMode::READ)), Errno::ACCESS);
        assert_eq!(errno(root.create(n(c"x"), 0o600)), Errno::ACCESS);
        assert_eq!(errno(root.set_mode_at(n(c"foreign"), 0o666)), Errno::PERM);
        assert_eq!(errno(root.hold(n(c"foreign")).unwrap().set_mode(0o666)), Errno::PERM);
        assert_eq!(errno(root.set_owner_at(n(c"foreign"), Some(65534), None)), Errno::PERM);
        assert_eq!(names(&*root).len(), 4);
        // A directory that may be searched but not read can be held, and walked through.
        let blind = root.open_dir(n(c"blind")).unwrap();
        assert_eq!(get_at(&*blind, c"f"), b"x");
        assert_eq!(errno(blind.list(&mut |_| Ok(()))), Errno::ACCESS);

        let his = root.open_dir(n(c"his")).unwrap();
        let file = put(&*his, c"f", b"data");
        file.set_xattr(c"user.a", b"b", 0).unwrap();
        assert_eq!(his.get_xattr_at(n(c"f"), c"user.a", &mut []).unwrap(), 1);
        assert_eq!(errno(file.set_xattr(c"trusted.a", b"b", 0)), Errno::PERM);
        assert_eq!(errno(file.get_xattr(c"trusted.a", &mut [])), Errno::NODATA);
        his.set_xattr(c"user.overlay.opaque", b"y", 0).unwrap();
        let held = his.hold(n(c"f")).unwrap();
        held.set_mode(0o640).unwrap();
        his.set_mode_at(n(c"f"), 0o644).unwrap();
        assert_eq!(get(&*held.reopen(OpenMode::READ).unwrap()), b"data");
        his.link_object(&*held, n(c"again")).unwrap();
        let unnamed = his.create_unnamed(0o600).unwrap();
        unnamed.write_at(b"u", 0).unwrap();
        his.link_object(&*unnamed, n(c"named")).unwrap();
        assert_eq!(get_at(&*his, c"named"), b"u");
        his.make_symlink(n(c"l"), c"x").unwrap();
        his.rename(n(c"l"), &*his, n(c"m"), RenameFlags::NOREPLACE).unwrap();
        his.make_node(n(c"whiteout"), 0o020_000, 0).unwrap();
        assert_eq!(errno(his.make_node(n(c"dev"), 0o020_600, rustix::fs::makedev(1, 3))), Errno::PERM);
        his.sync_dir().unwrap();
        assert_eq!(names(&*his), ["again", "f", "m", "named", "whiteout"]);
    });
}
