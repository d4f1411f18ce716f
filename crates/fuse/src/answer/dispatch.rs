//! One request: call the filesystem, lay the answer into the reply.

use crate::answer::convert;
use crate::answer::ioctl;
use crate::answer::listing::{self, Listing};
use crate::files::backing::{BackingTable, Grant};
use crate::request::{Operation, Request, Target};
use crate::session::inflight::{AnswerCounts, Mark, Replay, place};
use crate::session::init::SessionParameters;
use crate::wire::{self, FopenFlags, InitFlags, Opcode};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Duration;
use vellum_vfs::{
    AttrReply, Context, Duties, Entry, Error, Filesystem, Handle, Level, Name, NodeId, OpenFlags, OpenIo,
    OpenReply, OwnOpens, Progress, RenameFlags, Seek, SetAttr, WriteFlags, XattrFlags,
};
use zerocopy::{Immutable, IntoBytes};

/// Set in the handles that the kernel holds when the open is counted in the backing table. A handle of the
/// filesystem's own must leave it free.
const HANDLE_COUNTED: u64 = 1 << 63;

/// What goes back to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing at all: the protocol has no reply to this.
    Silence,
    /// An error.
    Status(Errno),
    /// Success, with so many bytes of the body.
    Body(usize),
}

impl Answer {
    const DONE: Self = Self::Body(0);
}

/// What an answer has promised to the kernel, to be taken back when it cannot be delivered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Promise {
    /// A lookup count.
    node: Option<NodeId>,
    /// An open file or directory, with the handle as the kernel would have it.
    open: Option<(NodeId, u64, bool)>,
    /// Lookup counts within a READDIRPLUS body of this length.
    listing: Option<usize>,
}

impl Promise {
    /// What is written down of it, if there is anything. Nodes of a list are left out.
    pub(crate) fn answer_counts(&self) -> Option<AnswerCounts> {
        let open = self.open.filter(|(_, _, dir)| !dir).map(|(node, handle, _)| (node, handle));
        let written = AnswerCounts { node: self.node, open };
        (written != AnswerCounts::default()).then_some(written)
    }
}

impl From<AnswerCounts> for Promise {
    fn from(AnswerCounts { node, open }: AnswerCounts) -> Self {
        Self { node, open: open.map(|(node, handle)| (node, handle, false)), listing: None }
    }
}

/// What a request needs to be answered.
pub(crate) struct Dispatcher<'a, F: ?Sized> {
    pub(crate) fs: &'a F,
    pub(crate) negotiated: &'a SessionParameters,
    pub(crate) duties: Duties,
    pub(crate) backing: &'a BackingTable,
    pub(crate) device: &'a OwnedFd,
    /// Whether the request has been begun by a predecessor.
    pub(crate) replay: Replay,
    /// Hears when a name is made.
    pub(crate) progress: &'a dyn Progress,
}

impl<F: Filesystem + ?Sized> Dispatcher<'_, F> {
    /// Answers `request` into `body`.
    pub(crate) fn answer(&self, request: &Request<'_>, body: &mut [u8], promise: &mut Promise) -> Answer {
        match self.call(request, body, promise) {
            Ok(answer) => answer,
            Err(error) => {
                let (opcode, node) = (request.opcode.name(), request.header.nodeid);
                match error.level() {
                    Level::Answer => tracing::trace!(opcode, node, %error, "refused"),
                    Level::Failure => tracing::warn!(opcode, node, %error, "I/O error"),
                    Level::Damage => tracing::error!(opcode, node, %error, "damaged"),
                }
                Answer::Status(error.errno())
            }
        }
    }

    #[allow(clippy::too_many_lines, reason = "one arm per opcode")]
    fn call(&self, request: &Request<'_>, body: &mut [u8], promise: &mut Promise) -> Result<Answer, Error> {
        let node = request.node();
        let cx = &self.context(request);
        let fs = self.fs;
        match &request.operation {
            Operation::Lookup { target } => {
                let entry = match *target {
                    Target::Name(name) => fs.lookup(cx, node, name)?,
                    Target::Node => Some(fs.lookup_node(cx, node)?),
                    Target::Parent => Some(fs.lookup_parent(cx, node)?),
                };
                let Some(entry) = entry else {
                    let ttl = match *target {
                        Target::Name(name) => fs.negative_ttl(node, name),
                        _ => Duration::ZERO,
                    };
                    if ttl.is_zero() {
                        return Ok(Answer::Status(Errno::NOENT));
                    }
                    return put(body, &convert::negative_entry(ttl));
                };
                entry_reply(&entry, body, promise)
            }
            Operation::Forget { count } => {
                self.forget(node, *count);
                Ok(Answer::Silence)
            }
            Operation::BatchForget { nodes } => {
                for one in *nodes {
                    self.forget(NodeId(one.nodeid), one.nlookup);
                }
                Ok(Answer::Silence)
            }
            Operation::Getattr { args } => {
                let handle = (args.getattr_flags & wire::GETATTR_FH != 0).then(|| handle(args.fh));
                put(body, &convert::attr_out(&fs.getattr(cx, node, handle)?))
            }
            Operation::Statx { args } => {
                let handle = (args.getattr_flags & wire::GETATTR_FH != 0).then(|| handle(args.fh));
                put(body, &convert::statx_out(&fs.getattr(cx, node, handle)?))
            }
            Operation::Setattr { args } => {
                let with_handle = args.valid & wire::SetattrValid::FH.bits() != 0;
                let mut set = convert::set_attr(args);
                // Root keeps the bits of a file that loses its capability by a write.
                set.kill_suidgid |= convert::asks_for_nothing(args) && cx.ids().0 != 0;
                let reply = fs.setattr(cx, node, with_handle.then(|| handle(args.fh)), &set)?;
                put(body, &convert::attr_out(&reply))
            }
            Operation::Readlink => {
                let room = body.get_mut(..wire::LINK_MAX).ok_or(Errno::IO)?;
                Ok(Answer::Body(checked_len(fs.readlink(cx, node, room)?, wire::LINK_MAX)?))
            }
            Operation::Symlink { name, target } => {
                let made = fs.symlink(cx, node, *name, target);
                entry_reply(&self.creation_outcome(cx, node, *name, made)?, body, promise)
            }
            Operation::Mknod { args, name } => {
                let cx = &Context { umask: args.umask, ..*cx };
                let made = fs.mknod(cx, node, *name, args.mode, args.rdev.into());
                entry_reply(&self.creation_outcome(cx, node, *name, made)?, body, promise)
            }
            Operation::Mkdir { args, name } => {
                let cx = &Context { umask: args.umask, ..*cx };
                let made = fs.mkdir(cx, node, *name, args.mode);
                entry_reply(&self.creation_outcome(cx, node, *name, made)?, body, promise)
            }
            Operation::Unlink { name } => done(self.removal_outcome(fs.unlink(cx, node, *name))),
            Operation::Rmdir { name } => done(self.removal_outcome(fs.rmdir(cx, node, *name))),
            Operation::Rename { from, to_parent, to, flags } => {
                let flags = RenameFlags::from_bits(*flags).ok_or(Errno::INVAL)?;
                if self.was_exchanged(cx, (node, *from), flags)? {
                    return Ok(Answer::DONE);
                }
                let renamed = fs.rename(cx, (node, *from), (*to_parent, *to), flags);
                done(self.removal_outcome(renamed))
            }
            Operation::Link { node: old, name } => {
                let made = fs.link(cx, *old, node, *name);
                entry_reply(&self.creation_outcome(cx, node, *name, made)?, body, promise)
            }
            Operation::Open { args } => {
                let flags = OpenFlags::from_bits_retain(args.flags);
                let opened = fs.open(cx, node, flags).map_err(|error| self.open_error(error))?;
                if args.open_flags & wire::OPEN_KILL_SUIDGID != 0 {
                    let kill = SetAttr { kill_suidgid: true, ..SetAttr::default() };
                    if let Err(error) = fs.setattr(cx, node, Some(opened.handle), &kill) {
                        fs.release(node, opened.handle);
                        return Err(error);
                    }
                }
                let reply = self.open_reply(node, flags, &opened, promise)?;
                put(body, &reply)
            }
            Operation::Create { args, name } => {
                let cx = &Context { umask: args.umask, ..*cx };
                // What is there already has been made by a predecessor.
                let mut flags = OpenFlags::from_bits_retain(args.flags);
                flags.set(OpenFlags::EXCL, flags.contains(OpenFlags::EXCL) && self.replay == Replay::Fresh);
                let created = fs.create(cx, node, *name, args.mode, flags)?;
                self.create_reply(flags, &created, body, promise)
            }
            Operation::Tmpfile { args } => {
                let cx = &Context { umask: args.umask, ..*cx };
                let flags = OpenFlags::from_bits_retain(args.flags);
                let created = fs.tmpfile(cx, node, args.mode, flags)?;
                self.create_reply(flags, &created, body, promise)
            }
            Operation::Read { args } => {
                let size = (args.size as usize).min(body.len());
                let room = body.get_mut(..size).ok_or(Errno::IO)?;
                let read = fs.read(cx, node, handle(args.fh), args.offset, room)?;
                Ok(Answer::Body(checked_len(read, size)?))
            }
            Operation::Write { args, data } => {
                let flags = write_flags(args);
                let written = fs.write(cx, node, handle(args.fh), args.offset, data, flags)?;
                let size = checked_len(written, data.len())? as u32;
                put(body, &wire::WriteOut { size, padding: 0 })
            }
            Operation::Statfs => put(body, &convert::statfs(&fs.statfs(cx, node)?)),
            Operation::Release { args } => {
                // What a predecessor has begun counts as done. An open that stays counted ends with its node; one that is not counted
                // any more takes the file from under another open, which the kernel answers with EIO.
                if self.replay == Replay::Fresh {
                    self.release(node, args.fh, &|| self.progress.begins());
                }
                Ok(Answer::DONE)
            }
            Operation::Releasedir { args } => {
                fs.releasedir(node, handle(args.fh));
                Ok(Answer::DONE)
            }
            Operation::Fsync { args } => {
                let datasync = args.fsync_flags & wire::FSYNC_FDATASYNC != 0;
                done(fs.fsync(cx, node, handle(args.fh), datasync))
            }
            Operation::Fsyncdir { args } => {
                let datasync = args.fsync_flags & wire::FSYNC_FDATASYNC != 0;
                done(fs.fsyncdir(cx, node, handle(args.fh), datasync))
            }
            Operation::Flush { args } => done(fs.flush(cx, node, handle(args.fh))),
            Operation::Setxattr { name, value, flags, acl_kill_sgid } => {
                let mut flags = XattrFlags::from_bits(*flags).ok_or(Errno::INVAL)?;
                if self.replay == Replay::Begun(ABSENT) {
                    flags.remove(XattrFlags::CREATE);
                }
                fs.setxattr(cx, node, name, value, flags)?;
                // The kernel says so for a default ACL as well, which changes no mode.
                if *acl_kill_sgid && *name == c"system.posix_acl_access" {
                    self.clear_setgid(cx, node)?;
                }
                Ok(Answer::DONE)
            }
            Operation::Getxattr { name, size } => {
                xattr_reply(*size, body, |buf| fs.getxattr(cx, node, name, buf))
            }
            Operation::Listxattr { size } => xattr_reply(*size, body, |buf| fs.listxattr(cx, node, buf)),
            Operation::Removexattr { name } => match fs.removexattr(cx, node, name) {
                // A predecessor has taken it away.
                Err(error) if self.replay == Replay::Begun(PRESENT) && error.errno() == Errno::NODATA => {
                    Ok(Answer::DONE)
                }
                removed => done(removed),
            },
            Operation::Opendir { args } => {
                let opened = fs.opendir(cx, node, OpenFlags::from_bits_retain(args.flags))?;
                let flags = match opened.io {
                    OpenIo::Cached { keep: true } => FopenFlags::CACHE_DIR | FopenFlags::KEEP_CACHE,
                    OpenIo::Cached { keep: false } => FopenFlags::CACHE_DIR,
                    OpenIo::Direct | OpenIo::Passthrough(_) | OpenIo::Lent(_) => FopenFlags::empty(),
                };
                promise.open = Some((node, opened.handle.0, true));
                put(body, &wire::OpenOut { fh: opened.handle.0, open_flags: flags.bits(), backing_id: 0 })
            }
            Operation::Readdir { args } => self.list(cx, node, args, false, body, promise),
            Operation::Readdirplus { args } => self.list(cx, node, args, true, body, promise),
            Operation::Access { mask } => done(fs.access(cx, node, *mask)),
            Operation::Fallocate { args } => {
                done(fs.fallocate(cx, node, handle(args.fh), args.offset, args.length, args.mode))
            }
            Operation::Lseek { args } => {
                let whence = match args.whence {
                    libc_seek::DATA => Seek::Data,
                    libc_seek::HOLE => Seek::Hole,
                    _ => return Err(Errno::INVAL.into()),
                };
                let offset = fs.lseek(cx, node, handle(args.fh), args.offset, whence)?;
                put(body, &wire::LseekOut { offset })
            }
            Operation::CopyFileRange { args } => {
                if args.flags != 0 {
                    return Err(Errno::INVAL.into());
                }
                let from = (node, handle(args.fh_in), args.off_in);
                let to = (NodeId(args.nodeid_out), handle(args.fh_out), args.off_out);
                if request.opcode == Opcode::CopyFileRange64 {
                    let bytes_copied = fs.copy_file_range(cx, from, to, args.len)?.min(args.len);
                    put(body, &wire::CopyFileRangeOut { bytes_copied })
                } else {
                    // The older reply has 32 bits; whole pages are left, as the kernel would ask again.
                    let len = args.len.min(u64::from(u32::MAX) & !0xfff);
                    let size = fs.copy_file_range(cx, from, to, len)?.min(len) as u32;
                    put(body, &wire::WriteOut { size, padding: 0 })
                }
            }
            Operation::Ioctl { args, data } => ioctl::answer(fs, cx, node, (args, data), body),
            Operation::Destroy => Ok(Answer::DONE),
            // INIT and INTERRUPT are the session's own.
            Operation::Init { .. } | Operation::Interrupt { .. } | Operation::Unserved => {
                Ok(Answer::Status(Errno::NOSYS))
            }
        }
    }

    /// The outcome of making something that a predecessor may have made.
    fn creation_outcome(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: Name<'_>,
        made: Result<Entry, Error>,
    ) -> Result<Entry, Error> {
        match made {
            Err(error) if self.replay != Replay::Fresh && error.errno() == Errno::EXIST => {
                self.fs.lookup(cx, parent, name)?.ok_or(error)
            }
            made => made,
        }
    }

    /// The outcome of taking a name away that a predecessor may have taken away: that it is not there is no error then.
    fn removal_outcome(&self, outcome: Result<(), Error>) -> Result<(), Error> {
        match outcome {
            Err(error) if self.replay != Replay::Fresh && error.errno() == Errno::NOENT => Ok(()),
            outcome => outcome,
        }
    }

    /// What is to be written down of a request, if it is not the same when it is carried out twice; and whether `fs` says when it is begun.
    pub(crate) fn mark(&self, request: &Request<'_>) -> Option<(Mark, bool)> {
        let (name, makes) = match &request.operation {
            Operation::Mknod { name, .. }
            | Operation::Mkdir { name, .. }
            | Operation::Symlink { name, .. }
            | Operation::Link { name, .. }
            | Operation::Create { name, .. } => (Some(name), true),
            Operation::Unlink { name } | Operation::Rmdir { name } | Operation::Rename { from: name, .. } => {
                (Some(name), false)
            }
            Operation::Setxattr { flags, .. } if *flags & XattrFlags::CREATE.bits() != 0 => (None, false),
            Operation::Removexattr { .. } | Operation::Release { .. } => (None, false),
            _ => return None,
        };
        let detail = match (&request.operation, self.replay) {
            // The first to begin knew how it was before.
            (_, Replay::Begun(detail)) => detail,
            (Operation::Setxattr { name, .. } | Operation::Removexattr { name }, _) => {
                let is_there =
                    self.fs.getxattr(&self.context(request), request.node(), name, &mut []).is_ok();
                if is_there { PRESENT } else { ABSENT }
            }
            (Operation::Rename { from, flags, .. }, _) if *flags & RenameFlags::EXCHANGE.bits() != 0 => {
                // Twice would be as good as not at all.
                let found = self.fs.lookup(&self.context(request), request.node(), *from).ok()??;
                self.fs.forget(found.node, 1);
                found.attr.ino
            }
            _ => 0,
        };
        let place = name.map_or(0, |name| place(request.node(), *name));
        let is_told =
            makes && self.replay == Replay::Fresh || matches!(request.operation, Operation::Release { .. });
        Some((Mark { detail, place }, is_told))
    }

    /// Whether a predecessor has exchanged two names already: what was at the first is not there any more.
    fn was_exchanged(
        &self,
        cx: &Context<'_>,
        from: (NodeId, Name<'_>),
        flags: RenameFlags,
    ) -> Result<bool, Error> {
        let Replay::Begun(ino) = self.replay else { return Ok(false) };
        if !flags.contains(RenameFlags::EXCHANGE) {
            return Ok(false);
        }
        let found = self.fs.lookup(cx, from.0, from.1)?.ok_or(Errno::NOENT)?;
        self.fs.forget(found.node, 1);
        Ok(found.attr.ino != ino)
    }

    /// Takes back what an undelivered answer had promised. `body` is the answer's.
    pub(crate) fn revert(&self, promise: &Promise, body: &[u8]) {
        match promise.open {
            Some((node, fh, true)) => self.fs.releasedir(node, handle(fh)),
            Some((node, fh, false)) => self.release(node, fh, &|| ()),
            None => {}
        }
        if let Some(node) = promise.node {
            self.forget(node, 1);
        }
        if let Some(body) = promise.listing.and_then(|len| body.get(..len)) {
            for node in listing::listed_nodes(body) {
                self.forget(node, 1);
            }
        }
    }

    /// Takes lookups back. With the last one go opens that are still counted.
    fn forget(&self, node: NodeId, count: u64) {
        let opens = if self.backing.records_opens() { self.fs.own_opens(node) } else { OwnOpens::default() };
        self.fs.forget(node, count);
        if opens != OwnOpens::default() {
            self.backing.end(self.device, self.fs, node, opens);
        }
    }

    fn context<'r>(&'r self, request: &'r Request<'_>) -> Context<'r> {
        Context {
            uid: request.header.uid,
            gid: request.header.gid,
            pid: request.header.pid,
            umask: 0,
            groups: request.groups.as_slice(),
            who: self.negotiated.flags.contains(InitFlags::ALLOW_IDMAP).then_some(vellum_sys::ids_of_thread),
            progress: self.progress,
        }
    }

    /// ENOSYS to OPEN changes the whole connection, so it may only leave here when that was offered.
    fn open_error(&self, error: Error) -> Error {
        if error.errno() == Errno::NOSYS && !self.duties.contains(Duties::OPENS_FILES) {
            return Error::new(Errno::IO, "open without having been offered to do without");
        }
        error
    }

    /// Ends an open of a file. `begins` is called right before the first count of it is taken back.
    fn release(&self, node: NodeId, fh: u64, begins: &dyn Fn()) {
        if fh & HANDLE_COUNTED != 0 {
            self.backing.release(self.device, self.fs, node, begins);
        } else {
            begins();
        }
        self.fs.release(node, handle(fh));
    }

    /// The kernel's view of an open file. On error the open has been taken back.
    fn open_reply(
        &self,
        node: NodeId,
        flags: OpenFlags,
        opened: &OpenReply,
        promise: &mut Promise,
    ) -> Result<wire::OpenOut, Error> {
        let mut out = wire::OpenOut { fh: opened.handle.0, ..wire::OpenOut::default() };
        let read_only = !flags.intersects(OpenFlags::ACCMODE);
        let open_flags = match &opened.io {
            OpenIo::Cached { .. } if read_only && self.joins(node, &mut out) => {
                FopenFlags::PASSTHROUGH | FopenFlags::NOFLUSH
            }
            OpenIo::Cached { keep: true } => FopenFlags::KEEP_CACHE,
            OpenIo::Cached { keep: false } => FopenFlags::empty(),
            OpenIo::Direct => FopenFlags::DIRECT_IO | FopenFlags::PARALLEL_DIRECT_WRITES,
            OpenIo::Passthrough(_) | OpenIo::Lent(_)
                if !self.negotiated.flags.contains(InitFlags::PASSTHROUGH) =>
            {
                FopenFlags::empty()
            }
            OpenIo::Passthrough(file) | OpenIo::Lent(file) => {
                let is_copy = matches!(opened.io, OpenIo::Lent(_));
                let grant = if out.fh & HANDLE_COUNTED == 0 {
                    self.backing.open(self.device, self.fs, node, (file, is_copy))
                } else {
                    Err(Errno::OVERFLOW)
                };
                match grant {
                    Ok(grant) => {
                        out.fh |= HANDLE_COUNTED;
                        match grant {
                            Grant::Id(id) => {
                                out.backing_id = id;
                                // Nothing of it is ever in FUSE's own cache, so that there is nothing to flush.
                                FopenFlags::PASSTHROUGH | FopenFlags::NOFLUSH
                            }
                            Grant::Cached => FopenFlags::empty(),
                        }
                    }
                    Err(errno) => {
                        self.fs.release(node, opened.handle);
                        return Err(Error::new(errno, "passthrough open"));
                    }
                }
            }
        };
        let noflush = if read_only { FopenFlags::NOFLUSH } else { FopenFlags::empty() };
        out.open_flags = (open_flags | noflush).bits();
        promise.open = Some((node, out.fh, false));
        Ok(out)
    }

    /// Has an open go by the file that the node is open with already, if it is.
    fn joins(&self, node: NodeId, out: &mut wire::OpenOut) -> bool {
        if !self.negotiated.flags.contains(InitFlags::PASSTHROUGH) || out.fh & HANDLE_COUNTED != 0 {
            return false;
        }
        let Some(id) = self.backing.join(self.fs, node) else { return false };
        out.fh |= HANDLE_COUNTED;
        out.backing_id = id;
        true
    }

    fn create_reply(
        &self,
        flags: OpenFlags,
        (entry, opened): &(Entry, OpenReply),
        body: &mut [u8],
        promise: &mut Promise,
    ) -> Result<Answer, Error> {
        let open = match self.open_reply(entry.node, flags, opened, promise) {
            Ok(open) => open,
            Err(error) => {
                self.fs.forget(entry.node, 1);
                return Err(error);
            }
        };
        promise.node = Some(entry.node);
        let (head, tail) = body.split_at_mut_checked(size_of::<wire::EntryOut>()).ok_or(Errno::IO)?;
        put(head, &convert::entry(entry))?;
        put(tail, &open)?;
        Ok(Answer::Body(size_of::<wire::EntryOut>() + size_of::<wire::OpenOut>()))
    }

    fn list(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        args: &wire::ReadIn,
        plus: bool,
        body: &mut [u8],
        promise: &mut Promise,
    ) -> Result<Answer, Error> {
        let size = (args.size as usize).min(body.len());
        let mut listing = Listing::new(body.get_mut(..size).ok_or(Errno::IO)?, plus);
        let result = if plus {
            self.fs.readdirplus(cx, node, handle(args.fh), args.offset, &mut listing)
        } else {
            self.fs.readdir(cx, node, handle(args.fh), args.offset, &mut listing)
        };
        let used = listing.used();
        if plus {
            promise.listing = Some(used);
        }
        match result {
            // What was listed before the error is still delivered; the next call meets the error again.
            Err(error) if used == 0 => Err(error),
            _ => Ok(Answer::Body(used)),
        }
    }

    /// Clears the set-group-id bit, for a new ACL whose setter is not in the file's group.
    fn clear_setgid(&self, cx: &Context<'_>, node: NodeId) -> Result<(), Error> {
        let AttrReply { attr, .. } = self.fs.getattr(cx, node, None)?;
        if attr.mode & S_ISGID != 0 {
            let set = SetAttr { mode: Some(attr.perm() & !S_ISGID), ..SetAttr::default() };
            self.fs.setattr(cx, node, None, &set)?;
        }
        Ok(())
    }
}

/// In what is written down of a request about an attribute: whether it was there before.
const PRESENT: u64 = 1;
const ABSENT: u64 = 0;

const S_ISGID: u32 = 0o2000;

mod libc_seek {
    /// SEEK_DATA
    pub(super) const DATA: u32 = 3;
    /// SEEK_HOLE
    pub(super) const HOLE: u32 = 4;
}

const fn handle(fh: u64) -> Handle {
    Handle(fh & !HANDLE_COUNTED)
}

fn write_flags(args: &wire::WriteIn) -> WriteFlags {
    let mut flags = WriteFlags::empty();
    flags.set(WriteFlags::WRITEBACK, args.write_flags & wire::WRITE_CACHE != 0);
    flags.set(WriteFlags::KILL_SUIDGID, args.write_flags & wire::WRITE_KILL_SUIDGID != 0);
    flags.set(WriteFlags::APPEND, OpenFlags::from_bits_retain(args.flags).contains(OpenFlags::APPEND));
    flags
}

fn put<T: IntoBytes + Immutable>(body: &mut [u8], value: &T) -> Result<Answer, Error> {
    value.write_to_prefix(body).map_err(|_| Error::new(Errno::IO, "reply too long"))?;
    Ok(Answer::Body(size_of::<T>()))
}

fn done(result: Result<(), Error>) -> Result<Answer, Error> {
    result.map(|()| Answer::DONE)
}

fn entry_reply(entry: &Entry, body: &mut [u8], promise: &mut Promise) -> Result<Answer, Error> {
    promise.node = Some(entry.node);
    put(body, &convert::entry(entry))
}

/// A length that a filesystem returned for a buffer of `max` bytes.
fn checked_len(len: usize, max: usize) -> Result<usize, Error> {
    if len > max { Err(Error::new(Errno::IO, "length beyond the buffer")) } else { Ok(len) }
}

fn xattr_reply(
    size: u32,
    body: &mut [u8],
    get: impl FnOnce(&mut [u8]) -> Result<usize, Error>,
) -> Result<Answer, Error> {
    let size = (size as usize).min(wire::XATTR_MAX).min(body.len());
    let (room, _) = body.split_at_mut(size);
    let len = get(room)?;
    if size == 0 {
        let len = u32::try_from(len).map_err(|_| Errno::TOOBIG)?;
        return put(body, &wire::GetxattrOut { size: len, padding: 0 });
    }
    Ok(Answer::Body(checked_len(len, size)?))
}
