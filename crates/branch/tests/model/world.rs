//! A branch with a few held objects, and operations on it.

use crate::operation::{ATTRIBUTES, At, NAMES, Operation, SLOTS, Target};
use crate::support::{Fixture, n, put, subdir};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::Arc;
use vellum_vfs::{
    Attr, Branch, BranchDir, BranchFile, Errno, Error, FileKind, Object, OpenMode, RenameFlags, Result, Seek,
    SetTime, Timestamp,
};

/// Contents that are shown in few words.
#[derive(Clone, PartialEq)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{} bytes", self.0.len())?;
        for run in self.0.chunk_by(|a, b| a == b).take(SHOWN) {
            write!(f, ", {} x {:#04x}", run.len(), run[0])?;
        }
        Ok(())
    }
}

/// What both branches must agree on.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Done,
    Number(u64),
    Bytes(Bytes),
    Attr(StableAttr),
    Names(BTreeMap<String, Option<FileKind>>),
    Failed(Errno),
    /// The place was empty.
    Nothing,
}

/// The attributes that do not depend on the moment or on the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StableAttr {
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    /// None for directories.
    pub size: Option<u64>,
    /// None when it is the moment of a change.
    pub mtime: Option<Timestamp>,
    /// Directories only; reading a file may or may not move it.
    pub atime: Option<Timestamp>,
}

/// Later than every time that an operation sets.
const RECENT_SECS: i64 = 1_500_000_000;

impl From<Attr> for StableAttr {
    fn from(attr: Attr) -> Self {
        let set = |time: Timestamp| (time.secs < RECENT_SECS).then_some(time);
        Self {
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: (!attr.is_dir()).then_some(attr.size),
            mtime: set(attr.mtime),
            atime: attr.is_dir().then(|| set(attr.atime)).flatten(),
        }
    }
}

pub struct World {
    branch: Arc<dyn Branch>,
    dirs: Vec<Option<Arc<dyn BranchDir>>>,
    files: Vec<Option<Arc<dyn BranchFile>>>,
    handles: Vec<Option<Arc<dyn Object>>>,
    /// Whether something has been preallocated. From then on ext4's answers about holes depend on what happens
    /// to be in the page cache.
    vague_holes: bool,
}

const TARGETS: [&CStr; 5] = [c"a", c"../b", c"", c"dangling/x", c"/"];
const PATHS: [&CStr; 8] = [c"", c"a", c"a/b", c"b/a", c"a/../b", c"..", c"c/d/e", c"a//b"];

fn number<T>(result: Result<T>) -> Result<Outcome>
where
    u64: TryFrom<T>,
{
    let value = result?;
    Ok(Outcome::Number(u64::try_from(value).unwrap_or(u64::MAX)))
}

fn done(result: Result<()>) -> Result<Outcome> {
    result.map(|()| Outcome::Done)
}

fn time(secs: Option<i64>) -> Option<SetTime> {
    secs.map(|secs| match secs {
        i64::MIN => SetTime::Now,
        secs => SetTime::At(Timestamp { secs, nanos: (secs.unsigned_abs() % 1_000_000_000) as u32 }),
    })
}

/// What a call wrote into a buffer of `room` bytes.
fn written(room: usize, call: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Outcome> {
    let mut buf = vec![0; room];
    let count = call(&mut buf)?;
    buf.truncate(count);
    // With an empty buffer only the length is known.
    Ok(if room == 0 { Outcome::Number(count as u64) } else { Outcome::Bytes(Bytes(buf)) })
}

impl World {
    /// A small tree, and something in every place: directories `.`, `a`, `a/b` and `c`, the files `a/b/c` and `d`,
    /// one without a name, and handles to several kinds.
    pub fn new(fixture: &Fixture) -> Self {
        let root = fixture.root();
        root.set_mode(0o755).unwrap();
        let a = subdir(&*root, c"a");
        let b = subdir(&*a, c"b");
        let c = subdir(&*root, c"c");
        let files = vec![
            Some(put(&*b, c"c", b"some data")),
            Some(put(&*root, c"d", &[7; 10_000])),
            Some(root.create_unnamed(0o600).unwrap()),
            None,
        ];
        a.make_symlink(n(c"c"), c"b/c").unwrap();
        a.make_node(n(c"d"), FileKind::CharDevice.mode_bits(), 0).unwrap();
        let handles = vec![
            Some(root.hold(n(c"d")).unwrap()),
            Some(a.hold(n(c"b")).unwrap()),
            Some(a.hold(n(c"c")).unwrap()),
            Some(a.hold(n(c"d")).unwrap()),
        ];
        let dirs = vec![Some(root), Some(a), Some(b), Some(c)];
        assert!([dirs.len(), files.len(), handles.len()] == [SLOTS; 3]);
        Self { branch: Arc::clone(&fixture.branch), dirs, files, handles, vague_holes: false }
    }

    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        match self.run(operation) {
            None => Outcome::Nothing,
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => Outcome::Failed(error.errno()),
        }
    }

    fn object(&self, target: Target) -> Option<&dyn Object> {
        match target {
            Target::Dir(slot) => self.dirs[slot].as_ref().map(|dir| &**dir as &dyn Object),
            Target::File(slot) => self.files[slot].as_ref().map(|file| &**file as &dyn Object),
            Target::Handle(slot) => self.handles[slot].as_deref(),
        }
    }

    fn dir(&self, slot: usize) -> Option<Arc<dyn BranchDir>> {
        self.dirs[slot].clone()
    }

    fn file(&self, slot: usize) -> Option<Arc<dyn BranchFile>> {
        self.files[slot].clone()
    }

    fn place(&self, at: At) -> Option<(Arc<dyn BranchDir>, vellum_vfs::Name<'static>)> {
        Some((self.dir(at.dir)?, n(NAMES[at.name])))
    }

    fn keep_file(&mut self, slot: usize, file: Result<Arc<dyn BranchFile>>) -> Result<Outcome> {
        self.files[slot] = Some(file?);
        Ok(Outcome::Done)
    }

    fn keep_dir(&mut self, slot: usize, dir: Result<Arc<dyn BranchDir>>) -> Result<Outcome> {
        self.dirs[slot] = Some(dir?);
        Ok(Outcome::Done)
    }

    fn run(&mut self, operation: &Operation) -> Option<Result<Outcome>> {
        use Operation::*;
        Some(match *operation {
            Create(at, mode, slot) => {
                let (dir, name) = self.place(at)?;
                self.keep_file(slot, dir.create(name, mode))
            }
            CreateUnnamed(dir, mode, slot) => {
                let file = self.dir(dir)?.create_unnamed(mode);
                self.keep_file(slot, file)
            }
            MakeDir(at, mode) => {
                let (dir, name) = self.place(at)?;
                done(dir.make_dir(name, mode))
            }
            MakeNode(at, mode, rdev) => {
                let (dir, name) = self.place(at)?;
                done(dir.make_node(name, mode, rdev))
            }
            MakeSymlink(at, to) => {
                let (dir, name) = self.place(at)?;
                done(dir.make_symlink(name, TARGETS[to]))
            }
            Remove(at) => {
                let (dir, name) = self.place(at)?;
                done(dir.remove(name))
            }
            RemoveDir(at) => {
                let (dir, name) = self.place(at)?;
                done(dir.remove_dir(name))
            }
            Link(from, to) => {
                let ((dir, name), (to, to_name)) = (self.place(from)?, self.place(to)?);
                done(dir.link(name, &*to, to_name))
            }
            LinkObject(target, at) => {
                let (dir, name) = self.place(at)?;
                done(dir.link_object(self.object(target)?, name))
            }
            Rename(from, to, flags) => {
                let ((dir, name), (to, to_name)) = (self.place(from)?, self.place(to)?);
                done(dir.rename(name, &*to, to_name, RenameFlags::from_bits_retain(flags)))
            }
            OpenDir(at, slot) => {
                let (dir, name) = self.place(at)?;
                self.keep_dir(slot, dir.open_dir(name))
            }
            OpenPath(path, slot) => {
                let dir = self.branch.open_dir_path(PATHS[path]);
                self.keep_dir(slot, dir)
            }
            OpenFile(at, mode, slot) => {
                let (dir, name) = self.place(at)?;
                self.keep_file(slot, dir.open_file(name, OpenMode::from_bits_retain(mode)))
            }
            Hold(at, slot) => {
                let (dir, name) = self.place(at)?;
                dir.hold(name).map(|handle| {
                    self.handles[slot] = Some(handle);
                    Outcome::Done
                })
            }
            Reopen(target, mode, slot) => {
                let file = self.object(target)?.reopen(OpenMode::from_bits_retain(mode));
                self.keep_file(slot, file)
            }
            Close(target) => {
                match target {
                    Target::Dir(0) => return None,
                    Target::Dir(slot) => self.dirs[slot] = None,
                    Target::File(slot) => self.files[slot] = None,
                    Target::Handle(slot) => self.handles[slot] = None,
                }
                Ok(Outcome::Done)
            }
            List(slot) => self.list(slot)?,
            _ => self.run_on_contents(operation)?,
        })
    }

    fn list(&self, slot: usize) -> Option<Result<Outcome>> {
        let mut names = BTreeMap::new();
        let result = self.dir(slot)?.list(&mut |item| {
            if names.insert(item.name.to_string(), item.kind).is_some() {
                return Err(Error::new(Errno::NOTUNIQ, "listed twice"));
            }
            Ok(())
        });
        Some(result.map(|()| Outcome::Names(names)))
    }

    fn run_on_contents(&mut self, operation: &Operation) -> Option<Result<Outcome>> {
        use Operation::*;
        Some(match *operation {
            Write(slot, offset, len, byte) => number(self.file(slot)?.write_at(&vec![byte; len], offset)),
            Read(slot, offset, len) => {
                let file = self.file(slot)?;
                written(len, |buf| file.read_at(buf, offset))
            }
            Truncate(slot, size) => done(self.file(slot)?.truncate(size)),
            Allocate(slot, mode, offset, len) => {
                let result = self.file(slot)?.allocate(mode, offset, len);
                self.vague_holes |= result.is_ok() && mode & 2 == 0;
                done(result)
            }
            Seek(slot, offset, data) => {
                let file = self.file(slot)?;
                if self.vague_holes {
                    return None;
                }
                number(file.seek(offset, if data { self::Seek::Data } else { self::Seek::Hole }))
            }
            CopyRange { to, to_offset, from, from_offset, len } => {
                let (to, from) = (self.file(to)?, self.file(from)?);
                // Copying a large hole writes it out.
                number(to.copy_range(to_offset, &*from, from_offset, len.min(1 << 20)))
            }
            CloneFrom(to, from) => {
                let (to, from) = (self.file(to)?, self.file(from)?);
                done(BranchFile::clone_from(&*to, &*from))
            }
            _ => self.run_on_attributes(operation)?,
        })
    }

    fn run_on_attributes(&mut self, operation: &Operation) -> Option<Result<Outcome>> {
        use Operation::*;
        Some(match operation {
            Stat(target) => self.object(*target)?.stat().map(|attr| Outcome::Attr(attr.into())),
            StatAt(at) => {
                let (dir, name) = self.place(*at)?;
                dir.stat_at(name).map(|attr| Outcome::Attr(attr.into()))
            }
            SetMode(target, mode) => done(self.object(*target)?.set_mode(*mode)),
            SetModeAt(at, mode) => {
                let (dir, name) = self.place(*at)?;
                done(dir.set_mode_at(name, *mode))
            }
            SetOwner(target, uid, gid) => done(self.object(*target)?.set_owner(*uid, *gid)),
            SetOwnerAt(at, uid, gid) => {
                let (dir, name) = self.place(*at)?;
                done(dir.set_owner_at(name, *uid, *gid))
            }
            SetTimes(target, atime, mtime) => {
                done(self.object(*target)?.set_times(time(*atime), time(*mtime)))
            }
            SetTimesAt(at, atime, mtime) => {
                let (dir, name) = self.place(*at)?;
                done(dir.set_times_at(name, time(*atime), time(*mtime)))
            }
            SetXattr(target, attr, value, flags) => {
                done(self.object(*target)?.set_xattr(ATTRIBUTES[*attr], value, *flags))
            }
            GetXattr(target, attr, room) => {
                let object = self.object(*target)?;
                written(*room, |buf| object.get_xattr(ATTRIBUTES[*attr], buf))
            }
            GetXattrAt(at, attr, room) => {
                let (dir, name) = self.place(*at)?;
                written(*room, |buf| dir.get_xattr_at(name, ATTRIBUTES[*attr], buf))
            }
            ListXattr(target) => attribute_names(self.object(*target)?).map(|names| {
                Outcome::Names(names.iter().map(|n| (n.to_string_lossy().into_owned(), None)).collect())
            }),
            RemoveXattr(target, attr) => done(self.object(*target)?.remove_xattr(ATTRIBUTES[*attr])),
            ReadLink(target, room) => {
                let object = self.object(*target)?;
                written(*room, |buf| object.read_link(buf))
            }
            ReadLinkAt(at, room) => {
                let (dir, name) = self.place(*at)?;
                written(*room, |buf| dir.read_link_at(name, buf))
            }
            other => unreachable!("{other:?} was handled before"),
        })
    }
}

/// The names of all extended attributes.
pub fn attribute_names(object: &dyn Object) -> Result<Vec<CString>> {
    let mut buf = [0; 4096];
    let len = object.list_xattr(&mut buf)?;
    let mut names: Vec<CString> = buf[..len]
        .split_inclusive(|byte| *byte == 0)
        .map(|name| CStr::from_bytes_with_nul(name).expect("ended by NUL").to_owned())
        .filter(|name| name.as_c_str() != c"security.selinux")
        .collect();
    names.sort();
    Ok(names)
}
