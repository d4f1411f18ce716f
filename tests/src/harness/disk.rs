//! A filesystem of its own in an image, which can be copied as a loss of power would leave it.

use super::outcome::{Outcome, Stop, skip};
use super::shell;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A filesystem in an image, mounted by way of a loop device. Dropping it unmounts.
pub(crate) struct Disk {
    image: PathBuf,
    /// Where it is mounted.
    at: PathBuf,
}

impl Disk {
    /// A new ext4 that commits its journal when somebody asks for that, and by itself after minutes only.
    pub(crate) fn ext4(base: &Path, name: &str) -> Outcome<Self> {
        if !shell::have("mkfs.ext4") {
            return skip("mkfs.ext4 is missing: run make deps");
        }
        let image = base.join(format!("{name}.image"));
        fs::File::create(&image)?.set_len(160 << 20)?;
        let options = ["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        shell::run(Command::new("mkfs.ext4").args(options).arg(&image))?;
        Self::of(image, name, "loop,commit=300")
    }

    /// What is in an image, mounted beside it.
    pub(crate) fn of(image: PathBuf, name: &str, options: &str) -> Outcome<Self> {
        let at = image.with_file_name(format!("{name}.at"));
        Self::mounted(image, at, options)
    }

    /// What is in an image.
    pub(crate) fn mounted(image: PathBuf, at: PathBuf, options: &str) -> Outcome<Self> {
        fs::create_dir_all(&at)?;
        match shell::run(Command::new("mount").args(["-o", options]).arg(&image).arg(&at)) {
            Ok(_) => Ok(Self { image, at }),
            Err(Stop::Fail(why) | Stop::Skip(why)) => skip(format!("no loop device here: {why}")),
        }
    }

    /// Where it is mounted.
    pub(crate) fn at(&self) -> &Path {
        &self.at
    }

    /// Copies what has reached the image so far, which is what a loss of power at this moment leaves.
    pub(crate) fn snapshot(&self, to: &Path) -> Outcome {
        shell::run(Command::new("cp").arg("--sparse=always").arg(&self.image).arg(to)).map(drop)
    }

    /// Makes everything on it durable.
    pub(crate) fn sync(&self) -> Outcome {
        Ok(rustix::fs::syncfs(fs::File::open(&self.at)?)?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if unmount(&self.at, UnmountFlags::empty()).is_err() {
            let _ = unmount(&self.at, UnmountFlags::DETACH);
        }
        let _ = fs::remove_file(&self.image);
    }
}
