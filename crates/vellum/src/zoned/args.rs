//! The arguments of `vellum zoned`.

use crate::zoned_mount::ZonedMountArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `vellum zoned`.
#[derive(Args, Debug)]
pub struct ZonedArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ZonedCommand,
}

/// What to do with a device.
#[derive(Debug, Subcommand)]
pub enum ZonedCommand {
    /// Mount the files in the store as a filesystem.
    Mount(ZonedMountArgs),
    /// Anything else, which ends when it is done.
    #[command(flatten)]
    Tool(ToolCommand),
}

/// What ends when it is done.
#[derive(Debug, Subcommand)]
pub enum ToolCommand {
    /// Show a device, its zones, and the store on it.
    Inspect(InspectArgs),
    /// Make a store on a zoned block device, or on a file or a disk without zones.
    Format(FormatArgs),
    /// Find which zones disturb each other, on empty zones only, for the next `format` of this device.
    Calibrate(CalibrateArgs),
    /// Read everything in the store and compare it with its checksums. Nothing is changed.
    Check(LookArgs),
    /// Show the objects of the store.
    List(LookArgs),
    /// Write a file, or standard input, as an object. One that has this name is replaced.
    Put(PutArgs),
    /// Read an object to a file, or to standard output.
    Get(GetArgs),
    /// Take objects away.
    Remove(RemoveArgs),
}

/// Arguments of `vellum zoned check` and `list`.
#[derive(Args, Debug)]
pub struct LookArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// A zoned block device, or a file or disk with a store.
    pub device: PathBuf,
}

/// Where calibration is kept.
#[derive(Args, Debug)]
pub struct StateArgs {
    /// Where calibrations are kept; otherwise /var/lib/vellum/zoned, or a directory in the user's directory for data.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// Arguments of `vellum zoned inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Where calibrations are kept.
    #[command(flatten)]
    pub state: StateArgs,
    /// A block device or a file.
    pub device: PathBuf,
}

/// Arguments of `vellum zoned format`.
#[derive(Args, Debug)]
pub struct FormatArgs {
    /// The size of a file that is new or empty, e.g. 8G. It takes space only as it is filled.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// The size of the zones that are laid out on a file or disk; otherwise one that fits, or that of the emulated device.
    #[arg(long, value_name = "SIZE")]
    pub zone_size: Option<String>,
    /// The size of blocks there.
    #[arg(long, value_name = "512|4096")]
    pub block_size: Option<u32>,
    /// A file is used like this device: with its limits, and with its channels as calibration sees them.
    #[arg(long, value_enum, value_name = "DEVICE")]
    pub emulate: Option<EmulateArg>,
    /// Also where there is something already. It is lost.
    #[arg(long)]
    pub force: bool,
    /// Where calibrations are kept.
    #[command(flatten)]
    pub state: StateArgs,
    /// A block device that nobody uses, or a file.
    pub device: PathBuf,
}

/// An emulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EmulateArg {
    /// Many zones, each on one die of 16 channels.
    SmallZone,
    /// Few large zones, each on all dies.
    LargeZone,
}

/// Arguments of `vellum zoned calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// At most so many seconds, from 1 to 3600.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub limit: u64,
    /// Where calibrations are kept.
    #[command(flatten)]
    pub state: StateArgs,
    /// A zoned block device, or a file or disk on which zones were laid out.
    pub device: PathBuf,
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClassArg {
    /// Shares zones with others.
    Normal,
    /// Has zones of its own, which are reset when it is removed.
    Checkpoint,
}

/// Arguments of `vellum zoned put`.
#[derive(Args, Debug)]
pub struct PutArgs {
    /// What it is.
    #[arg(long, value_enum, default_value = "normal")]
    pub class: ClassArg,
    /// The device with the store.
    pub device: PathBuf,
    /// The object's name: 1 to 255 bytes.
    pub name: OsString,
    /// What it is to hold; otherwise standard input.
    pub file: Option<PathBuf>,
}

/// Arguments of `vellum zoned get`.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The device with the store.
    pub device: PathBuf,
    /// The object's name.
    pub name: OsString,
    /// Where it goes; otherwise to standard output.
    pub file: Option<PathBuf>,
}

/// Arguments of `vellum zoned remove`.
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// The device with the store.
    pub device: PathBuf,
    /// Names of objects. When one is not there, all stay.
    #[arg(required = true)]
    pub names: Vec<OsString>,
}
