//! Modes, owners, times, attributes.

use super::{as_on_plain, filled};
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use crate::harness::raw::{AsUser, umask};
use crate::harness::user::WholeUser;
use crate::harness::{Cx, Profile, tree};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid,
    XattrFlags,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

/// An ordinary user, who is in no other group.
pub(super) const USER: u32 = 1000;

fn mode_and_owner(path: &Path) -> Outcome<String> {
    let meta = fs::symlink_metadata(path)?;
    Ok(format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid()))
}

fn make_all_kinds(dir: &Path) -> Outcome {
    let mode = Mode::from_raw_mode;
    for (name, bits) in [("file", 0o666), ("setgid-file", 0o2775), ("setuid-file", 0o4777)] {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        drop(rustix::fs::open(dir.join(name), flags, mode(bits))?);
    }
    rustix::fs::mkdir(dir.join("dir"), mode(0o777))?;
    rustix::fs::mkdir(dir.join("dir/dir"), mode(0o700))?;
    rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, mode(0o666), 0)?;
    rustix::fs::mknodat(CWD, dir.join("node"), FileType::RegularFile, mode(0o666), 0)?;
    Ok(symlink("file", dir.join("link"))?)
}

fn all_below(dir: &Path) -> Outcome<Vec<String>> {
    let tree = tree::take(dir, 0)?;
    tree.keys().map(|path| Ok(format!("{path} {}", mode_and_owner(&dir.join(path))?))).collect()
}

pub(super) fn setgid_and_umask(cx: &Cx) -> Outcome {
    let fill = |dir: &Path| {
        for (name, bits) in [("setgid", 0o2777), ("plain", 0o777), ("sticky", 0o3777)] {
            fs::create_dir(dir.join(name))?;
            chown(dir.join(name), Some(0), Some(1234))?;
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(bits))?;
        }
        Ok(())
    };
    let act = |dir: &Path| {
        for (name, mask) in [("setgid", 0o027), ("plain", 0o077), ("sticky", 0)] {
            let former = umask(mask);
            let made = {
                let _user = AsUser::new(USER, USER);
                make_all_kinds(&dir.join(name))
            };
            umask(former);
            made?;
        }
        all_below(dir)
    };
    as_on_plain(cx, fill, act, all_below)
}

/// default: user rwx, user 1000 r-x, group r-x, mask rwx, other ---.
const DEFAULT_ACL: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 0xe8, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255,
    16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

pub(super) fn default_acl(cx: &Cx) -> Outcome {
    let fill = |dir: &Path| {
        for (name, bits) in [("dir", 0o755), ("setgid", 0o2775)] {
            fs::create_dir(dir.join(name))?;
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(bits))?;
            rustix::fs::setxattr(
                dir.join(name),
                "system.posix_acl_default",
                &DEFAULT_ACL,
                XattrFlags::empty(),
            )?;
        }
        Ok(())
    };
    let look = |dir: &Path| {
        let tree = tree::take(dir, 0)?;
        let line = |(path, node): (&String, &tree::Node)| {
            let mut line = format!("{path} {:o}", node.mode);
            for (name, value) in &node.xattrs {
                line += &format!(" {}={value:02x?}", String::from_utf8_lossy(name));
            }
            line
        };
        Ok(tree.iter().map(line).collect())
    };
    let act = |dir: &Path| {
        // With a default ACL the umask does not act.
        let former = umask(0o077);
        let made = make_all_kinds(&dir.join("dir")).and_then(|()| make_all_kinds(&dir.join("setgid")));
        umask(former);
        made?;
        look(dir)
    };
    as_on_plain(cx, fill, act, look)
}

pub(super) fn unlinked_open(cx: &Cx) -> Outcome {
    let fill = |dir: &Path| Ok(fs::write(dir.join("lower"), [b'x'; 5000])?);
    let act = |dir: &Path| {
        fs::write(dir.join("upper"), [b'x'; 5000])?;
        let mut said = Vec::new();
        for name in ["lower", "upper"] {
            let fd = rustix::fs::open(dir.join(name), OFlags::RDWR, Mode::empty())?;
            let reader = rustix::fs::open(dir.join(name), OFlags::RDONLY, Mode::empty())?;
            fs::remove_file(dir.join(name))?;
            rustix::io::pwrite(&fd, b"more", 9000)?;
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o4711))?;
            rustix::fs::fchown(&fd, Some(Uid::from_raw(7)), Some(Gid::from_raw(8)))?;
            let time = Timespec { tv_sec: 77, tv_nsec: 5 };
            rustix::fs::futimens(&fd, &Timestamps { last_access: time, last_modification: time })?;
            rustix::fs::fsetxattr(&fd, "user.late", b"1", XattrFlags::empty())?;
            for fd in [&fd, &reader] {
                let stat = rustix::fs::fstat(fd)?;
                let (size, nlink, mtime) = (stat.st_size, stat.st_nlink as u64, stat.st_mtime);
                let mut data = [0; 16];
                let got = rustix::io::pread(fd, &mut data[..], 8996)?;
                let mut value = [0; 8];
                let len = rustix::fs::fgetxattr(fd, "user.late", &mut value[..])?;
                said.push(format!(
                    "{name} {:o} {}:{} {size} {nlink} {mtime}.{} {:?} {len}",
                    stat.st_mode,
                    stat.st_uid,
                    stat.st_gid,
                    stat.st_mtime_nsec,
                    &data[..got]
                ));
            }
            rustix::fs::ftruncate(&fd, 10)?;
            said.push(format!("{}", rustix::fs::fstat(&reader)?.st_size));
            ensure!(!dir.join(name).exists(), "{name} is back");
        }
        Ok(said)
    };
    // In passthrough a descriptor opened before copy-up goes on reading the lower file.
    as_on_plain(cx, fill, act, |_| Ok(Vec::new()))
}

pub(super) fn symlink_xattrs(cx: &Cx) -> Outcome {
    let fill = |dir: &Path| Ok(symlink("nowhere", dir.join("lower"))?);
    let act = |dir: &Path| {
        symlink("nowhere", dir.join("upper"))?;
        let mut said = Vec::new();
        for name in ["lower", "upper"] {
            let path = dir.join(name);
            said.push(format!("{:?}", rustix::fs::lsetxattr(&path, "user.x", b"1", XattrFlags::empty())));
            said.push(format!("{:?}", rustix::fs::lsetxattr(&path, "trusted.x", b"1", XattrFlags::CREATE)));
            said.push(format!("{:?}", rustix::fs::lsetxattr(&path, "trusted.y", b"2", XattrFlags::REPLACE)));
            said.push(format!("{:?}", rustix::fs::lsetxattr(&path, "trusted.z", b"3", XattrFlags::empty())));
            said.push(format!("{:?}", rustix::fs::lremovexattr(&path, "trusted.z")));
            said.push(format!("{:?}", tree::xattrs(&path)?));
            let mut buf = [0; 9];
            said.push(format!("{:?}", rustix::fs::lgetxattr(&path, "trusted.none", &mut buf[..])));
        }
        Ok(said)
    };
    let look = |dir: &Path| {
        ["lower", "upper"].iter().map(|name| Ok(format!("{:?}", tree::xattrs(&dir.join(name))?))).collect()
    };
    as_on_plain(cx, fill, act, look)
}

/// A capability as `setcap cap_net_raw=ep` writes it.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

pub(super) fn copy_up_keeps(cx: &Cx) -> Outcome {
    const HOLE: u64 = 8 << 20;
    let (_layers, mut mount) = filled(cx, |dir| {
        let path = dir.join("file");
        let file = fs::File::create(&path)?;
        rustix::io::pwrite(&file, b"begin", 0)?;
        rustix::io::pwrite(&file, b"end", HOLE)?;
        chown(&path, Some(11), Some(12))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750))?;
        for (name, value) in
            [("user.a", &b"1"[..]), ("trusted.b", b"2"), ("security.capability", &CAPABILITY)]
        {
            rustix::fs::setxattr(&path, name, value, XattrFlags::empty())?;
        }
        rustix::fs::setxattr(&path, "system.posix_acl_access", &DEFAULT_ACL, XattrFlags::empty())?;
        let time = Timespec { tv_sec: 1_111_111_111, tv_nsec: 222_333_444 };
        rustix::fs::utimensat(
            CWD,
            &path,
            &Timestamps { last_access: time, last_modification: time },
            AtFlags::empty(),
        )?;
        Ok(())
    })?;
    let path = mount.path("file");
    let before = tree::look(&path, i64::MAX)?;
    // Copies up, and changes nothing else.
    drop(rustix::fs::open(&path, OFlags::RDWR, Mode::empty())?);
    rustix::fs::setxattr(&path, "user.a", b"1", XattrFlags::empty())?;
    let mut after = tree::look(&path, i64::MAX)?;
    after.ino = before.ino;
    ensure_eq!(after, before, "after copy-up");
    // Copies up the data.
    let file = fs::OpenOptions::new().write(true).open(&path)?;
    rustix::io::pwrite(&file, b"BEGIN", 0)?;
    drop(file);
    mount.remount()?;
    let file = fs::File::open(&path)?;
    let meta = file.metadata()?;
    ensure_eq!(meta.size(), HOLE + 3, "size");
    ensure!(meta.blocks() * 512 < HOLE / 2, "the hole was filled: {} blocks", meta.blocks());
    if cx.profile != Some(Profile::Cached) {
        let hole = rustix::fs::seek(&file, SeekFrom::Hole(0))?;
        ensure!(hole < HOLE / 2, "SEEK_HOLE says {hole}");
        let data = rustix::fs::seek(&file, SeekFrom::Data(1 << 20))?;
        ensure!(data > HOLE / 2 && data <= HOLE, "SEEK_DATA says {data}");
    }
    drop(file);
    ensure_eq!((meta.uid(), meta.gid()), (11, 12), "owner");
    let mut seen = tree::look(&path, i64::MAX)?.xattrs;
    // A write takes the capability away, as on every filesystem.
    seen.remove(&b"security.capability"[..]);
    let mut expected = before.xattrs.clone();
    expected.remove(&b"security.capability"[..]);
    ensure_eq!(seen, expected, "attributes");
    mount.unmount()
}

/// The files of the next test; the last is opened for writing and not written.
const NAMES: [&str; 4] = ["write", "truncate", "allocate", "open"];

pub(super) fn setid_on_write(cx: &Cx) -> Outcome {
    let fill = |dir: &Path| {
        for (name, bits) in [("write", 0o6777), ("truncate", 0o6777), ("allocate", 0o6777), ("open", 0o6666)]
        {
            fs::write(dir.join(name), [b'x'; 5000])?;
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(bits))?;
        }
        Ok(())
    };
    let act = |dir: &Path| {
        let mut said = Vec::new();
        let _user = AsUser::new(USER, USER);
        for name in NAMES {
            let fd = rustix::fs::open(dir.join(name), OFlags::RDWR, Mode::empty())?;
            match name {
                "write" => drop(rustix::io::pwrite(&fd, b"y", 0)?),
                "truncate" => rustix::fs::ftruncate(&fd, 100)?,
                "allocate" => rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 10_000)?,
                _ => {}
            }
            drop(fd);
            said.push(format!("{name} {}", mode_and_owner(&dir.join(name))?));
        }
        Ok(said)
    };
    as_on_plain(cx, fill, act, |dir| NAMES.iter().map(|name| mode_and_owner(&dir.join(name))).collect())
}

/// Names of attributes that are for administrators alone are not listed to others.
pub(super) fn trusted_names(cx: &Cx) -> Outcome {
    let (_, mount) = filled(cx, |dir| {
        fs::write(dir.join("file"), "below")?;
        for name in ["user.one", "trusted.two"] {
            rustix::fs::setxattr(dir.join("file"), name, b"x", XattrFlags::empty())?;
        }
        Ok(fs::create_dir(dir.join("dir"))?)
    })?;
    rustix::fs::setxattr(mount.path("dir"), "trusted.two", b"x", XattrFlags::empty())?;
    let list = |name: &str| -> Outcome<_> {
        let mut list = vec![0; 200];
        let len = rustix::fs::listxattr(mount.path(name), &mut list)?;
        let room = rustix::fs::listxattr_query(mount.path(name))?;
        ensure_eq!(room, len, "the length of {name}'s list");
        let mut names: Vec<_> = list[..len].split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        names.sort();
        Ok(names.join(" ").trim().to_owned())
    };
    for (name, all, users) in [("file", "trusted.two user.one", "user.one"), ("dir", "trusted.two", "")] {
        ensure_eq!(list(name)?, all, "root's list of {name}");
        let _user = WholeUser::new(USER)?;
        ensure_eq!(list(name)?, users, "a user's list of {name}");
    }
    Ok(())
}

/// What the kernel shows of a file's times after it has forgotten the file is what it showed before.
pub(super) fn ctime_stays(cx: &Cx) -> Outcome {
    let (layers, mut mount) = filled(cx, |dir| {
        for name in ["written", "later", "chmod", "moved", "linked", "xattr"] {
            fs::write(dir.join(name), "below")?;
        }
        Ok(())
    })?;
    let root = layers.merged.clone();
    let path = |name: &str| root.join(name);
    let write = |name: &str| -> Outcome<_> {
        let file = rustix::fs::open(path(name), OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o644))?;
        rustix::io::write(&file, b"new")?;
        Ok(file)
    };
    let open = [write("written")?, write("made")?];
    // Written back before it is closed, and after that.
    let synced = write("later")?;
    rustix::fs::fsync(&synced)?;
    rustix::io::write(&synced, b"more")?;
    fs::set_permissions(path("chmod"), fs::Permissions::from_mode(0o600))?;
    fs::rename(path("moved"), path("moved-on"))?;
    fs::hard_link(path("linked"), path("linked-too"))?;
    rustix::fs::setxattr(path("xattr"), "user.own", b"1", XattrFlags::empty())?;
    std::thread::sleep(std::time::Duration::from_millis(1100));
    drop((open, synced));
    let names = ["written", "made", "later", "chmod", "moved-on", "linked", "xattr"];
    let look = || -> Outcome<Vec<String>> {
        names
            .iter()
            .map(|name| {
                let meta = fs::metadata(path(name))?;
                let [mtime, ctime] = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
                Ok(format!("{name} {mtime:?} {ctime:?}"))
            })
            .collect()
    };
    let before = look()?;
    fs::write("/proc/sys/vm/drop_caches", "2")?;
    ensure_eq!(look()?, before, "after the kernel has forgotten the files");
    mount.remount()?;
    if cx.profile == Some(Profile::Cached) {
        // The layer's is later, and no other time has moved.
        let first = |lines: Vec<String>| -> Vec<String> {
            lines.iter().filter_map(|line| Some(line.rsplit_once(" (")?.0.to_owned())).collect()
        };
        ensure_eq!(first(look()?), first(before), "mtime after a remount");
        mount.unmount()?;
        let mut mount = cx.mount_with(&layers, &["writeback=0"])?;
        fs::write(path("through"), "new")?;
        let ctime = || -> Outcome<_> {
            let meta = fs::metadata(path("through"))?;
            Ok((meta.ctime(), meta.ctime_nsec()))
        };
        let before = ctime()?;
        mount.remount()?;
        ensure_eq!(ctime()?, before, "ctime with writeback=0 after a remount");
        return mount.unmount();
    }
    ensure_eq!(look()?, before, "after a remount");
    mount.unmount()
}
