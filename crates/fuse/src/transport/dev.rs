//! `/dev/fuse`.

use super::{ReceiveOutcome, Transport};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A descriptor of the device: the session's first, or a clone of it.
///
/// Nobody sleeps in read(2): that has no end when there is nothing more, and whoever sleeps there keeps the buffer that the kernel may
/// write to. Of several that wait one is woken.
pub(crate) struct Device {
    fd: Arc<OwnedFd>,
    events: OwnedFd,
}

impl Device {
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Result<Self, Errno> {
        let flags = rustix::fs::fcntl_getfl(&*fd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&*fd, flags | OFlags::NONBLOCK)?;
        }
        let events = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&events, &*fd, EventData::new_u64(0), EventFlags::IN | EventFlags::EXCLUSIVE)?;
        Ok(Self { fd, events })
    }

    fn read(&self, buf: &mut [u8]) -> Result<ReceiveOutcome, Errno> {
        match rustix::io::read(&*self.fd, buf) {
            Ok(0) => Ok(ReceiveOutcome::Closed),
            Ok(len) => Ok(ReceiveOutcome::Request(len)),
            // ENOENT: the request was taken back while it was being read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(ReceiveOutcome::Nothing),
            // ENODEV: unmounted. ECONNABORTED: aborted through fusectl, or unmounted by force.
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(ReceiveOutcome::Closed),
            Err(error) => Err(error),
        }
    }
}

impl Transport for Device {
    fn receive(&mut self, buf: &mut [u8]) -> Result<ReceiveOutcome, Errno> {
        self.read(buf)
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<bool, Errno> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut ready = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        match epoll::wait(&self.events, &mut ready[..], limit.as_ref()) {
            Ok(0) => Ok(false),
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn spin(&mut self, buf: &mut [u8], limit: Duration) -> Result<ReceiveOutcome, Errno> {
        let begin = Instant::now();
        loop {
            let received = self.read(buf)?;
            if received != ReceiveOutcome::Nothing || begin.elapsed() >= limit {
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
