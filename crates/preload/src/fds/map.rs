//! Making a mapping of a descriptor, and the reasons for not making one.

use crate::fds::table::{Entry, View};
use crate::session::file_generations::{self, Refusal};
use crate::shim::{raw, signals};
use crate::thresholds::reads::SPACE_MAX;
use core::ffi::CStr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

/// What the service is asked; `instance.rs` of the service has the form of the answer.
const QUESTION: &CStr = c"vellum.map";
const ANSWER_LEN: usize = 40;

static SPACE: AtomicUsize = AtomicUsize::new(0);

/// Takes a mapping away.
pub(crate) fn unmap(view: &View) {
    raw::unmap(view.base, view.size);
    SPACE.fetch_sub(view.size, Relaxed);
}

/// Maps the file of a descriptor and puts that into use.
pub(crate) fn attach(fd: i32, entry: &Entry) -> Result<(), Refusal> {
    if !entry.claim() {
        return Err(Refusal::Later);
    }
    match make(fd) {
        Ok(view) if entry.publish(&view, unmap) => Ok(()),
        Ok(_) => Err(Refusal::Later),
        Err(refusal) => {
            entry.abandon();
            Err(refusal)
        }
    }
}

fn make(fd: i32) -> Result<View, Refusal> {
    const O_ACCMODE: isize = 3;
    const O_WRONLY: isize = 1;
    const O_DIRECT: isize = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
    const O_PATH: isize = 0o10_000_000;
    const EAGAIN: isize = -11;
    const S_IFMT: u32 = 0o170_000;
    const S_IFREG: u32 = 0o100_000;
    let flags = raw::flags_of(fd);
    if flags < 0 || flags & (O_DIRECT | O_PATH) != 0 || flags & O_ACCMODE == O_WRONLY {
        return Err(Refusal::Unfit);
    }
    let mut answer = [0u8; ANSWER_LEN];
    match raw::get_xattr(fd, QUESTION, &mut answer) {
        len if len == ANSWER_LEN as isize => {}
        // The file is being cut.
        EAGAIN => return Err(Refusal::Later),
        _ => return Err(Refusal::NotVellum),
    }
    let mut words = [0u64; ANSWER_LEN / 8];
    for (word, bytes) in words.iter_mut().zip(answer.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let [format_and_slot, _serial, generation, memory, size] = words;
    if format_and_slot as u32 != 1 {
        return Err(Refusal::NotVellum);
    }
    let word = file_generations::word(memory, (format_and_slot >> 32) as u32)?;
    let (mode, kernel_size) = raw::stat(fd).ok_or(Refusal::Unfit)?;
    if mode & S_IFMT != S_IFREG {
        return Err(Refusal::Unfit);
    }
    // What has been cut off at the service is still there in the kernel for a moment; what was appended is not yet at the service.
    let size = usize::try_from(size.min(kernel_size)).map_err(|_| Refusal::Unfit)?;
    if size == 0 {
        return Err(Refusal::Later);
    }
    if !signals::next_sigaction().is_some_and(signals::install) {
        return Err(Refusal::Later);
    }
    if SPACE.fetch_add(size, Relaxed).saturating_add(size) > SPACE_MAX {
        SPACE.fetch_sub(size, Relaxed);
        return Err(Refusal::Unfit);
    }
    let Some(base) = raw::map_file(fd, size) else {
        SPACE.fetch_sub(size, Relaxed);
        return Err(Refusal::Unfit);
    };
    let view = View { base, size, word, generation };
    if file_generations::read(word) != generation {
        unmap(&view);
        return Err(Refusal::Later);
    }
    Ok(view)
}
