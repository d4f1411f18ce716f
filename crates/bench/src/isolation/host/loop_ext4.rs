//! Another ext4 on the same disk: in a file beside the others', by a loop device.

use crate::failure::{Failure, Result, While};
use crate::interrupt;
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Beside an image, for the filesystem itself.
const ROOM: u64 = 256 << 20;

/// The filesystem; it is unmounted and taken away when this is dropped.
pub(super) struct LoopExt4 {
    file: PathBuf,
    mount: PathBuf,
}

impl LoopExt4 {
    /// Makes one that has room for an image of so many bytes.
    pub(super) fn new(directory: &Path, bytes: u64) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new("mounting a filesystem needs root"));
        }
        let new = Self { file: directory.join("elsewhere.ext4"), mount: directory.join("elsewhere") };
        let made = File::create_new(&new.file).doing(|| format!("making {}", new.file.display()))?;
        made.set_len(2 * bytes + ROOM).doing(|| "sizing a filesystem")?;
        fs::create_dir(&new.mount).doing(|| format!("making {}", new.mount.display()))?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&new.file))?;
        interrupt::register(&new.mount);
        run(Command::new("mount").args(["-o", "loop"]).arg(&new.file).arg(&new.mount))?;
        Ok(new)
    }

    /// Where it is mounted.
    pub(super) fn directory(&self) -> &Path {
        &self.mount
    }
}

impl Drop for LoopExt4 {
    fn drop(&mut self) {
        if unmount(&self.mount, UnmountFlags::empty()).is_err() {
            let _ = unmount(&self.mount, UnmountFlags::DETACH);
        }
        interrupt::unregister(&self.mount);
        let _ = fs::remove_dir(&self.mount);
        let _ = fs::remove_file(&self.file);
    }
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let done = done.doing(|| format!("running {name}"))?;
    if done.success() { Ok(()) } else { Err(Failure::new(format!("{name}: {done}"))) }
}
