//! Opens, new directories and links, and changes of attributes by the ring: what may go there, and what the answers mean.

use crate::fds::{service_fd_numbers, service_fds, session_fds};
use crate::session::call_path::Name;
use crate::session::dirs::{self, DirLocation, ProofOutcome};
use crate::session::mount_type;
use crate::session::socket::{self, Take};
use crate::session::{CallFailure, SessionGuard, end_permanently};
use crate::shim::paths;
use crate::shim::raw::{self, AT_FDCWD};
use crate::stats::{CallPath, Kind, count_call};
use crate::thresholds::calls::{FOREIGN_EACH, FOREIGN_MANY, LEFT_OVER};
use core::ffi::CStr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use vellum_ring::files::{
    MAKE_DIR, MAKE_LINK, OPEN, PROOF_FROM, PROOF_TO, PROVE, REOPEN, SET_ATTRIBUTES, SET_GROUP, SET_OWNER,
    SLOT_BYTES, TOKEN_BYTES,
};
use vellum_ring::{Request, Response};

pub(crate) const O_ACCMODE: i32 = 3;
pub(crate) const O_CREAT: i32 = 0o100;
pub(crate) const O_EXCL: i32 = 0o200;
pub(crate) const O_TRUNC: i32 = 0o1000;
pub(crate) const O_WRONLY: i32 = 1;
pub(crate) const O_CLOEXEC: i32 = 0o2_000_000;
pub(crate) const O_DIRECTORY: i32 = if cfg!(target_arch = "aarch64") { 0o40_000 } else { 0o200_000 };
pub(crate) const O_NOFOLLOW: i32 = if cfg!(target_arch = "aarch64") { 0o100_000 } else { 0o400_000 };
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
pub(crate) const O_LARGEFILE: i32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };
const O_NOCTTY: i32 = 0o400;
const O_APPEND: i32 = 0o2000;
pub(crate) const O_NONBLOCK: i32 = 0o4000;
/// With the bit of `O_DSYNC`.
pub(crate) const O_SYNC: i32 = 0o4_010_000;
/// Flags that the service knows.
const FLAGS: i32 = O_ACCMODE
    | O_CREAT
    | O_EXCL
    | O_TRUNC
    | O_APPEND
    | O_NONBLOCK
    | O_SYNC
    | O_DIRECT
    | O_LARGEFILE
    | O_NOFOLLOW
    | O_CLOEXEC
    | O_NOCTTY;

/// Opens in a row that had nothing to do with what is served. After many of them not each is looked at.
pub(crate) static FOREIGN: AtomicU32 = AtomicU32::new(0);

/// Opens a file to write, or creates it. The mode has the umask applied.
///
/// # Safety
/// The path must be the program's, readable as far as it is mapped at all.
pub(crate) unsafe fn open(directory: i32, path: usize, flags: i32, mode: u32) -> Result<i32, CallFailure> {
    let is_known = flags & !FLAGS == 0 && flags & O_ACCMODE != O_ACCMODE;
    let only_reads = flags & (O_ACCMODE | O_CREAT) == 0;
    if !is_known || only_reads || skip_this_call() {
        return Err(CallFailure::Kernel);
    }
    let mut hold = take(Kind::Open)?;
    // SAFETY: the caller's.
    let name = unsafe { Name::take(&mut hold, directory, path) }?;
    let request =
        Request { opcode: OPEN, args: [0, flags as u32 as u64, mode.into(), 0, 0], ..Request::default() };
    let [tag, ..] = name.request(&mut hold, Kind::Open, request, &[])?.response.values;
    let fd = collect(&mut hold, tag, flags & O_CLOEXEC != 0)?;
    service_fd_numbers::hold(fd);
    Ok(fd)
}

/// The file of a descriptor once more, to write to it past the mount. The device is the descriptor's. Err: whether that may be otherwise
/// later.
pub(crate) fn reopen(fd: i32, device: u64, flags: i32) -> Result<i32, bool> {
    const LATER: Result<i32, bool> = Err(true);
    const NEVER: Result<i32, bool> = Err(false);
    let Ok(mut hold) = take(Kind::Open) else { return LATER };
    let hold = &mut hold;
    hold.hurry();
    let is_union = |_: &mut SessionGuard| {
        let path = paths::of_descriptor(fd);
        CStr::from_bytes_until_nul(&path).is_ok_and(|path| mount_type::is_union(AT_FDCWD, path, device))
    };
    match is_served(hold, device, is_union) {
        Some(true) => {}
        Some(false) => return LATER,
        None => return Err(!hold.dirs.is_foreign(device)),
    }
    let token = match prove(hold, device, |_| dirs::show_descriptor(fd)) {
        Ok(token) => token,
        Err(refused) => return Err(refused != ProofOutcome::Never),
    };
    let request = Request { opcode: REOPEN, args: [0, flags as u32 as u64, 0, 0, 0], ..Request::default() };
    match hold.call(request, &token) {
        Ok(Response { status: 0, values: [tag, ..], .. }) => collect(hold, tag, true).or(LATER),
        Ok(_) => {
            count_call(Kind::Open, CallPath::Asked);
            NEVER
        }
        Err(_) => {
            count_call(Kind::Open, CallPath::Gone);
            LATER
        }
    }
}

/// Whether it is time to make use of that files of this device are served; None: as far as is known they are not. `is_union` finds it out.
pub(crate) fn is_served(
    hold: &mut SessionGuard,
    device: u64,
    is_union: impl FnOnce(&mut SessionGuard) -> bool,
) -> Option<bool> {
    if hold.poll_unknown_device(device) {
        if is_union(hold) {
            return Some(true);
        }
        hold.dirs.keep_foreign(device);
        return None;
    }
    hold.check_device(device).then(|| hold.poll_due())
}

/// Has a session begin, unless there is one, and shows what the program may write to while the service gets ready. Err: there is no
/// token, or no session.
pub(crate) fn prove(
    hold: &mut SessionGuard,
    device: u64,
    show: impl FnOnce(&mut SessionGuard) -> ProofOutcome,
) -> Result<[u8; TOKEN_BYTES], ProofOutcome> {
    if !hold.ask_if_due() {
        return Err(ProofOutcome::NotNow);
    }
    match show(hold) {
        ProofOutcome::Token(token) if hold.ensure_ready(device) && is_free(hold) => Ok(token),
        ProofOutcome::Token(_) => Err(ProofOutcome::NotNow),
        refused => {
            hold.note_refusal();
            Err(refused)
        }
    }
}

/// Shows the service, once in a session, that no Landlock domain that knows of files holds this process. False: one does, or it could not be
/// shown, and the session has ended. What holds a process does not let go of it: then there is no other session.
fn is_free(hold: &mut SessionGuard) -> bool {
    const HELD: [isize; 3] = [-1, -13, -18];
    if hold.is_free {
        return true;
    }
    let moved = move_proof(hold);
    match moved {
        Some(0) => hold.is_free = true,
        // EPERM, EACCES, EXDEV
        Some(error) if HELD.contains(&error) => end_permanently(),
        _ if hold.socket() >= 0 => hold.fail(),
        _ => {}
    }
    hold.is_free
}

/// What the kernel says to it; None: the service has not been asked, or gives no directory for it.
fn move_proof(hold: &mut SessionGuard) -> Option<isize> {
    let request = Request { opcode: PROVE, ..Request::default() };
    let Ok(Response { status: 0, values: [tag, ..], .. }) = hold.call(request, &[]) else {
        return None;
    };
    let directory = receive(hold, tag, true).ok()?;
    let at = raw::word(directory);
    let words = [at, PROOF_FROM.as_ptr() as usize, at, PROOF_TO.as_ptr() as usize, 0, 0];
    let moved = raw::plain(raw::number::RENAMEAT, words);
    raw::close(directory);
    Some(moved)
}

fn skip_this_call() -> bool {
    let seen = FOREIGN.load(Relaxed);
    seen >= FOREIGN_MANY && !FOREIGN.fetch_add(1, Relaxed).is_multiple_of(FOREIGN_EACH)
}

/// Takes the file that has come with an answer.
fn collect(hold: &mut SessionGuard, tag: u64, close_on_exec: bool) -> Result<i32, CallFailure> {
    let opened = receive(hold, tag, close_on_exec);
    match opened {
        Ok(_) => count_call(Kind::Open, CallPath::Ring),
        Err(_) if hold.socket() < 0 => count_call(Kind::Open, CallPath::Gone),
        Err(_) => {}
    }
    opened
}

/// Takes the descriptor that has come with an answer.
pub(crate) fn receive(hold: &mut SessionGuard, tag: u64, close_on_exec: bool) -> Result<i32, CallFailure> {
    for _ in 0..LEFT_OVER {
        let Some(delivery) = socket::take(hold.socket(), Take::Now { close_on_exec }) else { break };
        match delivery.fd {
            Some(fd) if delivery.number == tag => return Ok(fd),
            Some(left_over) => {
                raw::close(left_over);
            }
            // No number was free, or something else of the kernel's did not let it through: it will say.
            None if delivery.number == tag && delivery.was_cut => return Err(CallFailure::Unknown),
            None => {}
        }
    }
    hold.fail();
    Err(CallFailure::Unknown)
}

/// Makes a directory. The mode has the umask applied. The service knows it by a number then, as it would once it had been shown.
///
/// # Safety
/// The path must be the program's, readable as far as it is mapped at all.
pub(crate) unsafe fn make_dir(directory: i32, path: usize, mode: u32) -> Result<(), CallFailure> {
    if !session_fds::is_live() {
        return Err(CallFailure::Kernel);
    }
    let mut hold = take(Kind::MakeDir)?;
    // SAFETY: the caller's.
    let name = unsafe { Name::take_as(&mut hold, directory, path, paths::split_dir) }?;
    let request = Request { opcode: MAKE_DIR, args: [0, 0, mode.into(), 0, 0], ..Request::default() };
    let answered = name.request(&mut hold, Kind::MakeDir, request, &[])?;
    count_call(Kind::MakeDir, CallPath::Ring);
    let [number, ino, ..] = answered.response.values;
    if number != 0 {
        hold.dirs.keep(DirLocation { ino, ..answered.place }, Some(number));
        name.note_created(&mut hold, answered.base);
    }
    Ok(())
}

/// Makes a symbolic link.
///
/// # Safety
/// Both strings must be the program's, readable as far as they are mapped at all.
pub(crate) unsafe fn make_link(target: usize, directory: i32, path: usize) -> Result<(), CallFailure> {
    if !session_fds::is_live() {
        return Err(CallFailure::Kernel);
    }
    let mut text = [0; SLOT_BYTES as usize];
    // SAFETY: the caller's.
    let target = unsafe { paths::take(AT_FDCWD, target, &mut text) }.and_then(|len| text.get(..len));
    let target = target.filter(|target| !target.is_empty()).ok_or(CallFailure::Kernel)?;
    let mut hold = take(Kind::MakeLink)?;
    // SAFETY: the caller's.
    let name = unsafe { Name::take(&mut hold, directory, path) }?;
    let request = Request { opcode: MAKE_LINK, ..Request::default() };
    let answered = name.request(&mut hold, Kind::MakeLink, request, target);
    answered.map(|_| count_call(Kind::MakeLink, CallPath::Ring))
}

/// Attributes that are to be changed, as a request has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// [`SET_MODE`](vellum_ring::files::SET_MODE) and so on.
    pub(crate) which: u64,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    pub(crate) group: u32,
    /// Times of access and modification, in nanoseconds.
    pub(crate) times: [i64; 2],
}

/// Changes attributes of what the program has made, if the kernel does not know it.
///
/// # Safety
/// The path must be the program's, readable as far as it is mapped at all.
pub(crate) unsafe fn set(directory: i32, path: usize, change: &Change) -> Result<(), CallFailure> {
    let names_ids = change.which & (SET_OWNER | SET_GROUP) != 0;
    if !session_fds::is_live() || names_ids && !service_fds::has_same_ids() {
        return Err(CallFailure::Kernel);
    }
    let mut hold = take(Kind::SetAttributes)?;
    // SAFETY: the caller's.
    let name = unsafe { Name::take(&mut hold, directory, path) }?;
    if !name.is_guess(&hold) && !name.is_fresh(&hold) {
        return Err(CallFailure::Kernel);
    }
    let two = |low: u64, high: u32| low | u64::from(high) << 32;
    let [accessed, modified] = change.times.map(i64::cast_unsigned);
    let (which, owners) = (two(change.which, change.mode), two(change.owner.into(), change.group));
    let args = [0, which, owners, accessed, modified];
    let request = Request { opcode: SET_ATTRIBUTES, args, ..Request::default() };
    let answered = name.request(&mut hold, Kind::SetAttributes, request, &[]);
    answered.map(|_| count_call(Kind::SetAttributes, CallPath::Ring))
}

/// The right to make a call. Where there are sessions it is said if others have them.
fn take(kind: Kind) -> Result<SessionGuard, CallFailure> {
    let hold = SessionGuard::take();
    if hold.as_ref().is_none_or(|hold| hold.socket() < 0) && session_fds::is_live() {
        count_call(kind, CallPath::Busy);
    }
    hold.ok_or(CallFailure::Kernel)
}
