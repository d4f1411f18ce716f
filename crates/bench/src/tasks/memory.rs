//! The task that asks whether a service forgets.

use super::Env;
use crate::failure::{Result, While};
use crate::stop;
use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};

/// Looks up every file of the largest tree.
pub(super) fn look_up_all(env: &Env<'_>) -> Result<()> {
    let (dirs, files) = env.ground.million();
    for number in 0..dirs {
        stop::check()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(rustix::fs::CWD, env.root.join(number.to_string()), flags, Mode::empty())
            .doing(|| "opening a directory")?;
        for file in 0..files {
            statat(&dir, file.to_string(), AtFlags::SYMLINK_NOFOLLOW).doing(|| "looking a file up")?;
        }
    }
    Ok(())
}
