//! A name that a call is about: the program's path, in which directory the service has it, and the whole call.

use crate::session::calls::{FOREIGN, is_served, prove};
use crate::session::dirs::{self, DirLocation, ProofOutcome};
use crate::session::mount_type;
use crate::session::{self, CallFailure, SessionGuard};
use crate::shim::attributes::{self, AT_STATX_DONT_SYNC, AT_SYMLINK_NOFOLLOW};
use crate::shim::attributes::{STATX_ATTR_MOUNT_ROOT, STATX_INO, STATX_MNT_ID};
use crate::shim::paths::{self, PATH_MAX, Split};
use crate::stats::{CallPath, Kind, count_call};
use crate::thresholds::session::{ENTERING, REFERRED};
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
use vellum_ring::files::{ASK_KERNEL, CHECKED, ENTER, LOOK, MAKE_LINK, OPEN, SLOT_BYTES, STALE};
use vellum_ring::{Linux, Platform, Request, Response};

const EIO: u32 = 5;
/// Statuses from here on are no errors of the program's.
const STATUSES: u32 = 4096;

/// What calls are compared by that may be rare. It does not go on where none is, nor in tests, which a busy machine may hold up between any two.
fn now() -> u64 {
    if cfg!(test) || session::is_at_once() { 0 } else { Linux.now() }
}

/// A path, taken over to where the session's calls have their paths.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    directory: i32,
    /// Where the kernel's part ends and the service's begins.
    split: Split,
    /// Where the path of the directory ends.
    parent: usize,
}

/// What a call has come to.
pub(crate) struct CallOutcome {
    pub(crate) response: Response,
    /// The directory that the kernel has been asked about, and the end of its path.
    pub(crate) place: DirLocation,
    pub(crate) base: usize,
}

impl Name {
    /// # Safety
    /// The path must be the program's, readable as far as it is mapped at all.
    pub(crate) unsafe fn take(
        hold: &mut SessionGuard,
        directory: i32,
        path: usize,
    ) -> Result<Self, CallFailure> {
        // SAFETY: the caller's.
        unsafe { Self::take_as(hold, directory, path, paths::split) }
    }

    /// # Safety
    /// The path must be the program's, readable as far as it is mapped at all.
    pub(crate) unsafe fn take_as(
        hold: &mut SessionGuard,
        directory: i32,
        path: usize,
        split: impl FnOnce(&[u8]) -> Option<Split>,
    ) -> Result<Self, CallFailure> {
        // SAFETY: the caller's.
        let len = unsafe { paths::take(directory, path, &mut hold.path) };
        let split = len.and_then(|len| split(hold.path.get(..len)?)).ok_or(CallFailure::Kernel)?;
        Ok(Self { directory, split, parent: split.parent })
    }

    /// Whether it is likely to be the service's: in the directory of the last call, or in one that the program has made.
    pub(crate) fn is_guess(&self, hold: &SessionGuard) -> bool {
        let text = hold.path.get(..self.parent).unwrap_or_default();
        hold.dirs.is_last(self.directory, text) || hold.fresh.base(self.directory, text).is_some()
    }

    /// Which directory it is in, as the kernel says.
    pub(crate) fn place(&self, hold: &mut SessionGuard) -> Option<DirLocation> {
        let directory = self.directory;
        self.with_parent(&mut hold.path, |path| dirs::look(directory, path)).flatten()
    }

    /// Whether it is likely to be a directory that the program has made.
    pub(crate) fn is_fresh(&self, hold: &SessionGuard) -> bool {
        let text = hold.path.get(..self.split.end).unwrap_or_default();
        hold.fresh.base(self.directory, text).is_some()
    }

    /// It is a directory that the program has just made, where the kernel knows the path as far as `base`.
    pub(crate) fn note_created(&self, hold: &mut SessionGuard, base: usize) {
        let state = &mut **hold;
        if let Some(text) = state.path.get(..self.split.end) {
            state.fresh.keep(self.directory, text, base);
        }
    }

    /// This name, with the directories that only the service knows left to the service.
    fn below(&self, hold: &SessionGuard) -> Option<Self> {
        let base = hold.fresh.base(self.directory, hold.path.get(..self.parent)?)?;
        let rest = hold.path.get(base..self.parent)?;
        let name = base + rest.iter().position(|byte| *byte != b'/')?;
        Some(Self { split: Split { parent: base, name, ..self.split }, ..*self })
    }

    /// Does something with the directory's path.
    fn with_parent<T>(&self, path: &mut [u8; PATH_MAX], then: impl FnOnce(&CStr) -> T) -> Option<T> {
        match self.split.parent {
            0 => Some(then(c".")),
            1 if path.first() == Some(&b'/') => Some(then(c"/")),
            end => {
                let before = core::mem::replace(path.get_mut(end)?, 0);
                let done = CStr::from_bytes_until_nul(path).ok().map(then);
                *path.get_mut(end)? = before;
                done
            }
        }
    }

    /// A whole call about the name, with `more` data after it.
    pub(crate) fn request(
        &self,
        hold: &mut SessionGuard,
        kind: Kind,
        request: Request,
        more: &[u8],
    ) -> Result<CallOutcome, CallFailure> {
        if !hold.spend_credit(now()) {
            return Err(CallFailure::Kernel);
        }
        if let Some(below) = self.below(hold) {
            if let Some(answered) = below.ask(hold, kind, request, more)? {
                return Ok(answered);
            }
            // Somebody has asked the kernel about the directory.
            let state = &mut **hold;
            if let Some(text) = state.path.get(..self.parent) {
                state.fresh.forget(self.directory, text);
            }
        }
        self.ask(hold, kind, request, more)?.ok_or(CallFailure::Kernel)
    }

    /// None: the kernel knows of the directories that were left to the service.
    fn ask(
        &self,
        hold: &mut SessionGuard,
        kind: Kind,
        mut request: Request,
        more: &[u8],
    ) -> Result<Option<CallOutcome>, CallFailure> {
        let place = self.place(hold).ok_or(CallFailure::Kernel)?;
        let mut number = self.number(hold, kind, &place)?;
        let mut entered_again = false;
        loop {
            let [first, ..] = &mut request.args;
            *first = number;
            let response = self.send(hold, kind, request, more)?;
            match response.status as u32 {
                0 => {
                    self.note_success(hold);
                    return Ok(Some(CallOutcome { response, place, base: self.split.parent }));
                }
                STALE if !entered_again => {
                    entered_again = true;
                    hold.dirs.drop_stale(&place);
                    number = self.number(hold, kind, &place)?;
                }
                LOOK if self.split.parent != self.parent => return Ok(None),
                LOOK if request.opcode == OPEN && request.flags == 0 && self.is_plain(hold, &place) => {
                    request.flags = CHECKED;
                }
                LOOK => {
                    hold.pay(REFERRED);
                    hold.dirs.note_miss();
                    count_call(kind, CallPath::Look);
                    return Err(CallFailure::Kernel);
                }
                // A call that the service has dropped.
                EIO => {
                    count_call(kind, CallPath::Gone);
                    return Err(CallFailure::Unknown);
                }
                error if error < STATUSES => {
                    self.note_success(hold);
                    count_call(kind, CallPath::Ring);
                    return Err(CallFailure::Failed(error as i32));
                }
                status => {
                    hold.pay(REFERRED);
                    if status == ASK_KERNEL {
                        hold.dirs.note_miss();
                    }
                    count_call(kind, CallPath::Asked);
                    return Err(CallFailure::Kernel);
                }
            }
        }
    }

    fn note_success(&self, hold: &mut SessionGuard) {
        hold.earn();
        let directory = self.directory;
        let state = &mut **hold;
        if let Some(text) = state.path.get(..self.parent) {
            state.dirs.note_success(directory, text);
        }
    }

    fn send(
        &self,
        hold: &mut SessionGuard,
        kind: Kind,
        mut request: Request,
        more: &[u8],
    ) -> Result<Response, CallFailure> {
        let mut data = [0; SLOT_BYTES as usize];
        let name = hold.path.get(self.split.name..self.split.end).unwrap_or_default();
        let data = data.get_mut(..name.len() + more.len()).ok_or(CallFailure::Kernel)?;
        data.iter_mut().zip(name.iter().chain(more)).for_each(|(to, from)| *to = *from);
        if request.opcode == MAKE_LINK {
            let [_, len, ..] = &mut request.args;
            *len = name.len() as u64;
        }
        hold.call(request, data).inspect_err(|_| count_call(kind, CallPath::Gone))
    }

    /// The number by which the service knows the directory.
    fn number(&self, hold: &mut SessionGuard, kind: Kind, place: &DirLocation) -> Result<u64, CallFailure> {
        if let Some(known) = hold.dirs.find(place) {
            return known.ok_or(CallFailure::Kernel);
        }
        let (directory, device) = (self.directory, place.device);
        let is_union = |hold: &mut SessionGuard| {
            let found =
                self.with_parent(&mut hold.path, |path| mount_type::is_union(directory, path, device));
            found == Some(true)
        };
        match is_served(hold, device, is_union) {
            Some(true) => FOREIGN.store(0, Relaxed),
            Some(false) => return Err(CallFailure::Kernel),
            None => {
                FOREIGN.fetch_add(1, Relaxed);
                return Err(CallFailure::Kernel);
            }
        }
        let show = |hold: &mut SessionGuard| {
            let shown = self.with_parent(&mut hold.path, |path| dirs::prove_access(directory, path, place));
            shown.unwrap_or(ProofOutcome::NotNow)
        };
        let token = match prove(hold, device, show) {
            Ok(token) => token,
            Err(refused) => {
                if refused == ProofOutcome::Never {
                    hold.dirs.keep(*place, None);
                }
                return Err(CallFailure::Kernel);
            }
        };
        let request = Request { opcode: ENTER, ..Request::default() };
        let Ok(response) = hold.call(request, &token) else {
            count_call(kind, CallPath::Gone);
            return Err(CallFailure::Kernel);
        };
        hold.pay(ENTERING);
        let [number, ..] = response.values;
        let number = (response.status == 0).then_some(number);
        hold.dirs.keep(*place, number);
        number.ok_or_else(|| {
            count_call(kind, CallPath::Asked);
            CallFailure::Kernel
        })
    }

    /// Whether nothing is mounted over the name.
    fn is_plain(&self, hold: &SessionGuard, place: &DirLocation) -> bool {
        let Ok(path) = CStr::from_bytes_until_nul(&hold.path) else { return false };
        let flags = AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC;
        attributes::at(self.directory, path, flags, STATX_MNT_ID | STATX_INO).is_ok_and(|found| {
            found.mask & STATX_MNT_ID != 0
                && found.mnt_id == place.mount
                && found.attributes & STATX_ATTR_MOUNT_ROOT == 0
        })
    }
}
