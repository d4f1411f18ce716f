//! A service: what is done by the ring in the directory `union` it does in the directory `upper`. Names say what else is to happen.

use super::TOKENS;
use crate::shim::attributes;
use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, openat,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use vellum_ring::files::{
    ASK_KERNEL, CHECKED, ENTER, GREETING, GREETING_HEAD, GREETING_NUMBERS, GREETING_VERSION, LOOK, MAKE_DIR,
    MAKE_LINK, OPEN, PROVE, RING_WANTED, SET_ATTRIBUTES, SLOT_BYTES, SLOTS, STALE,
};
use vellum_ring::{Layout, Linux, Region, Request, Response, Session};

/// Rings that were made.
pub(super) static RINGS: AtomicU32 = AtomicU32::new(0);
/// Requests that were answered.
pub(super) static REQUESTS: AtomicU32 = AtomicU32::new(0);
/// Attributes that were to be set: names, and arguments.
pub(super) static SET: Mutex<Vec<(String, [u64; 5])>> = Mutex::new(Vec::new());

#[derive(Clone)]
pub(super) struct Service {
    pub(super) union: PathBuf,
    pub(super) upper: PathBuf,
}

fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, bytes.len());
}

enum Done {
    Answer(Response),
    File(OwnedFd),
    /// The service ends.
    Gone,
}

fn status(status: u32) -> Done {
    Done::Answer(Response::status(status as i32))
}

fn failed(error: &std::io::Error) -> Done {
    status(error.raw_os_error().unwrap_or(5) as u32)
}

impl Service {
    pub(super) fn run(self, listener: UnixListener) {
        for socket in listener.incoming() {
            let (service, socket) = (self.clone(), socket.unwrap());
            std::thread::spawn(move || service.serve(socket));
        }
    }

    fn serve(&self, mut socket: UnixStream) {
        let mut numbers = [0u64; GREETING_NUMBERS];
        numbers[..GREETING_HEAD].copy_from_slice(&[
            GREETING,
            GREETING_VERSION,
            1,
            fs::metadata("/proc/self/ns/user").unwrap().ino(),
        ]);
        let upper = fs::File::open(&self.upper).unwrap();
        let mount = attributes::stat_fd(upper.as_raw_fd()).unwrap();
        let union = fs::metadata(&self.union).unwrap().dev();
        let id = attributes::mount_of(upper.as_raw_fd()).unwrap();
        numbers[GREETING_HEAD..GREETING_HEAD + 3].copy_from_slice(&[union, mount.device(), id]);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        send(&socket, &bytes, &[]);
        let mut wanted = [0; 8];
        if socket.read_exact(&mut wanted).is_err() {
            return;
        }
        assert_eq!(u64::from_ne_bytes(wanted), RING_WANTED);
        let layout = Layout::new(SLOTS, SLOT_BYTES).unwrap();
        let memory = memfd_create("ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, layout.bytes() as u64).unwrap();
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which stays.
        let base = unsafe { mmap(null_mut(), layout.bytes(), both, MapFlags::SHARED, &memory, 0) }.unwrap();
        // SAFETY: mapped for good, sealed, and touched by way of this region only.
        let region = unsafe { Region::new(NonNull::new(base.cast()).unwrap(), layout.bytes()) }.unwrap();
        let session = Session::create(region, layout, NonZeroU16::MIN, Linux).unwrap();
        RINGS.fetch_add(1, SeqCst);
        send(&socket, &RING_WANTED.to_ne_bytes(), &[memory.as_fd()]);
        self.answer_all(&session, &socket);
        session.close();
    }

    /// Answers until the program has gone, or the service does.
    fn answer_all(&self, session: &Session<'_, Linux>, socket: &UnixStream) {
        let ring = session.ring().unwrap();
        let mut poller = ring.poller();
        let (mut entered, mut tag) = (Vec::new(), 100);
        socket.set_nonblocking(true).unwrap();
        loop {
            poller.note_core(Linux.core());
            let Some(call) = poller.poll_for(10_000) else {
                poller.sleep(Some(10_000_000));
                if let Ok(0) = (&mut &*socket).read(&mut [0]) {
                    return;
                }
                continue;
            };
            let mut data = vec![0; call.request().len as usize];
            call.read_data(0, &mut data);
            let request = *call.request();
            REQUESTS.fetch_add(1, SeqCst);
            let response = match self.carry_out(&mut entered, &request, &data) {
                Done::Answer(response) => response,
                Done::File(file) => {
                    // What belongs to calls given up comes first.
                    send(socket, &1u64.to_ne_bytes(), &[file.as_fd()]);
                    tag += 1;
                    send(socket, &u64::to_ne_bytes(tag), &[file.as_fd()]);
                    Response { status: 0, len: 0, values: [tag, 0, 0, 0, 0, 0] }
                }
                Done::Gone => {
                    call.announce(true);
                    // Never answered, as by a service that has died.
                    std::mem::forget(call);
                    return;
                }
            };
            call.reply(response);
        }
    }

    fn carry_out(&self, entered: &mut Vec<PathBuf>, request: &Request, data: &[u8]) -> Done {
        let [directory, flags, mode, ..] = request.args;
        if request.opcode == PROVE {
            let proof = self.upper.with_extension(format!("proof-{}", REQUESTS.load(SeqCst)));
            fs::create_dir_all(proof.join("into")).unwrap();
            fs::write(proof.join("file"), "").unwrap();
            return Done::File(fs::File::open(proof).unwrap().into());
        }
        if request.opcode == ENTER {
            let tokens = TOKENS.lock().unwrap();
            let Some((_, path)) = tokens.iter().find(|(token, _)| token == data) else {
                return status(ASK_KERNEL);
            };
            entered.push(path.clone());
            let values = [entered.len() as u64 - 1, 0, 0, 0, 0, 0];
            return Done::Answer(Response { status: 0, len: 0, values });
        }
        let (data, more) =
            if request.opcode == MAKE_LINK { data.split_at(flags as usize) } else { (data, &[][..]) };
        let name = std::str::from_utf8(data).unwrap();
        let Some(at) = entered.get(directory as usize).cloned() else { return status(STALE) };
        let upper = self.upper.join(at.strip_prefix(&self.union).unwrap());
        let (here, there) = (upper.join(name), at.join(name));
        match name {
            _ if name.starts_with("ask") => return status(ASK_KERNEL),
            _ if name.starts_with("look") && request.flags & CHECKED == 0 => return status(LOOK),
            // Of a directory on the way, as it were.
            _ if name.contains("/look") => return status(LOOK),
            // Once: the program enters the directory anew.
            _ if name.starts_with("stale") && !here.with_extension("s").exists() => {
                fs::write(here.with_extension("s"), "").unwrap();
                return status(STALE);
            }
            _ => {}
        }
        match request.opcode {
            OPEN => {
                let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
                let file = match openat(CWD, &here, flags, Mode::from_raw_mode(mode as u32)) {
                    Ok(file) => file,
                    Err(error) => return status(error.raw_os_error() as u32),
                };
                // The service's own mask is not to matter.
                if flags.contains(OFlags::CREATE) {
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode as u32)).unwrap();
                }
                if name.starts_with("gone") {
                    fs::write(there, "made").unwrap();
                    return Done::Gone;
                }
                Done::File(file)
            }
            MAKE_DIR => {
                // What the kernel would find in the union.
                if let Err(error) = fs::create_dir(&there) {
                    return failed(&error);
                }
                fs::create_dir(&here).unwrap();
                fs::set_permissions(&here, fs::Permissions::from_mode(mode as u32)).unwrap();
                if name.starts_with("gone") {
                    return Done::Gone;
                }
                let ino = fs::metadata(&there).unwrap().ino();
                entered.push(there);
                let values = [entered.len() as u64 - 1, ino, 0, 0, 0, 0];
                Done::Answer(Response { status: 0, len: 0, values })
            }
            MAKE_LINK => {
                if let Err(error) = symlink(std::str::from_utf8(more).unwrap(), here) {
                    return failed(&error);
                }
                status(0)
            }
            SET_ATTRIBUTES => {
                SET.lock().unwrap().push((name.to_owned(), request.args));
                status(0)
            }
            _ => status(ASK_KERNEL),
        }
    }
}
