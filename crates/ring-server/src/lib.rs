//! The ring server: programs that have connected to a socket are given files of a tree themselves, and memory to read.
//!
//! `handshake` says what there is and hears what a program wants, `program` serves one over its ring, `calls` and `setattr` read what it
//! asks for and call [`vellum_vfs::Handout`], `landlock_proof` and `tokens` are what it shows before, `inflight` bounds what was sent and has not
//! been taken, and [`RingServer`] holds it all together.
//!
//! Which mounts there are, and who listens at the socket, is the service's to know ([`Mount`]). What a program may do is the tree's.
#![forbid(unsafe_code)]

mod calls;
mod counts;
mod handshake;
mod inflight_fds;
mod landlock_proof;
mod mount;
mod program;
mod server;
mod setattr;
mod tokens;

pub use handshake::PendingClients;
pub use landlock_proof::Room;
pub use mount::{Entrance, Files, Mount, Readable};
pub use server::RingServer;
