//! Where the files of an image layout are: in a directory of this host, or on CephFS.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use vellum_service::layers::ceph::Visit;

/// A file that is read from its beginning to its end.
pub(crate) struct BlobReader {
    pub(crate) data: Box<dyn Read>,
    /// Its size in bytes.
    pub(crate) len: u64,
}

/// The files of a layout, by their paths in it.
pub(crate) trait Files {
    /// Opens a regular file.
    fn open(&self, path: &Path) -> io::Result<BlobReader>;

    /// What messages call one; the layout itself, where the path is empty.
    fn display(&self, path: &Path) -> String;
}

/// Those in a directory of this host.
pub(crate) struct HostFiles(pub(crate) PathBuf);

impl HostFiles {
    fn at(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() { self.0.clone() } else { self.0.join(path) }
    }
}

impl Files for HostFiles {
    fn open(&self, path: &Path) -> io::Result<BlobReader> {
        let file = vellum_pool::regular_file::open(&self.at(path))?;
        let len = file.metadata()?.len();
        Ok(BlobReader { data: Box::new(file), len })
    }

    fn display(&self, path: &Path) -> String {
        self.at(path).display().to_string()
    }
}

/// Those in a directory of CephFS.
pub(crate) struct CephFiles(pub(crate) Visit);

impl Files for CephFiles {
    fn open(&self, path: &Path) -> io::Result<BlobReader> {
        let file = self.0.open_file(path)?;
        let len = file.size();
        Ok(BlobReader { data: Box::new(file), len })
    }

    fn display(&self, path: &Path) -> String {
        let top = self.0.layer();
        if path.as_os_str().is_empty() { top.to_string() } else { format!("{top}/{}", path.display()) }
    }
}
