//! `vellum zoned`: the store on zoned devices, and on files and disks that are used in their manner.

mod args;
mod calibrate;
mod calibration;
mod check;
mod device;
mod format;
mod inspect;
mod layout;
mod objects;
mod signature;

pub use args::{ToolCommand, ZonedArgs, ZonedCommand};

use crate::log;
use vellum_service::Failure;

/// Does it; what is to be printed.
pub fn run(command: ToolCommand) -> Result<String, Failure> {
    log::to_stderr()?;
    match command {
        ToolCommand::Inspect(arguments) => inspect::run(&arguments),
        ToolCommand::Format(arguments) => format::run(&arguments),
        ToolCommand::Calibrate(arguments) => calibrate::run(&arguments),
        ToolCommand::Check(arguments) => check::run(&arguments),
        ToolCommand::List(arguments) => objects::list(&arguments),
        ToolCommand::Put(arguments) => objects::put(&arguments),
        ToolCommand::Get(arguments) => objects::get(&arguments),
        ToolCommand::Remove(arguments) => objects::remove(&arguments),
    }
}
