//! Calls over shared memory between a client process and the filesystem service.
//!
//! One region of memory per session, made by the service and sealed, mapped by both. Threads of the client put requests
//! into *slots*; the service takes them, answers in place, and nobody enters the kernel unless somebody sleeps.
//!
//! The client is hostile. What the service believes it keeps in memory of its own: the layout, the epoch, which slots it
//! works on. From the shared memory it reads a word once and checks the copy. Whatever a client writes there, and when,
//! it can hurt only itself.
//!
//! # Layout
//!
//! ```text
//! region    [magic version 1 slots data bytes][epoch]               128 bytes, written by the service
//!           [bell core][hints: a bit for each slot]                 128 bytes
//!           slot 0, slot 1, ...
//!           data areas, of slot 0 first                             from a multiple of 4096 on
//!
//! slot      [state spin][request head][response head][-]            4 lines of 64 bytes
//!
//! request   opcode 16 | flags 16 | length 32,  tag,  5 arguments,  core
//! response  errno 32 | length 32,              tag,  6 values
//! ```
//!
//! Each line is written by one side at a time, and a client that spins on `state` does not disturb the service that writes
//! the response. Request and response use the same data area. See [`Layout`].
//!
//! # States of a slot
//!
//! The state word has the epoch in its upper half, and a flag that says that the client sleeps on it. Every change is a
//! compare-exchange that expects the epoch, so that after the end of a session nobody changes anything any more.
//!
//! | state | means | who may change it | to |
//! | --- | --- | --- | --- |
//! | EMPTY | free | a client that claims it | WRITING |
//! | WRITING | a client fills it | that client | VALID; EMPTY (changed its mind) |
//! | VALID | the request is complete | the service | TAKEN |
//! | | | that client, giving up | EMPTY |
//! | TAKEN | the service works on it | the service | DONE |
//! | | | that client, giving up | ABANDONED |
//! | ABANDONED | nobody waits for the answer | the service, when done | EMPTY |
//! | DONE | the response is complete | that client, when it has read it | EMPTY |
//! | LOST | the session is closed | nobody | |
//! | VALID, TAKEN | | that client, going to sleep | the same with the flag |
//! | all | | the service, closing | LOST |
//!
//! # Orderings
//!
//! What is handed over is written with relaxed stores and published by a compare-exchange with release; who takes it does
//! so by an acquire. For a request that is VALID and TAKEN, for a response DONE and the client's look, for a free slot
//! EMPTY and the next WRITING. The bell is the one place where each side writes one word and reads another: both put a
//! sequentially consistent fence in between (see [`Poller::sleep`]).
//!
//! # Limits
//!
//! A hostile client can keep the service busy with empty calls, as with any other kind of call. It can make holes in the memory, which the service's next access fills with
//! zeros on the service's account: no more than the region's size. It can move a sleeping service's wait to another word
//! (`FUTEX_REQUEUE`), so a service sleeps with a time out. A thread of a client that dies
//! with a slot in WRITING or DONE loses that slot to its own process. After `fork` both processes may use the session;
//! a call under way belongs to the parent.
//!
//! # Where it runs
//!
//! Both ends use it: the service, and a library inside of arbitrary programs with any libc. So there is no std, no
//! allocation and no panic, and system calls are made without libc. Only `region` has unsafe code. x86-64 and
//! aarch64; each has atomic words of 64 bits.
//!
//! Examples: `examples/session.rs` makes the memory and calls through it; `examples/call_cost.rs` measures.
#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod bits;
mod call;
mod client;
mod copy;
pub mod files;
mod fnv;
mod head;
mod layout;
#[cfg(not(loom))]
mod linux;
pub mod memory;
#[cfg(loom)]
mod model;
mod pending_call;
mod platform;
mod poller;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "references from addresses, each with its reason")]
mod region;
mod service_ring;
mod session;
mod state;
pub mod sync;
mod view;

pub use call::Call;
pub use client::{AttachError, CallError, Caller, Client, Slot};
pub use fnv::fnv1a;
pub use head::{CORE_UNKNOWN, Request, Response};
pub use layout::{DATA_MAX, Layout, LayoutError, MAGIC, SLOTS_MAX, VERSION};
#[cfg(not(loom))]
pub use linux::Linux;
#[cfg(loom)]
pub use model::{Model, Region};
pub use pending_call::{Answer, PendingCall, ServiceProgress, WaitError};
pub use platform::{Platform, WakeReason};
pub use poller::{Poller, SleepOutcome};
#[cfg(not(loom))]
pub use region::Region;
pub use service_ring::Ring;
pub use session::{Session, TooSmall};
