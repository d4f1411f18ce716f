//! Which layers a container stands on: a checkpoint goes on above these and no others.

use super::fingerprint::{of_directory, of_visit};
use crate::Image;
use crate::image::{LayerStore, ResolvedImage, Source};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use vellum_service::layers::ceph::CephLayer;
use vellum_service::{Failure, LayerSource};

/// The lower layers of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Lowers {
    /// Of an image layout: it, and the digests of what is in its layers, the top one first.
    Layout {
        /// Where the layout was.
        dir: PathBuf,
        /// The image in it.
        tag: Option<String>,
        /// `sha256` in digits, for each layer.
        digests: Vec<String>,
    },
    /// A directory tree.
    Tree {
        dir: PathBuf,
        /// Of all names in it, and what they are.
        fingerprint: String,
    },
    /// A directory tree on CephFS.
    FarTree {
        layer: CephLayer,
        /// As that of a tree of this host.
        fingerprint: String,
    },
    /// Of an image layout on CephFS, whose layers were unpacked on this host.
    FarLayout {
        /// Where the layout was, maybe with the name of an image in it.
        layer: CephLayer,
        /// As those of a layout of this host.
        digests: Vec<String>,
    },
}

/// What says whether layers are the same.
enum LayerIdentity<'a> {
    Fingerprint(&'a str),
    Digests(&'a [String]),
}

impl Lowers {
    /// Those of a container that runs on `lowers`, as far as they are directories of this host.
    pub fn from_image(image: &Image, lowers: &[PathBuf]) -> Result<Self, Failure> {
        let digests = || {
            let name = |lower: &PathBuf| {
                let name = lower.file_name().map(|name| name.to_string_lossy().into_owned());
                name.ok_or_else(|| Failure::system(format!("layer {}: it has no digest", lower.display())))
            };
            lowers.iter().map(name).collect::<Result<Vec<_>, _>>()
        };
        match image {
            Image::Tree(dir) => Ok(Self::Tree { dir: dir.clone(), fingerprint: of_directory(dir)? }),
            Image::Layout(dir, tag) => {
                Ok(Self::Layout { dir: dir.clone(), tag: tag.clone(), digests: digests()? })
            }
            Image::Far(layer) if lowers.is_empty() => {
                Ok(Self::FarTree { layer: layer.clone(), fingerprint: of_visit(&layer.visit()?)? })
            }
            // A directory there that has turned out to be a layout.
            Image::Far(layer) | Image::FarLayout(layer) => {
                Ok(Self::FarLayout { layer: layer.clone(), digests: digests()? })
            }
        }
    }

    /// The image, for people.
    #[must_use]
    pub fn display(&self) -> String {
        match self {
            Self::Tree { dir, .. } => dir.display().to_string(),
            Self::Layout { dir, tag: None, .. } => format!("oci:{}", dir.display()),
            Self::Layout { dir, tag: Some(tag), .. } => format!("oci:{}:{tag}", dir.display()),
            Self::FarTree { layer, .. } => layer.to_string(),
            Self::FarLayout { layer, .. } => format!("oci:{layer}"),
        }
    }

    /// Whether they were on CephFS.
    pub const fn are_remote(&self) -> bool {
        matches!(self, Self::FarTree { .. } | Self::FarLayout { .. })
    }

    /// Where the image was.
    pub fn source(&self) -> Source {
        match self {
            Self::Tree { dir, .. } => Source::Tree(dir.clone()),
            Self::Layout { dir, tag, .. } => Source::Layout(dir.clone(), tag.clone()),
            Self::FarTree { layer, .. } => Source::Far(layer.clone()),
            Self::FarLayout { layer, .. } => Source::FarLayout(layer.clone()),
        }
    }

    const fn as_identity(&self) -> LayerIdentity<'_> {
        match self {
            Self::Tree { fingerprint, .. } | Self::FarTree { fingerprint, .. } => {
                LayerIdentity::Fingerprint(fingerprint.as_str())
            }
            Self::Layout { digests, .. } | Self::FarLayout { digests, .. } => {
                LayerIdentity::Digests(digests.as_slice())
            }
        }
    }

    /// The layers, the top one first, if they are the same as they were. `image`: where the image is now. What is unpacked no more is
    /// unpacked again; Ok(None): `stop` said so.
    pub fn layers(
        &self,
        image: &Source,
        store: &LayerStore,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<LayerSource>>, Failure> {
        let here = |dirs: Vec<PathBuf>| dirs.into_iter().map(LayerSource::from).collect();
        match self.as_identity() {
            LayerIdentity::Fingerprint(wanted) => same_tree(image, wanted).map(|tree| Some(vec![tree])),
            LayerIdentity::Digests(digests) => {
                if let Some(there) = store.present(digests) {
                    return Ok(Some(here(there)));
                }
                match ResolvedImage::resolve(image)? {
                    ResolvedImage::Tree(tree) => {
                        Err(other(format!("image {tree}: a directory tree, and it was an image layout")))
                    }
                    ResolvedImage::Layout(layout, _) if layout.contents() != *digests => {
                        Err(other(format!("image {image}: it has other layers than at the checkpoint")))
                    }
                    ResolvedImage::Layout(layout, files) => {
                        Ok(layout.unpacked(&*files, store, stop)?.map(here))
                    }
                }
            }
        }
    }
}

fn other(why: String) -> Failure {
    Failure::input(why).remedy(
        "a checkpoint resumes above the layers that it was saved above; give --image IMAGE with those",
    )
}

/// A tree, if it is the one with that fingerprint.
fn same_tree(image: &Source, wanted: &str) -> Result<LayerSource, Failure> {
    let (tree, found) = match image {
        Source::Tree(dir) if !dir.is_dir() => {
            return Err(other(format!("image {image}: it is not there any more")));
        }
        Source::Tree(dir) => (LayerSource::from(dir.clone()), of_directory(dir)?),
        Source::Far(layer) => (LayerSource::Ceph(layer.clone()), of_visit(&layer.visit()?)?),
        Source::Layout(..) | Source::FarLayout(_) => {
            return Err(other(format!("image {image}: an image layout, and it was a directory tree")));
        }
    };
    if found == wanted {
        return Ok(tree);
    }
    Err(other(format!("image {image}: it has changed since the checkpoint")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_changed_tree_has_another_identity() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, store) = (dir.path().join("tree"), LayerStore::at(dir.path().join("layers")));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/file"), "words").unwrap();
        symlink("file", tree.join("a/link")).unwrap();
        let known = Lowers::from_image(&Image::Tree(tree.clone()), &[]).unwrap();
        let same = |known: &Lowers| known.layers(&known.source(), &store, &|| false);
        assert_eq!(same(&known), Ok(Some(vec![tree.clone().into()])));
        // A copy that keeps everything.
        let copy = dir.path().join("copy");
        let copied = std::process::Command::new("cp").arg("-a").args([&tree, &copy]).status().unwrap();
        assert!(copied.success());
        assert!(known.layers(&Source::Tree(copy), &store, &|| false).is_ok());
        let changes: [&dyn Fn(); 4] = [
            &|| fs::write(tree.join("a/file"), "other").unwrap(),
            &|| fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o700)).unwrap(),
            &|| {
                fs::remove_file(tree.join("a/link")).unwrap();
                symlink("b", tree.join("a/link")).unwrap();
            },
            &|| fs::write(tree.join("a/b/new"), "").unwrap(),
        ];
        for change in changes {
            let known = Lowers::from_image(&Image::Tree(tree.clone()), &[]).unwrap();
            change();
            let failure = same(&known).unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains("has changed"), "{failure}");
        }
        fs::remove_dir_all(&tree).unwrap();
        assert!(same(&known).unwrap_err().to_string().contains("not there"));
    }
}
