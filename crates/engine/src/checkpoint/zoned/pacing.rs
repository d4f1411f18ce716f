//! How fast an object is written to a store: its device is the medium.

use crate::checkpoint::pace::Pace;
use crate::checkpoint::pacing::{self, Medium};
use std::path::Path;
use std::sync::Arc;
use vellum_zoned::device::ZonedDevice;
use vellum_zoned::paced::Disk;
use vellum_zoned::store::Error;

pub(super) type Pacing = pacing::Pacing<Arc<dyn ZonedDevice>>;

impl Medium for Arc<dyn ZonedDevice> {
    type Error = Error;

    fn flush(&self) -> Result<(), Error> {
        Ok(ZonedDevice::flush(&**self)?)
    }
}

/// As is asked for, on the device that `path` names.
pub(super) fn pacing(pace: Pace, path: &Path, device: &Arc<dyn ZonedDevice>) -> Pacing {
    Pacing::on(pace, path, Arc::clone(device), |budget| {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        if path.is_file() {
            Disk::of(above.unwrap_or(Path::new(".")), budget)
        } else {
            Disk::of_device(path, budget)
        }
    })
}
