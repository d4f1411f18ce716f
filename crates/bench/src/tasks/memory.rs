//! The task that asks whether a service forgets.

use super::task::Env;
use crate::failure::{Result, While};
use crate::interrupt;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};

/// Looks up every file of the largest tree.
pub(super) fn look_up_all(env: &Env<'_>) -> Result<()> {
    let (dirs, files) = env.testbed.million();
    for number in 0..dirs {
        interrupt::check()?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = openat(AT_FDCWD, &env.root.join(number.to_string()), flags, Mode::empty())
            .doing(|| "opening a directory")?;
        for file in 0..files {
            fstatat(&dir, file.to_string().as_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
                .doing(|| "looking a file up")?;
        }
    }
    Ok(())
}
