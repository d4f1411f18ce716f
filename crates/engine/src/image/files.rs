//! Where the files of an image layout are: in a directory of this host, or on CephFS.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use vellum_service::layers::ceph::Visit;

/// A file that is read from its beginning to its end.
pub(crate) struct Opened {
    pub(crate) data: Box<dyn Read>,
    /// Its size in bytes.
    pub(crate) len: u64,
}

/// The files of a layout, by their paths in it.
pub(crate) trait Files {
    /// Opens a regular file.
    fn open(&self, path: &Path) -> io::Result<Opened>;

    /// What messages call one; the layout itself, where the path is empty.
    fn shown(&self, path: &Path) -> String;
}

/// Those in a directory of this host.
pub(crate) struct Here(pub(crate) PathBuf);

impl Here {
    fn at(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() { self.0.clone() } else { self.0.join(path) }
    }
}

impl Files for Here {
    fn open(&self, path: &Path) -> io::Result<Opened> {
        let file = crate::regular::open(&self.at(path))?;
        let len = file.metadata()?.len();
        Ok(Opened { data: Box::new(file), len })
    }

    fn shown(&self, path: &Path) -> String {
        self.at(path).display().to_string()
    }
}

/// Those in a directory of CephFS.
pub(crate) struct There(pub(crate) Visit);

impl Files for There {
    fn open(&self, path: &Path) -> io::Result<Opened> {
        let file = self.0.open_file(path)?;
        let len = file.size();
        Ok(Opened { data: Box::new(file), len })
    }

    fn shown(&self, path: &Path) -> String {
        let top = self.0.layer();
        if path.as_os_str().is_empty() { top.to_string() } else { format!("{top}/{}", path.display()) }
    }
}
