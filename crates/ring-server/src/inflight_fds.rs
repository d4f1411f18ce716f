//! Connections of programs: descriptors that were sent and have not been taken, and how a connection is closed.
//!
//! The kernel counts descriptors that are under way against the user who sends them, whoever does not take them, and refuses to send
//! any once there are as many as a process may have open: to all processes of that user, which for root are those of other tenants,
//! too. So a program has one under way at most, all programs together [`MOST`], and a connection with one is kept until it has been taken, for
//! only then it is known.
//!
//! What a program sends may have descriptors with it, and the last close of one may wait for as long as the program likes. Where
//! the kernel does not let it send any, a connection is closed at once; else by a thread of its own.

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use vellum_sys::{has_unread, refuses_rights, send_with};

/// Descriptors that are under way at the same time.
///
/// A user may have one more as long as there are more free ones than that user has. So one user gets half, the next one half of the rest, and
/// whoever has none gets the last one.
const MOST: usize = 64;
/// A place that nobody has.
const FREE: u64 = 0;
/// Threads that close connections, and connections that wait for one.
const CLOSERS: usize = 32;
const WAITING: usize = 256;

/// What is under way.
#[derive(Debug)]
pub(crate) struct InflightFds {
    places: [AtomicU64; MOST],
    /// Connections that are over, with what has not been taken.
    left: Mutex<Vec<(UnixStream, InflightPermit)>>,
    closers: AtomicUsize,
    /// Connections that are to be closed.
    closing: Mutex<Vec<UnixStream>>,
}

/// The right to have one descriptor under way.
#[derive(Debug)]
struct InflightPermit {
    of: Arc<InflightFds>,
    place: usize,
}

impl Drop for InflightPermit {
    fn drop(&mut self) {
        if let Some(place) = self.of.places.get(self.place) {
            place.store(FREE, SeqCst);
        }
    }
}

/// One more, unless there are as many as there may be.
fn add(count: &AtomicUsize, most: usize) -> bool {
    count.fetch_update(SeqCst, SeqCst, |now| (now < most).then_some(now + 1)).is_ok()
}

impl Default for InflightFds {
    fn default() -> Self {
        Self {
            places: std::array::from_fn(|_| AtomicU64::new(FREE)),
            left: Mutex::default(),
            closers: AtomicUsize::new(0),
            closing: Mutex::default(),
        }
    }
}

impl InflightFds {
    fn seat(self: &Arc<Self>, uid: u32) -> Option<InflightPermit> {
        let whose = u64::from(uid) + 1;
        let (own, free) = self.count(whose);
        if own >= free {
            return None;
        }
        let take = |place: &AtomicU64| {
            place.load(SeqCst) == FREE && place.compare_exchange(FREE, whose, SeqCst, SeqCst).is_ok()
        };
        let seat = InflightPermit { of: Arc::clone(self), place: self.places.iter().position(take)? };
        // Others of this user may have been as fast: then both give up, and come again.
        let (own, free) = self.count(whose);
        (own <= free + 1).then_some(seat)
    }

    /// How many are this user's, and how many nobody's.
    fn count(&self, whose: u64) -> (usize, usize) {
        self.places.iter().fold((0, 0), |(own, free), place| match place.load(SeqCst) {
            FREE => (own, free + 1),
            user => (own + usize::from(user == whose), free),
        })
    }

    /// To be called now and then: lets go of connections whose descriptors have been taken, and closes those that could not be.
    pub(crate) fn sweep(self: &Arc<Self>) {
        let mut over = Vec::new();
        {
            let mut left = self.left.lock();
            let mut at = 0;
            while let Some((socket, _)) = left.get(at) {
                if has_unread(socket.as_fd()).unwrap_or(false) {
                    at += 1;
                } else {
                    over.push(left.swap_remove(at).0);
                }
            }
        }
        over.extend(self.closing.lock().drain(..));
        over.into_iter().for_each(|socket| self.close(socket));
    }

    /// Whether nobody else can be heard.
    pub(crate) fn is_full(&self) -> bool {
        self.closing.lock().len() >= WAITING
    }

    fn close(self: &Arc<Self>, socket: UnixStream) {
        if refuses_rights(socket.as_fd()) {
            return;
        }
        if !add(&self.closers, CLOSERS) {
            return self.closing.lock().push(socket);
        }
        let this = Arc::clone(self);
        let begun = std::thread::Builder::new().name("vellum-close".into()).spawn(move || {
            drop(socket);
            this.closers.fetch_sub(1, SeqCst);
        });
        if begun.is_err() {
            self.closers.fetch_sub(1, SeqCst);
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Line {
    /// None: it is over.
    socket: Option<UnixStream>,
    uid: u32,
    seat: Option<InflightPermit>,
    of: Arc<InflightFds>,
}

impl Line {
    pub(crate) const fn new(of: Arc<InflightFds>, socket: UnixStream, uid: u32) -> Self {
        Self { socket: Some(socket), uid, seat: None, of }
    }

    /// The connection, as long as there is one.
    pub(crate) const fn socket(&self) -> Option<&UnixStream> {
        self.socket.as_ref()
    }

    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn is_received(&self) -> bool {
        self.fd().is_ok_and(|fd| has_unread(fd) == Ok(false))
    }

    /// Whether a descriptor may be sent now: the last one has been taken, and there are not too many others.
    pub(crate) fn reserve_send(&mut self) -> bool {
        self.is_received() && self.reserve_first_send()
    }

    /// Whether the first descriptor may be sent now: there are not too many others. Other things may have been sent before it.
    fn reserve_first_send(&mut self) -> bool {
        if self.seat.is_none() {
            self.seat = self.of.seat(self.uid);
        }
        self.seat.is_some()
    }

    /// Sends the first descriptor, with a number. EAGAIN: there are too many others.
    pub(crate) fn send_first(&mut self, number: u64, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        if !self.reserve_first_send() {
            return Err(Errno::AGAIN.into());
        }
        self.send(&number.to_ne_bytes(), &[descriptor])
    }

    /// Sends all of `body` with descriptors, or nothing, without waiting: it is less than any socket's buffer.
    pub(crate) fn send(&self, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = send_with(self.fd()?, body, descriptors, SendFlags::DONTWAIT)?;
        if sent == body.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Nothing is being sent just now: what has been taken is under way no more.
    pub(crate) fn note_idle(&mut self) {
        if self.seat.is_some() && self.is_received() {
            self.seat = None;
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        match self.seat.take() {
            Some(seat) if has_unread(socket.as_fd()) == Ok(true) => self.of.left.lock().push((socket, seat)),
            _ => self.of.close(socket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};

    /// As many as one user gets who is alone.
    const HALF: usize = MOST / 2;

    fn taken(of: &InflightFds) -> usize {
        MOST - of.count(FREE).1
    }

    fn line(of: &Arc<InflightFds>, uid: u32) -> (Line, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Line::new(Arc::clone(of), ours, uid), theirs)
    }

    fn send(line: &Line) {
        line.socket().unwrap().write_all(&[1; 8]).unwrap();
    }

    #[test]
    fn a_client_that_receives_nothing_exhausts_only_itself() {
        let of = Arc::new(InflightFds::default());
        let mut hostile: Vec<_> = (0..100).map(|_| line(&of, 1000)).collect();
        let given =
            hostile.iter_mut().filter_map(|(line, _)| line.reserve_send().then(|| send(line))).count();
        assert_eq!(given, HALF);
        assert!(!hostile[0].0.reserve_send(), "a second one");
        let (mut line, mut theirs) = line(&of, 1001);
        assert!(line.reserve_send());
        send(&line);
        assert!(!line.reserve_send());
        theirs.read_exact(&mut [0; 8]).unwrap();
        assert!(line.reserve_send());
        line.note_idle();
        assert!(line.seat.is_none());
        // The service closes its ends: what was not taken stays under way, until it is taken or cannot be any more.
        let mut clients: Vec<_> = hostile.into_iter().map(|(_, client)| client).collect();
        assert_eq!((taken(&of), of.left.lock().len()), (HALF, HALF));
        of.sweep();
        assert_eq!(of.left.lock().len(), HALF);
        clients[0].read_exact(&mut [0; 8]).unwrap();
        drop(clients.remove(1));
        of.sweep();
        assert_eq!((taken(&of), of.left.lock().len()), (HALF - 2, HALF - 2));
        drop(clients);
        of.sweep();
        assert_eq!((taken(&of), of.left.lock().len()), (0, 0));
    }

    /// Neither one of a number that goes with the other's, nor two of one container.
    #[test]
    fn users_do_not_share_descriptor_slots() {
        for others in [[1000, 1000], [1000, 1061], [1000, 2000], [1000, 1000 + (1 << 16)]] {
            let of = Arc::new(InflightFds::default());
            let mut hostile: Vec<_> =
                (0..200).map(|number| line(&of, others[usize::from(number % 2 == 1)])).collect();
            let given = hostile.iter_mut().map(|(line, _)| line.reserve_send()).filter(|may| *may).count();
            assert!((HALF..HALF + HALF / 2 + 1).contains(&given), "{others:?}: {given}");
            let mut victims: Vec<_> = (0..4).map(|number| line(&of, 1061 + 61 * (1 + number))).collect();
            assert!(victims.iter_mut().all(|(line, _)| line.reserve_send()), "{others:?}");
        }
    }

    #[test]
    fn concurrent_threads_stay_within_a_users_limit() {
        for _ in 0..200 {
            let of = Arc::new(InflightFds::default());
            let seats: Vec<_> = (0..HALF - 1).map(|_| of.seat(7).unwrap()).collect();
            let more = std::thread::scope(|scope| {
                let two = [(); 2].map(|()| scope.spawn(|| of.seat(7)));
                two.map(|one| one.join().unwrap()).into_iter().flatten().count()
            });
            assert!(more <= 1, "{more}");
            drop(seats);
            assert!(of.seat(7).is_some() && taken(&of) == 0);
        }
    }

    #[test]
    fn the_total_of_inflight_descriptors_is_limited() {
        let of = Arc::new(InflightFds::default());
        let mut lines: Vec<_> = (0..1000).map(|uid| line(&of, uid)).collect();
        assert_eq!(lines.iter_mut().filter(|(line, _)| line.seat.is_some()).count(), 0);
        assert_eq!(lines.iter_mut().map(|(line, _)| line.reserve_send()).filter(|may| *may).count(), MOST);
    }

    /// A socket whose last close waits: what it has sent is not taken, and it lingers.
    fn lingering() -> (std::net::TcpStream, [std::net::TcpStream; 1]) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        while (&ours).write(&[0; 65536]).is_ok() {}
        ours.set_nonblocking(false).unwrap();
        rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(4))).unwrap();
        (ours, [theirs])
    }

    #[test]
    fn lingering_descriptors_of_a_client_do_not_block() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let of = Arc::new(InflightFds::default());
        let (line, client) = line(&of, 1000);
        let (lingers, _theirs) = lingering();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [lingers.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let body = [std::io::IoSlice::new(b"nonsense")];
        sendmsg(&client, &body, &mut control, SendFlags::empty()).unwrap();
        drop((lingers, client));
        let begin = Instant::now();
        drop(line);
        assert!(begin.elapsed() < Duration::from_secs(2), "it took {:?}", begin.elapsed());
        assert_eq!(of.closers.load(SeqCst), 1, "another thread waits");
    }
}
