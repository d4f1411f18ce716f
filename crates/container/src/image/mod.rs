//! Images: what a container's root is made of.
//!
//! `layout` reads an OCI image layout by its `documents`, and takes the image for this `platform`; `store` keeps its layers unpacked,
//! each once. A layer is hostile until checked: `archive`, `pax` and `sparse` read tar, `compression` what it may be packed with,
//! `entry_path` finds the way to an entry without leaving the layer, and `unpack` makes it. `digest` says whether all of it is what the
//! image promises.

mod archive;
mod compression;
mod digest;
mod documents;
mod entry_path;
mod files;
mod implicit_dirs;
mod layout;
mod pax;
mod platform;
mod sparse;
mod store;
mod unpack;

pub(crate) use entry_path::open_beneath;
pub(crate) use files::HostFiles;
use files::{CephFiles, Files};
pub use layout::{Defaults, Layout};
pub use store::LayerStore;

use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use vellum_service::layers::ceph::{CephLayer, Cluster};
use vellum_service::{Failure, LayerSource};

/// The file that makes a directory an OCI image layout.
const LAYOUT_FILE: &str = "oci-layout";

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory tree, as it is.
    Tree(PathBuf),
    /// An image layout, and the name of one of its images.
    Layout(PathBuf, Option<String>),
    /// A directory on CephFS: a tree, as it is, or an image layout.
    Far(CephLayer),
    /// An image layout on CephFS, maybe with a colon and the name of one of its images behind its path.
    FarLayout(CephLayer),
}

/// An image that has been looked at.
pub(crate) enum ResolvedImage {
    /// A tree, which is the one layer.
    Tree(LayerSource),
    /// A layout, and where its files are.
    Layout(Layout, Box<dyn Files>),
}

impl ResolvedImage {
    pub(crate) fn resolve(image: &Source) -> Result<Self, Failure> {
        match image {
            Source::Tree(dir) => Ok(Self::Tree(dir.clone().into())),
            Source::Layout(dir, tag) => Self::layout(HostFiles(dir.clone()), tag.as_deref()),
            Source::Far(layer) => {
                let there = CephFiles(layer.visit()?);
                if is_layout(&there)? {
                    return Self::layout(there, None);
                }
                Ok(Self::Tree(LayerSource::Ceph(layer.clone())))
            }
            Source::FarLayout(layer) => Self::remote_layout(layer),
        }
    }

    fn layout(files: impl Files + 'static, tag: Option<&str>) -> Result<Self, Failure> {
        Ok(Self::Layout(Layout::open_of(&files, tag)?, Box::new(files)))
    }

    fn remote_layout(layer: &CephLayer) -> Result<Self, Failure> {
        // A path may have a colon itself.
        let whole = layer.exists()?;
        let named = layer.split_tag().filter(|_| !whole);
        let (dir, tag) = named.map_or_else(|| (layer.clone(), None), |(dir, tag)| (dir, Some(tag)));
        let there = CephFiles(dir.visit()?);
        if is_layout(&there)? {
            return Self::layout(there, tag.as_deref());
        }
        Err(Failure::input(format!(
            "option --image oci:{layer}: no OCI image layout there; make one with skopeo copy SOURCE oci:DIR:TAG, and copy DIR there"
        )))
    }

    /// What it says about processes.
    pub(crate) fn defaults(&self) -> Defaults {
        match self {
            Self::Tree(_) => Defaults::default(),
            Self::Layout(layout, _) => layout.defaults().clone(),
        }
    }

    /// Its layers, the top one first; what is not in the store yet is unpacked. None: `stop` said so.
    pub(crate) fn lowers(
        self,
        store: &LayerStore,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<LayerSource>>, Failure> {
        match self {
            Self::Tree(source) => Ok(Some(vec![source])),
            Self::Layout(layout, files) => {
                let dirs = layout.unpacked(&*files, store, stop)?;
                Ok(dirs.map(|dirs| dirs.into_iter().map(LayerSource::from).collect()))
            }
        }
    }
}

fn is_layout(there: &CephFiles) -> Result<bool, Failure> {
    let file = Path::new(LAYOUT_FILE);
    let failed = |e| Failure::input(format!("image file {}", there.display(file))).because(e);
    match there.open(file) {
        Ok(_) => Ok(true),
        Err(e) => match e.raw_os_error().map(Errno::from_raw_os_error) {
            // Nothing, or no regular file.
            Some(Errno::NOENT | Errno::ISDIR | Errno::LOOP | Errno::NXIO) => Ok(false),
            _ => Err(failed(e)),
        },
    }
}

impl fmt::Display for Source {
    /// As `--image` names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(dir) => write!(f, "{}", dir.display()),
            Self::Layout(dir, None) => write!(f, "oci:{}", dir.display()),
            Self::Layout(dir, Some(tag)) => write!(f, "oci:{}:{tag}", dir.display()),
            Self::Far(layer) => write!(f, "{layer}"),
            Self::FarLayout(layer) => write!(f, "oci:{layer}"),
        }
    }
}

impl Source {
    /// On the cluster where a service finds it, as far as that is left open by `usual`. What is on this host is as it is. Refuses a
    /// configuration that cannot be read.
    pub fn resolve_with(&self, usual: &Cluster) -> Result<Self, Failure> {
        Ok(match self {
            Self::Tree(_) | Self::Layout(..) => self.clone(),
            Self::Far(layer) => Self::Far(layer.resolve_with(usual)?),
            Self::FarLayout(layer) => Self::FarLayout(layer.resolve_with(usual)?),
        })
    }

    /// What `--image TEXT` means: a directory, a directory that is an image layout, `oci:DIR[:TAG]`, or the same on CephFS: `ceph:PATH`, `oci:ceph:PATH[:TAG]`.
    pub fn parse(text: &Path) -> Result<Self, Failure> {
        let bad = |why: &str| Failure::input(format!("option --image {}: {why}", text.display()));
        let layout = |dir: &Path| dir.join(LAYOUT_FILE).is_file();
        if let Some(tree) = CephLayer::named(text.as_os_str()) {
            return Ok(Self::Far(tree));
        }
        let words = text.to_str().and_then(|text| text.strip_prefix("oci:"));
        if let Some(words) = words {
            if let Some(layer) = CephLayer::named(OsStr::new(words)) {
                return Ok(Self::FarLayout(layer));
            }
            if layout(Path::new(words)) {
                return Ok(Self::Layout(absolute(Path::new(words))?, None));
            }
            return match words.rsplit_once(':') {
                Some((dir, tag)) if layout(Path::new(dir)) && !tag.is_empty() => {
                    Ok(Self::Layout(absolute(Path::new(dir))?, Some(tag.to_owned())))
                }
                _ => Err(bad("no OCI image layout there; make one with skopeo copy SOURCE oci:DIR:TAG")),
            };
        }
        if !text.is_dir() {
            return Err(bad("no such directory; give a directory tree, oci:DIR[:TAG] or ceph:PATH"));
        }
        if layout(text) { Ok(Self::Layout(absolute(text)?, None)) } else { Ok(Self::Tree(absolute(text)?)) }
    }
}

fn absolute(dir: &Path) -> Result<PathBuf, Failure> {
    dir.canonicalize().map_err(|e| Failure::input(format!("option --image {}", dir.display())).because(e))
}

/// Reads a layer's archive to its end, with all data, for those who feed it with anything: the number of its entries.
#[doc(hidden)]
pub fn read_all(archive: &[u8]) -> std::io::Result<usize> {
    let mut archive = archive::Archive::new(archive);
    let mut entries = 0;
    while let Some(entry) = archive.next()? {
        std::io::copy(&mut archive, &mut std::io::sink())?;
        let _ = format!("{entry:?}");
        entries += 1;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn words_name_trees_and_layouts() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        for name in ["tree", "layout", "odd:name"] {
            fs::create_dir(top.join(name)).unwrap();
        }
        fs::write(top.join("layout/oci-layout"), "{}").unwrap();
        fs::write(top.join("odd:name/oci-layout"), "{}").unwrap();
        let parse = |text: String| Source::parse(Path::new(&text));
        let display = top.display();
        assert_eq!(parse(format!("{display}/tree")), Ok(Source::Tree(top.join("tree"))));
        for (text, name, tag) in [
            (format!("{display}/layout"), "layout", None),
            (format!("oci:{display}/layout"), "layout", None),
            (format!("oci:{display}/layout:v1"), "layout", Some("v1")),
            (format!("oci:{display}/odd:name"), "odd:name", None),
            (format!("oci:{display}/odd:name:v1"), "odd:name", Some("v1")),
        ] {
            let wanted = Source::Layout(top.join(name), tag.map(str::to_owned));
            assert_eq!(parse(text), Ok(wanted));
        }
        assert_eq!(parse("ceph:/a/b".to_owned()), Ok(Source::Far(CephLayer::at(b"a/b"))));
        assert_eq!(parse("oci:ceph:/a/b:v1".to_owned()), Ok(Source::FarLayout(CephLayer::at(b"a/b:v1"))));
        let missing = format!("{display}/missing");
        for bad in
            ["oci:".into(), format!("oci:{missing}"), format!("oci:{missing}:tag"), missing, String::new()]
        {
            assert_eq!(parse(bad.clone()).unwrap_err().exit_status(), 2, "{bad}");
        }
        assert_eq!(parse(format!("oci:{display}/tree")).unwrap_err().exit_status(), 2);
    }
}
