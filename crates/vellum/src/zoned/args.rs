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
    /// A command that ends.
    #[command(flatten)]
    Tool(ToolCommand),
}

/// Commands that end.
#[derive(Debug, Subcommand)]
pub enum ToolCommand {
    /// Show a device, its zones, and the store on it.
    Inspect(InspectArgs),
    /// Create a store on a zoned block device, a file, or a disk without zones. A device in use is refused,
    /// and without `--force` one with data.
    Format(FormatArgs),
    /// Measure which empty zones disturb each other, for the next `format` of this device.
    Calibrate(CalibrateArgs),
    /// Verify all checksums of the store. Nothing is changed. The exit status is 1 if something is damaged.
    Check(LookArgs),
    /// Show the objects of the store.
    List(LookArgs),
    /// Write a file or standard input as an object. An object of this name is replaced.
    Put(PutArgs),
    /// Read an object to a file, or to standard output.
    Get(GetArgs),
    /// Remove objects.
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
    /// The directory of calibrations [default: /var/lib/vellum/zoned, or one in the user's data directory].
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// Arguments of `vellum zoned inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The directory of calibrations.
    #[command(flatten)]
    pub state: StateArgs,
    /// A block device or a file.
    pub device: PathBuf,
}

/// Arguments of `vellum zoned format`.
#[derive(Args, Debug)]
pub struct FormatArgs {
    /// The size of a new or empty file, e.g. 8G. The file is sparse.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// The zone size on a file or disk [default: one that fits, or the emulated device's].
    #[arg(long, value_name = "SIZE")]
    pub zone_size: Option<String>,
    /// The block size on a file or disk.
    #[arg(long, value_name = "512|4096")]
    pub block_size: Option<u32>,
    /// Emulate this device on a file: its limits, and its channels as calibration sees them.
    #[arg(long, value_enum, value_name = "DEVICE")]
    pub emulate: Option<EmulateArg>,
    /// Overwrite existing data.
    #[arg(long)]
    pub force: bool,
    /// The directory of calibrations.
    #[command(flatten)]
    pub state: StateArgs,
    /// An unused block device, or a file.
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
    /// The most seconds, from 1 to 3600.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub limit: u64,
    /// The directory of calibrations.
    #[command(flatten)]
    pub state: StateArgs,
    /// A zoned block device, or a file or disk with emulated zones.
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
    /// The source file [default: standard input].
    pub file: Option<PathBuf>,
}

/// Arguments of `vellum zoned get`.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// The device with the store.
    pub device: PathBuf,
    /// The object's name.
    pub name: OsString,
    /// The target file [default: standard output].
    pub file: Option<PathBuf>,
}

/// Arguments of `vellum zoned remove`.
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// The device with the store.
    pub device: PathBuf,
    /// Names of objects. If one is missing, none is removed.
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<OsString>,
}
