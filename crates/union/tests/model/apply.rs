//! Each operation on both trees, with what the kernel sees to before it asks a filesystem left out.

use crate::common::{NO_HANDLE, ROOT, errno_of, name, walk};
use crate::ops::Op;
use crate::world::{Flat, Session, World, agree, name_at};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{
    Branch, BranchDir, BranchFile, Context, Entry, Errno, FileKind, Filesystem, Handle, NodeId, OpenFlags,
    OpenMode, RenameFlags, Result, SetAttr, SetTime, Timestamp, WriteFlags, XattrFlags,
};

const S_ISGID: u32 = 0o2000;
const O_RDWR: OpenFlags = OpenFlags::RDWR;
const O_TRUNC: OpenFlags = OpenFlags::TRUNC;
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";
pub const USER: Context<'static> =
    Context { uid: 1000, gid: 1001, pid: 2, umask: 0o027, groups: &[], who: None, progress: &() };

/// An ACL with an entry for one user and a mask, in its stored form.
fn acl(user: u32, perm: u16) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    let none = u32::MAX;
    for (tag, perm, id) in
        [(1u16, 6u16, none), (2, perm & 7, user), (4, 5, none), (0x10, 7, none), (0x20, 4, none)]
    {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

fn readable_and_writable(flat: &Flat) -> Arc<dyn BranchFile> {
    flat.object().reopen(OpenMode::READ | OpenMode::WRITE).expect("open in the plain tree")
}

impl World {
    /// Names that would be whiteouts where those are files cannot be made there; that is a documented limit.
    fn allowed(&self, at: &CStr) -> bool {
        let beside = !(self.setup.disk.privileged && self.setup.disk.exchange);
        !beside || !(at.to_bytes().starts_with(b".wh.") || at.to_bytes().len() > 251)
    }

    /// A directory and a name in it, to make something there.
    fn place(&self, dir: u8, at: u8) -> (NodeId, Arc<dyn BranchDir>, &'static CStr) {
        let (node, flat) = self.dir(dir);
        let at = if self.allowed(name_at(at)) { name_at(at) } else { c"e" };
        (node, flat, at)
    }

    /// The mode and owner that the plain tree must be told, which has no callers and no umask.
    fn born(dir: &dyn BranchDir, cx: &Context<'_>, mode: u16) -> u32 {
        let has_acl = dir.get_xattr(DEFAULT_ACL, &mut []).is_ok_and(|len| len > 0);
        // Set-id bits at birth depend on the kernel's rules for callers; they are set later by chmod.
        let mode = u32::from(mode) & 0o1777;
        if has_acl { mode } else { mode & !cx.umask }
    }

    pub fn own(&self, dir: &dyn BranchDir, at: &CStr, cx: &Context<'_>) {
        if cx.uid != 0 {
            let setgid = dir.stat().expect("stat").mode & S_ISGID != 0;
            let kept = dir.stat_at(name(at)).expect("stat");
            dir.set_owner_at(name(at), Some(cx.uid), (!setgid).then_some(cx.gid)).expect("owner");
            if kept.kind() != FileKind::Symlink && dir.stat_at(name(at)).expect("stat").perm() != kept.perm()
            {
                dir.set_mode_at(name(at), kept.perm()).expect("mode");
            }
        }
    }

    /// Holds what has just been made in both trees.
    fn hold_new(&mut self, entry: &Entry, dir: &dyn BranchDir, at: &CStr) {
        let flat = Self::flat_at(dir, at).expect("made in the plain tree");
        self.hold(entry, flat);
    }

    /// Does it in both trees and compares.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Lookup(dir, at) => {
                let (node, flat) = self.dir(*dir);
                self.lookup(node, &*flat, name_at(*at));
            }
            Op::Walk(path) => self.walk(path),
            Op::Create { .. } | Op::Mkdir { .. } | Op::Mknod { .. } | Op::Symlink(..) | Op::Tmpfile(_) => {
                self.make(op)
            }
            Op::Link(..) | Op::Unlink(..) | Op::Rmdir(..) => self.change_names(op),
            Op::Rename { from, to, flags } => self.rename(*from, *to, *flags),
            Op::Write { .. }
            | Op::Truncate(..)
            | Op::Allocate { .. }
            | Op::CopyRange { .. }
            | Op::Open { .. } => {
                self.data(op);
            }
            Op::Chmod(..) | Op::Chown(..) | Op::Times { .. } | Op::SetXattr { .. } | Op::RemoveXattr(..) => {
                self.attributes(op);
            }
            Op::Fsync(file) => {
                if let Some(at) = self.file(*file) {
                    self.fs().fsync(&ROOT, self.held[at].node, NO_HANDLE, false).expect("fsync");
                }
            }
            Op::Parent(dir) => self.parent(*dir),
            Op::Forget(of) => {
                let at = self.any(*of);
                let count = if *of > 127 { self.held[at].count } else { 1 };
                self.forget(at, count);
            }
            Op::ForgetAll => {
                for at in (0..self.held.len()).rev() {
                    self.forget(at, self.held[at].count);
                }
            }
            Op::Recall(of) => self.recall(*of),
            Op::ListBegin(dir) => self.list_begin(*dir),
            Op::ListMore { session, room, plus } => {
                if !self.sessions.is_empty() {
                    let at = usize::from(*session) % self.sessions.len();
                    self.list_more(at, usize::from(*room), *plus);
                }
            }
            Op::Compare => self.compare(false),
            Op::Remount => self.remount(),
            Op::Commit => self.commit(),
            Op::Handout { dir, at, op, as_user } => self.handout(*dir, *at, op, *as_user),
        }
        self.follow_sessions();
    }

    fn walk(&mut self, path: &[u8]) {
        let (mut node, mut flat) = (NodeId::ROOT, self.flat.root());
        for part in path {
            let Some(at) = self.lookup(node, &*flat, name_at(*part)) else { return };
            let Flat::Dir(dir) = self.held[at].flat.clone() else { return };
            (node, flat) = (self.held[at].node, dir);
        }
    }

    fn make(&mut self, op: &Op) {
        match op {
            Op::Create { dir, at, mode, as_user } => {
                let cx = if *as_user { &USER } else { &ROOT };
                let (node, flat, at) = self.place(*dir, *at);
                let mode = *mode & 0o1777;
                let expected = errno_of(flat.create(name(at), Self::born(&*flat, cx, mode)));
                let seen =
                    errno_of(self.fs().create(cx, node, name(at), u32::from(mode), OpenFlags::EXCL | O_RDWR));
                if agree("create", &expected, &seen) {
                    self.own(&*flat, at, cx);
                    self.hold_new(&seen.expect("agreed").0, &*flat, at);
                }
            }
            Op::Mkdir { dir, at, mode, as_user } => {
                let cx = if *as_user { &USER } else { &ROOT };
                let (node, flat, at) = self.place(*dir, *at);
                let mode = *mode & 0o1777;
                let expected = errno_of(flat.make_dir(name(at), Self::born(&*flat, cx, mode)));
                let seen = errno_of(self.fs().mkdir(cx, node, name(at), u32::from(mode)));
                if agree("mkdir", &expected, &seen) {
                    self.own(&*flat, at, cx);
                    self.hold_new(&seen.expect("agreed"), &*flat, at);
                }
            }
            Op::Mknod { dir, at, kind, mode } => {
                let (node, flat, at) = self.place(*dir, *at);
                let kinds = [
                    (0o020_000, 0),
                    (0o010_000, 0),
                    (0o140_000, 0),
                    (0o100_000, 0),
                    (0o020_000, 0x501),
                    (0o060_000, 0x700),
                ];
                let limit = if self.setup.disk.privileged { kinds.len() } else { 4 };
                let (kind, rdev) = kinds[usize::from(*kind) % limit];
                let mode = kind | u32::from(*mode) & 0o777;
                let expected = errno_of(flat.make_node(name(at), mode, rdev));
                let seen = errno_of(self.fs().mknod(&ROOT, node, name(at), mode, rdev));
                if agree("mknod", &expected, &seen) {
                    self.hold_new(&seen.expect("agreed"), &*flat, at);
                }
            }
            Op::Symlink(dir, at) => {
                let (node, flat, at) = self.place(*dir, *at);
                let expected = errno_of(flat.make_symlink(name(at), c"to/there"));
                let seen = errno_of(self.fs().symlink(&ROOT, node, name(at), c"to/there"));
                if agree("symlink", &expected, &seen) {
                    self.hold_new(&seen.expect("agreed"), &*flat, at);
                }
            }
            Op::Tmpfile(dir) => {
                let (node, flat) = self.dir(*dir);
                if !self.setup.disk.unnamed || flat.stat().expect("stat").nlink == 0 {
                    return;
                }
                let expected = errno_of(flat.create_unnamed(0o640));
                let seen = errno_of(self.fs().tmpfile(&ROOT, node, 0o640, O_RDWR));
                if agree("tmpfile", &expected, &seen) {
                    let file = expected.expect("agreed");
                    self.hold(&seen.expect("agreed").0, Flat::Other(file));
                }
            }
            _ => unreachable!("not something new"),
        }
    }

    fn change_names(&mut self, op: &Op) {
        match op {
            Op::Link(of, dir, at) => {
                let (node, flat, at) = self.place(*dir, *at);
                let source = self.any(*of);
                let Flat::Other(object) = self.held[source].flat.clone() else { return };
                // A file that was removed gets no new name: the kernel looks at the count of links.
                if self.held[source].stale {
                    return;
                }
                let expected = errno_of(flat.link_object(&*object, name(at)));
                if expected == Err(Errno::NOENT) && flat.stat().expect("stat").nlink > 0 {
                    return;
                }
                let seen = errno_of(self.fs().link(&ROOT, self.held[source].node, node, name(at)));
                if agree("link", &expected, &seen) {
                    self.hold_new(&seen.expect("agreed"), &*flat, at);
                }
            }
            Op::Unlink(dir, at) => {
                let (node, flat) = self.dir(*dir);
                let at = name_at(*at);
                // The kernel knows what it removes.
                self.lookup(node, &*flat, at);
                let expected = errno_of(flat.remove(name(at)));
                let seen = errno_of(self.fs().unlink(&ROOT, node, name(at)));
                agree("unlink", &expected, &seen);
            }
            Op::Rmdir(dir, at) => {
                let (node, flat) = self.dir(*dir);
                let at = name_at(*at);
                self.lookup(node, &*flat, at);
                let expected = errno_of(flat.remove_dir(name(at)));
                let seen = errno_of(self.fs().rmdir(&ROOT, node, name(at)));
                agree("rmdir", &expected, &seen);
            }
            _ => unreachable!("no change of names"),
        }
    }

    fn rename(&mut self, from: (u8, u8), to: (u8, u8), flags: u8) {
        let (from_node, from_flat) = self.dir(from.0);
        let from_name = name_at(from.1);
        let (to_node, to_flat, to_name) = self.place(to.0, to.1);
        self.lookup(from_node, &*from_flat, from_name);
        self.lookup(to_node, &*to_flat, to_name);
        let flags =
            [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE, RenameFlags::empty()]
                [usize::from(flags) % 4];
        let expected = errno_of(from_flat.rename(name(from_name), &*to_flat, name(to_name), flags));
        // A directory into itself, or onto one that it is in: the kernel does not ask.
        let above = matches!(expected, Err(Errno::INVAL))
            || expected == Err(Errno::NOTEMPTY) && Self::is_above(&*to_flat, to_name, &*from_flat);
        if above || !self.allowed(from_name) {
            return;
        }
        let seen =
            errno_of(self.fs().rename(&ROOT, (from_node, name(from_name)), (to_node, name(to_name)), flags));
        agree("rename", &expected, &seen);
    }

    /// Whether what is at a name is `dir` or above it.
    fn is_above(parent: &dyn BranchDir, at: &CStr, dir: &dyn BranchDir) -> bool {
        let wanted = dir.stat().expect("stat").ino;
        let Ok(top) = parent.open_dir(name(at)) else { return false };
        let mut todo = vec![top];
        while let Some(next) = todo.pop() {
            if next.stat().expect("stat").ino == wanted {
                return true;
            }
            for (item, kind) in crate::common::tree::entries(&*next) {
                if kind == FileKind::Directory {
                    todo.push(next.open_dir(name(&item)).expect("a directory"));
                }
            }
        }
        false
    }

    fn data(&mut self, op: &Op) {
        let index = match op {
            Op::Write { file, .. }
            | Op::Truncate(file, _)
            | Op::Allocate { file, .. }
            | Op::Open { file, .. } => *file,
            Op::CopyRange { to, .. } => to.0,
            _ => unreachable!("no operation on data"),
        };
        let Some(at) = self.file(index) else { return };
        let (node, flat) = (self.held[at].node, readable_and_writable(&self.held[at].flat));
        match op {
            Op::Write { offset, len, byte, .. } => {
                let data = vec![*byte; usize::from(*len)];
                let expected = errno_of(flat.write_at(&data, u64::from(*offset)));
                let seen = errno_of(self.fs().write(
                    &ROOT,
                    node,
                    NO_HANDLE,
                    u64::from(*offset),
                    &data,
                    WriteFlags::empty(),
                ));
                assert_eq!(expected, seen, "write");
            }
            Op::Truncate(_, size) => {
                flat.truncate(u64::from(*size)).expect("truncate");
                let set = SetAttr { size: Some(u64::from(*size)), ..SetAttr::default() };
                let reply = self.fs().setattr(&ROOT, node, None, &set).expect("truncate");
                let flat = self.held[at].flat.clone();
                self.check_attr(&reply.attr, &flat, "truncate");
            }
            Op::Allocate { kind, offset, len, .. } => {
                // Allocate, keep size, punch, zero, zero and keep size.
                let mode = [0, 1, 3, 0x10, 0x11][usize::from(*kind) % 5];
                let (offset, len) = (u64::from(*offset), u64::from(*len));
                let expected = errno_of(flat.allocate(mode, offset, len));
                let seen = errno_of(self.fs().fallocate(&ROOT, node, NO_HANDLE, offset, len, mode));
                assert_eq!(expected, seen, "fallocate");
            }
            Op::CopyRange { from, to, len } => {
                let Some(source) = self.file(from.0) else { return };
                let from_file = readable_and_writable(&self.held[source].flat);
                let len = u64::from(*len);
                let expected =
                    errno_of(flat.copy_range(u64::from(to.1), &*from_file, u64::from(from.1), len));
                let from = (self.held[source].node, NO_HANDLE, u64::from(from.1));
                let seen =
                    errno_of(self.fs().copy_file_range(&ROOT, from, (node, NO_HANDLE, u64::from(to.1)), len));
                // Between branches it is the kernel that copies; here the copy would be two operations more.
                if seen == Err(Errno::XDEV) {
                    if let Ok(count) = expected {
                        let mut data = vec![0; count as usize];
                        flat.read_at(&mut data, u64::from(to.1)).expect("read");
                        let wrote = self.fs().write(
                            &ROOT,
                            node,
                            NO_HANDLE,
                            u64::from(to.1),
                            &data,
                            WriteFlags::empty(),
                        );
                        assert_eq!(errno_of(wrote), Ok(count as usize), "write");
                    }
                } else {
                    assert_eq!(expected, seen, "copy_file_range");
                }
            }
            Op::Open { how, .. } => self.open(at, *how, &*flat),
            _ => unreachable!("no operation on data"),
        }
    }

    fn open(&mut self, at: usize, how: u8, flat: &dyn BranchFile) {
        let flags = [OpenFlags::empty(), O_RDWR, O_RDWR | O_TRUNC, OpenFlags::empty()][usize::from(how) % 4];
        let node = self.held[at].node;
        let ino = self.held[at].flat_ino;
        let mut fresh: Option<Entry> = None;
        let mut opened = errno_of(self.fs().open(&ROOT, node, flags)).map(drop);
        if opened == Err(Errno::STALE) {
            assert!(self.setup.passthrough, "ESTALE without need");
            // The name is looked up again. A file without one cannot be opened again, which is documented.
            let Some(path) = self.path_of(ino) else { return };
            assert!(self.fs().explain(node).expect("held").stale, "ESTALE, and the node is not stale");
            let entry = walk(self.fs(), &path).expect("lookup").expect("a path of the plain tree");
            fresh = Some(entry);
            let fresh = entry.node;
            assert_ne!(fresh, node, "the same node again");
            opened = errno_of(self.fs().open(&ROOT, fresh, flags)).map(drop);
        }
        assert_eq!(opened, Ok(()), "open");
        if flags.contains(O_TRUNC) {
            flat.truncate(0).expect("truncate");
        }
        if let Some(mut entry) = fresh {
            entry.attr = self.fs().getattr(&ROOT, entry.node, None).expect("getattr").attr;
            let flat = self.held[at].flat.clone();
            self.hold(&entry, flat);
        }
        self.fs().release(node, Handle(0));
    }

    fn attributes(&mut self, op: &Op) {
        let at = match op {
            Op::Chmod(of, _)
            | Op::Chown(of, ..)
            | Op::Times { of, .. }
            | Op::SetXattr { of, .. }
            | Op::RemoveXattr(of, _) => self.any(*of),
            _ => unreachable!("no change of attributes"),
        };
        let (node, kind, flat) = (self.held[at].node, self.held[at].kind, self.held[at].flat.clone());
        // A lower directory that was removed cannot be copied up any more, as in the kernel's overlayfs.
        if kind == FileKind::Directory && flat.attr().nlink == 0 {
            return;
        }
        let object = flat.object();
        let set = match op {
            Op::Chmod(_, mode) if kind != FileKind::Symlink => {
                object.set_mode(u32::from(*mode)).expect("chmod");
                SetAttr { mode: Some(u32::from(*mode)), ..SetAttr::default() }
            }
            Op::Chown(_, uid, gid) => {
                let (uid, gid) =
                    ((*uid > 20).then_some(u32::from(*uid)), (*gid > 20).then_some(u32::from(*gid)));
                if uid.is_some() || gid.is_some() {
                    object.set_owner(uid, gid).expect("chown");
                }
                SetAttr { uid, gid, ..SetAttr::default() }
            }
            Op::Times { atime, mtime, .. } => {
                let time = |secs: Option<u16>| {
                    secs.map(|secs| match secs {
                        0..1000 => SetTime::Now,
                        secs => {
                            SetTime::At(Timestamp { secs: i64::from(secs) - 2000, nanos: u32::from(secs) })
                        }
                    })
                };
                let (atime, mtime) = (time(*atime), time(*mtime));
                object.set_times(atime, mtime).expect("times");
                SetAttr { atime, mtime, ..SetAttr::default() }
            }
            Op::SetXattr { .. } | Op::RemoveXattr(..) => return self.xattr(op, node, kind, &flat),
            _ => return,
        };
        let reply = self.fs().setattr(&ROOT, node, None, &set).unwrap_or_else(|e| panic!("setattr: {e}"));
        self.check_attr(&reply.attr, &flat, "setattr");
    }

    fn xattr(&mut self, op: &Op, node: NodeId, kind: FileKind, flat: &Flat) {
        let which = match op {
            Op::SetXattr { which, .. } | Op::RemoveXattr(_, which) => *which,
            _ => return,
        };
        let attrs = [
            c"user.first",
            c"user.other",
            c"system.posix_acl_access",
            DEFAULT_ACL,
            c"trusted.second",
            c"security.third",
        ];
        let attr = attrs[usize::from(which) % if self.setup.disk.privileged { 6 } else { 4 }];
        let file_or_dir = matches!(kind, FileKind::Regular | FileKind::Directory);
        // The kernel refuses these itself.
        if attr.to_bytes().starts_with(b"user.") && !file_or_dir
            || attr.to_bytes().starts_with(b"system.")
                && (kind == FileKind::Symlink || attr == DEFAULT_ACL && kind != FileKind::Directory)
        {
            return;
        }
        match op {
            Op::SetXattr { value, flags, .. } => {
                let is_acl = attr.to_bytes().starts_with(b"system.");
                let flags = if is_acl { 0 } else { [0, 0, 0, 1, 2, 0][usize::from(*flags) % 6] };
                let value = if is_acl {
                    acl(u32::from(*value), u16::from(*value))
                } else {
                    vec![*value; usize::from(*value % 4)]
                };
                let expected = errno_of(flat.object().set_xattr(attr, &value, flags));
                let flags = XattrFlags::from_bits_truncate(flags);
                let seen = errno_of(self.fs().setxattr(&ROOT, node, attr, &value, flags));
                agree("setxattr", &expected, &seen);
            }
            _ => {
                let expected = errno_of(flat.object().remove_xattr(attr));
                let seen = errno_of(self.fs().removexattr(&ROOT, node, attr));
                agree("removexattr", &expected, &seen);
            }
        }
    }

    fn parent(&mut self, index: u8) {
        let (node, flat) = self.dir(index);
        if flat.stat().expect("stat").nlink == 0 {
            return;
        }
        let entry = self.fs().lookup_parent(&ROOT, node).expect("parent");
        // Found from above, since a directory of a branch does not tell its parent.
        let ino = flat.stat().expect("stat").ino;
        let parent = if node == NodeId::ROOT {
            Some(self.flat.root())
        } else {
            let path = self.path_of(ino).expect("a directory that has a name");
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            let above = std::ffi::CString::new(above.trim_start_matches('/')).expect("no NUL");
            self.flat.open_dir_path(&above).ok()
        };
        self.hold(&entry, Flat::Dir(parent.expect("a parent")));
    }

    fn recall(&mut self, of: u8) {
        if self.forgotten.is_empty() {
            return;
        }
        let (node, flat_ino) = self.forgotten[usize::from(of) % self.forgotten.len()];
        let found: Result<Entry, Errno> = errno_of(self.fs().lookup_node(&ROOT, node));
        let Some(path) = self.path_of(flat_ino).filter(|_| self.setup.exports) else {
            assert_eq!(found.map(|entry| entry.node), Err(Errno::STALE), "a handle to nothing");
            return;
        };
        let kind = crate::common::tree::of_branch(&*self.flat.root())[&path].kind;
        if !self.is_numbered(kind) || self.linked.contains(&flat_ino) {
            // Without a number that stays, it is not recognised after a copy-up. And of a file with several links, the
            // name by which it was known may have gone.
            if let Ok(entry) = found {
                self.fs().forget(entry.node, 1);
            }
            return;
        }
        let entry = found.unwrap_or_else(|e| panic!("a handle to {path:?}: {e}"));
        assert_eq!(entry.node, node, "a handle leads to another node");
        let (above, last) = path.rsplit_once('/').expect("not the root");
        let above = std::ffi::CString::new(above.trim_start_matches('/')).expect("no NUL");
        let last = std::ffi::CString::new(last).expect("no NUL");
        let dir = self.flat.open_dir_path(&above).expect("a directory");
        let flat = Self::flat_at(&*dir, &last).expect("an entry");
        self.check_attr(&entry.attr, &flat, "a handle");
        // Given back at once: the kernel would keep it beside the node that it has for the name.
        self.fs().forget(node, 1);
    }

    fn list_begin(&mut self, dir: u8) {
        const SESSIONS_MAX: usize = 3;
        let (node, flat) = self.dir(dir);
        if self.sessions.len() < SESSIONS_MAX {
            let now = |flat: &dyn BranchDir| {
                crate::common::tree::entries(flat).into_iter().map(|(n, _)| n).collect()
            };
            let (always, ever) = (now(&*flat), now(&*flat));
            self.sessions.push(Session {
                node,
                flat,
                offset: 0,
                always,
                ever,
                seen: std::collections::HashSet::new(),
            });
        }
    }
}
