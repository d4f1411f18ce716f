//! A program that has a ring: one thread serves it, as long as it lives.
//!
//! Who it is, is taken from the kernel once, when it connects. A program that becomes somebody else begins anew; one that does not is
//! noticed with its next call, for the kernel says who the process is now.

use crate::calls::{self, ClientDir};
use crate::inflight_fds::Line;
use crate::landlock_proof::Proof;
use crate::server::RingServer;
use crate::tokens::Prover;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vellum_ring::files::{OPEN, PROVE, REOPEN, SLOT_BYTES, SLOTS};
use vellum_ring::{Call, Layout, Linux, Response, Session};
use vellum_sys::cpu_latency::Burst;
use vellum_sys::{Ids, SharedRegion};
use vellum_vfs::{Client, Handout, HandoutError, Progress};

/// How long to look for the next call before sleeping, in nanoseconds: longer than a program takes to write a small file. Not at all
/// while processors are kept awake: between two calls there is often a request to a worker, which needs the processor.
const SPIN: u64 = 50_000;
/// How often there is a look whether the program is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Directories that a program has entered.
const ENTERED_MAX: usize = 64;

pub(crate) struct Program<'a, T: Handout> {
    pub(crate) server: &'a RingServer<T>,
    pub(crate) who: Prover,
    process: Process,
    line: Line,
    /// That no domain holds it.
    pub(crate) proof: Proof,
    pub(crate) entered: VecDeque<ClientDir<T>>,
    /// The last number that was given.
    next: u64,
}

fn other(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(what.to_string())
}

/// Makes a ring and serves a program over it, until it is gone, or is not who it was. `give` is shown the ring's memory, and comes back
/// with the connection of a program that has it. `idle` is called once, when the program asks for nothing.
pub(crate) fn serve<T: Handout>(
    server: &RingServer<T>,
    give: impl FnOnce(BorrowedFd<'_>) -> io::Result<Line>,
    idle: impl FnOnce(),
) -> io::Result<()> {
    let layout = Layout::new(SLOTS, SLOT_BYTES).map_err(other)?;
    let memory = SharedRegion::create(c"vellum-ring", layout.bytes())?;
    let region = memory.region().ok_or(Errno::FAULT)?;
    let session = Session::create(region, layout, NonZeroU16::MIN, Linux).map_err(other)?;
    let _ends = SessionCloser(&session);
    let ring = session.ring().ok_or(Errno::INVAL)?;
    let line = give(memory.as_fd())?;
    let socket = line.fd()?;
    let peer = vellum_sys::peer(socket)?;
    let number = peer.process.ok_or(Errno::SRCH)?;
    let who = Prover { uid: peer.uid, gid: peer.gid, process: number.unsigned_abs() };
    let process = Process::of_peer(socket, number)?;
    // What it has asked, which is known.
    let _ = recv(socket, &mut [0; 8], RecvFlags::DONTWAIT);
    let mut poller = ring.poller();
    let mut idle = Some(idle);
    let mut program =
        Program { server, who, process, line, proof: Proof::default(), entered: VecDeque::new(), next: 0 };
    let mut looked = Instant::now();
    let mut burst = Burst::new(Arc::clone(&server.latency));
    loop {
        poller.note_core(Linux.core());
        if let Some(call) = poller.poll_for(if burst.is_awake() { 0 } else { SPIN }) {
            burst.call(|| server.holds_latency());
            if !program.process.is(program.who) {
                call.reply(Response::status(calls::status(HandoutError::Kernel)));
                break;
            }
            program.answer(call)?;
            continue;
        }
        if let Some(idle) = idle.take() {
            idle();
        }
        program.line.note_idle();
        let patience = if burst.pause() { Burst::PATIENCE } else { LOOK };
        poller.sleep(Some(patience.as_nanos() as u64));
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            if program.is_gone() {
                break;
            }
            program.entered.retain(ClientDir::is_served);
        }
    }
    Ok(())
}

/// Closes a session when the thread that serves it ends, in whatever way: no call waits for an answer that nobody gives.
struct SessionCloser<'a>(&'a Session<'a, Linux>);

impl Drop for SessionCloser<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// How a process is held.
enum Process {
    /// By a descriptor that says who it is, from Linux 6.13 on.
    Itself(OwnedFd),
    /// By its directory in /proc, which belongs to who it is.
    Directory(OwnedFd),
}

impl Process {
    /// The process at the other end of a socket, which has this number.
    fn of_peer(socket: BorrowedFd<'_>, number: i32) -> io::Result<Self> {
        if let Ok(process) = vellum_sys::peer_process(socket)
            && vellum_sys::ids_of(process.as_fd()).is_ok()
        {
            return Ok(Self::Itself(process));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::Directory(openat(CWD, format!("/proc/{number}"), flags, Mode::empty())?))
    }

    /// Whether it is somebody now. A process that has died is nobody.
    fn is(&self, who: Prover) -> bool {
        let ids = (who.uid, who.gid);
        match self {
            Self::Itself(process) => {
                vellum_sys::ids_of(process.as_fd()).is_ok_and(|now| now == Ids { effective: ids, files: ids })
            }
            Self::Directory(process) => statat(process, "task", AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|now| (now.st_uid, now.st_gid) == ids),
        }
    }
}

/// The ring's memory says how far the service had come: a client whose service dies reads it there.
struct RingProgress<'a, 'b>(&'a Call<'b, Linux>);

impl Progress for RingProgress<'_, '_> {
    fn begins(&self) {
        self.0.announce(true);
    }

    fn has_failed(&self) {
        self.0.announce(false);
    }
}

impl<T: Handout> Program<'_, T> {
    /// It, as trees see it.
    pub(crate) fn client<'a>(&self, progress: &'a dyn Progress) -> Client<'a> {
        Client { uid: self.who.uid, gid: self.who.gid, progress }
    }

    fn is_gone(&self) -> bool {
        let Ok(fd) = self.line.fd() else { return true };
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
        let gone = poll(&mut polled, Some(&Timespec::default())).is_ok_and(|n| n > 0);
        gone || !self.process.is(self.who)
    }

    fn answer(&mut self, call: Call<'_, Linux>) -> io::Result<()> {
        let mut data = [0; SLOT_BYTES as usize];
        let request = *call.request();
        let len = call.read_data(0, &mut data).min(request.len as usize);
        let data = data.get(..len).unwrap_or_default();
        // Before anything is done of which a descriptor would come.
        if matches!(request.opcode, OPEN | REOPEN | PROVE) && !self.line.reserve_send() {
            call.reply(Response::status(calls::status(HandoutError::Kernel)));
            return Ok(());
        }
        let response = match calls::carry_out(self, &request, data, &RingProgress(&call)) {
            Ok(calls::CallOutcome::Values(values)) => Ok(Response { status: 0, len: 0, values }),
            Ok(calls::CallOutcome::Directory(entered)) => {
                Ok(Response { status: 0, len: 0, values: self.enter(entered) })
            }
            Ok(calls::CallOutcome::File(file)) => {
                self.hand_out(&file).map(|tag| Response { status: 0, len: 0, values: [tag, 0, 0, 0, 0, 0] })
            }
            Err(refused) => Ok(Response::status(calls::status(refused))),
        };
        let (response, outcome) = match response {
            Ok(response) => (response, Ok(())),
            Err(error) => (Response::status(calls::status(HandoutError::Kernel)), Err(error)),
        };
        call.reply(response);
        outcome
    }

    /// Sends a descriptor, and says by which tag it comes. Whoever does not take his descriptors is served no more.
    fn hand_out(&mut self, descriptor: &OwnedFd) -> io::Result<u64> {
        let tag = self.number();
        self.line.send(&tag.to_ne_bytes(), &[descriptor.as_fd()])?;
        Ok(tag)
    }

    /// A number that nothing else of this program has.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The directory that has been entered under a number.
    pub(crate) fn find(&mut self, number: u64) -> Option<&ClientDir<T>> {
        let at = self.entered.iter().position(|entered| entered.number == number)?;
        // Those that are not asked for come to lie in front, and are the first to go.
        if at >= self.entered.len() / 2 {
            return self.entered.get(at);
        }
        let entered = self.entered.remove(at)?;
        self.entered.push_back(entered);
        self.entered.back()
    }

    /// Enters a directory, which gets a number; what is to be answered.
    fn enter(&mut self, mut entered: ClientDir<T>) -> [u64; 6] {
        entered.number = self.number();
        let values = entered.values();
        if self.entered.len() >= ENTERED_MAX {
            self.entered.pop_front();
        }
        self.entered.push_back(entered);
        values
    }
}
