//! CRIU's images as files of a mount of their own, for as long as CRIU works: what is written to them goes to the sink, what is read comes from
//! an object.
//!
//! CRIU writes its images by names that it chooses, several at a time, from pipes. Its own way of handing them over instead (`--stream`) aborts when
//! a runtime calls it (CRIU 4.1). Every write comes here at once, past the page cache, so that memory holds images once.

use super::format::{Contents, Piece};
use super::sink::Sink;
use super::storage::errno;
use super::unpack::ObjectBytes;
use crate::detached_mount::DetachedMount;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vellum_fuse::{MountOptions, Session, SessionOptions};
use vellum_service::Failure;
use vellum_vfs::{
    Attr, AttrReply, Context, DirEntry, DirSink, Entry, Errno, FileKind, Filesystem, Handle, Name, NodeId,
    OpenFlags, OpenIo, OpenReply, Result, SetAttr, StatFs, Timestamp, WriteFlags,
};

/// Node numbers of files follow that of the root.
const FIRST: u64 = 2;
/// Images of memory begin with this. They are read once.
const PAGES: &[u8] = b"pages-";
/// How long what is known of a file that does not change may be believed.
const LONG: Duration = Duration::from_secs(3600);

/// A directory of images, and directories of more of them in it.
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
    pub(super) bytes: Mutex<Option<Arc<ObjectBytes>>>,
    /// Why some could not be read.
    pub(super) trouble: Mutex<Option<String>>,
}

#[derive(Default)]
struct State {
    /// Files: `NAME`, and `DIRECTORY/NAME`.
    names: BTreeMap<Vec<u8>, u64>,
    directories: BTreeMap<Vec<u8>, u64>,
    files: HashMap<u64, Contents>,
    /// What is read while more is written: files in directories, but not their pages.
    texts: HashMap<u64, Vec<u8>>,
    next: u64,
    /// Descriptors of files.
    open: u64,
}

/// What is found by a name.
#[derive(Clone, Copy)]
struct NamedFile {
    node: u64,
    kind: FileKind,
    size: u64,
}

impl State {
    fn file(&mut self, node: NodeId) -> Result<&mut Contents> {
        Ok(self.files.get_mut(&node.0).ok_or(Errno::STALE)?)
    }

    fn add(&mut self, path: &[u8], contents: Contents) -> u64 {
        let node = self.node();
        self.names.insert(path.to_vec(), node);
        self.files.insert(node, contents);
        node
    }

    /// Keeps what was written at a place, if it is read again.
    fn note(&mut self, node: NodeId, at: u64, data: &[u8]) -> Result<()> {
        let Some(text) = self.texts.get_mut(&node.0) else { return Ok(()) };
        let from = usize::try_from(at).map_err(|_| Errno::FBIG)?;
        let end = from.checked_add(data.len()).ok_or(Errno::FBIG)?;
        text.resize(text.len().max(end), 0);
        text.get_mut(from..end).unwrap_or_default().copy_from_slice(data);
        Ok(())
    }

    /// What is on its way cannot be read, but for what was kept: CRIU reads what of memory it has written before, and not that memory.
    fn read(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let text = self.texts.get(&node.0).ok_or(Errno::OPNOTSUPP)?;
        let rest = usize::try_from(offset).ok().and_then(|offset| text.get(offset..)).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf.get_mut(..len).unwrap_or_default().copy_from_slice(rest.get(..len).unwrap_or_default());
        Ok(len)
    }

    fn node(&mut self) -> u64 {
        self.next += 1;
        FIRST + self.next - 1
    }

    /// What all paths in a directory begin with.
    fn prefix(&self, directory: NodeId) -> Result<Vec<u8>> {
        if directory == NodeId::ROOT {
            return Ok(Vec::new());
        }
        let named = self.directories.iter().find(|(_, node)| **node == directory.0);
        Ok([named.ok_or(Errno::STALE)?.0.as_slice(), b"/"].concat())
    }

    fn path(&self, directory: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        Ok([&self.prefix(directory)?, name].concat())
    }

    fn find(&self, path: &[u8]) -> Option<NamedFile> {
        if let Some(node) = self.directories.get(path) {
            return Some(NamedFile { node: *node, kind: FileKind::Directory, size: 0 });
        }
        let node = *self.names.get(path)?;
        Some(NamedFile { node, kind: FileKind::Regular, size: self.files.get(&node)?.size })
    }

    /// What is in a directory, by number: numbers and names.
    fn within(&self, directory: NodeId) -> Result<Vec<(u64, FileKind, &[u8])>> {
        let prefix = self.prefix(directory)?;
        let name = |path: &'_ [u8]| path.len() > prefix.len() && path.starts_with(&prefix);
        let files = self.names.iter().map(|(path, node)| (*node, FileKind::Regular, path));
        let directories = self.directories.iter().map(|(path, node)| (*node, FileKind::Directory, path));
        let all = files.chain(directories).filter(|(_, _, path)| name(path));
        let all = all.map(|(node, kind, path)| (node, kind, path.get(prefix.len()..).unwrap_or_default()));
        let mut all: Vec<_> = all.filter(|(_, _, name)| !name.contains(&b'/')).collect();
        all.sort_unstable_by_key(|(node, ..)| *node);
        Ok(all)
    }
}

/// Whether a path is of pages.
fn is_pages(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(PAGES))
}

/// Whether an image may be called so.
fn is_plain(path: &str) -> bool {
    let mut words = path.splitn(3, '/');
    let (first, second, third) = (words.next(), words.next(), words.next());
    let is_name = |word: &str| !word.is_empty() && word != "." && word != "..";
    first.is_some_and(is_name) && second.is_none_or(is_name) && third.is_none()
}

fn attr(node: u64, kind: FileKind, size: u64) -> Attr {
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
        for (path, contents) in images.iter().filter(|(path, _)| is_plain(path)) {
            let directory = path.split_once('/').map(|(directory, _)| directory.as_bytes().to_vec());
            if let Some(directory) = directory.filter(|one| !state.directories.contains_key(one)) {
                let node = state.node();
                state.directories.insert(directory, node);
            }
            state.add(path.as_bytes(), contents.clone());
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

    fn entry(&self, NamedFile { node, kind, size }: NamedFile) -> Entry {
        let (ttl, attr) = (self.ttl(), attr(node, kind, size));
        Entry { node: NodeId(node), generation: 0, attr, entry_ttl: ttl, attr_ttl: ttl }
    }

    fn opened(&self, state: &mut State, path: &[u8]) -> OpenReply {
        state.open += 1;
        let once = matches!(self.bytes, Bytes::To(_)) || is_pages(path);
        OpenReply { handle: Handle(1), io: if once { OpenIo::Direct } else { OpenIo::Cached { keep: true } } }
    }

    fn check_writable(&self) -> Result<&Sink> {
        match &self.bytes {
            Bytes::To(sink) => Ok(sink),
            Bytes::From(_) => Err(Errno::ROFS.into()),
        }
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        let state = self.state.lock();
        Ok(state.find(&state.path(parent, name.bytes())?).map(|found| self.entry(found)))
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        let mut state = self.state.lock();
        let (kind, size) = match state.prefix(node) {
            Ok(_) => (FileKind::Directory, 0),
            Err(_) => (FileKind::Regular, state.file(node)?.size),
        };
        Ok(AttrReply { attr: attr(node.0, kind, size), ttl: self.ttl() })
    }

    fn setattr(&self, cx: &Context<'_>, node: NodeId, _: Option<Handle>, set: &SetAttr) -> Result<AttrReply> {
        self.check_writable()?;
        if let Some(size) = set.size {
            let mut state = self.state.lock();
            state.file(node)?.cut(size);
            if let Some(text) = state.texts.get_mut(&node.0) {
                text.resize(usize::try_from(size).map_err(|_| Errno::FBIG)?, 0);
            }
        }
        self.getattr(cx, node, None)
    }

    /// In the first one only.
    fn mkdir(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>, _: u32) -> Result<Entry> {
        self.check_writable()?;
        let mut state = self.state.lock();
        if parent != NodeId::ROOT {
            return Err(Errno::PERM.into());
        }
        if state.find(name.bytes()).is_some() {
            return Err(Errno::EXIST.into());
        }
        let node = state.node();
        state.directories.insert(name.bytes().to_vec(), node);
        Ok(self.entry(NamedFile { node, kind: FileKind::Directory, size: 0 }))
    }

    fn unlink(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        self.check_writable()?;
        let mut state = self.state.lock();
        let path = state.path(parent, name.bytes())?;
        // It may be open, so what it is stays known.
        state.names.remove(&path).map(drop).ok_or_else(|| Errno::NOENT.into())
    }

    fn rmdir(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<()> {
        self.check_writable()?;
        let mut state = self.state.lock();
        let path = state.path(parent, name.bytes())?;
        let node = *state.directories.get(&path).ok_or(Errno::NOENT)?;
        if !state.within(NodeId(node))?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        state.directories.remove(&path);
        Ok(())
    }

    fn open(&self, _: &Context<'_>, node: NodeId, _: OpenFlags) -> Result<OpenReply> {
        let mut state = self.state.lock();
        let named = state.names.iter().find(|(_, one)| **one == node.0).map(|(name, _)| name.clone());
        Ok(self.opened(&mut state, &named.unwrap_or_default()))
    }

    fn create(
        &self,
        _: &Context<'_>,
        parent: NodeId,
        name: Name<'_>,
        _: u32,
        _: OpenFlags,
    ) -> Result<(Entry, OpenReply)> {
        self.check_writable()?;
        let mut state = self.state.lock();
        let path = state.path(parent, name.bytes())?;
        if state.find(&path).is_some() {
            return Err(Errno::EXIST.into());
        }
        let node = state.add(&path, Contents::default());
        if parent != NodeId::ROOT && !is_pages(&path) {
            state.texts.insert(node, Vec::new());
        }
        let opened = self.opened(&mut state, &path);
        Ok((self.entry(NamedFile { node, kind: FileKind::Regular, size: 0 }), opened))
    }

    fn read(&self, _: &Context<'_>, node: NodeId, _: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Bytes::From(object) = &self.bytes else { return self.state.lock().read(node, offset, buf) };
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
        state.note(node, at, data)?;
        Ok(data.len())
    }

    fn release(&self, _: NodeId, _: Handle) {
        let mut state = self.state.lock();
        state.open = state.open.saturating_sub(1);
    }

    fn opendir(&self, _: &Context<'_>, _: NodeId, _: OpenFlags) -> Result<OpenReply> {
        Ok(OpenReply { handle: Handle(0), io: OpenIo::Cached { keep: false } })
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        directory: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let state = self.state.lock();
        for (node, kind, name) in state.within(directory)?.into_iter().filter(|(node, ..)| *node > offset) {
            if !sink.fits(name.len()) {
                break;
            }
            sink.push(DirEntry { ino: node, cookie: node, kind: Some(kind), name }, None);
        }
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatFs> {
        Ok(StatFs { frsize: 4096, bsize: 1 << 20, namelen: 255, ..StatFs::default() })
    }

    fn listxattr(&self, _: &Context<'_>, _: NodeId, _: &mut [u8]) -> Result<usize> {
        Ok(0)
    }
}

/// Serves `files` at a mount apart. `scratch`: a directory where one is made for a moment.
pub(super) fn serve(files: &Arc<Files>, scratch: &Path) -> std::result::Result<DetachedMount, Failure> {
    let failed =
        |why: &dyn std::fmt::Display| Failure::system(format!("images cannot be served to CRIU: {why}"));
    let options =
        MountOptions { source: "vellum-images".to_owned(), allow_other: true, ..MountOptions::default() };
    let (apart, mounted) = DetachedMount::new(options, scratch).map_err(|e| failed(&e))?;
    let options = SessionOptions { writeback: false, posix_acl: false, ..SessionOptions::default() };
    let served = Session::new(Arc::clone(files), mounted, options).and_then(Session::spawn);
    served.map_err(|e| failed(&e))?;
    Ok(apart)
}

#[cfg(test)]
#[path = "image_files_test.rs"]
mod tests;
