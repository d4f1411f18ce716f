//! The server of a store that is open to be written: commands that take and restore checkpoints work through the service that has it.
//!
//! One process at a time writes to a store. While a mount has its upper layer there, that is its service; so
//! a command that finds the device locked connects to a socket of that service and asks for what it would
//! otherwise do itself. The socket is made by whoever mounts, with the right to the device, and handed over
//! like the device: the service itself can make none.
//!
//! `socket_path`: where the socket is; `wire`: what is said; `access_lock`: who may do what at the same time;
//! `server` and `client`: the two ends.

mod access_lock;
mod client;
mod server;
mod socket_path;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{ConnectOutcome, StoreClient};
pub(crate) use server::{is_used, open, wait_until_unused};
pub use socket_path::DeviceId;
pub use wire::{PART_MAX, PREFIX, parse_hostile};

use crate::pool::bind_at;
use std::os::fd::{AsFd, OwnedFd};

/// Removes the sockets that ended services have left.
pub(crate) fn sweep() {
    let dir = socket_path::directory();
    if let Ok(Some(_alone)) = socket_path::lock_sockets(dir.as_deref()) {
        socket_path::sweep(dir.as_deref());
    }
}

/// Makes the socket of a device's store, as whoever mounts, with the right to the device. None: there is
/// none, and commands find the device in use.
pub(crate) fn listen(device: &impl AsFd) -> Option<OwnedFd> {
    let listener = socket_path::make(device).and_then(|path| {
        // Nobody takes it for one that was left, and no other one is left.
        let _alone = socket_path::lock_sockets(path.parent())?;
        socket_path::sweep(path.parent());
        bind_at(&path, 0o600)
    });
    match listener {
        Ok(listener) => Some(listener.into()),
        Err(error) => {
            tracing::debug!(%error, "a store without a socket");
            None
        }
    }
}
