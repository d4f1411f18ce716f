//! A process beside the one that balances, in version 1: when that one is killed, groups have its limits, at which those in them wait for memory.
//! This one gives them back what they had.

use super::groups::Parent;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use vellum_service::Failure;

/// The hidden command that is such a process.
pub const SUBCOMMAND: &str = "internal-shares";

/// The guard of a process that balances; it ends with this.
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Guard {
    /// Of the groups below a directory.
    pub(super) fn start(dir: &Path) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::system("cannot start the guard of limits").because(e);
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.arg(SUBCOMMAND).arg(dir).stdin(Stdio::piped()).stdout(Stdio::null());
        // What a terminal sends to all of its foreground is not for this one.
        command.process_group(0).spawn().map(Self).map_err(failed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Waits until whoever has started this process has ended, and takes back the limits that are left. Nothing is done where somebody else
/// balances these groups by then.
///
/// # Errors
/// The groups cannot be read.
pub fn after(parent: PathBuf) -> Result<(), Failure> {
    let mut nothing = [0; 1];
    while std::io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
    match Parent::open(Some(parent)) {
        Ok(parent) => parent.restore_limits(),
        Err(_) => Ok(()),
    }
}
