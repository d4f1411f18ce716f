//! A zoned device that a path names, and the store on it; what is refused, in words.

use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use vellum_service::Failure;
use vellum_zoned::device::emulator::Pace;
use vellum_zoned::device::{Access, FindError, OpenDevice, find};
use vellum_zoned::store::Store;

/// The device, or why not.
pub fn open(path: &Path, access: Access) -> Result<OpenDevice, Failure> {
    find(path, access, Pace::None).map_err(|error| refused(path, error))
}

/// The device and the store on it.
pub fn store(path: &Path, access: Access) -> Result<(OpenDevice, Store), Failure> {
    let found = open(path, access)?;
    let store = store_on(&found, path, access)?;
    Ok((found, store))
}

/// The store on a device that is open.
pub fn store_on(found: &OpenDevice, path: &Path, access: Access) -> Result<Store, Failure> {
    let device = Arc::clone(&found.device);
    let store = match access {
        Access::Read => Store::open_read_only(device),
        Access::Write => Store::open(device),
    };
    store.map_err(|error| {
        if Store::is_on(&*found.device) {
            Failure::system(format!("{}: the store cannot be opened", path.display())).because(error)
        } else {
            let line = format!("{}: no store here", path.display());
            Failure::input(line).remedy("vellum zoned format makes one")
        }
    })
}

/// Why a device cannot be used.
#[must_use]
pub fn refused(path: &Path, error: FindError) -> Failure {
    let shown = path.display();
    let (what, remedy) = match error {
        FindError::Open(Errno::NOENT) => ("no such file or device", "correct the path"),
        FindError::Open(Errno::ISDIR) => ("a directory", "give a block device or a file"),
        FindError::Open(Errno::ACCESS | Errno::PERM) => {
            ("not permitted", "call it as root, or as the file's owner")
        }
        FindError::Open(Errno::ROFS) => ("read-only", "give a device that can be written"),
        FindError::Busy => {
            ("in use: it is mounted, or another program has it open", "unmount it, or wait until that ends")
        }
        FindError::NoDevice => ("neither a block device nor a file", "give one of them"),
        FindError::NoZones => ("no store, and no zones were laid out here", "vellum zoned format does both"),
        error => return Failure::system(format!("{shown}: cannot be used")).because(error),
    };
    Failure::input(format!("{shown}: {what}")).remedy(remedy)
}
