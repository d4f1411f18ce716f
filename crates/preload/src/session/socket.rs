//! The pool's socket for programs: connecting, what it says first, and messages with descriptors.

use crate::shim::{process, raw};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;
use vellum_ring::files::{
    GREETING, GREETING_HEAD, GREETING_NUMBERS, GREETING_VERSION, MOUNT_NUMBERS, MOUNTS_MAX,
};

const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
const MSG_DONTWAIT: usize = 0x40;
const MSG_WAITALL: usize = 0x100;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CTRUNC: i32 = 8;
const SCM_RIGHTS: (i32, i32) = (1, 1);
/// Bytes of a control message before its descriptors.
const HEADER: usize = 16;

/// `struct sockaddr_un`.
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; 108],
}

#[repr(C)]
struct Part {
    base: usize,
    len: usize,
}

/// `struct msghdr`.
#[repr(C)]
struct Message {
    name: usize,
    name_len: usize,
    parts: usize,
    part_count: usize,
    control: usize,
    control_len: usize,
    flags: i32,
}

/// Room for descriptors, with the header of the control message.
#[repr(C, align(8))]
struct Control<const N: usize> {
    len: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; N],
}

impl<const N: usize> Control<N> {
    const fn new() -> Self {
        Self { len: 0, level: 0, kind: 0, descriptors: [-1; N] }
    }

    /// The descriptors that came, when the kernel has written so many bytes.
    fn descriptors(&self, bytes: usize) -> &[i32] {
        let came = bytes >= HEADER && (self.level, self.kind) == SCM_RIGHTS;
        let count = if came { self.len.saturating_sub(HEADER) / 4 } else { 0 };
        self.descriptors.get(..count.min(N)).unwrap_or_default()
    }
}

/// Receives into memory of the caller's: bytes, bytes of control messages, flags.
fn receive_message<const N: usize>(
    socket: i32,
    to: &mut [u64],
    control: &mut Control<N>,
    how: usize,
) -> (isize, usize, i32) {
    let part = Part { base: to.as_mut_ptr() as usize, len: size_of_val(to) };
    let mut message = Message {
        name: 0,
        name_len: 0,
        parts: &raw const part as usize,
        part_count: 1,
        control: &raw mut *control as usize,
        control_len: size_of::<Control<N>>(),
        flags: 0,
    };
    let words = [raw::word(socket), &raw mut message as usize, how, 0, 0, 0];
    // SAFETY: the message describes memory that is borrowed here, which the kernel fills.
    let got = unsafe { raw::call(raw::number::RECVMSG, words) };
    (got, message.control_len, message.flags)
}

/// A new connection.
pub(crate) fn connect() -> Option<i32> {
    const AF_UNIX: usize = 1;
    const STREAM_CLOEXEC: usize = 0x8_0001;
    const SOL_SOCKET: usize = 1;
    const SO_RCVTIMEO: usize = 20;
    const SO_SNDTIMEO: usize = 21;
    let mut address = Address { family: AF_UNIX as u16, path: [0; 108] };
    let path = process::socket().to_bytes();
    if path.is_empty() || path.len() >= address.path.len() {
        return None;
    }
    address.path.iter_mut().zip(path).for_each(|(to, from)| *to = *from);
    let socket = raw::plain(raw::number::SOCKET, [AF_UNIX, STREAM_CLOEXEC, 0, 0, 0, 0]);
    let fd = usize::try_from(socket).ok()?;
    let second = [1i64, 0];
    for option in [SO_RCVTIMEO, SO_SNDTIMEO] {
        let words = [fd, SOL_SOCKET, option, second.as_ptr() as usize, 16, 0];
        raw::plain(raw::number::SETSOCKOPT, words);
    }
    let words = [fd, &raw const address as usize, size_of::<Address>(), 0, 0, 0];
    if raw::plain(raw::number::CONNECT, words) == 0 {
        return Some(fd as i32);
    }
    raw::close(fd as i32);
    None
}

/// Connections that are there for a moment.
static MOMENTARY: AtomicU32 = AtomicU32::new(0);

/// Does something with a new connection, and closes it.
pub(crate) fn with_one(act: impl FnOnce(i32)) {
    MOMENTARY.fetch_add(1, SeqCst);
    if let Some(socket) = connect() {
        act(socket);
        raw::close(socket);
    }
    MOMENTARY.fetch_sub(1, SeqCst);
}

/// Whether there is a connection for a moment.
pub(crate) fn is_any() -> bool {
    MOMENTARY.load(SeqCst) != 0
}

/// What the socket says first.
pub(crate) struct Greeting([u64; GREETING_NUMBERS]);

impl Greeting {
    /// To be filled where it is: stacks may be small.
    pub(crate) const fn new() -> Self {
        Self([0; GREETING_NUMBERS])
    }

    /// Receives it. False: it is of another form.
    pub(crate) fn receive(&mut self, socket: i32) -> bool {
        let how = MSG_CMSG_CLOEXEC | MSG_WAITALL;
        // Descriptors that are not expected find no room, and are closed by the kernel.
        let (got, _, _) = receive_message(socket, &mut self.0, &mut Control::<0>::new(), how);
        let [magic, version, ..] = self.0;
        got == size_of_val(&self.0) as isize && (magic, version) == (GREETING, GREETING_VERSION)
    }

    /// Inode number of the service's user namespace.
    pub(crate) fn namespace(&self) -> u64 {
        let [_, _, _, namespace, ..] = self.0;
        namespace
    }

    /// Mounts whose files may be handed out.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = [u64; MOUNT_NUMBERS]> {
        let [_, _, count, ..] = self.0;
        let all = self.0.get(GREETING_HEAD..).unwrap_or_default();
        all.as_chunks::<MOUNT_NUMBERS>().0.iter().take(count.min(MOUNTS_MAX as u64) as usize).copied()
    }
}

pub(crate) fn send(socket: i32, number: u64) -> bool {
    let words = [raw::word(socket), &raw const number as usize, 8, MSG_NOSIGNAL, 0, 0];
    raw::plain(raw::number::SENDTO, words) == 8
}

/// A number that came, with or without a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) number: u64,
    pub(crate) fd: Option<i32>,
    /// A descriptor came, but there was no free place for it.
    pub(crate) was_cut: bool,
}

/// How to receive a [`Delivery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Waits for it, for a second; the descriptor is closed on exec.
    Waiting,
    Now {
        close_on_exec: bool,
    },
}

/// Receives a number and the descriptor that is with it.
pub(crate) fn take(socket: i32, how: Take) -> Option<Delivery> {
    let how = match how {
        Take::Waiting => MSG_WAITALL | MSG_CMSG_CLOEXEC,
        Take::Now { close_on_exec: true } => MSG_DONTWAIT | MSG_CMSG_CLOEXEC,
        Take::Now { close_on_exec: false } => MSG_DONTWAIT,
    };
    let mut number = [0u64];
    // As long as the kernel makes it for two: what is more than one is none of ours, and must be closed.
    let mut control = Control::<2>::new();
    let (got, control_len, flags) = receive_message(socket, &mut number, &mut control, how);
    let came = control.descriptors(control_len);
    if got != 8 || came.len() > 1 {
        came.iter().for_each(|fd| {
            raw::close(*fd);
        });
        return None;
    }
    let [number] = number;
    let fd = came.first().copied().filter(|fd| *fd >= 0);
    Some(Delivery { number, fd, was_cut: fd.is_none() && flags & MSG_CTRUNC != 0 })
}

/// Whether the other end has gone.
pub(crate) fn is_hung_up(socket: i32) -> bool {
    const POLLERR_POLLHUP_POLLNVAL: u16 = 8 | 16 | 32;
    /// `struct pollfd`.
    #[repr(C)]
    struct Poll {
        fd: i32,
        events: u16,
        came: u16,
    }
    let mut poll = Poll { fd: socket, events: 0, came: 0 };
    let now = [0u64; 2];
    let words = [&raw mut poll as usize, 1, now.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel reads and writes one element, and reads two words.
    let found = unsafe { raw::call(raw::number::PPOLL, words) };
    found > 0 && poll.came & POLLERR_POLLHUP_POLLNVAL != 0
}

/// Whether a file of memory cannot become shorter, so that reading it never faults.
pub(crate) fn is_sealed(fd: i32) -> bool {
    const F_GET_SEALS: usize = 1034;
    const F_SEAL_SHRINK: isize = 2;
    let seals = raw::plain(raw::number::FCNTL, [raw::word(fd), F_GET_SEALS, 0, 0, 0, 0]);
    seals > 0 && seals & F_SEAL_SHRINK != 0
}
