//! What the library has done, counted where somebody wants to know, and the report at the end.

use crate::shim::{environment, raw};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Who has answered a read, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Served = 0,
    NotVellum,
    Few,
    Beyond,
    Changed,
    NoSocket,
    Other,
}

/// Calls that may go by the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Open = 0,
    MakeDir,
    MakeLink,
    SetAttributes,
}

/// Who has carried one out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPath {
    Ring = 0,
    /// The kernel, because the service wants it so.
    Asked,
    /// The kernel, because something may be mounted there.
    Look,
    /// The kernel, because the service has gone.
    Gone,
    /// The kernel, because another call was under way.
    Busy,
}

/// Whether a write at an offset, or a sync, went past the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountBypass {
    Yes = 0,
    No,
}

const KINDS: usize = 7;
/// Of one [`Kind`].
const WAYS: usize = 5;
/// What reports call the [`Kind`]s.
const CALLED: [&str; 4] = ["opens", "mkdirs", "symlinks", "setattrs"];

static COUNTS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
static CALLS: [[AtomicU64; WAYS]; CALLED.len()] =
    [const { [const { AtomicU64::new(0) }; WAYS] }; CALLED.len()];
static WRITES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static BYTES: AtomicU64 = AtomicU64::new(0);
static COUNTING: AtomicBool = AtomicBool::new(false);
static REPORT: AtomicBool = AtomicBool::new(false);
/// The process that is to report; 0: none is.
static REPORTER: AtomicU32 = AtomicU32::new(0);

/// To be called when the library is loaded.
pub(crate) fn begin() {
    if environment::variable(b"VELLUM_REPORT").is_some_and(|value| value.to_bytes() == b"1") {
        REPORTER.store(raw::getpid(), Relaxed);
        REPORT.store(true, Relaxed);
        start();
    }
}

/// A child has been made: it counts, and reports, for itself.
pub(crate) fn forked() {
    if COUNTING.load(Relaxed) {
        let all = COUNTS.iter().chain(CALLS.as_flattened()).chain(&WRITES).chain([&BYTES]);
        all.for_each(|count| count.store(0, Relaxed));
        if REPORTER.load(Relaxed) != 0 {
            REPORTER.store(raw::getpid(), Relaxed);
            REPORT.store(true, Relaxed);
        }
    }
}

/// Counts from now on.
pub(crate) fn start() {
    COUNTING.store(true, Relaxed);
}

fn add(counter: Option<&AtomicU64>, number: u64) {
    if COUNTING.load(Relaxed)
        && let Some(counter) = counter
    {
        counter.fetch_add(number, Relaxed);
    }
}

#[inline]
pub(crate) fn count(reason: Reason, bytes: usize) {
    add(COUNTS.get(reason as usize), 1);
    add(Some(&BYTES), bytes as u64);
}

#[inline]
pub(crate) fn count_call(kind: Kind, by: CallPath) {
    add(CALLS.get(kind as usize).and_then(|ways| ways.get(by as usize)), 1);
}

#[inline]
pub(crate) fn count_write(past: MountBypass) {
    add(WRITES.get(past as usize), 1);
}

fn load<const N: usize>(counts: &[AtomicU64; N]) -> [u64; N] {
    counts.each_ref().map(|count| count.load(Relaxed))
}

/// Writes at an offset, and syncs: past the mount, and through it.
pub(crate) fn writes() -> [u64; 2] {
    load(&WRITES)
}

/// Calls of each [`Kind`].
pub(crate) fn calls() -> [[u64; WAYS]; CALLED.len()] {
    CALLS.each_ref().map(load)
}

/// All counts, and the bytes from mappings.
pub(crate) fn all() -> ([u64; KINDS], u64) {
    (load(&COUNTS), BYTES.load(Relaxed))
}

/// Room for a whole report.
const TEXT: usize = 2048;

/// Text of a fixed length.
struct Text {
    bytes: [u8; TEXT],
    len: usize,
}

impl Text {
    fn add(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(to) = self.bytes.get_mut(self.len) {
                *to = *byte;
                self.len += 1;
            }
        }
    }

    /// Numbers, each with what stands before it.
    fn numbers(&mut self, all: &[(&str, u64)]) {
        for (name, value) in all {
            self.add(name.as_bytes());
            self.number(*value);
        }
    }

    fn number(&mut self, mut number: u64) {
        let mut digits = [0u8; 20];
        let mut begin = digits.len();
        for (at, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
            begin = at;
            if number == 0 {
                break;
            }
        }
        self.add(digits.get(begin..).unwrap_or_default());
    }
}

/// Writes the report, once, if one is wanted and there is something to be said. A child whose making was not seen, or that
/// borrows its parent's memory, says nothing.
pub(crate) fn report() {
    if REPORT.load(Relaxed) && REPORTER.load(Relaxed) == raw::getpid() && REPORT.swap(false, Relaxed) {
        let (counts, bytes) = all();
        let calls = calls();
        let writes = writes();
        if counts == [0; KINDS] && calls == [[0; WAYS]; CALLED.len()] && writes == [0; 2] {
            return;
        }
        let text = compose(counts, bytes, writes, &calls);
        raw::write(2, text.bytes.get(..text.len).unwrap_or_default());
    }
}

/// Of writes, and of calls that may go by the ring, there is a line only where there was one.
fn compose(counts: [u64; KINDS], bytes: u64, writes: [u64; 2], calls: &[[u64; WAYS]; CALLED.len()]) -> Text {
    let mut text = Text { bytes: [0; TEXT], len: 0 };
    let [served, not_vellum, few, beyond, changed, no_socket, other] = counts;
    let by_kernel = not_vellum + few + beyond + changed + no_socket + other;
    text.numbers(&[
        ("vellum: preads from mappings: ", served),
        ("\nvellum: bytes from mappings: ", bytes),
        ("\nvellum: preads by the kernel: ", by_kernel),
        (" (not a Vellum file ", not_vellum),
        (", too few reads ", few),
        (", beyond the end ", beyond),
        (", changed ", changed),
        (", no socket ", no_socket),
        (", other ", other),
    ]);
    text.add(b")\n");
    if writes != [0; 2] {
        let [past, through] = writes;
        text.numbers(&[
            ("vellum: pwrites and syncs past the mount: ", past),
            (", through the mount: ", through),
        ]);
        text.add(b"\n");
    }
    for (kind, [ring, asked, look, gone, busy]) in CALLED.iter().zip(*calls) {
        let by_kernel = asked + look + gone + busy;
        if ring + by_kernel == 0 {
            continue;
        }
        text.add(b"vellum: ");
        text.add(kind.as_bytes());
        text.numbers(&[
            (" by the ring: ", ring),
            (", by the kernel: ", by_kernel),
            (" (asked to ", asked),
            (", had to look ", look),
            (", service gone ", gone),
            (", busy ", busy),
        ]);
        text.add(b")\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_lists_the_reading_clients() {
        let text = compose(
            [10, 1, 2, 3, 4, 5, 0],
            u64::MAX,
            [8, 9],
            &[[6, 1, 2, 3, 4], [0; 5], [7, 0, 0, 0, 0], [0; 5]],
        );
        let text = std::str::from_utf8(&text.bytes[..text.len]).unwrap();
        let expected = "vellum: preads from mappings: 10\nvellum: bytes from mappings: 18446744073709551615\n\
                        vellum: preads by the kernel: 15 (not a Vellum file 1, too few reads 2, beyond the end 3, \
                        changed 4, no socket 5, other 0)\n\
                        vellum: pwrites and syncs past the mount: 8, through the mount: 9\n\
                        vellum: opens by the ring: 6, by the kernel: 10 (asked to 1, had to look 2, service gone 3, \
                        busy 4)\n\
                        vellum: symlinks by the ring: 7, by the kernel: 0 (asked to 0, had to look 0, service gone 0, \
                        busy 0)\n";
        assert_eq!(text, expected);
    }
}
