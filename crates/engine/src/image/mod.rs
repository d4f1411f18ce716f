//! Images: what a container's root is made of.
//!
//! `layout` reads an OCI image layout, `store` keeps its layers unpacked, each once. A layer is hostile until checked: `archive` and
//! `pax` read tar, `compression` what it may be packed with, `place` finds the way to an entry without leaving the layer, and `unpack`
//! makes it. `digest` says whether all of it is what the image promises.

mod archive;
mod compression;
mod digest;
mod layout;
mod pax;
mod place;
mod store;
mod unpack;

pub use layout::{Defaults, Layout};
pub(crate) use place::open_beneath;
pub use store::LayerStore;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use vellum_service::Failure;
use vellum_service::layers::ceph::CephLayer;

/// The file that makes a directory an OCI image layout.
const LAYOUT_FILE: &str = "oci-layout";

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory tree, as it is.
    Tree(PathBuf),
    /// An image layout, and the name of one of its images.
    Layout(PathBuf, Option<String>),
    /// A directory tree on CephFS, as it is.
    Far(CephLayer),
}

impl Source {
    /// What `--image TEXT` means: a directory, a directory that is an image layout, `oci:DIR[:TAG]`, or `ceph:PATH`.
    pub fn parse(text: &Path) -> Result<Self, Failure> {
        let bad = |why: &str| Failure::input(format!("option --image {}: {why}", text.display()));
        let layout = |dir: &Path| dir.join(LAYOUT_FILE).is_file();
        if let Some(tree) = CephLayer::named(text.as_os_str()) {
            return Ok(Self::Far(tree));
        }
        let words = text.to_str().and_then(|text| text.strip_prefix("oci:"));
        if let Some(words) = words {
            if CephLayer::named(OsStr::new(words)).is_some() {
                return Err(bad(
                    "image layouts are unpacked from this host only; copy it here, or give ceph:PATH, the root as a directory tree",
                ));
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
        let shown = top.display();
        assert_eq!(parse(format!("{shown}/tree")), Ok(Source::Tree(top.join("tree"))));
        for (text, name, tag) in [
            (format!("{shown}/layout"), "layout", None),
            (format!("oci:{shown}/layout"), "layout", None),
            (format!("oci:{shown}/layout:v1"), "layout", Some("v1")),
            (format!("oci:{shown}/odd:name"), "odd:name", None),
            (format!("oci:{shown}/odd:name:v1"), "odd:name", Some("v1")),
        ] {
            let wanted = Source::Layout(top.join(name), tag.map(str::to_owned));
            assert_eq!(parse(text), Ok(wanted));
        }
        assert_eq!(parse("ceph:/a/b".to_owned()), Ok(Source::Far(CephLayer::at(b"a/b"))));
        for bad in ["oci:", "oci:/nonexistent", "oci:/nonexistent:tag", "/nonexistent", "", "oci:ceph:/a"] {
            assert_eq!(parse(bad.to_owned()).unwrap_err().exit_status(), 2, "{bad}");
        }
        assert_eq!(parse(format!("oci:{shown}/tree")).unwrap_err().exit_status(), 2);
    }
}
