//! How the service makes the memory of a session, and one call through it. Both ends are in this process.
//!
//! `cargo run -p vellum-ring --example session`
#![allow(clippy::unwrap_used, reason = "an example that cannot go on should stop")]
#![allow(unsafe_code, reason = "a mapping")]

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::num::NonZeroU16;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::thread;
use vellum_ring::{Caller, Client, Layout, Linux, Region, Request, Response, Session};

fn map(memory: impl AsFd, bytes: usize) -> Region<'static> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap(null_mut(), bytes, both, MapFlags::SHARED, memory, 0) }.unwrap();
    // SAFETY: mapped until the process ends, sealed, and touched by way of this region only.
    unsafe { Region::new(NonNull::new(base.cast()).unwrap(), bytes) }.unwrap()
}

fn main() {
    // The service: one ring, eight calls at a time, 4 KiB each. Without the seals a client could cut the memory off, and
    // the service would end with SIGBUS.
    let layout = Layout::new(8, 4096).unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("vellum-ring", flags).unwrap();
    ftruncate(&memory, layout.bytes() as u64).unwrap();
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    let session = Session::create(map(&memory, layout.bytes()), layout, NonZeroU16::MIN, Linux).unwrap();
    println!("{layout:?}: {} bytes", layout.bytes());

    // The client, who got the descriptor by a socket, and takes the size from fstat.
    let region = map(&memory, layout.bytes());
    let asker = thread::spawn(move || {
        let client = Client::attach(region, Linux).unwrap();
        let caller = Caller { key: 1, core: Linux.core() };
        let request = Request { opcode: 1, args: [6, 7, 0, 0, 0], ..Request::default() };
        let mut out = [0; 4096];
        let (response, n) =
            client.call(caller, request, b"how much is it?", &mut out, Some(1_000_000_000)).unwrap();
        println!("{}: {}", String::from_utf8_lossy(&out[..n]), response.values[0]);
    });

    let ring = session.ring().unwrap();
    let mut poller = ring.poller();
    while !asker.is_finished() {
        poller.note_core(Linux.core());
        let Some(mut call) = poller.poll_for(10_000) else {
            poller.sleep(Some(10_000_000));
            continue;
        };
        let [a, b, ..] = call.request().args;
        let text = b"it is";
        let len = call.write_data(0, text) as u32;
        call.reply(Response { status: 0, len, values: [a * b, 0, 0, 0, 0, 0] });
    }
    asker.join().unwrap();
    session.close();
}
