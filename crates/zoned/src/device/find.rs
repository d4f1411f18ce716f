//! The zoned device that a path names, whatever kind it is.

use super::conventional::Conventional;
use super::emulator::{Emulated, Pace};
use super::error::Error;
use super::kernel::Kernel;
use super::write_pointers::{CONVENTIONAL, zone_file_label};
use super::zoned_device::ZonedDevice;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, major, minor, open};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use vellum_sys::zoned::zone_count;

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read, beside others that read.
    Read,
    /// To be changed, alone.
    Write,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A zoned block device.
    Zoned,
    /// A file that is used like a real device, by the name of its profile.
    Emulated(&'static str),
    /// A file or a disk without zones of its own.
    Conventional,
}

/// A device that is open.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// What it is.
    pub kind: Kind,
    /// The device.
    pub device: Arc<dyn ZonedDevice>,
    /// The device as an emulated one, if it is that, for its clock.
    pub emulated: Option<Arc<Emulated>>,
    /// What tells it from all others; None where the kernel knows nothing of the kind.
    pub identity: Option<String>,
}

/// Why a path is no device that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindError {
    /// It cannot be opened.
    Open(Errno),
    /// It is mounted, or another program has it open.
    Busy,
    /// Neither a file nor a block device.
    NoDevice,
    /// A file or a disk without zones, on which none were laid out.
    NoZones,
    /// The device, or what says where its zones are, cannot be read or believed.
    Device(Error),
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(errno) => write!(f, "{errno}"),
            Self::Busy => f.write_str("in use: it is mounted, or another program has it open"),
            Self::NoDevice => f.write_str("neither a file nor a block device"),
            Self::NoZones => f.write_str("no zones were laid out here"),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FindError {}

impl From<Error> for FindError {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(Errno::BUSY) => Self::Busy,
            error => Self::Device(error),
        }
    }
}

/// A file or a block device, locked: one program at a time may have it to be changed, and none reads meanwhile. Whether it is a block device.
pub fn open_locked(path: &Path, access: Access) -> Result<(File, bool), FindError> {
    let refused = |errno| if errno == Errno::BUSY { FindError::Busy } else { FindError::Open(errno) };
    let how = match access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::RDWR,
    };
    // Without O_NONBLOCK a pipe would be waited for.
    let flags = how | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file = open(path, flags, Mode::empty()).map_err(refused)?;
    let kind = |file: &_| fstat(file).map(|stat| FileType::from_raw_mode(stat.st_mode)).map_err(refused);
    let is_block = match kind(&file)? {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        FileType::Directory => return Err(FindError::Open(Errno::ISDIR)),
        _ => return Err(FindError::NoDevice),
    };
    if is_block {
        // Of a block device this excludes mounts, too.
        file = open(path, flags | OFlags::EXCL, Mode::empty()).map_err(refused)?;
        if kind(&file)? != FileType::BlockDevice {
            return Err(FindError::NoDevice);
        }
    }
    let lock = match access {
        Access::Read => FlockOperation::NonBlockingLockShared,
        Access::Write => FlockOperation::NonBlockingLockExclusive,
    };
    flock(&file, lock)
        .map_err(|errno| if errno == Errno::AGAIN { FindError::Busy } else { refused(errno) })?;
    Ok((file.into(), is_block))
}

/// Whether a block device has zones of its own.
#[must_use]
pub fn is_zoned(file: &File) -> bool {
    zone_count(file).is_ok_and(|zones| zones > 0)
}

/// Opens the device that `path` names. Emulated ones pass time as `pace` says.
pub fn find(path: &Path, access: Access, pace: Pace) -> Result<OpenDevice, FindError> {
    let (file, is_block) = open_locked(path, access)?;
    find_in(file, is_block, path, pace)
}

/// Like [`find`], in what [`open_locked`] has opened.
pub fn find_in(file: File, is_block: bool, path: &Path, pace: Pace) -> Result<OpenDevice, FindError> {
    if is_block && is_zoned(&file) {
        let identity = identity_of(&file);
        // It can be opened by one at a time.
        drop(file);
        let device = Arc::new(Kernel::open_path(path)?);
        return Ok(OpenDevice { kind: Kind::Zoned, device, emulated: None, identity });
    }
    match zone_file_label(&file).as_deref() {
        None => Err(FindError::NoZones),
        Some(CONVENTIONAL) => {
            let device = Arc::new(Conventional::open_direct(file)?);
            let identity = Some(of_uuid(device.uuid()));
            Ok(OpenDevice { kind: Kind::Conventional, device, emulated: None, identity })
        }
        Some(_) => {
            let device = Arc::new(Emulated::open_file(file, 1)?.paced(pace));
            let kind = Kind::Emulated(device.profile().name);
            let identity = device.uuid().map(of_uuid);
            Ok(OpenDevice { kind, emulated: Some(Arc::clone(&device)), device, identity })
        }
    }
}

fn of_uuid(uuid: [u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("zones-{digits}")
}

/// What the kernel tells a block device by.
fn identity_of(file: &File) -> Option<String> {
    let device = fstat(file).ok()?.st_rdev;
    let sys = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    ["wwid", "device/wwid", "uuid", "device/serial", "serial"].iter().find_map(|name| {
        let text = std::fs::read_to_string(format!("{sys}/{name}")).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    })
}
