//! The store that checkpoints are in, opened by this command; or that of a mount's service, which lets it in.

use super::io_error;
use crate::zoned_device;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use vellum_service::Failure;
use vellum_service::store_server::{ConnectOutcome, PREFIX, StoreClient};
use vellum_zoned::device::emulator::Pace;
use vellum_zoned::device::{Access, FindError, ZonedDevice, find};
use vellum_zoned::store::{Class, Store, Writer};

/// How long is waited where a device is in use and nobody lets in: a mount may just be coming, or going.
const COMING: Duration = Duration::from_millis(500);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// A store, and what is done with checkpoints there.
#[derive(Clone, Debug)]
pub(super) enum StoreAccess {
    /// This command's own.
    Own(Store, Arc<dyn ZonedDevice>),
    /// That of a service.
    Client(StoreClient),
}

/// Why there is none.
pub(super) enum StoreUnavailable {
    /// As of any device.
    Refused(Failure),
    /// It is in use, and this is what somebody says who has it.
    Busy(io::Error),
}

impl StoreAccess {
    /// Opens the store on a device, or finds who has it open.
    pub(super) fn open(device: &Path, access: Access) -> Result<Self, StoreUnavailable> {
        let end = Instant::now() + COMING;
        loop {
            match find(device, access, Pace::None) {
                Ok(found) => {
                    let store =
                        zoned_device::store_on(&found, device, access).map_err(StoreUnavailable::Refused)?;
                    return Ok(Self::Own(store, found.device));
                }
                Err(FindError::Busy) => match StoreClient::connect(device, access == Access::Write) {
                    ConnectOutcome::In(client) => return Ok(Self::Client(client)),
                    ConnectOutcome::No(why) => return Err(StoreUnavailable::Busy(why)),
                    ConnectOutcome::Nobody if Instant::now() < end => thread::sleep(PAUSE),
                    ConnectOutcome::Nobody => {
                        return Err(StoreUnavailable::Refused(zoned_device::refused(
                            device,
                            FindError::Busy,
                        )));
                    }
                },
                Err(error) => return Err(StoreUnavailable::Refused(zoned_device::refused(device, error))),
            }
        }
    }

    /// Checkpoints: names of objects, and their sizes in bytes.
    pub(super) fn list(&self) -> io::Result<Vec<(Vec<u8>, u64)>> {
        match self {
            Self::Own(store, _) => {
                let all = store.list().into_iter();
                let images = all.filter(|entry| {
                    entry.class == Class::Checkpoint && entry.name.starts_with(PREFIX.as_bytes())
                });
                Ok(images.map(|entry| (entry.name, entry.size)).collect())
            }
            Self::Client(client) => client.list(),
        }
    }

    /// The size of an object in bytes; None: there is none of this name.
    pub(super) fn size(&self, name: &[u8]) -> io::Result<Option<u64>> {
        let size = match self {
            Self::Own(store, _) => store.entry(name).map(|entry| entry.size).map_err(io_error),
            Self::Client(client) => client.entry(name),
        };
        match size {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            size => size.map(Some),
        }
    }

    /// Reads from an offset on, as much as there is at once, and says how much that was.
    pub(super) fn read(&self, name: &[u8], at: u64, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Own(store, _) => store.read(name, at, into).map_err(io_error),
            Self::Client(client) => client.read(name, at, into),
        }
    }

    /// Removes an object.
    pub(super) fn remove(&self, name: &[u8]) -> io::Result<()> {
        match self {
            Self::Own(store, _) => store.remove(name).map_err(io_error),
            Self::Client(client) => client.remove(name),
        }
    }

    /// Makes everything durable, and that the zones of what is gone are empty.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self {
            Self::Own(store, _) => store.sync().and_then(|()| store.flush_device()).map_err(io_error),
            Self::Client(client) => client.sync(),
        }
    }

    /// Has the medium take what was written.
    pub(super) fn flush(&self) -> io::Result<()> {
        match self {
            Self::Own(_, device) => Ok(device.flush().map_err(|e| io_error(e.into()))?),
            Self::Client(client) => client.flush(),
        }
    }

    /// Begins an image.
    pub(super) fn image(&self) -> io::Result<Image> {
        Ok(match self {
            Self::Own(store, _) => Image::Own(Box::new(store.writer(Class::Checkpoint).map_err(io_error)?)),
            Self::Client(client) => {
                client.begin()?;
                Image::Client(client.clone())
            }
        })
    }
}

/// An image that is being written.
pub(super) enum Image {
    Own(Box<Writer>),
    Client(StoreClient),
}

impl Image {
    /// Appends.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Own(writer) => writer.write(bytes).map_err(io_error),
            Self::Client(client) => client.write(bytes),
        }
    }

    /// Gives it its name. One that has this name is gone.
    pub(super) fn commit(self, name: &[u8]) -> io::Result<()> {
        match self {
            Self::Own(writer) => writer.commit(name).map_err(io_error),
            Self::Client(client) => client.commit(name),
        }
    }

    /// It is gone.
    pub(super) fn abandon(self) {
        if let Self::Client(client) = self {
            // Where this is not heard, the end of the connection is.
            let _ = client.abandon();
        }
    }
}
