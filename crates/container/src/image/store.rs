//! Layers, unpacked: each once, under the digest of what is in it, whoever asks for it and however it was packed.

use super::archive::Archive;
use super::compression;
use super::digest::DigestReader;
use super::files::{BlobReader, Files};
use super::layout::Blob;
use super::unpack::{UnpackError, unpack};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;
use vellum_pool::locked_dir::LockedDir;
use vellum_service::Failure;
use vellum_sys::remove_tree;

/// What a directory is called while a layer is being unpacked there.
const UNFINISHED: &str = "unfinished-";
/// Where in it the tree grows.
const TREE: &str = "tree";
/// How often it is looked whether somebody else is done with a layer.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes that are read at once.
const PART: usize = 256 << 10;

/// Where layers are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerStore {
    dir: PathBuf,
}

impl LayerStore {
    /// One in a directory, which is made when it is needed.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.dir
    }

    /// Removes what was not finished and is nobody's any more.
    pub fn sweep(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes())
                && let Ok(Some(dead)) = LockedDir::adopt(&entry.path())
                && let Err(e) = remove_tree(dead.path())
            {
                tracing::warn!("{}: cannot be removed: {e}", entry.path().display());
            }
        }
    }

    /// The directories of the layers with these contents, if all of them are unpacked.
    pub(crate) fn present(&self, contents: &[String]) -> Option<Vec<PathBuf>> {
        let plain = |name: &String| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b':')
        };
        let dir = |name: &String| Some(self.dir.join(name)).filter(|dir| plain(name) && dir.is_dir());
        contents.iter().map(dir).collect()
    }

    /// The directory of a layer, which is unpacked when it is not there yet. None: `stop` said so.
    pub(super) fn layer(
        &self,
        blob: &Blob,
        files: &dyn Files,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<PathBuf>, Failure> {
        let done = self.dir.join(blob.content.digits());
        let failed = |e: io::Error| Failure::at(&done, e);
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let unfinished = loop {
            if done.is_dir() {
                return Ok(Some(done));
            }
            if stop() {
                return Ok(None);
            }
            match LockedDir::make(&self.dir.join(format!("{UNFINISHED}{}", blob.content.digits())))
                .map_err(failed)?
            {
                Some(mine) => break mine,
                None => std::thread::sleep(LOOK),
            }
        };
        // Somebody may have been done with it just before.
        let outcome =
            if done.is_dir() { Ok(true) } else { unpack_to((blob, files), unfinished.path(), &done, stop) };
        if let Err(e) = remove_tree(unfinished.path()) {
            tracing::warn!("{}: cannot be removed: {e}", unfinished.path().display());
        }
        Ok(outcome?.then_some(done))
    }
}

/// False: stopped.
fn unpack_to(
    (blob, files): (&Blob, &dyn Files),
    unfinished: &Path,
    done: &Path,
    stop: &dyn Fn() -> bool,
) -> Result<bool, Failure> {
    let display = files.display(&blob.path);
    let layer = |why: String| Failure::input(format!("layer {display}: {why}"));
    let failed = |e: io::Error| Failure::input(format!("layer {display}")).because(e);
    let system = |path: &Path, e: io::Error| Failure::at(path, e);
    let tree = unfinished.join(TREE);
    // What an interrupted command has left is of no use.
    remove_tree(&tree).map_err(|e| system(&tree, e))?;
    fs::create_dir(&tree).map_err(|e| system(&tree, e))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&tree, flags, Mode::empty()).map_err(|e| system(&tree, e.into()))?;
    let BlobReader { data, len } = files.open(&blob.path).map_err(failed)?;
    if len != blob.size {
        return Err(layer(format!("{len} bytes, and the manifest says {}; get the image again", blob.size)));
    }
    let mut packed = BufReader::with_capacity(PART, DigestReader::new(data, blob.digest.algorithm));
    let plain = {
        let plain = compression::unpacked(&mut packed).map_err(failed)?;
        let mut archive = Archive::new(DigestReader::new(plain, blob.content.algorithm));
        match unpack(&mut archive, &root, stop) {
            Err(UnpackError::Stopped) => return Ok(false),
            Err(UnpackError::Layer(why)) => return Err(layer(why)),
            Err(UnpackError::System(why)) => {
                return Err(Failure::system(format!("{}: {why}", tree.display())));
            }
            Ok(()) => archive.into_source().finish().map_err(failed)?,
        }
    };
    let digested = packed.into_inner().finish().map_err(failed)?;
    for (what, is, wanted) in [("the blob", digested, &blob.digest), ("what is in it", plain, &blob.content)]
    {
        if is != *wanted {
            return Err(layer(format!("{what} has the digest {is} and not {wanted}; get the image again")));
        }
    }
    // All of it is on disk before it has its name.
    rustix::fs::syncfs(&root).map_err(|e| system(&tree, e.into()))?;
    fs::rename(&tree, done).map_err(|e| system(done, e))?;
    let above = done.parent().unwrap_or(done);
    File::open(above).and_then(|dir| dir.sync_all()).map_err(|e| system(above, e))?;
    Ok(true)
}

#[cfg(test)]
#[path = "store_test.rs"]
mod tests;
