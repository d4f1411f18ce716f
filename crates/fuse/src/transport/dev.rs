//! `/dev/fuse`.

use super::{Received, Transport};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A descriptor of the device: the session's first, or a clone of it.
pub(crate) struct Device(pub(crate) Arc<OwnedFd>);

impl Transport for Device {
    fn receive(&mut self, buf: &mut [u8]) -> Result<Received, Errno> {
        match rustix::io::read(&self.0, buf) {
            Ok(0) => Ok(Received::Closed),
            Ok(len) => Ok(Received::Request(len)),
            // ENOENT: the request was taken back while it was being read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Received::Nothing),
            // ENODEV: unmounted. ECONNABORTED: aborted through fusectl, or unmounted by force.
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::Closed),
            Err(error) => Err(error),
        }
    }

    fn reply(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        loop {
            match rustix::io::write(&*self.0, bytes) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
