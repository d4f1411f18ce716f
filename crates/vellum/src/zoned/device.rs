//! What is refused about objects, in words; `vellum-checkpoint` opens devices.

use crate::options::quote;
pub(super) use vellum_checkpoint::zoned_device::{open, refused, store, store_on};
use vellum_service::Failure;
use vellum_zoned::store::Error;

/// Why something was not done with an object.
pub(super) fn of_object(name: &[u8], error: Error) -> Failure {
    let line = format!("object {}", quote(name));
    match error {
        Error::NotFound => {
            Failure::input(format!("{line}: no such object")).remedy("vellum zoned list shows all")
        }
        Error::BadName => Failure::input(format!("{line}: a name has 1 to 255 bytes")),
        Error::NoSpace => {
            Failure::system(format!("{line}: the device is full")).remedy("vellum zoned remove makes room")
        }
        error => Failure::system(line).because(error),
    }
}
