//! Which layers a container stands on: a checkpoint goes on above these and no others.

use crate::container::Image;
use crate::image::{Here, LayerStore, Layout, Source};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, fstat, openat2, readlinkat, statat};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// What an image on CephFS is told.
const ON_CLUSTER: &str = "option --image: it is on CephFS, and the container stood on layers of this host";

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
        /// Where it was.
        dir: PathBuf,
        /// Of all names in it, and what they are.
        fingerprint: String,
    },
}

impl Lowers {
    /// Those of a container that runs on `lowers`.
    pub(crate) fn of(image: &Image, lowers: &[PathBuf]) -> Result<Self, Failure> {
        match image {
            Image::Tree(dir) => Ok(Self::Tree { dir: dir.clone(), fingerprint: fingerprint(dir)? }),
            Image::Layout(dir, tag) => {
                let name = |lower: &PathBuf| {
                    let name = lower.file_name().map(|name| name.to_string_lossy().into_owned());
                    name.ok_or_else(|| {
                        Failure::system(format!("layer {}: it has no digest", lower.display()))
                    })
                };
                let digests = lowers.iter().map(name).collect::<Result<_, _>>()?;
                Ok(Self::Layout { dir: dir.clone(), tag: tag.clone(), digests })
            }
        }
    }

    /// The image, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Tree { dir, .. } => dir.display().to_string(),
            Self::Layout { dir, tag: None, .. } => format!("oci:{}", dir.display()),
            Self::Layout { dir, tag: Some(tag), .. } => format!("oci:{}:{tag}", dir.display()),
        }
    }

    /// Their directories, the top one first, if they are the same as they were. `image`: where the image is now; None: where it was.
    /// What is unpacked no more is unpacked again; Ok(None): `stop` said so.
    pub(crate) fn directories(
        &self,
        image: Option<&Source>,
        store: &LayerStore,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<PathBuf>>, Failure> {
        let other = |why: String| {
            Failure::input(why).remedy(
                "a checkpoint goes on above the layers that it was taken on; give --image IMAGE with those",
            )
        };
        match self {
            Self::Tree { dir, fingerprint: wanted } => {
                let dir = match image {
                    Some(Source::Tree(dir)) => dir,
                    Some(Source::Layout(dir, _)) => {
                        return Err(other(format!(
                            "image {}: an image layout, and it was a directory tree",
                            dir.display()
                        )));
                    }
                    Some(Source::Far(_) | Source::FarLayout(_)) => return Err(other(ON_CLUSTER.to_owned())),
                    None => dir,
                };
                let shown = dir.display();
                if !dir.is_dir() {
                    return Err(other(format!("image {shown}: it is not there any more")));
                }
                if fingerprint(dir)? != *wanted {
                    return Err(other(format!("image {shown}: it has changed since the checkpoint")));
                }
                Ok(Some(vec![dir.clone()]))
            }
            Self::Layout { dir, tag, digests } => {
                if let Some(there) = store.present(digests) {
                    return Ok(Some(there));
                }
                let (dir, tag) = match image {
                    Some(Source::Layout(dir, tag)) => (dir, tag.as_deref()),
                    Some(Source::Tree(dir)) => {
                        return Err(other(format!(
                            "image {}: a directory tree, and it was an image layout",
                            dir.display()
                        )));
                    }
                    Some(Source::Far(_) | Source::FarLayout(_)) => return Err(other(ON_CLUSTER.to_owned())),
                    None => (dir, tag.as_deref()),
                };
                let layout = Layout::open(dir, tag)?;
                if layout.contents() != *digests {
                    return Err(other(format!(
                        "image oci:{}: it has other layers than at the checkpoint",
                        dir.display()
                    )));
                }
                layout.unpacked(&Here(dir.clone()), store, stop)
            }
        }
    }
}

/// A digest of a tree: of each object its path, kind, mode, owner, time of change of its data, size, and for links and devices what they
/// are. A copy that keeps all that has the same one. Data are not read.
fn fingerprint(tree: &Path) -> Result<String, Failure> {
    let failed = |path: &Path, e: io::Error| Failure::system(format!("{}", path.display())).because(e);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(tree, flags, Mode::empty()).map_err(|e| failed(tree, e.into()))?;
    let mut digest = Sha256::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let below = add(&top, &dir, &mut digest).map_err(|e| failed(&tree.join(&dir), e))?;
        dirs.extend(below.into_iter().rev().map(|name| dir.join(name)));
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Adds a directory's entries; the directories among them, in order.
fn add(top: &OwnedFd, path: &Path, digest: &mut Sha256) -> io::Result<Vec<OsString>> {
    let opened = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let dir = retry_on_intr(|| openat2(top, opened, flags, Mode::empty(), resolve))?;
    let mut names = Vec::new();
    for one in Dir::read_from(&dir)? {
        let one = one?;
        let name = one.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name.to_vec()));
        }
    }
    names.sort();
    // A text says how long it is, so that no two trees are written in one way.
    let mut text = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    let own = fstat(&dir)?;
    text(path.as_os_str().as_bytes());
    text(format!("{} {} {} {}", own.st_mode, own.st_uid, own.st_gid, names.len()).as_bytes());
    let mut below = Vec::new();
    for name in names {
        let stat = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        text(name.as_bytes());
        if kind == rustix::fs::FileType::Directory {
            below.push(name);
            continue;
        }
        let size = if kind == rustix::fs::FileType::RegularFile { stat.st_size } else { 0 };
        text(
            format!(
                "{} {} {} {} {size} {}.{}",
                stat.st_mode, stat.st_uid, stat.st_gid, stat.st_rdev, stat.st_mtime, stat.st_mtime_nsec
            )
            .as_bytes(),
        );
        if kind == rustix::fs::FileType::Symlink {
            text(readlinkat(&dir, &name, Vec::new())?.as_bytes());
        }
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_tree_that_has_changed_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, store) = (dir.path().join("tree"), LayerStore::at(dir.path().join("layers")));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/file"), "words").unwrap();
        symlink("file", tree.join("a/link")).unwrap();
        let known = Lowers::of(&Image::Tree(tree.clone()), &[]).unwrap();
        let same = |known: &Lowers| known.directories(None, &store, &|| false);
        assert_eq!(same(&known), Ok(Some(vec![tree.clone()])));
        // A copy that keeps everything.
        let copy = dir.path().join("copy");
        let copied = std::process::Command::new("cp").arg("-a").args([&tree, &copy]).status().unwrap();
        assert!(copied.success());
        assert!(known.directories(Some(&Source::Tree(copy)), &store, &|| false).is_ok());
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
            let known = Lowers::of(&Image::Tree(tree.clone()), &[]).unwrap();
            change();
            let failure = same(&known).unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains("has changed"), "{failure}");
        }
        fs::remove_dir_all(&tree).unwrap();
        assert!(same(&known).unwrap_err().to_string().contains("not there"));
    }
}
