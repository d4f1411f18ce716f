//! What a command does on a cluster by itself, beside the services that serve layers there: it looks at a directory, makes and removes
//! one, and waits until nobody writes to one any more.

use super::open::{CephRight, exists, layer, unopened, write_lock};
use super::{CephLayer, be_one_of, leave};
use crate::failure::Failure;
use crate::layers::remove::remove_tree;
use crate::raw_view::RawView;
use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vellum_vfs::{Attr, Branch, BranchFile, Errno, Error, FileKind, Name, OpenMode, Result as Done};

/// This process has had a client.
static VISITED: AtomicBool = AtomicBool::new(false);

/// Ends a process that has been on a cluster. Nothing happens in another one.
pub fn end_visitor(status: u8) {
    if VISITED.load(Ordering::Relaxed) {
        leave();
        vellum_sys::end_process(status.into());
    }
}

/// A directory of CephFS, looked up by a command. The client is there as long as this is.
pub struct Visit {
    layer: CephLayer,
    branch: Arc<dyn Branch>,
}

/// The command is a family of its own, which has no successor.
pub(crate) fn arrive() {
    if !VISITED.swap(true, Ordering::Relaxed) {
        be_one_of(RandomState::new().build_hasher().finish(), 0);
    }
}

/// Ceph's library prints some of what it cannot do. What is wrong is said in one line, by the command.
pub(crate) fn without_ceph_output<T>(what: impl FnOnce() -> T) -> T {
    let kept = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3);
    let null = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    if let (Ok(_), Ok(null)) = (&kept, null) {
        let _ = rustix::stdio::dup2_stderr(null);
    }
    let done = what();
    if let Ok(kept) = kept {
        let _ = rustix::stdio::dup2_stderr(kept);
    }
    done
}

impl CephLayer {
    /// The directory that it lies in; None: it is the filesystem's root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        Some(Self { path: self.path.parent()?.to_owned(), cluster: self.cluster.clone() })
    }

    /// Its last name; None: it is the filesystem's root.
    #[must_use]
    pub fn file_name(&self) -> Option<&OsStr> {
        self.path.file_name()
    }

    /// It without the last colon of its last name, and what is behind that; None: there is no colon.
    #[must_use]
    pub fn split_tag(&self) -> Option<(Self, String)> {
        let (path, tag) = self.path.to_str()?.rsplit_once(':')?;
        if tag.is_empty() || tag.contains('/') {
            return None;
        }
        Some((Self { path: path.into(), cluster: self.cluster.clone() }, tag.to_owned()))
    }

    /// Whether there is a directory. As [`Self::visit`].
    pub fn exists(&self) -> Result<bool, Failure> {
        arrive();
        without_ceph_output(|| exists(self))
    }

    /// The one of that name beside it.
    #[must_use]
    pub fn sibling(&self, name: &OsStr) -> Self {
        Self { path: self.path.with_file_name(Path::new(name)), cluster: self.cluster.clone() }
    }

    /// Looks it up, within some seconds. Starts threads.
    pub fn visit(&self) -> Result<Visit, Failure> {
        arrive();
        Ok(Visit { layer: self.clone(), branch: without_ceph_output(|| layer(self))? })
    }

    /// Takes the right to write to it. None: a service has it. One that has died is waited for, but not for long.
    pub fn write_lock(&self) -> Result<Option<CephRight>, Failure> {
        arrive();
        without_ceph_output(|| write_lock(self))
    }
}

impl Visit {
    fn to_failure<T>(&self, done: Done<T>) -> Result<T, Failure> {
        done.map_err(|error| unopened(&self.layer, &error))
    }

    /// The directory.
    #[must_use]
    pub const fn layer(&self) -> &CephLayer {
        &self.layer
    }

    /// Serves it by a FUSE connection that is mounted, to be read, as it would lie on a filesystem of this host, until that is unmounted. `begun` is
    /// called when it can be used.
    pub fn show(&self, connection: OwnedFd, begun: impl FnOnce()) -> Result<(), Failure> {
        let failed =
            |error: Error| Failure::system(format!("layer {}: cannot be shown", self.layer)).because(error);
        let session = RawView::host_view(Arc::clone(&self.branch)).session(connection).map_err(failed)?;
        begun();
        session.run().map_err(failed)
    }

    /// Owner, group and permission bits.
    pub fn owner_and_mode(&self) -> Result<(u32, u32, u32), Failure> {
        let attr = self.to_failure(self.branch.root().stat())?;
        Ok((attr.uid, attr.gid, attr.mode & 0o7777))
    }

    /// Whether it is an upper layer none of whose files takes data from others, as far as it says so.
    pub fn is_complete(&self) -> Result<bool, Failure> {
        let root = self.branch.root();
        let has = |attribute: &CStr| match root.get_xattr(attribute, &mut []) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(unopened(&self.layer, &error)),
        };
        Ok(has(c"trusted.vellum.format")? && !has(c"trusted.vellum.lowers")?)
    }

    /// Opens a regular file below it to read. No symbolic link on the way is followed.
    pub fn open_file(&self, path: &Path) -> io::Result<CephFileReader> {
        let opened = || {
            let (above, name) =
                (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
            let (above, name) = (text(above.as_os_str())?, text(name)?);
            let file = self.branch.open_dir_path(&above)?.open_file(Name::new(&name)?, OpenMode::READ)?;
            let len = file.stat()?.size;
            Ok(CephFileReader { file, at: 0, len })
        };
        opened().map_err(|error: Error| error.errno().into())
    }

    /// Attributes of a directory below it, and all that is in that. No symbolic link on the way is followed.
    pub fn list(&self, path: &Path) -> io::Result<(Attr, Vec<CephEntry>)> {
        let listed = || {
            let dir = self.branch.open_dir_path(&text(path.as_os_str())?)?;
            let mut names = Vec::new();
            dir.list(&mut |item| {
                names.push(item.name.as_c_str().to_owned());
                Ok(())
            })?;
            let object = |text: CString| {
                let name = Name::new(&text)?;
                let attr = dir.stat_at(name)?;
                let mut target = Vec::new();
                if attr.kind() == FileKind::Symlink {
                    target.resize(TARGET_MAX, 0);
                    let len = dir.read_link_at(name, &mut target)?;
                    target.truncate(len);
                }
                Ok(CephEntry { name: OsStr::from_bytes(text.as_bytes()).to_owned(), attr, target })
            };
            Ok((dir.stat()?, names.into_iter().map(object).collect::<Done<_>>()?))
        };
        listed().map_err(|error: Error| error.errno().into())
    }

    /// Makes a directory in it that only its owner enters. False: something of that name is there.
    pub fn make_dir(&self, name: &OsStr) -> Result<bool, Failure> {
        match text(name).and_then(|text| self.branch.root().make_dir(Name::new(&text)?, 0o700)) {
            Err(error) if error.errno() == Errno::EXIST => Ok(false),
            made => self.to_failure(made).map(|()| true),
        }
    }

    /// Removes a directory in it with all that is in that; one that is not there is removed.
    pub fn remove_all(&self, name: &OsStr) -> Result<(), Failure> {
        self.to_failure(text(name).and_then(|text| remove_tree(&self.branch.root(), &text)))
    }
}

/// Longest target of a symbolic link in bytes, and the NUL of those who add one.
const TARGET_MAX: usize = 4096;

/// Something in a directory on CephFS.
#[derive(Clone, Debug)]
pub struct CephEntry {
    pub name: OsString,
    pub attr: Attr,
    /// Of a symbolic link, where it leads.
    pub target: Vec<u8>,
}

/// A file on CephFS that is read from its beginning to its end.
pub struct CephFileReader {
    file: Arc<dyn BranchFile>,
    at: u64,
    len: u64,
}

impl CephFileReader {
    /// Its size in bytes, as it was when it was opened.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.len
    }
}

impl io::Read for CephFileReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buf, self.at).map_err(|error| io::Error::from(error.errno()))?;
        self.at += count as u64;
        Ok(count)
    }
}

fn text(name: &OsStr) -> Done<CString> {
    CString::new(name.as_bytes()).map_err(|_| Errno::INVAL.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_paths_have_siblings_and_parents() {
        let layer = CephLayer::at(b"/a/b");
        assert_eq!(layer.sibling(OsStr::new(".b.work")).to_string(), "ceph:/a/.b.work");
        assert_eq!(layer.parent().unwrap().to_string(), "ceph:/a");
        assert_eq!(layer.parent().unwrap().parent().unwrap().to_string(), "ceph:/");
        let root = CephLayer::at(b"/");
        assert!(root.file_name().is_none() && root.parent().is_none());
    }
}
