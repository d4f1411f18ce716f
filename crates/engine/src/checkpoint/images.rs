//! Where the images of a checkpoint are written: CRIU is given a directory and fills it.
//!
//! Whoever has a better place for gigabytes that come at once (a device's own zones, a writer that lets others go first) implements
//! [`Images`] and is chosen in [`begin`].

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// A place for images that are being written.
pub(crate) trait Images {
    /// The directory that CRIU writes into, and reads from.
    fn dir(&self) -> &Path;

    /// All of them have been written: makes them durable, and says how many bytes they are.
    fn finish(&mut self) -> Result<u64, Failure>;
}

/// A place for new images in a checkpoint's directory.
pub(crate) fn begin(dir: PathBuf) -> Result<Box<dyn Images>, Failure> {
    let made = fs::DirBuilder::new().mode(0o700).create(&dir);
    made.map_err(|e| Failure::at(&dir, e))?;
    Ok(Box::new(Directory { dir }))
}

/// An ordinary directory: the kernel writes back when it likes, and at the end it is waited for.
struct Directory {
    dir: PathBuf,
}

impl Images for Directory {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn finish(&mut self) -> Result<u64, Failure> {
        let mut bytes = 0;
        for entry in fs::read_dir(&self.dir).map_err(|e| Failure::at(&self.dir, e))? {
            let path = entry.map_err(|e| Failure::at(&self.dir, e))?.path();
            let file = File::open(&path).map_err(|e| Failure::at(&path, e))?;
            bytes += file.metadata().map_err(|e| Failure::at(&path, e))?.len();
            file.sync_all().map_err(|e| Failure::at(&path, e))?;
        }
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(|e| Failure::at(&self.dir, e))?;
        Ok(bytes)
    }
}
