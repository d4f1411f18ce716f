//! One operation each.

use crate::common::tree::{Seen, Tree};
use crate::common::{NO_HANDLE, ROOT, name, walk};
use crate::stage::Kind;
use std::ffi::CString;
use vellum_union::Union;
use vellum_vfs::{
    Context, Errno, Filesystem, NodeId, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Timestamp,
    WriteFlags, XattrFlags,
};

pub const USER: Context<'static> =
    Context { uid: 1000, gid: 1000, pid: 2, umask: 0, groups: &[], who: None, progress: &() };

type Act = dyn Fn(&Union) -> Result<()>;

pub struct Scenario {
    pub name: &'static str,
    pub act: Box<Act>,
    /// Whether the disk can do what it takes.
    pub fits: fn(&Kind) -> bool,
}

fn node(fs: &Union, path: &str) -> Result<NodeId> {
    if path.is_empty() {
        return Ok(NodeId::ROOT);
    }
    Ok(walk(fs, path)?.ok_or(Errno::NOENT)?.node)
}

pub fn place(fs: &Union, path: &str) -> Result<(NodeId, CString)> {
    let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((node(fs, parent)?, CString::new(last).unwrap()))
}

/// Operations by path; each ends with forgetting nothing, as a front would while it is busy.
fn create(cx: Context<'static>, path: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        let (parent, last) = place(fs, path)?;
        fs.create(&cx, parent, name(&last), 0o640, OpenFlags::EXCL).map(drop)
    }
}

fn mkdir(cx: Context<'static>, path: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        let (parent, last) = place(fs, path)?;
        fs.mkdir(&cx, parent, name(&last), 0o750).map(drop)
    }
}

fn mknod(path: &'static str, mode: u32, rdev: u64) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        let (parent, last) = place(fs, path)?;
        fs.mknod(&ROOT, parent, name(&last), mode, rdev).map(drop)
    }
}

fn symlink(path: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        let (parent, last) = place(fs, path)?;
        fs.symlink(&ROOT, parent, name(&last), c"to").map(drop)
    }
}

fn link(from: &'static str, to: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        let from = node(fs, from)?;
        let (parent, last) = place(fs, to)?;
        fs.link(&ROOT, from, parent, name(&last)).map(drop)
    }
}

fn unlink(path: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        node(fs, path)?;
        let (parent, last) = place(fs, path)?;
        fs.unlink(&ROOT, parent, name(&last))
    }
}

fn rmdir(path: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        node(fs, path)?;
        let (parent, last) = place(fs, path)?;
        fs.rmdir(&ROOT, parent, name(&last))
    }
}

fn rename(from: &'static str, to: &'static str, flags: RenameFlags) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        node(fs, from)?;
        let (from, from_name) = place(fs, from)?;
        let (to, to_name) = place(fs, to)?;
        fs.rename(&ROOT, (from, name(&from_name)), (to, name(&to_name)), flags)
    }
}

fn write(path: &'static str, offset: u64) -> impl Fn(&Union) -> Result<()> {
    move |fs| {
        let node = node(fs, path)?;
        let n = fs.write(&ROOT, node, NO_HANDLE, offset, &[9; 600], WriteFlags::empty())?;
        if n == 600 { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }
}

fn set(path: &'static str, set: SetAttr) -> impl Fn(&Union) -> Result<()> {
    move |fs| fs.setattr(&ROOT, node(fs, path)?, None, &set).map(drop)
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn owner(uid: u32) -> SetAttr {
    SetAttr { uid: Some(uid), ..SetAttr::default() }
}

fn set_xattr(path: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| fs.setxattr(&ROOT, node(fs, path)?, c"user.new", b"value", XattrFlags::empty())
}

fn remove_xattr(path: &'static str) -> impl Fn(&Union) -> Result<()> {
    move |fs| fs.removexattr(&ROOT, node(fs, path)?, c"user.kept")
}

fn allocate(path: &'static str, mode: u32) -> impl Fn(&Union) -> Result<()> {
    move |fs| fs.fallocate(&ROOT, node(fs, path)?, NO_HANDLE, 100, 9000, mode)
}

pub struct List(pub Vec<Scenario>);

impl List {
    pub fn add(&mut self, name: &'static str, act: impl Fn(&Union) -> Result<()> + 'static) -> &mut Scenario {
        self.0.push(Scenario { name, act: Box::new(act), fits: |_| true });
        self.0.last_mut().unwrap()
    }
}

/// Names that look like whiteouts can be marked: whiteouts are devices.
fn marks_names(kind: &Kind) -> bool {
    kind.privileged && kind.exchange
}

pub fn all() -> Vec<Scenario> {
    let mut list = List(Vec::new());
    let plain = RenameFlags::empty();
    let exchange = RenameFlags::EXCHANGE;
    list.add("create", create(ROOT, "new"));
    list.add("create in a lower directory", create(ROOT, "dir/sub/deep/new"));
    list.add("create over a whiteout", create(ROOT, "gone"));
    list.add("create over a whiteout of a directory", create(ROOT, "gonedir"));
    list.add("create for a user", create(USER, "new"));
    list.add("create for a user over a whiteout", create(USER, "gone"));
    list.add("create in a set-group-id directory", create(USER, "setgid/new"));
    list.add("create like a whiteout", create(ROOT, ".wh.file")).fits = marks_names;
    list.add("mkdir", mkdir(ROOT, "new"));
    list.add("mkdir for a user", mkdir(USER, "new"));
    list.add("mkdir over a whiteout", mkdir(ROOT, "gone"));
    list.add("mkdir over a whiteout of a directory", mkdir(USER, "gonedir"));
    list.add("mkdir in a set-group-id directory", mkdir(ROOT, "setgid/new"));
    list.add("mkdir in a set-group-id directory over a whiteout", mkdir(USER, "setgid/hidden"));
    list.add("mknod", mknod("new", 0o010_640, 0));
    list.add("mknod of a device", mknod("new", 0o020_640, 0x501)).fits = |kind| kind.privileged;
    list.add("mknod of a null device", mknod("new", 0o020_640, 0));
    list.add("mknod of a null device over a whiteout", mknod("gone", 0o020_640, 0));
    list.add("symlink", symlink("new"));
    list.add("symlink over a whiteout", symlink("gone"));
    list.add("link of an upper file", link("upper", "new"));
    list.add("link of an upper file over a whiteout", link("upper", "gone"));
    list.add("link of a lower file", link("file", "dir/new"));
    list.add("link of a linked lower file", link("linked", "dir/new"));
    list.add("link of a file without data", link("meta", "new"));
    list.add("link of a symlink", link("symlink", "new"));
    list.add("unlink of an upper file", unlink("upper"));
    list.add("unlink of a lower file", unlink("file"));
    list.add("unlink in a lower directory", unlink("dir/sub/deep/leaf"));
    list.add("unlink of an upper file over a lower one", unlink("over"));
    list.add("unlink of a file without data", unlink("meta"));
    list.add("unlink of a linked lower file", unlink("linked"));
    list.add("rmdir in the upper", rmdir("upempty"));
    list.add("rmdir of a lower directory", rmdir("empty"));
    list.add("rmdir of an emptied directory", rmdir("emptied"));
    list.add("rename of an upper file", rename("upper", "new", plain));
    list.add("rename of an upper file over another", rename("upper", "upper2", plain));
    list.add("rename of an upper file over a lower one", rename("upper", "file", plain));
    list.add("rename of an upper file over a whiteout", rename("upper", "gone", plain));
    list.add("rename of a lower file", rename("file", "dir/new", plain));
    list.add("rename of a lower file over another", rename("file", "other", plain));
    list.add("rename of a linked lower file", rename("linked", "new", plain));
    list.add("rename of a lower file over a linked one", rename("file", "linked", plain));
    list.add("rename of a file without data", rename("meta", "new", plain));
    list.add("rename of a file without data over another", rename("meta", "meta2", plain));
    list.add("rename of an upper file over a lower one, away", rename("over", "new", plain));
    list.add("rename like a whiteout", rename("file", ".wh.other", plain)).fits = marks_names;
    list.add("rename of an upper directory", rename("updir", "new", plain));
    list.add("rename of an upper directory over a whiteout", rename("updir", "gonedir", plain));
    list.add("rename of a lower directory", rename("dir", "new", plain));
    list.add("rename of a lower directory over a whiteout", rename("dir", "gone", plain));
    list.add("rename of a merged directory", rename("merged", "dir2/new", plain));
    list.add("rename of an upper directory over an empty one", rename("updir", "upempty", plain));
    list.add("rename of an upper directory over an empty lower one", rename("updir", "empty", plain));
    list.add("rename of a lower directory over an emptied one", rename("dir", "emptied", plain));
    list.add("exchange of upper files", rename("upper", "upper2", exchange)).fits = |kind| kind.exchange;
    list.add("exchange of lower files", rename("file", "swap", exchange)).fits = |kind| kind.exchange;
    list.add("exchange of a lower file and an upper one", rename("file", "upper", exchange)).fits =
        |kind| kind.exchange;
    list.add("exchange of lower directories", rename("dir", "dir2", exchange)).fits = |kind| kind.exchange;
    list.add("exchange of a lower directory and a file", rename("dir", "file", exchange)).fits =
        |kind| kind.exchange;
    list.add("exchange of a merged and an upper directory", rename("merged", "updir", exchange)).fits =
        |kind| kind.exchange;
    list.add("write to an upper file", write("upper", 100));
    list.add("write to a lower file", write("file", 100));
    list.add("write beyond the end of a lower file", write("holey", 100_000));
    list.add("write to a linked lower file", write("linked", 0));
    list.add("write to a file without data", write("meta", 100));
    list.add("write in a lower directory", write("dir/sub/deep/leaf", 0));
    list.add("cut of a lower file", set("file", size(100)));
    list.add("cut of a lower file to nothing", set("file", size(0)));
    list.add("growth of a lower file", set("file", size(20_000)));
    list.add("cut of a file without data", set("meta", size(100)));
    list.add("cut of a file without data to nothing", set("meta", size(0)));
    list.add("growth of a file without data", set("meta", size(20_000)));
    list.add("chmod of a lower file", set("file", mode(0o600)));
    list.add("chmod of a linked lower file", set("linked", mode(0o600)));
    list.add("chmod of a lower directory", set("dir/sub/deep", mode(0o700)));
    list.add("chmod of a file with set-id bits and holes", set("holey", mode(0o4700)));
    list.add("chown of a lower file", set("file", owner(7)));
    list.add("chown of a lower symlink", set("symlink", owner(7)));
    list.add("chown of a lower fifo", set("fifo", owner(7)));
    list.add("write to a file copied in part", write("part", 100));
    list.add("write to a block of a file copied in part", write("part", 5100));
    list.add("write to two blocks of a file copied in part", write("part", 8000));
    list.add("write beyond the end of a file copied in part", write("part", 30_000));
    list.add("cut of a file copied in part", set("part", size(100)));
    list.add("cut of a file copied in part to nothing", set("part", size(0)));
    list.add("growth of a file copied in part", set("part", size(20_000)));
    list.add("chmod of a file copied in part", set("part", mode(0o600)));
    list.add("punch a hole into a file copied in part", allocate("part", 3));
    list.add("allocate in a file copied in part", allocate("part", 0));
    list.add("zero a range of a file copied in part", allocate("part", 0x10));
    list.add("link of a file copied in part", link("part", "dir/new"));
    list.add("rename of a file copied in part", rename("part", "dir/new", plain));
    list.add("rename of a file copied in part over another", rename("part", "part2", plain));
    list.add("unlink of a file copied in part", unlink("part"));
    let time = Some(SetTime::At(Timestamp { secs: 5, nanos: 5 }));
    list.add(
        "times of a lower file",
        set("file", SetAttr { mtime: time, atime: time, ..SetAttr::default() }),
    );
    list.add("times of a lower directory", set("dir", SetAttr { mtime: time, ..SetAttr::default() }));
    list.add("set an attribute of a lower file", set_xattr("file"));
    list.add("set an attribute of a lower directory", set_xattr("dir/sub"));
    list.add("remove an attribute of a lower file", remove_xattr("file"));
    list.add("remove an attribute of a lower directory", remove_xattr("dir"));
    list.add("punch a hole into a lower file", allocate("file", 3));
    list.add("allocate beyond the end of a file without data", allocate("meta", 0));
    list.add("open and cut a lower file", |fs: &Union| {
        fs.open(&ROOT, node(fs, "file")?, OpenFlags::RDWR | OpenFlags::TRUNC).map(drop)
    });
    list.0
}

/// Whether a death, or a failure, may leave the tree in a state between before and after:
///
/// - something new belongs to the service until it is given to its owner;
/// - a filesystem that cannot leave a whiteout by a rename shows both names in between;
/// - a change of several blocks may have come to some of them;
/// - the names of a hard link of a lower layer get their copy one after the other.
pub fn in_parts(name: &str, kind: Kind, died: bool, before: &Tree, after: &Tree, seen: &Tree) -> bool {
    let given = |path: &str, seen: &Seen| {
        after.get(path).is_some_and(|after| {
            let perm = |mode: u32| mode & 0o777;
            let theirs =
                Seen { uid: seen.uid, gid: seen.gid, mode: seen.mode, ino: seen.ino, ..after.clone() };
            seen.uid == 0 && perm(seen.mode) & !perm(after.mode) == 0 && theirs == *seen
        })
    };
    if died && (name.starts_with("create") || name.starts_with("mkdir")) {
        return seen
            .iter()
            .all(|(path, seen)| before.get(path).is_some_and(|b| like(b, seen)) || given(path, seen));
    }
    let several = ["write to two blocks", "write beyond", "punch", "zero a range", "allocate"];
    if several.iter().any(|several| name.starts_with(several)) {
        return seen.iter().all(|(path, seen)| {
            let (Some(before), Some(after)) = (before.get(path), after.get(path)) else { return false };
            let byte = |of: &Seen, at| of.data.get(at).copied().unwrap_or(0);
            let theirs = Seen { data: after.data.clone(), size: after.size, ..seen.clone() };
            [before.size, after.size].contains(&seen.size)
                && seen.data.iter().enumerate().all(|(at, b)| *b == byte(before, at) || *b == byte(after, at))
                && (like(before, &Seen { data: before.data.clone(), size: before.size, ..seen.clone() })
                    || like(after, &theirs))
        });
    }
    if died && name.contains("linked") {
        return seen.iter().all(|(path, seen)| {
            [before, after].iter().any(|tree| tree.get(path).is_some_and(|one| like(one, seen)))
        });
    }
    if name.starts_with("rename") && !(kind.rename_whiteout && kind.privileged && kind.exchange) {
        // What shows under the old name may even be a file that the one that was moved has hidden.
        let each = |(path, seen): (&String, &Seen)| {
            let old = before.get(path).is_some_and(|old| old.kind == seen.kind);
            old || after.get(path).is_some_and(|after| like(after, seen))
        };
        return seen.iter().all(each);
    }
    false
}

/// Whether a scenario changes data, which nobody has synced.
pub fn writes_data(name: &str) -> bool {
    ["write", "cut", "growth", "punch", "allocate", "zero", "open and cut"]
        .iter()
        .any(|verb| name.starts_with(verb))
}

/// Whether every file has its attributes of before or of after, and every byte too.
pub fn mixed(before: &Tree, after: &Tree, seen: &Tree) -> bool {
    seen.len() == before.len()
        && seen.iter().all(|(path, seen)| {
            let (Some(before), Some(after)) = (before.get(path), after.get(path)) else { return false };
            let byte = |of: &Seen, at| of.data.get(at).copied().unwrap_or(0);
            let theirs = |of: &Seen| Seen { data: of.data.clone(), size: of.size, ..seen.clone() };
            let sizes = before.size.min(after.size)..=before.size.max(after.size);
            sizes.contains(&seen.size)
                && seen.data.iter().enumerate().all(|(at, b)| *b == byte(before, at) || *b == byte(after, at))
                && (like(before, &theirs(before)) || like(after, &theirs(after)))
        })
}

/// Whether two states are equal apart from number, links and times.
fn like(one: &Seen, other: &Seen) -> bool {
    let bare = |seen: &Seen| Seen {
        ino: 0,
        nlink: None,
        mtime: None,
        atime: None,
        extents: Vec::new(),
        ..seen.clone()
    };
    bare(one) == bare(other)
}
