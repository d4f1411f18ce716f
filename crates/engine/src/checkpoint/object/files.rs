//! CRIU's images as files of a mount of their own, for as long as CRIU works: what is written to them goes to the sink, what is read comes from
//! an object.
//!
//! CRIU writes its images by names that it chooses, several at a time, from pipes. Its own way of handing them over instead (`--stream`) aborts when
//! a runtime calls it (CRIU 4.1). Every write comes here at once, past the page cache, so that memory holds images once.

use super::format::{Contents, Piece};
use super::sink::Sink;
use super::stored::errno;
use super::unpack::Unpacked;
use crate::checkpoint::apart::Apart;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vellum_fuse::{MountOptions, Session, SessionOptions};
use vellum_service::Failure;
use vellum_vfs::{
    Attr, AttrReply, Context, DirEntry, DirSink, Entry, Errno, FileKind, Filesystem, Handle, Name, NodeId,
    OpenIo, Opened, RenameFlags, Result, SetAttr, StatFs, Timestamp, WriteFlags, XattrFlags,
};

/// Node numbers of files follow that of the root.
const FIRST: u64 = 2;
/// Images of memory begin with this. They are read once.
const PAGES: &[u8] = b"pages-";
/// How long what is known of a file that does not change may be believed.
const LONG: Duration = Duration::from_secs(3600);

/// A flat directory of images.
pub(super) struct Files {
    state: Mutex<State>,
    bytes: Bytes,
}

/// Where bytes go, or come from.
enum Bytes {
    To(Sink),
    From(Arc<Object>),
}

/// An object that is read as long as it is needed.
#[derive(Debug)]
pub(super) struct Object {
    /// None: it is not needed any more, so others may have where it is.
    pub(super) bytes: Mutex<Option<Arc<Unpacked>>>,
    /// Why some could not be read.
    pub(super) trouble: Mutex<Option<String>>,
}

#[derive(Default)]
struct State {
    names: BTreeMap<Vec<u8>, u64>,
    files: HashMap<u64, Contents>,
    next: u64,
    /// Descriptors of files.
    open: u64,
}

impl State {
    fn file(&mut self, node: NodeId) -> Result<&mut Contents> {
        Ok(self.files.get_mut(&node.0).ok_or(Errno::STALE)?)
    }

    fn add(&mut self, name: &[u8], contents: Contents) -> u64 {
        let node = FIRST + self.next;
        self.next += 1;
        self.names.insert(name.to_vec(), node);
        self.files.insert(node, contents);
        node
    }
}

fn attr(node: u64, size: u64) -> Attr {
    let kind = if node == NodeId::ROOT.0 { FileKind::Directory } else { FileKind::Regular };
    // For whoever has a descriptor, and CRIU as root of a container with ids of its own has one; no path leads here.
    let mode = kind.mode_bits() | if kind == FileKind::Directory { 0o755 } else { 0o644 };
    let time = Timestamp::default();
    Attr {
        ino: node,
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        mode,
        nlink: 1,
        blksize: 1 << 20,
        ..Attr::default()
    }
}

impl Files {
    /// Of images that are to be written.
    pub(super) fn to(sink: Sink) -> Self {
        Self { state: Mutex::default(), bytes: Bytes::To(sink) }
    }

    /// Of images that are in an object.
    pub(super) fn from(object: Arc<Object>, images: &BTreeMap<String, Contents>) -> Self {
        let mut state = State::default();
        for (name, contents) in images {
            state.add(name.as_bytes(), contents.clone());
        }
        Self { state: state.into(), bytes: Bytes::From(object) }
    }

    /// What has been written, by name.
    pub(super) fn contents(&self) -> BTreeMap<String, Contents> {
        let state = self.state.lock();
        let one = |(name, node): (&Vec<u8>, &u64)| {
            Some((String::from_utf8_lossy(name).into_owned(), state.files.get(node)?.clone()))
        };
        state.names.iter().filter_map(one).collect()
    }

    /// Whether somebody has one open.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().open > 0
    }

    fn ttl(&self) -> Duration {
        if matches!(self.bytes, Bytes::To(_)) { Duration::ZERO } else { LONG }
    }

    fn entry(&self, node: u64, size: u64) -> Entry {
        let ttl = self.ttl();
        Entry { node: NodeId(node), generation: 0, attr: attr(node, size), entry_ttl: ttl, attr_ttl: ttl }
    }

    fn opened(&self, state: &mut State, name: &[u8]) -> Opened {
        state.open += 1;
        let once = matches!(self.bytes, Bytes::To(_)) || name.starts_with(PAGES);
        Opened { handle: Handle(1), io: if once { OpenIo::Direct } else { OpenIo::Cached { keep: true } } }
    }

    fn check_writable(&self) -> Result<&Sink> {
        match &self.bytes {
            Bytes::To(sink) => Ok(sink),
            Bytes::From(_) => Err(Errno::ROFS.into()),
        }
    }
}

/// What such a directory does not have.
fn none<T>() -> Result<T> {
    Err(Errno::PERM.into())
}

impl Filesystem for Files {
    fn lookup(&self, _: &Context<'_>, _: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        let state = self.state.lock();
        let Some(node) = state.names.get(name.bytes()) else { return Ok(None) };
        Ok(state.files.get(node).map(|file| self.entry(*node, file.size)))
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        let size = if node == NodeId::ROOT { 0 } else { self.state.lock().file(node)?.size };
        Ok(AttrReply { attr: attr(node.0, size), ttl: self.ttl() })
    }

    fn setattr(&self, cx: &Context<'_>, node: NodeId, _: Option<Handle>, set: &SetAttr) -> Result<AttrReply> {
        self.check_writable()?;
        if let Some(size) = set.size {
            self.state.lock().file(node)?.cut(size);
        }
        self.getattr(cx, node, None)
    }

    fn readlink(&self, _: &Context<'_>, _: NodeId, _: &mut [u8]) -> Result<usize> {
        Err(Errno::INVAL.into())
    }

    fn mknod(&self, _: &Context<'_>, _: NodeId, _: Name<'_>, _: u32, _: u64) -> Result<Entry> {
        none()
    }

    fn mkdir(&self, _: &Context<'_>, _: NodeId, _: Name<'_>, _: u32) -> Result<Entry> {
        none()
    }

    fn symlink(&self, _: &Context<'_>, _: NodeId, _: Name<'_>, _: &CStr) -> Result<Entry> {
        none()
    }

    fn link(&self, _: &Context<'_>, _: NodeId, _: NodeId, _: Name<'_>) -> Result<Entry> {
        none()
    }

    fn unlink(&self, _: &Context<'_>, _: NodeId, name: Name<'_>) -> Result<()> {
        self.check_writable()?;
        // It may be open, so what it is stays known.
        self.state.lock().names.remove(name.bytes()).map(drop).ok_or_else(|| Errno::NOENT.into())
    }

    fn rmdir(&self, _: &Context<'_>, _: NodeId, _: Name<'_>) -> Result<()> {
        none()
    }

    fn rename(
        &self,
        _: &Context<'_>,
        _: (NodeId, Name<'_>),
        _: (NodeId, Name<'_>),
        _: RenameFlags,
    ) -> Result<()> {
        none()
    }

    fn open(&self, _: &Context<'_>, node: NodeId, _: u32) -> Result<Opened> {
        let mut state = self.state.lock();
        let named = state.names.iter().find(|(_, one)| **one == node.0).map(|(name, _)| name.clone());
        Ok(self.opened(&mut state, &named.unwrap_or_default()))
    }

    fn create(&self, _: &Context<'_>, _: NodeId, name: Name<'_>, _: u32, _: u32) -> Result<(Entry, Opened)> {
        self.check_writable()?;
        let mut state = self.state.lock();
        let node = match state.names.get(name.bytes()) {
            Some(_) => return Err(Errno::EXIST.into()),
            None => state.add(name.bytes(), Contents::default()),
        };
        let opened = self.opened(&mut state, name.bytes());
        Ok((self.entry(node, 0), opened))
    }

    fn read(&self, _: &Context<'_>, node: NodeId, _: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        // What is on its way cannot be read; CRIU does not.
        let Bytes::From(object) = &self.bytes else { return Err(Errno::OPNOTSUPP.into()) };
        let (pieces, len) = {
            let mut state = self.state.lock();
            let file = state.file(node)?;
            let len = file.size.saturating_sub(offset).min(buf.len() as u64);
            let end = offset + len;
            let first = file.pieces.partition_point(|piece| piece.at + piece.len <= offset);
            let some = file.pieces.iter().skip(first).take_while(|piece| piece.at < end);
            (some.copied().collect::<Vec<Piece>>(), len as usize)
        };
        let buf = buf.get_mut(..len).unwrap_or_default();
        buf.fill(0);
        let bytes = object.bytes.lock().clone().ok_or(Errno::SHUTDOWN)?;
        for piece in pieces {
            let from = piece.at.max(offset);
            let to = (piece.at + piece.len).min(offset + len as u64);
            let part = buf.get_mut((from - offset) as usize..(to - offset) as usize).unwrap_or_default();
            bytes.read_exact(piece.from + (from - piece.at), part).map_err(|e| {
                object.trouble.lock().get_or_insert_with(|| e.to_string());
                errno(&e)
            })?;
        }
        Ok(len)
    }

    fn write(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        let sink = self.check_writable()?;
        let from = sink.put(data)?;
        let mut state = self.state.lock();
        let file = state.file(node)?;
        let at = if flags.contains(WriteFlags::APPEND) { file.size } else { offset };
        if !data.is_empty() {
            file.put(Piece { at, from, len: data.len() as u64 });
        }
        Ok(data.len())
    }

    fn release(&self, _: NodeId, _: Handle) {
        let mut state = self.state.lock();
        state.open = state.open.saturating_sub(1);
    }

    fn fsync(&self, _: &Context<'_>, _: NodeId, _: Handle, _: bool) -> Result<()> {
        // All of it is made durable at once, later.
        Ok(())
    }

    fn opendir(&self, _: &Context<'_>, _: NodeId, _: u32) -> Result<Opened> {
        Ok(Opened { handle: Handle(0), io: OpenIo::Cached { keep: false } })
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let state = self.state.lock();
        let mut all: Vec<(u64, &[u8])> = state.names.iter().map(|(name, node)| (*node, &**name)).collect();
        all.sort_unstable();
        for (node, name) in all.into_iter().filter(|(node, _)| *node > offset) {
            if !sink.fits(name.len()) {
                break;
            }
            sink.push(DirEntry { ino: node, cookie: node, kind: Some(FileKind::Regular), name }, None);
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.readdir(cx, node, handle, offset, sink)
    }

    fn fsyncdir(&self, _: &Context<'_>, _: NodeId, _: Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatFs> {
        Ok(StatFs { frsize: 4096, bsize: 1 << 20, namelen: 255, ..StatFs::default() })
    }

    fn setxattr(&self, _: &Context<'_>, _: NodeId, _: &CStr, _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn getxattr(&self, _: &Context<'_>, _: NodeId, _: &CStr, _: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn listxattr(&self, _: &Context<'_>, _: NodeId, _: &mut [u8]) -> Result<usize> {
        Ok(0)
    }

    fn removexattr(&self, _: &Context<'_>, _: NodeId, _: &CStr) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
}

/// Serves `files` at a mount apart. `beside`: a directory where one is made for a moment.
pub(super) fn serve(files: &Arc<Files>, beside: &Path) -> std::result::Result<Apart, Failure> {
    let failed =
        |why: &dyn std::fmt::Display| Failure::system(format!("images cannot be served to CRIU: {why}"));
    let options =
        MountOptions { source: "vellum-images".to_owned(), allow_other: true, ..MountOptions::default() };
    let (apart, mounted) = Apart::new(options, beside).map_err(|e| failed(&e))?;
    let options = SessionOptions { writeback: false, posix_acl: false, ..SessionOptions::default() };
    let served = Session::new(Arc::clone(files), mounted, options).and_then(Session::spawn);
    served.map_err(|e| failed(&e))?;
    Ok(apart)
}
