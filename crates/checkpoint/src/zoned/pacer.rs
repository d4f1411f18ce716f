//! How fast an object is written to a store: its device is the medium.

use super::store_access::StoreAccess;
use crate::pace::Pace;
use crate::pacer::{self, Medium};
use std::io;
use std::path::Path;
use vellum_zoned::paced_file::Disk;

pub(super) type StorePacer = pacer::WritePacer<StoreAccess>;

impl Medium for StoreAccess {
    type Error = io::Error;

    fn flush(&self) -> io::Result<()> {
        Self::flush(self)
    }
}

/// As is asked for, on the device that `path` names, with this store.
pub(super) fn pacing(pace: Pace, path: &Path, store: &StoreAccess) -> StorePacer {
    StorePacer::on(pace, path, store.clone(), |budget| {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        if path.is_file() {
            Disk::of_directory(above.unwrap_or(Path::new(".")), budget)
        } else {
            Disk::of_device(path, budget)
        }
    })
}
