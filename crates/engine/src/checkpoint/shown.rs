//! An upper layer in a store on a zoned device, as it lies there: shown by the service that has the store open, for it is walked like one that is a
//! directory.

use super::apart::Apart;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vellum_fuse::MountOptions;
use vellum_service::Failure;
use vellum_service::layers::zoned::ZonedLayer;
use vellum_service::store_door::{Door, Knock};

/// It is shown as long as somebody has something of it open.
#[derive(Debug)]
pub(super) struct Shown(Apart);

impl Shown {
    /// Asks the service. `beside`: a directory where one is made for a moment.
    pub(super) fn new(layer: &ZonedLayer, beside: &Path) -> Result<Self, Failure> {
        let failed = |why: &dyn std::fmt::Display| {
            Failure::system(format!("upper layer {layer}: its service does not show it: {why}"))
        };
        let door = match Door::knock(layer.device(), false) {
            Knock::In(door) => door,
            Knock::Nobody => return Err(failed(&"it has ended, or lets nobody in")),
            Knock::No(why) => return Err(failed(&why)),
        };
        let options = MountOptions { source: "vellum-layer".to_owned(), ..MountOptions::default() };
        let (apart, mounted) = Apart::new(options, beside).map_err(|e| failed(&e))?;
        door.show(layer.path().as_os_str().as_bytes(), mounted.device.as_fd()).map_err(|e| failed(&e))?;
        Ok(Self(apart))
    }

    /// A path to it, for programs of this user.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}
