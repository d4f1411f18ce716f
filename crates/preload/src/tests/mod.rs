//! The client's side against a service that is made here.

mod service;
mod session;

use crate::shim::attributes;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

static SOCKET: OnceLock<&'static CStr> = OnceLock::new();
/// The device whose directories take tokens.
static UNION: OnceLock<u64> = OnceLock::new();
/// Tokens, and which directory each was set on.
static TOKENS: Mutex<Vec<([u8; 16], PathBuf)>> = Mutex::new(Vec::new());

/// Instead of the one that the environment names.
pub(crate) fn socket() -> Option<&'static CStr> {
    SOCKET.get().copied()
}

/// Instead of what the kernel says of the mount.
pub(crate) fn is_union(device: u64) -> bool {
    UNION.get() == Some(&device)
}

/// Instead of the kernel's answer, which only a mount of the service's has.
pub(crate) fn set_token(fd: i32, token: &[u8; 16]) -> Option<isize> {
    let device = attributes::stat_fd(fd).ok()?.device();
    if UNION.get() != Some(&device) {
        return None;
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    TOKENS.lock().ok()?.push((*token, path));
    Some(0)
}
