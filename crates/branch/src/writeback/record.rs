//! Records of the log: a head of nine words, then data.
//!
//! A record names its own position, so that none of an earlier round is taken for one of this, and has a sum, which finds what was
//! written astray. A process that has died may have been anything: what a record says is checked when it is read, and is no more than
//! what a program could have asked of its own file.

use super::limits::DATA_MAX;
use vellum_vfs::{Errno, SetTime, Timestamp};

pub(super) const HEAD_WORDS: usize = 9;
pub(super) const HEAD_BYTES: u64 = (HEAD_WORDS * size_of::<u64>()) as u64;
/// The word of a head that says whether the record is still to be written.
pub(super) const STATE: usize = 8;
pub(super) const LIVE: u64 = 1;
/// Words before the sum. It is not of the time, which the storage says when the change has been made.
const SUMMED: usize = 7;
/// The words of the time: seconds, nanoseconds.
pub(super) const WHEN: usize = 4;
/// Bytes of the data of a change of times.
const TIMES_BYTES: usize = 32;
/// Nanoseconds of a time that is none.
const NO_TIME: u64 = u64::MAX;
const NANOS_A_SECOND: u64 = 1_000_000_000;

/// What is to be done to a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// At an offset in bytes.
    Write(u64, &'a [u8]),
    /// Size in bytes.
    Truncate(u64),
    /// Permission bits.
    Mode(u32),
    /// Owner and group.
    Owner(Option<u32>, Option<u32>),
    /// Last access, last change of data.
    Times(Option<Timestamp>, Option<Timestamp>),
    /// The access-control list; None: it goes.
    Acl(Option<&'a [u8]>),
}

/// A time as it was when a change was answered.
pub(super) fn at(time: SetTime, now: Timestamp) -> Timestamp {
    match time {
        SetTime::Now => now,
        SetTime::At(at) => at,
    }
}

/// A record as it is to be written, without its data.
pub(super) struct Head(pub(super) [u64; HEAD_WORDS]);

const WRITE: u64 = 1;
const TRUNCATE: u64 = 2;
const MODE: u64 = 3;
const OWNER: u64 = 4;
const TIMES: u64 = 5;
const ACL: u64 = 6;
const NO_ACL: u64 = 7;
/// Bits of the second word below the length.
const KIND_BITS: u32 = 8;

/// Bytes that a record with so much data takes.
pub(super) const fn room(data: usize) -> u64 {
    HEAD_BYTES + (data as u64).next_multiple_of(size_of::<u64>() as u64)
}

/// Times as data.
pub(super) fn times(atime: Option<Timestamp>, mtime: Option<Timestamp>) -> [u8; TIMES_BYTES] {
    let mut data = [0; TIMES_BYTES];
    let words = [atime, mtime].into_iter().flat_map(|time| match time {
        Some(time) => [time.secs.cast_unsigned(), time.nanos.into()],
        None => [0, NO_TIME],
    });
    for (place, word) in data.chunks_exact_mut(size_of::<u64>()).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    data
}

fn sum(words: &[u64], data: &[u8]) -> u64 {
    let words = words.iter().take(WHEN);
    let sum = words.fold(0, |sum, word| crc32c::crc32c_append(sum, &word.to_ne_bytes()));
    // Not 0, which memory is that nobody has written to.
    u64::from(crc32c::crc32c_append(sum, data)) | 1 << 32
}

/// Puts the sum into a head, and the record into use.
pub(super) fn seal(words: &mut [u64; HEAD_WORDS], data: &[u8]) {
    words[SUMMED] = sum(words, data);
    words[STATE] = LIVE;
}

impl Change<'_> {
    /// Bytes of data that its record may have.
    pub(super) const fn len(self) -> usize {
        match self {
            Self::Write(_, data) | Self::Acl(Some(data)) => data.len(),
            Self::Times(..) => TIMES_BYTES,
            _ => 0,
        }
    }

    /// The number that stands for it, and what else the head says of it.
    fn kind(self) -> (u64, u64) {
        let or_none = |id: Option<u32>| u64::from(id.unwrap_or(u32::MAX));
        match self {
            Self::Write(offset, _) => (WRITE, offset),
            Self::Truncate(size) => (TRUNCATE, size),
            Self::Mode(mode) => (MODE, mode.into()),
            Self::Owner(uid, gid) => (OWNER, or_none(uid) | or_none(gid) << 32),
            Self::Times(..) => (TIMES, 0),
            Self::Acl(Some(_)) => (ACL, 0),
            Self::Acl(None) => (NO_ACL, 0),
        }
    }
}

impl Head {
    /// The head of a record at a position; `when`: the change is made.
    pub(super) fn new(position: u64, ino: u64, change: Change<'_>, data: &[u8], when: Timestamp) -> Self {
        let (kind, detail) = change.kind();
        let mut words = [0; HEAD_WORDS];
        let said = [
            position,
            kind | (data.len() as u64) << KIND_BITS,
            ino,
            detail,
            when.secs.cast_unsigned(),
            when.nanos.into(),
            0,
        ];
        words[..SUMMED].copy_from_slice(&said);
        seal(&mut words, data);
        Self(words)
    }
}

/// A head that a predecessor has left, as far as it makes sense by itself.
pub(super) struct ParsedHead {
    words: [u64; HEAD_WORDS],
    /// Bytes of data behind it.
    pub(super) len: usize,
}

impl ParsedHead {
    /// Reads a head at a position. EBADMSG: that is none.
    pub(super) fn parse(words: [u64; HEAD_WORDS], position: u64) -> Result<Self, Errno> {
        let len = usize::try_from(words[1] >> KIND_BITS).unwrap_or(usize::MAX);
        if words[0] != position || len > DATA_MAX || words[6] != 0 {
            return Err(Errno::BADMSG);
        }
        Ok(Self { words, len })
    }

    /// Whether it is still to be done.
    pub(super) const fn is_live(&self) -> bool {
        self.words[STATE] == LIVE
    }

    /// The file's inode number, what was to be done, and when it was answered. EBADMSG: head and data do not belong together, or say
    /// what nobody can ask for.
    pub(super) fn read<'a>(&self, data: &'a [u8]) -> Result<(u64, Change<'a>, Timestamp), Errno> {
        let [_, kind, ino, detail, secs, nanos, ..] = self.words;
        if self.words[SUMMED] != sum(&self.words[..SUMMED], data) || nanos >= NANOS_A_SECOND {
            return Err(Errno::BADMSG);
        }
        let when = Timestamp { secs: secs.cast_signed(), nanos: nanos as u32 };
        let is_offset = |at: u64| i64::try_from(at).is_ok();
        let id = |id: u64| (id != u64::from(u32::MAX)).then_some(id as u32);
        let change = match kind & ((1 << KIND_BITS) - 1) {
            WRITE if !data.is_empty() && detail.checked_add(data.len() as u64).is_some_and(is_offset) => {
                Change::Write(detail, data)
            }
            TRUNCATE if data.is_empty() && is_offset(detail) => Change::Truncate(detail),
            MODE if data.is_empty() && detail <= 0o7777 => Change::Mode(detail as u32),
            OWNER if data.is_empty() => Change::Owner(id(detail & u64::from(u32::MAX)), id(detail >> 32)),
            TIMES if data.len() == TIMES_BYTES => {
                let [atime, mtime] = [0, 16].map(|from| time(data, from));
                Change::Times(atime?, mtime?)
            }
            ACL => Change::Acl(Some(data)),
            NO_ACL if data.is_empty() => Change::Acl(None),
            _ => return Err(Errno::BADMSG),
        };
        Ok((ino, change, when))
    }
}

/// One of the times in data.
fn time(data: &[u8], from: usize) -> Result<Option<Timestamp>, Errno> {
    let word = |at: usize| {
        let bytes = data.get(at..at + size_of::<u64>()).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_ne_bytes).ok_or(Errno::BADMSG)
    };
    match (word(from)?, word(from + size_of::<u64>())?) {
        (0, NO_TIME) => Ok(None),
        (secs, nanos) if nanos < NANOS_A_SECOND => {
            Ok(Some(Timestamp { secs: secs.cast_signed(), nanos: nanos as u32 }))
        }
        _ => Err(Errno::BADMSG),
    }
}
