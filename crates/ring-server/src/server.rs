//! The ring server of a service: its mounts, and the rings of all programs.

use crate::handshake::{self, PendingClients};
use crate::inflight_fds::{InflightFds, Line};
use crate::landlock_proof::Room;
use crate::mount::{Files, Mount};
use crate::program;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use vellum_ring::files::{MOUNT_NUMBERS, RING_WANTED};
use vellum_sys::cpu_latency::CpuLatency;
use vellum_vfs::Handout;

/// Rings at the same time.
const PROGRAMS_MAX: usize = 1024;

/// A ring that no program has yet.
struct Spare {
    memory: OwnedFd,
    /// To whom it is given; the thread of the ring waits for him.
    give: SyncSender<Line>,
}

struct Books<T> {
    mounts: BTreeMap<u64, Mount<T>>,
    /// The last number that a mount was given.
    last: u64,
    /// Rings.
    programs: usize,
    /// A ring for the next program.
    spare: Option<Spare>,
    /// Somebody is making one.
    spare_comes: bool,
}

/// The ring server of a service whose trees are `T`. A thread serves each program that has a ring, as long as it lives.
pub struct RingServer<T> {
    books: Mutex<Books<T>>,
    /// What programs were sent and have not taken.
    inflight: Arc<InflightFds>,
    /// Where programs show what no domain keeps them from; None: they cannot, and are given nothing.
    pub(crate) room: Option<Arc<Room>>,
    /// Keeps processors awake for rings.
    pub(crate) latency: Arc<CpuLatency>,
}

impl<T: Handout> RingServer<T> {
    /// One without mounts. Without a `room` no files are handed out.
    #[must_use]
    pub fn new(room: Option<Arc<Room>>, latency: Arc<CpuLatency>) -> Arc<Self> {
        let books = Books { mounts: BTreeMap::new(), last: 0, programs: 0, spare: None, spare_comes: false };
        Arc::new(Self { books: Mutex::new(books), inflight: Arc::default(), room, latency })
    }

    /// Lets programs come to a mount; its number here.
    pub fn add(&self, mount: Mount<T>) -> u64 {
        let mut books = self.books.lock();
        books.last += 1;
        let number = books.last;
        books.mounts.insert(number, mount);
        number
    }

    /// A mount is served no more.
    pub fn remove(&self, number: u64) {
        let gone = self.books.lock().mounts.remove(&number);
        drop(gone);
    }

    /// To be called now and then: closes connections that are over, as far as nobody has to be waited for.
    pub fn sweep(&self) {
        self.inflight.sweep();
    }

    /// Whether no further program can be heard.
    pub fn is_full(&self) -> bool {
        self.inflight.is_full()
    }

    /// Greets one program, if there is one at the socket, which is not waited for. `namespace`: the service's user namespace.
    pub fn greet(
        &self,
        listener: &UnixListener,
        namespace: u64,
        waiting: &mut PendingClients,
    ) -> io::Result<()> {
        let (program, outcome) = match handshake::answer(listener, &self.inflight, &self.numbers(), namespace)
        {
            Ok(program) => (Some(program), Ok(())),
            Err(error) => (None, Err(error)),
        };
        waiting.extend(program);
        outcome
    }

    /// Gives those who have been greeted what they have asked for by now.
    pub fn serve_waiting(self: &Arc<Self>, waiting: &mut PendingClients) {
        waiting.look(|program, asked| self.give(program, asked));
    }

    /// What is found where files are handed out, at the newest mount that has it.
    pub(crate) fn find<R>(&self, what: impl FnMut(&Files<T>) -> Option<R>) -> Option<R> {
        self.books.lock().mounts.values().rev().filter_map(|mount| mount.files.as_ref()).find_map(what)
    }

    /// Whether processors are kept awake for one of the mounts.
    pub(crate) fn holds_latency(&self) -> bool {
        self.books.lock().mounts.values().any(|mount| mount.keep_awake)
    }

    /// What a greeting says of the mounts, of the newest first.
    fn numbers(&self) -> Vec<[u64; MOUNT_NUMBERS]> {
        let books = self.books.lock();
        let files = books.mounts.values().rev().filter_map(|mount| mount.files.as_ref());
        files.filter(|files| files.is_served()).map(|files| files.numbers).collect()
    }

    /// Gives a program what it asks for.
    fn give(self: &Arc<Self>, mut program: Line, asked: u64) {
        if asked == RING_WANTED {
            return self.give_ring(program);
        }
        let memory = {
            let books = self.books.lock();
            let mut all = books.mounts.values().filter_map(|mount| mount.memory.as_ref());
            all.find(|memory| memory.id == asked).cloned()
        };
        if let Some(Err(error)) = memory.map(|memory| handshake::send_memory(&mut program, &memory)) {
            tracing::debug!(%error, "a program that wanted a memory");
        }
    }

    /// Serves a program over a ring: the one that has been made beforehand, if there is one.
    fn give_ring(self: &Arc<Self>, mut program: Line) {
        if self.find(|files| files.is_served().then_some(())).is_none() {
            return;
        }
        let spare = {
            let mut books = self.books.lock();
            // Whoever was making one may have failed.
            books.spare_comes = false;
            books.spare.take()
        };
        let Some(spare) = spare else {
            self.make_ring(move |_, memory| {
                program.send_first(RING_WANTED, memory)?;
                Ok(program)
            });
            return;
        };
        // The memory first: the program goes on with it while the thread wakes up.
        if let Err(error) = program.send_first(RING_WANTED, spare.memory.as_fd()) {
            tracing::debug!(%error, "a program that wanted a ring");
            self.books.lock().spare = Some(spare);
        } else if spare.give.send(program).is_err() {
            tracing::debug!("a ring has gone");
        }
    }

    /// Makes a ring for the next program that asks: the most of what a session costs has been done then.
    fn prepare_spare_ring(self: &Arc<Self>) {
        {
            let mut books = self.books.lock();
            if books.spare.is_some() || std::mem::replace(&mut books.spare_comes, true) {
                return;
            }
        }
        self.make_ring(|server, memory| {
            let (give, given) = sync_channel(1);
            let spare = Spare { memory: memory.try_clone_to_owned()?, give };
            {
                let mut books = server.books.lock();
                books.spare = Some(spare);
                books.spare_comes = false;
            }
            given.recv().map_err(io::Error::other)
        });
    }

    /// Serves a program over a new ring, unless there are as many as there may be. `give` is shown the ring's memory, and comes back with
    /// the connection of a program that has it.
    fn make_ring(
        self: &Arc<Self>,
        give: impl FnOnce(&Self, BorrowedFd<'_>) -> io::Result<Line> + Send + 'static,
    ) {
        {
            let mut books = self.books.lock();
            if books.programs >= PROGRAMS_MAX {
                return;
            }
            books.programs += 1;
        }
        // Whatever becomes of the thread.
        let counted = RingGuard(Arc::clone(self));
        let started = std::thread::Builder::new().name("vellum-program".into()).spawn(move || {
            let server = &counted.0;
            if let Err(error) =
                program::serve(server, |memory| give(server, memory), || server.prepare_spare_ring())
            {
                tracing::debug!(%error, "a program with a ring");
            }
        });
        if let Err(error) = started {
            tracing::debug!(%error, "a thread for a program");
        }
    }
}

/// A ring that is counted until this is dropped.
struct RingGuard<T>(Arc<RingServer<T>>);

impl<T> Drop for RingGuard<T> {
    fn drop(&mut self) {
        self.0.books.lock().programs -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::tests::receive;
    use crate::mount::Entrance;
    use crate::tokens::Prover;
    use rustix::fs::renameat;
    use std::ffi::CStr;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};
    use vellum_ring::files::{ENTER, PROOF_FROM, PROOF_TO, PROVE, TOKEN_BYTES};
    use vellum_ring::{CallError, Caller, Client, Linux, Request, Response};
    use vellum_sys::SharedRegion;
    use vellum_vfs::{DirName, ExportFile, HandoutError, HandoutFlags, Name, NodeId, SetAttr, Verdict};

    type Asker<'a> = vellum_vfs::Client<'a>;
    type At<'a> = DirName<'a, ()>;

    /// A tree that panics when a directory is entered.
    struct Panics;

    impl Handout for Panics {
        type Dir = ();

        fn enter(&self, _: NodeId) -> Verdict<()> {
            // As a panic, and nothing is printed.
            std::panic::resume_unwind(Box::new("asked for by the test"))
        }

        fn ino(&self, (): &()) -> u64 {
            1
        }

        fn node(&self, (): &()) -> NodeId {
            NodeId::ROOT
        }

        fn below(&self, _: &Asker<'_>, (): &(), _: Name<'_>) -> Verdict<NodeId> {
            Err(HandoutError::Kernel)
        }

        fn open(&self, _: &Asker<'_>, _: &At<'_>, _: HandoutFlags) -> Verdict<ExportFile> {
            Err(HandoutError::Kernel)
        }

        fn create(&self, _: &Asker<'_>, _: &At<'_>, _: HandoutFlags, _: u32) -> Verdict<ExportFile> {
            Err(HandoutError::Kernel)
        }

        fn reopen(&self, _: &Asker<'_>, _: NodeId, _: HandoutFlags) -> Verdict<ExportFile> {
            Err(HandoutError::Kernel)
        }

        fn setattr(&self, _: &Asker<'_>, _: &At<'_>, _: &SetAttr, _: bool) -> Verdict<()> {
            Err(HandoutError::Kernel)
        }

        fn mkdir(&self, _: &Asker<'_>, _: &At<'_>, _: u32) -> Verdict<Option<()>> {
            Err(HandoutError::Kernel)
        }

        fn symlink(&self, _: &Asker<'_>, _: &At<'_>, _: &CStr) -> Verdict<()> {
            Err(HandoutError::Kernel)
        }
    }

    fn call(memory: &SharedRegion, opcode: u16, data: &[u8]) -> Result<Response, CallError> {
        let client = Client::attach(memory.region().unwrap(), Linux).map_err(|_| CallError::Gone)?;
        let (caller, request) =
            (Caller { key: 1, core: Linux.core() }, Request { opcode, ..Request::default() });
        client.call(caller, request, data, &mut [], Some(30_000_000_000)).map(|(response, _)| response)
    }

    #[test]
    fn a_panic_closes_one_ring_and_fails_its_calls() {
        let Some(room) = Room::for_test() else { return };
        let (tree, entrance) = (Arc::new(Panics), Arc::<Entrance>::default());
        let server = RingServer::new(Some(room), Arc::default());
        let files = Files {
            tree: Arc::downgrade(&tree),
            entrance: Arc::clone(&entrance),
            numbers: [0; MOUNT_NUMBERS],
        };
        server.add(Mount { memory: None, files: Some(files), keep_awake: false });
        let me = Prover {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            process: std::process::id(),
        };
        for round in 0..3 {
            let (ours, socket) = UnixStream::pair().unwrap();
            server.give_ring(Line::new(Arc::clone(&server.inflight), ours, me.uid));
            let memory = SharedRegion::open(receive(&socket, 1).1.remove(0)).unwrap();
            call(&memory, PROVE, &[]).unwrap();
            let proof = receive(&socket, 1).1.remove(0);
            renameat(&proof, PROOF_FROM, &proof, PROOF_TO).unwrap();
            entrance.tokens.note(me, NodeId::ROOT, &[7; TOKEN_BYTES]).unwrap();
            let answer = call(&memory, ENTER, &[7; TOKEN_BYTES]).map(|response| response.status);
            // The session ends as well; whether its end is seen before the answer is a matter of chance.
            assert!(matches!(answer, Ok(5) | Err(CallError::Gone)), "round {round}: {answer:?}");
            let begun = Instant::now();
            assert_eq!(call(&memory, PROVE, &[]), Err(CallError::Gone), "round {round}: the next call");
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "round {round}: it took {:?}",
                begun.elapsed()
            );
            // The one that no program has yet.
            while server.books.lock().programs > 1 {
                assert!(
                    begun.elapsed() < Duration::from_secs(10),
                    "round {round}: the ring is still counted"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
