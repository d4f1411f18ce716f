//! Every operation through the kernel, in the cached profile.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manner, cached, errno, mount_with, wait_for};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use vellum_fuse::wire::{InitFlags, Opcode};
use vellum_fuse::{SessionOptions, is_mounted, unmount};
use vellum_vfs::Notifier;

/// FUSE_SUPER_MAGIC
const FUSE_MAGIC: i64 = 0x6573_5546;

macro_rules! need {
    ($mount:expr) => {
        match $mount {
            Some(mount) => mount,
            None => return,
        }
    };
}

#[test]
fn names_and_attributes() {
    let m = need!(cached());
    fs::create_dir(m.at("d")).unwrap();
    fs::write(m.at("d/f"), b"hello").unwrap();
    assert_eq!(fs::read(m.at("d/f")).unwrap(), b"hello");
    let meta = fs::metadata(m.at("d/f")).unwrap();
    assert_eq!((meta.len(), meta.nlink(), meta.uid()), (5, 1, 0));

    // The node id is not the inode number.
    let nodes = m.fs.nodes_of(meta.ino());
    assert!(nodes.len() == 1 && nodes[0].0 >= 70_000 && meta.ino() < 70_000, "{nodes:?} {}", meta.ino());

    fs::hard_link(m.at("d/f"), m.at("g")).unwrap();
    assert_eq!(fs::metadata(m.at("g")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(m.at("g")).unwrap().ino(), meta.ino());
    std::os::unix::fs::symlink("d/f", m.at("s")).unwrap();
    assert_eq!(fs::read_link(m.at("s")).unwrap(), Path::new("d/f"));
    assert_eq!(fs::read(m.at("s")).unwrap(), b"hello");
    let long = "x".repeat(4095);
    std::os::unix::fs::symlink(&long, m.at("long")).unwrap();
    assert_eq!(fs::read_link(m.at("long")).unwrap(), Path::new(&long));

    rustix::fs::mknodat(CWD, m.at("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o644), 0)
        .unwrap();
    assert!(fs::symlink_metadata(m.at("fifo")).unwrap().file_type().is_fifo());
    let dev = rustix::fs::makedev(259, 70_000);
    let block = rustix::fs::FileType::BlockDevice;
    rustix::fs::mknodat(CWD, m.at("blk"), block, Mode::from_raw_mode(0o600), dev).unwrap();
    assert_eq!(fs::symlink_metadata(m.at("blk")).unwrap().rdev(), dev);

    assert_eq!(errno(fs::remove_dir(m.at("d"))), Errno::NOTEMPTY);
    fs::remove_file(m.at("d/f")).unwrap();
    assert_eq!(fs::metadata(m.at("g")).unwrap().nlink(), 1);
    fs::remove_dir(m.at("d")).unwrap();
    assert_eq!(errno(fs::metadata(m.at("d"))), Errno::NOENT);
    assert_eq!(errno(fs::metadata(m.at(&"n".repeat(256)))), Errno::NAMETOOLONG);
    fs::write(m.at(&"n".repeat(255)), b"").unwrap();
}

#[test]
fn attributes_are_set() {
    let m = need!(cached());
    fs::write(m.at("f"), b"0123456789").unwrap();
    fs::set_permissions(m.at("f"), fs::Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(fs::metadata(m.at("f")).unwrap().mode() & 0o7777, 0o4711);
    std::os::unix::fs::chown(m.at("f"), Some(12), Some(34)).unwrap();
    let meta = fs::metadata(m.at("f")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (12, 34, 0o711));
    let file = fs::File::options().write(true).open(m.at("f")).unwrap();
    file.set_len(4).unwrap();
    let time = std::time::UNIX_EPOCH - Duration::from_millis(1500);
    file.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
    drop(file);
    let meta = fs::metadata(m.at("f")).unwrap();
    assert_eq!((meta.len(), meta.mtime(), meta.mtime_nsec()), (4, -2, 500_000_000));
    assert_eq!(fs::read(m.at("f")).unwrap(), b"0123");
    // Birth time comes by STATX.
    let flags = rustix::fs::StatxFlags::BTIME;
    let statx = rustix::fs::statx(CWD, m.at("f"), AtFlags::empty(), flags).unwrap();
    assert!(statx.stx_mask & flags.bits() != 0 && statx.stx_btime.tv_sec > 1_600_000_000);
    assert!(m.handle.counts().get(Opcode::Statx) > 0);
}

#[test]
fn the_umask_is_left_to_the_filesystem_with_acls() {
    let m = need!(cached());
    let status = Command::new("sh").arg("-c").arg("umask 027; mkdir $0/d; : > $0/f").arg(m.path()).status();
    assert!(status.unwrap().success());
    assert!(m.handle.negotiated().flags.contains(InitFlags::POSIX_ACL | InitFlags::DONT_MASK));
    assert_eq!(fs::metadata(m.at("d")).unwrap().mode() & 0o777, 0o750);
    assert_eq!(fs::metadata(m.at("f")).unwrap().mode() & 0o777, 0o640);
}

#[test]
fn rename_with_its_flags() {
    let m = need!(cached());
    fs::write(m.at("a"), b"a").unwrap();
    fs::write(m.at("b"), b"b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, m.at("a"), CWD, m.at("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(m.at("a")).unwrap(), fs::read(m.at("b")).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(Errno::INVAL));
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(m.at("b")).unwrap(), b"b");
    assert!(!m.at("a").exists());
}

#[test]
fn opens_cost_nothing_in_the_cached_profile() {
    let m = need!(cached());
    fs::write(m.at("f"), b"data").unwrap();
    fs::read(m.at("f")).unwrap();
    fs::read_dir(m.path()).unwrap().for_each(drop);
    let before = m.handle.counts();
    for _ in 0..100 {
        assert_eq!(fs::read(m.at("f")).unwrap(), b"data");
        assert_eq!(fs::read_dir(m.path()).unwrap().count(), 1);
    }
    let counts = m.handle.counts().since(&before);
    for opcode in
        [Opcode::Open, Opcode::Release, Opcode::Opendir, Opcode::Releasedir, Opcode::Read, Opcode::Flush]
    {
        assert_eq!(counts.get(opcode), 0, "{counts:?}");
    }
    assert!(m.handle.counts().get(Opcode::Open) <= 1);
}

#[test]
fn small_writes_are_collected() {
    let m = need!(cached());
    let mut file = fs::File::create(m.at("f")).unwrap();
    for i in 0..1000_u32 {
        file.write_all(&i.to_le_bytes().repeat(16)).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let counts = m.handle.counts();
    assert!(counts.get(Opcode::Write) <= 4, "{counts:?}");
    assert!(counts.get(Opcode::Fsync) == 1, "{counts:?}");
    let data = fs::read(m.at("f")).unwrap();
    assert_eq!(data.len(), 64_000);
    assert_eq!(data[63_936..63_940], 999_u32.to_le_bytes());
}

#[test]
fn large_data_in_large_requests() {
    let m = need!(cached());
    let data: Vec<u8> = (0..9_000_001_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(m.at("f"), &data).unwrap();
    fs::File::open(m.at("f")).unwrap().sync_all().unwrap();
    assert!(m.handle.counts().get(Opcode::Write) <= 20, "{:?}", m.handle.counts());
    let ino = fs::metadata(m.at("f")).unwrap().ino();
    let node = m.fs.nodes_of(ino)[0];
    m.handle.notifier().data_changed(node).unwrap();
    assert!(fs::read(m.at("f")).unwrap() == data);
    assert!(m.handle.counts().get(Opcode::Read) > 0);
}

#[test]
fn sizes_of_extended_attributes() {
    let m = need!(cached());
    fs::write(m.at("f"), b"").unwrap();
    let f = m.at("f");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&f, name, value, flags);
    let get = |name: &str, len: usize| {
        let mut buf = vec![0; len];
        match len {
            // rustix asks for the length by another function.
            0 => rustix::fs::getxattr_query(&f, name).map(|len| (len, buf)),
            _ => rustix::fs::getxattr(&f, name, &mut buf[..]).map(|len| (len, buf)),
        }
    };
    let big = vec![7; 65_536];
    set("user.empty", b"", XattrFlags::empty()).unwrap();
    set("user.big", &big, XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.big", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.none", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(get("user.empty", 10).unwrap().0, 0);
    assert_eq!(get("user.big", 0).unwrap().0, 65_536);
    assert_eq!(get("user.big", 65_535).unwrap_err(), Errno::RANGE);
    assert_eq!(get("user.big", 65_536).unwrap(), (65_536, big));
    assert_eq!(get("user.none", 1).unwrap_err(), Errno::NODATA);
    let mut names = [0; 64];
    assert_eq!(rustix::fs::listxattr(&f, &mut names[..]).unwrap(), 20);
    assert_eq!(&names[..20], b"user.big\0user.empty\0");
    assert_eq!(rustix::fs::listxattr(&f, &mut names[..19]), Err(Errno::RANGE));
    rustix::fs::removexattr(&f, "user.big").unwrap();
    assert_eq!(rustix::fs::removexattr(&f, "user.big"), Err(Errno::NODATA));
    let long = format!("user.{}", "n".repeat(250));
    set(&long, b"v", XattrFlags::empty()).unwrap();
    assert_eq!(get(&long, 9).unwrap().0, 1);
}

#[test]
fn a_hundred_thousand_entries() {
    let m = need!(cached());
    m.fs.populate(100_000);
    let begin = Instant::now();
    let names: HashSet<_> = fs::read_dir(m.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 100_000);
    println!("100,000 entries in {:?}: {:?}", begin.elapsed(), m.handle.counts());

    // Offsets stay good while entries come and go.
    let dir = fs::File::open(m.path()).unwrap();
    let mut reader = rustix::fs::Dir::read_from(&dir).unwrap();
    let mut seen = HashSet::new();
    for i in 0..100_000 {
        let Some(entry) = reader.read() else { break };
        let name = entry.unwrap().file_name().to_owned();
        assert!(seen.insert(name.clone()), "twice: {name:?}");
        if i % 1000 == 500 {
            fs::remove_file(m.at(name.to_str().unwrap())).unwrap();
            fs::write(m.at(&format!("new-{i}")), b"").unwrap();
        }
    }
    let old = seen.iter().filter(|name| name.to_bytes().starts_with(b"file-")).count();
    assert!(old >= 99_990, "{old} of the old entries, without . and ..");
}

#[test]
fn looked_up_nodes_are_forgotten() {
    let m = need!(cached());
    m.fs.populate(500);
    for entry in fs::read_dir(m.path()).unwrap() {
        fs::metadata(entry.unwrap().path()).unwrap();
    }
    assert!(m.fs.lookups() >= 500);
    for entry in fs::read_dir(m.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    wait_for("all nodes to be forgotten", || m.fs.lookups() == 0);
}

#[test]
fn negative_entries_are_cached_for_their_ttl() {
    for (ttl, lookups) in [(Duration::ZERO, 50), (Duration::from_secs(3600), 1)] {
        let manner = Manner { negative_ttl: ttl, ttl: Duration::from_secs(3600), ..Manner::default() };
        let m = need!(mount_with(manner, SessionOptions::default()));
        let before = m.handle.counts();
        for _ in 0..50 {
            assert!(!m.at("missing").exists());
        }
        assert_eq!(m.handle.counts().since(&before).get(Opcode::Lookup), lookups);
    }
}

#[test]
fn the_parents_group_comes_along_when_the_caller_is_in_it() {
    let m = need!(cached());
    let chmod = |mode| fs::set_permissions(m.path(), fs::Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(m.path(), None, Some(4321)).unwrap();
    chmod(0o2777);
    let as_user = |groups: &str, name: &str| {
        let setpriv = Command::new("setpriv")
            .args(["--reuid=1000", "--regid=1000", groups, "mkdir"])
            .arg(m.at(name))
            .status();
        assert!(setpriv.unwrap().success());
    };
    as_user("--groups=4321,99", "in");
    as_user("--clear-groups", "out");
    assert_eq!(*m.fs.seen.groups.lock(), [(1000, vec![4321]), (1000, vec![])]);
}

#[test]
fn files_without_a_name() {
    let m = need!(cached());
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file: OwnedFd = rustix::fs::open(m.path(), flags, Mode::from_raw_mode(0o600)).unwrap();
    rustix::io::write(&file, b"unnamed").unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, &path, CWD, m.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(m.at("named")).unwrap(), b"unnamed");
    assert_eq!(m.handle.counts().get(Opcode::Tmpfile), 1);
}

#[test]
fn space_holes_and_copies() {
    let m = need!(cached());
    let file = fs::File::options().read(true).write(true).create_new(true).open(m.at("f")).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 65_536).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 65_536);
    file.write_all_at(&[1; 65_536], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 8192, 4096).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 16_384, 4096).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 65_536, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 65_536);
    let collapse = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(Errno::OPNOTSUPP));
    let mut page = [9; 4096];
    file.read_exact_at(&mut page, 8192).unwrap();
    assert_eq!(page, [0; 4096]);
    file.sync_all().unwrap();
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap(), 8192);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(8192)).unwrap(), 12_288);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(20_480)).unwrap(), 65_536);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(65_536)), Err(Errno::NXIO));

    let copy = fs::File::options().read(true).write(true).create_new(true).open(m.at("g")).unwrap();
    let (mut from, mut to) = (0, 100);
    let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 65_536).unwrap();
    assert_eq!((copied, from, to), (65_536, 65_536, 65_636));
    let counts = m.handle.counts();
    let by_us = counts.get(Opcode::CopyFileRange64) + counts.get(Opcode::CopyFileRange);
    assert!(by_us > 0, "{counts:?}");
    let mut data = Vec::new();
    fs::File::open(m.at("g")).unwrap().read_to_end(&mut data).unwrap();
    assert!(data.len() == 65_636 && data[..100] == [0; 100] && data[100] == 1 && data[8292] == 0);
}

#[test]
fn statfs_shows_fuse() {
    let m = need!(cached());
    let stat = rustix::fs::statfs(m.path()).unwrap();
    assert_eq!(stat.f_type as i64, FUSE_MAGIC);
    assert_eq!((stat.f_blocks, stat.f_bfree, stat.f_bavail, stat.f_files), (1000, 500, 400, 77));
    assert_eq!(rustix::fs::statvfs(m.path()).unwrap().f_namemax, 255);
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|l| l.contains(m.path().to_str().unwrap())).unwrap();
    assert!(line.contains(" fuse.vellum ") && line.starts_with("memory,"), "{line}");
}

#[test]
fn unsupported_requests_are_refused() {
    let m = need!(cached());
    fs::write(m.at("f"), b"").unwrap();
    let file = fs::File::open(m.at("f")).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&file).map(drop), Err(Errno::OPNOTSUPP));
    assert!(is_mounted(m.path()));
}

#[test]
fn handles_outlive_names() {
    let m = need!(cached());
    fs::create_dir(m.at("d")).unwrap();
    fs::write(m.at("d/f"), b"by handle").unwrap();
    let script = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
handle, mount_id = Handle(128), ctypes.c_int()
path = (sys.argv[1] + "/d/f").encode()
assert libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount_id), 0) == 0, ctypes.get_errno()
os.rename(sys.argv[1] + "/d/f", sys.argv[1] + "/g")
root = os.open(sys.argv[1], os.O_RDONLY)
fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
assert fd >= 0, os.strerror(ctypes.get_errno())
assert os.read(fd, 99) == b"by handle"
"#;
    let out = Command::new("python3").arg("-c").arg(script).arg(m.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn set_id_bits_are_cleared_by_writers_without_privilege() {
    let m = need!(cached());
    fs::write(m.at("f"), b"data").unwrap();
    fs::set_permissions(m.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(m.at("f"), fs::Permissions::from_mode(0o6777)).unwrap();
    let script = "printf x >> $0/f";
    let status = Command::new("setpriv")
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", script])
        .arg(m.path())
        .status();
    assert!(status.unwrap().success());
    assert_eq!(fs::metadata(m.at("f")).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn exclusive_creation() {
    let m = need!(cached());
    let create = || fs::File::options().write(true).create_new(true).mode(0o600).open(m.at("f"));
    create().unwrap();
    assert_eq!(errno(create()), Errno::EXIST);
    assert_eq!(m.fs.opens(), 0);
}

#[test]
fn an_acl_clears_the_setgid_bit_of_a_file_of_another_group() {
    let m = need!(cached());
    fs::write(m.at("f"), b"").unwrap();
    std::os::unix::fs::chown(m.at("f"), Some(1000), Some(4321)).unwrap();
    let script = "
import os, struct, sys
entries = [(1, 7, -1), (2, 4, 77), (4, 7, -1), (16, 7, -1), (32, 0, -1)]
acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)
os.setxattr(sys.argv[1], 'system.posix_acl_access', acl)
";
    let set_acl = |groups: &str| {
        fs::set_permissions(m.at("f"), fs::Permissions::from_mode(0o2770)).unwrap();
        let out = Command::new("setpriv")
            .args(["--reuid=1000", "--regid=1000", groups, "/usr/bin/python3", "-c", script])
            .arg(m.at("f"))
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        fs::metadata(m.at("f")).unwrap().mode() & 0o2000
    };
    assert_eq!(set_acl("--groups=4321"), 0o2000);
    assert_eq!(set_acl("--clear-groups"), 0);
}

#[test]
fn an_idmapped_mount() {
    let manner = Manner { ttl: Duration::from_secs(3600), ..Manner::default() };
    let m = need!(mount_with(manner, SessionOptions { allow_idmap: true, ..SessionOptions::default() }));
    if !m.handle.negotiated().flags.contains(InitFlags::ALLOW_IDMAP) {
        println!("SKIPPED: the kernel offers no idmapped mounts");
        return;
    }
    fs::write(m.at("f"), b"").unwrap();
    fs::set_permissions(m.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mapped = tempfile::tempdir().unwrap();
    let script = r#"
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    result = libc.syscall(number, *args)
    assert result >= 0, (number, os.strerror(ctypes.get_errno()))
    return result
holder = subprocess.Popen(["unshare", "--user", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
holder.stdout.readline()
for which in "uid", "gid":
    open(f"/proc/{holder.pid}/{which}_map", "w").write("0 5000 1000")
namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
tree = call(428, -100, sys.argv[1].encode(), 1)
attr = (ctypes.c_uint64 * 4)(0x100000, 0, 0, namespace)
call(442, tree, b"", 0x1000, attr, 32)
call(429, tree, b"", -100, sys.argv[2].encode(), 4)
holder.communicate(b"over")
"#;
    let out =
        Command::new("python3").arg("-c").arg(script).arg(m.path()).arg(mapped.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(fs::metadata(mapped.path().join("f")).unwrap().uid(), 5000);
    let status = Command::new("setpriv")
        .args(["--reuid=5007", "--regid=5008", "--clear-groups", "mkdir"])
        .arg(mapped.path().join("d"))
        .status();
    unmount(mapped.path(), true).unwrap();
    assert!(status.unwrap().success());
    let meta = fs::metadata(m.at("d")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (7, 8));
}

#[test]
fn read_ahead_is_as_large_as_allowed() {
    let m = need!(cached());
    let size = 16 << 20;
    fs::write(m.at("f"), vec![7; size]).unwrap();
    fs::File::open(m.at("f")).unwrap().sync_all().unwrap();
    let node = m.fs.nodes_of(fs::metadata(m.at("f")).unwrap().ino())[0];
    m.handle.notifier().data_changed(node).unwrap();
    let before = m.handle.counts();
    assert_eq!(
        std::io::copy(&mut fs::File::open(m.at("f")).unwrap(), &mut std::io::sink()).unwrap(),
        size as u64
    );
    let reads = m.handle.counts().since(&before).get(Opcode::Read);
    let ahead = m.handle.negotiated().max_readahead as usize;
    println!("{reads} READs with a read-ahead of {} KiB", ahead >> 10);
    assert!(reads as usize <= 2 * size / ahead.max(1) + 16);
}
