//! A restored container's own network: CRIU leaves its network namespace empty when a runtime calls it, with the loopback interface down.
//! The runtime runs a hook when the namespaces are there and no process is yet, and that brings the interface up.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use vellum_service::Failure;

/// The subcommand of `vellum` that is the hook.
pub const HOOK: &str = "internal-loopback";
/// The largest state that a runtime says, in bytes.
const STATE_MAX: u64 = 1 << 20;
/// The first interface of every network namespace.
const LOOPBACK: i32 = 1;

/// From `<linux/rtnetlink.h>` and `<linux/netlink.h>`.
const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;

/// What a runtime tells a hook about the container.
#[derive(Deserialize)]
struct State {
    pid: u32,
}

/// Brings the loopback interface of the container up of which `from` has the state.
pub fn bring_up(from: impl Read) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::system("the container's loopback interface").because(e);
    let mut text = Vec::new();
    from.take(STATE_MAX).read_to_end(&mut text).map_err(failed)?;
    let state: State = serde_json::from_slice(&text).map_err(|e| failed(e.into()))?;
    let network = File::open(format!("/proc/{}/ns/net", state.pid)).map_err(failed)?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| failed(e.into()))?;
    up().map_err(failed)
}

/// One request by which the kernel brings it up, and the kernel's answer.
fn up() -> io::Result<()> {
    // Without a protocol: NETLINK_ROUTE is 0.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sendto(&socket, &request(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0_u8; 256];
    let (_, len) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
    answered(answer.get(..len).unwrap_or_default())
}

/// `nlmsghdr` and `ifinfomsg`.
fn request() -> [u8; 32] {
    let mut message = [0; 32];
    message[0..4].copy_from_slice(&32_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    message[20..24].copy_from_slice(&LOOPBACK.to_ne_bytes());
    message[24..28].copy_from_slice(&IFF_UP.to_ne_bytes());
    message[28..32].copy_from_slice(&IFF_UP.to_ne_bytes());
    message
}

/// `nlmsgerr`: a negative error, or 0.
fn answered(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, error) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
        _ => Err(io::Error::other("the kernel's answer is none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood() {
        let answer = |kind: u16, error: i32| {
            let mut bytes = [0_u8; 36];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[16..20].copy_from_slice(&error.to_ne_bytes());
            answered(&bytes)
        };
        assert!(answer(NLMSG_ERROR, 0).is_ok());
        assert_eq!(answer(NLMSG_ERROR, -1).unwrap_err().raw_os_error(), Some(1));
        assert!(answer(RTM_NEWLINK, 0).is_err() && answered(&[]).is_err());
    }
}
