//! `/dev/fuse`.

use super::{Received, Transport};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A descriptor of the device: the session's first, or a clone of it.
pub(crate) struct Device {
    fd: Arc<OwnedFd>,
    /// The descriptor is in this mode; None: not known. It is only changed by the one worker that owns it.
    nonblocking: Option<bool>,
    /// Nobody else reads from this descriptor.
    own: bool,
}

impl Device {
    pub(crate) const fn new(fd: Arc<OwnedFd>, own: bool) -> Self {
        Self { fd, nonblocking: None, own }
    }

    fn set_nonblocking(&mut self, wanted: bool) -> Result<(), Errno> {
        if self.nonblocking != Some(wanted) && self.own {
            let mut flags = rustix::fs::fcntl_getfl(&*self.fd)?;
            flags.set(OFlags::NONBLOCK, wanted);
            rustix::fs::fcntl_setfl(&*self.fd, flags)?;
            self.nonblocking = Some(wanted);
        }
        Ok(())
    }

    fn read(&self, buf: &mut [u8]) -> Result<Received, Errno> {
        match rustix::io::read(&*self.fd, buf) {
            Ok(0) => Ok(Received::Closed),
            Ok(len) => Ok(Received::Request(len)),
            // ENOENT: the request was taken back while it was being read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Received::Nothing),
            // ENODEV: unmounted. ECONNABORTED: aborted through fusectl, or unmounted by force.
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::Closed),
            Err(error) => Err(error),
        }
    }
}

impl Transport for Device {
    fn receive(&mut self, buf: &mut [u8]) -> Result<Received, Errno> {
        self.set_nonblocking(false)?;
        self.read(buf)
    }

    fn spin(&mut self, buf: &mut [u8], limit: Duration) -> Result<Received, Errno> {
        if !self.own {
            return Ok(Received::Nothing);
        }
        self.set_nonblocking(true)?;
        let begin = Instant::now();
        loop {
            let received = self.read(buf)?;
            if received != Received::Nothing || begin.elapsed() >= limit {
                return Ok(received);
            }
        }
    }

    fn reply(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        loop {
            match rustix::io::write(&*self.fd, bytes) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
