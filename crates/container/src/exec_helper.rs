//! A program that does not outlive who has started it: killed without warning, `vellum run` must not leave a runtime behind that is about to
//! start a container.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use vellum_service::Failure;

/// The subcommand that calls [`exec`]: it has to happen in the new process, before the program is there.
pub const SUBCOMMAND: &str = "internal-tied";

/// Becomes `program`, which sees `display`, pairs of what is there and where else it is to be, and is killed when the process `parent`, which has started this one, ends. Returns only when it cannot.
#[must_use]
pub fn exec(shown: &[OsString], parent: u32, program: &OsString, arguments: &[OsString]) -> Failure {
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    let now = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if u32::try_from(now).ok() != Some(parent) {
        // It has ended in between.
        return Failure::system("the process that has started this one is gone");
    }
    if let Err(e) = tied {
        tracing::warn!("the runtime may outlive this process: {e}");
    }
    if let Err(why) = super::host_mounts::show(shown) {
        return why;
    }
    let e = Command::new(program).args(arguments).exec();
    Failure::system(format!("{}", program.display())).because(e)
}
