//! How requests come and replies go.
//!
//! [`Transport`] is the boundary: a worker owns one, and knows nothing else of the kernel. Today there is
//! [`dev`] (`/dev/fuse`: a read per request, a write per reply).
//!
//! io_uring has its place beside it, as `uring.rs`: an implementation owns the ring of one CPU, whose entries
//! carry header and payload in buffers of its own. `reply` then fills in the commit of the entry that the last
//! `receive` handed out, and the next `wait` submits it and waits, one system call for both. INIT,
//! INTERRUPT, FORGET and notifications stay on the device, so a session with rings keeps one device worker.

mod dev;

pub(crate) use dev::Device;

use rustix::io::Errno;
use std::time::Duration;

/// What became of waiting for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    /// A request of so many bytes lies in the buffer.
    Request(usize),
    /// Nothing, though the connection lives: try again.
    Nothing,
    /// The mount has gone.
    Closed,
}

/// One worker's way to the kernel.
pub(crate) trait Transport {
    /// Takes a request if there is one; [`ReceiveOutcome::Nothing`] if not.
    fn receive(&mut self, buf: &mut [u8]) -> Result<ReceiveOutcome, Errno>;
    /// Waits until there may be a request, asleep, for at most so long (None: for ever). False: none has come.
    fn wait(&mut self, limit: Option<Duration>) -> Result<bool, Errno>;
    /// Waits for a request, awake, for at most this long; [`ReceiveOutcome::Nothing`] when none came.
    fn spin(&mut self, buf: &mut [u8], limit: Duration) -> Result<ReceiveOutcome, Errno>;
    /// Sends a reply, header included. ENOENT: nobody waits for it any more.
    fn reply(&mut self, bytes: &[u8]) -> Result<(), Errno>;
}
