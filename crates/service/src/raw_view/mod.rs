//! A branch as it is, to be read: with its marks, whiteouts and holes, and nothing of a union. One on CephFS, which has other whiteouts and no holes, is
//! shown as it would lie on a filesystem of this host.
//!
//! What has to have a layer as it lies there (a checkpoint) walks directories of the host. A layer that is none is shown to it by a mount of this.
//! Nothing that is told may be believed for any time: the layer is another one's, who changes it meanwhile.

mod format;
mod nodes;

use self::format::View;
use self::nodes::{Nodes, ViewObject, directory};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use vellum_fuse::{FuseMount, Session, SessionOptions};
use vellum_union::{HostView, OwnBlocks};
use vellum_vfs::{
    AttrReply, Branch, BranchFile, Context, DirEntry, DirSink, Entry, Errno, FileKind, Filesystem, Handle,
    Name, NodeId, OpenFlags, OpenIo, OpenMode, OpenReply, Result, Seek, StatFs,
};

/// The names in a directory when it was opened.
type Listing = Vec<(CString, u64, Option<FileKind>)>;

/// A file, and where it has holes, if its branch does not say so.
type OpenFile = (Arc<dyn BranchFile>, Option<Arc<OwnBlocks>>);

#[derive(Clone)]
enum Open {
    File(OpenFile),
    Directory(Arc<Listing>),
}

/// A branch that is shown.
pub struct RawView {
    branch: Arc<dyn Branch>,
    view: View,
    nodes: Mutex<Nodes>,
    opens: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
}

impl RawView {
    /// Shows `branch`.
    #[must_use]
    pub fn new(branch: Arc<dyn Branch>) -> Self {
        Self::with_view(branch, View::Plain)
    }

    /// Shows an upper layer on CephFS as it would lie on a filesystem of this host.
    #[must_use]
    pub fn host_view(branch: Arc<dyn Branch>) -> Self {
        let hosted = HostView::with_root(&*branch.root());
        Self::with_view(branch, View::Hosted(hosted))
    }

    fn with_view(branch: Arc<dyn Branch>, view: View) -> Self {
        let nodes = Mutex::new(Nodes::new(branch.root()));
        Self { branch, view, nodes, opens: Mutex::default(), next: AtomicU64::new(1) }
    }

    /// Ready to be served by a FUSE connection that is mounted, until that is unmounted.
    pub(crate) fn session(self, connection: OwnedFd) -> Result<Session<Self>> {
        // Nothing is read ahead: where it is mounted is unknown here.
        let options = SessionOptions {
            writeback: false,
            posix_acl: false,
            max_readahead: 0,
            ..SessionOptions::default()
        };
        Session::new(Arc::new(self), FuseMount { device: connection, mountpoint: PathBuf::new() }, options)
    }

    fn object(&self, node: NodeId) -> Result<ViewObject> {
        self.nodes.lock().object(node)
    }

    fn opened(&self, open: Open) -> OpenReply {
        let handle = self.next.fetch_add(1, Relaxed);
        // A directory's list is the handle's own. Of files nothing is kept: they are read once.
        self.opens.lock().insert(handle, open);
        OpenReply { handle: Handle(handle), io: OpenIo::Direct }
    }

    fn open_of(&self, handle: Handle) -> Result<Open> {
        self.opens.lock().get(&handle.0).cloned().ok_or_else(|| Errno::BADF.into())
    }

    fn file(&self, handle: Handle) -> Result<OpenFile> {
        match self.open_of(handle)? {
            Open::File(file) => Ok(file),
            Open::Directory(_) => Err(Errno::ISDIR.into()),
        }
    }

    fn entry(&self, held: ViewObject) -> Result<Entry> {
        let attr = self.view.attr(&held)?;
        let node = self.nodes.lock().add(held, &attr);
        let (entry_ttl, attr_ttl) = (Duration::ZERO, Duration::ZERO);
        Ok(Entry { node, generation: 0, attr, entry_ttl, attr_ttl })
    }
}

impl Filesystem for RawView {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: Name<'_>) -> Result<Option<Entry>> {
        let parent = self.object(parent)?;
        self.view.find(directory(&parent)?, name)?.map(|held| self.entry(held)).transpose()
    }

    fn forget(&self, node: NodeId, count: u64) {
        self.nodes.lock().forget(node, count);
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply { attr: self.view.attr(&self.object(node)?)?, ttl: Duration::ZERO })
    }

    fn readlink(&self, _: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        self.object(node)?.object().read_link(buf)
    }

    fn open(&self, _: &Context<'_>, node: NodeId, flags: OpenFlags) -> Result<OpenReply> {
        if flags.intersects(OpenFlags::ACCMODE | OpenFlags::TRUNC) {
            return Err(Errno::ROFS.into());
        }
        let held = self.object(node)?;
        let file = held.object().reopen(OpenMode::READ)?;
        Ok(self.opened(Open::File((file, self.view.own_blocks(&held)?))))
    }

    fn read(&self, _: &Context<'_>, _: NodeId, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file(handle)?.0.read_at(buf, offset)
    }

    fn release(&self, _: NodeId, handle: Handle) {
        self.opens.lock().remove(&handle.0);
    }

    fn opendir(&self, _: &Context<'_>, node: NodeId, _: OpenFlags) -> Result<OpenReply> {
        let mut listing = Listing::new();
        self.view.list(directory(&self.object(node)?)?, &mut |name, ino, kind| {
            listing.push((name.to_owned(), ino, kind));
        })?;
        Ok(self.opened(Open::Directory(Arc::new(listing))))
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        _: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let Open::Directory(listing) = self.open_of(handle)? else { return Err(Errno::NOTDIR.into()) };
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        for ((name, ino, kind), cookie) in listing.iter().zip(1_u64..).skip(first) {
            let name = name.to_bytes();
            if !sink.fits(name.len()) {
                break;
            }
            sink.push(DirEntry { ino: *ino, cookie, kind: *kind, name }, None);
        }
        Ok(())
    }

    fn releasedir(&self, node: NodeId, handle: Handle) {
        self.release(node, handle);
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatFs> {
        self.branch.statfs()
    }

    fn getxattr(&self, _: &Context<'_>, node: NodeId, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        self.view.get_xattr(&self.object(node)?, name, buf)
    }

    fn listxattr(&self, _: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        self.view.list_xattr(&self.object(node)?, buf)
    }

    fn lseek(&self, _: &Context<'_>, _: NodeId, handle: Handle, offset: u64, whence: Seek) -> Result<u64> {
        match self.file(handle)? {
            (file, None) => file.seek(offset, whence),
            (file, Some(own)) => own.seek(offset, whence, file.stat()?.size),
        }
    }
}
