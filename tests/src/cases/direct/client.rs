//! A program that calls over a ring as the library does, and otherwise whatever it likes.

use super::{SETTLED, status};
use crate::harness::PATIENCE;
use crate::harness::outcome::{DuringContext, Outcome, Stop, ensure, ensure_eq};
use rustix::fs::{XattrFlags, renameat};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;
use vellum_ring::files::{
    ASK_KERNEL, CHECKED, ENTER, GREETING, GREETING_HEAD, GREETING_NUMBERS, GREETING_VERSION, LOOK, MAKE_DIR,
    MAKE_LINK, MOUNT_NUMBERS, OPEN, PROOF_FROM, PROOF_TO, PROVE, REOPEN, RING_WANTED, SET_ATTRIBUTES, TOKEN,
    TOKEN_BYTES,
};
use vellum_ring::{CallError, Caller, Client, Linux, Request, Response};
use vellum_sys::SharedRegion;

const SECOND: u64 = 1_000_000_000;

/// A connection and its ring.
pub(super) struct Program {
    socket: UnixStream,
    memory: SharedRegion,
    /// What the greeting says of mounts.
    pub(super) mounts: Vec<[u64; MOUNT_NUMBERS]>,
}

/// What came of a call: a response, or its status.
pub(super) type CallAnswer<T> = Result<T, u32>;

/// Asks until the answer is another than that the kernel is to be asked. That is the answer as long as anything that was answered before is
/// still on its way to the kernel, and on a busy machine it may be for long. What is answered so has not been done.
pub(super) fn settled<T>(mut ask: impl FnMut() -> Outcome<CallAnswer<T>>) -> Outcome<CallAnswer<T>> {
    let begin = Instant::now();
    loop {
        let answered = ask()?;
        if !matches!(answered, Err(ASK_KERNEL)) || begin.elapsed() > PATIENCE {
            return Ok(answered);
        }
        std::thread::sleep(SETTLED);
    }
}

fn receive(socket: &UnixStream, body: &mut [u8]) -> Outcome<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(body)];
    let got = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            files.extend(some);
        }
    }
    Ok((got.bytes, files))
}

fn by_chance() -> Outcome<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut token)?;
    Ok(token)
}

impl Program {
    /// Connects and asks for a ring, and shows that no domain holds it.
    pub(super) fn new(path: &Path) -> Outcome<Self> {
        let program = Self::without_proof(path)?;
        let directory = program.proof()?.or_else(status)?;
        renameat(&directory, PROOF_FROM, &directory, PROOF_TO).doing("showing that no domain holds it")?;
        Ok(program)
    }

    /// Connects and asks for a ring.
    pub(super) fn without_proof(path: &Path) -> Outcome<Self> {
        let mut socket = UnixStream::connect(path).doing("connecting to the socket for programs")?;
        let mut body = vec![0; GREETING_NUMBERS * 8];
        let (got, none) = receive(&socket, &mut body)?;
        ensure!(none.is_empty(), "descriptors that nobody has asked for");
        ensure_eq!(got, body.len(), "bytes of the greeting");
        let numbers: Vec<u64> =
            body.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        ensure_eq!(numbers[..2], [GREETING, GREETING_VERSION], "the greeting");
        let mounts = numbers[GREETING_HEAD..].as_chunks::<MOUNT_NUMBERS>().0;
        let mounts = mounts.iter().take(numbers[2] as usize).copied().collect();
        socket.write_all(&RING_WANTED.to_ne_bytes())?;
        let mut answer = [0; 8];
        let (_, mut files) = receive(&socket, &mut answer).doing("asking for a ring")?;
        ensure_eq!(u64::from_ne_bytes(answer), RING_WANTED, "the answer");
        let memory = SharedRegion::open(files.pop().ok_or_else(|| Stop::Fail("no memory came".into()))?)?;
        Ok(Self { socket, memory, mounts })
    }

    /// The directory in which it is shown that no domain holds the program.
    pub(super) fn proof(&self) -> Outcome<CallAnswer<File>> {
        match self.ask(PROVE, 0, [0; 5], &[])? {
            Ok((response, _)) => Ok(Ok(self.file(response.values[0])?)),
            Err(status) => Ok(Err(status)),
        }
    }

    /// The ring's memory.
    pub(super) fn memory(&self) -> &SharedRegion {
        &self.memory
    }

    /// Any call: the response, and its data.
    pub(super) fn call(&self, request: Request, data: &[u8]) -> Result<(Response, Vec<u8>), CallError> {
        let region = self.memory.region().ok_or(CallError::Gone)?;
        let client = Client::attach(region, Linux).map_err(|_| CallError::Gone)?;
        let caller = Caller { key: 1, core: Linux.core() };
        let mut out = vec![0; 512];
        let (response, len) = client.call(caller, request, data, &mut out, Some(5 * SECOND))?;
        out.truncate(len);
        Ok((response, out))
    }

    fn ask(
        &self,
        opcode: u16,
        flags: u16,
        args: [u64; 5],
        data: &[u8],
    ) -> Outcome<CallAnswer<(Response, Vec<u8>)>> {
        let request = Request { opcode, flags, args, ..Request::default() };
        let (response, data) =
            self.call(request, data).map_err(|e| Stop::Fail(format!("a call over the ring: {e:?}")))?;
        Ok(if response.status == 0 { Ok((response, data)) } else { Err(response.status as u32) })
    }

    /// Enters a directory.
    pub(super) fn enter(&self, dir: &Path) -> Outcome<CallAnswer<u64>> {
        let token = by_chance()?;
        rustix::fs::setxattr(dir, TOKEN, &token, XattrFlags::empty()).doing("showing a directory")?;
        self.enter_by(&token)
    }

    /// Enters the directory that was shown with a token.
    pub(super) fn enter_by(&self, token: &[u8]) -> Outcome<CallAnswer<u64>> {
        Ok(self.ask(ENTER, 0, [0; 5], token)?.map(|(response, _)| response.values[0]))
    }

    /// Opens as open(2), in a directory that was entered.
    pub(super) fn open(&self, dir: u64, name: &str, flags: i32, mode: u32) -> Outcome<CallAnswer<File>> {
        let args = [dir, flags as u64, u64::from(mode), 0, 0];
        let mut answered = self.ask(OPEN, 0, args, name.as_bytes())?;
        if matches!(answered, Err(LOOK)) {
            // Nothing is mounted over anything here.
            answered = self.ask(OPEN, CHECKED, args, name.as_bytes())?;
        }
        let (response, _) = match answered {
            Ok(opened) => opened,
            Err(status) => return Ok(Err(status)),
        };
        Ok(Ok(self.file(response.values[0])?))
    }

    /// The file of an open that is carried out.
    pub(super) fn opened(&self, dir: u64, name: &str, flags: i32, mode: u32) -> Outcome<File> {
        settled(|| self.open(dir, name, flags, mode))?.or_else(status)
    }

    /// Opens a file by the ring and leaves its descriptor in the socket.
    pub(super) fn open_untaken(&self, dir: u64, name: &str, flags: i32) -> Outcome<CallAnswer<u64>> {
        let answered = self.ask(OPEN, 0, [dir, flags as u64, 0o600, 0, 0], name.as_bytes())?;
        Ok(answered.map(|(response, _)| response.values[0]))
    }

    /// Takes what has been left.
    pub(super) fn take_all(&self) -> Outcome {
        self.socket.set_nonblocking(true)?;
        while receive(&self.socket, &mut [0; 8]).is_ok() {}
        Ok(self.socket.set_nonblocking(false)?)
    }

    /// Shows a file and opens it once more. None: the kernel does not let it be shown.
    pub(super) fn reopen(&self, path: &Path, flags: i32) -> Outcome<Option<CallAnswer<File>>> {
        let token = by_chance()?;
        if rustix::fs::setxattr(path, TOKEN, &token, XattrFlags::empty()).is_err() {
            return Ok(None);
        }
        self.reopen_by(&token, flags).map(Some)
    }

    /// Opens the file once more that was shown with a token.
    pub(super) fn reopen_by(&self, token: &[u8], flags: i32) -> Outcome<CallAnswer<File>> {
        match self.ask(REOPEN, 0, [0, flags as u64, 0, 0, 0], token)? {
            Ok((response, _)) => Ok(Ok(self.file(response.values[0])?)),
            Err(status) => Ok(Err(status)),
        }
    }

    /// The file that has come with a tag.
    fn file(&self, expected: u64) -> Outcome<File> {
        let mut tag = [0; 8];
        let (got, mut files) = receive(&self.socket, &mut tag)?;
        ensure!(got == 8 && files.len() == 1, "{got} bytes and {} descriptors", files.len());
        ensure_eq!(u64::from_ne_bytes(tag), expected, "the tag");
        Ok(File::from(files.remove(0)))
    }

    /// The file of a name, opened to write.
    pub(super) fn find(&self, dir: u64, name: &str) -> Outcome<CallAnswer<File>> {
        self.open(dir, name, libc::O_RDWR, 0)
    }

    /// The file of a name that is found.
    pub(super) fn open_existing(&self, dir: u64, name: &str) -> Outcome<File> {
        settled(|| self.find(dir, name))?.or_else(status)
    }

    /// Makes a directory, and enters it: its number in this session, and its inode number.
    pub(super) fn make_dir(&self, dir: u64, name: &str, mode: u32) -> Outcome<CallAnswer<(u64, u64)>> {
        let answered = self.ask(MAKE_DIR, 0, [dir, 0, u64::from(mode), 0, 0], name.as_bytes())?;
        Ok(answered.map(|(response, _)| (response.values[0], response.values[1])))
    }

    /// A directory that is made: its numbers.
    pub(super) fn made_dir(&self, dir: u64, name: &str, mode: u32) -> Outcome<(u64, u64)> {
        settled(|| self.make_dir(dir, name, mode))?.or_else(status)
    }

    /// Makes a symbolic link.
    pub(super) fn make_link(&self, dir: u64, name: &str, target: &str) -> Outcome<CallAnswer<()>> {
        let args = [dir, name.len() as u64, 0, 0, 0];
        Ok(self.ask(MAKE_LINK, 0, args, format!("{name}{target}").as_bytes())?.map(|_| ()))
    }

    /// Changes attributes: what, with the mode; owner and group; times.
    pub(super) fn set(
        &self,
        dir: u64,
        name: &str,
        (which, mode): (u64, u32),
        [uid, gid]: [u32; 2],
        [accessed, modified]: [u64; 2],
    ) -> Outcome<CallAnswer<()>> {
        let two = |low: u64, high: u32| low | u64::from(high) << 32;
        let args = [dir, two(which, mode), two(uid.into(), gid), accessed, modified];
        Ok(self.ask(SET_ATTRIBUTES, 0, args, name.as_bytes())?.map(|_| ()))
    }
}
