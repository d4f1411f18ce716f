//! What a partial file says of itself, in an extended attribute of its own.

use super::origin::{Origin, SAMPLE_LEN};
use crate::layers::marks::checksum;
use std::ffi::CStr;
use vellum_vfs::{Errno, Error, Object, Result, Timestamp};

/// Length of a stored record.
pub(crate) const RECORD_LEN: usize = 64;
const VERSION: u8 = 2;
/// Length of a record of version 1, which says nothing of the origin but its size.
const RECORD_LEN_1: usize = 32;
/// Smallest and largest block: 4 KiB, the smallest of the usual filesystems and the page, to 1 MiB.
const SHIFTS: std::ops::RangeInclusive<u8> = SHIFTS_MIN..=20;
const SHIFTS_MIN: u8 = 12;
/// Its own blocks are listed in a sidecar.
const SIDECAR: u8 = 1;
/// It says by what its origin is known again.
const ORIGIN: u8 = 2;

/// The record of a partial file. Its origin's inode and time are in `vellum.o`, its path in `overlay.redirect` when it is
/// not the file's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Size of a block: its binary logarithm.
    pub(crate) shift: u8,
    /// Bytes from here on never come from below. It shrinks with the file and never grows.
    pub(crate) limit: u64,
    /// Size of the origin in bytes when the file was made.
    pub(crate) origin_size: u64,
    /// The number of its sidecar; None: its own blocks are those that are not holes.
    pub(crate) sidecar: Option<u64>,
    /// By what the origin is known again; None: by its size, and the time in `vellum.o`.
    pub(crate) origin: Option<Origin>,
}

impl Record {
    /// Of a file with all its data below, `size` bytes, that is about to be cut to `limit` bytes.
    pub(crate) const fn of_cut(limit: u64, size: u64) -> Self {
        Self { shift: SHIFTS_MIN, limit, origin_size: size, sidecar: None, origin: None }
    }

    /// Version, block, checksum, flags, three zeros, limit, origin's size, sidecar; the origin's inode number, time of change in
    /// seconds and nanoseconds, sample (little endian).
    pub(crate) fn encode(&self) -> [u8; RECORD_LEN] {
        let mut out = [0; RECORD_LEN];
        out[0] = VERSION;
        out[1] = self.shift;
        out[4] =
            if self.sidecar.is_some() { SIDECAR } else { 0 } | if self.origin.is_some() { ORIGIN } else { 0 };
        out[8..16].copy_from_slice(&self.limit.to_le_bytes());
        out[16..24].copy_from_slice(&self.origin_size.to_le_bytes());
        out[24..32].copy_from_slice(&self.sidecar.unwrap_or(0).to_le_bytes());
        if let Some(origin) = &self.origin {
            out[32..40].copy_from_slice(&origin.ino.to_le_bytes());
            out[40..48].copy_from_slice(&origin.ctime.secs.to_le_bytes());
            out[48..52].copy_from_slice(&origin.ctime.nanos.to_le_bytes());
            out[52..64].copy_from_slice(&origin.sample);
        }
        let sum = checksum(&out);
        out[2..4].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a stored record. EIO: damaged, or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = || Error::new(Errno::IO, "damaged vellum.p attribute").damage();
        // The first version is the beginning of the second.
        let mut raw = [0; RECORD_LEN];
        match (bytes.first(), bytes.len()) {
            (Some(1), RECORD_LEN_1) | (Some(&VERSION), RECORD_LEN) => {
                raw[..bytes.len()].copy_from_slice(bytes)
            }
            _ => return Err(bad()),
        }
        let mut unsummed = raw;
        unsummed[2..4].fill(0);
        let le64 = |at: usize| raw[at..at + 8].iter().rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
        let known = SHIFTS.contains(&raw[1])
            && raw[4] & !(SIDECAR | if raw[0] == VERSION { ORIGIN } else { 0 }) == 0
            && raw[5..8] == [0; 3]
            && i64::try_from(le64(8)).is_ok()
            && [raw[2], raw[3]] == checksum(unsummed.get(..bytes.len()).unwrap_or_default()).to_le_bytes();
        if !known {
            return Err(bad());
        }
        let sidecar = (raw[4] & SIDECAR != 0).then(|| le64(24));
        let mut sample = [0; SAMPLE_LEN];
        sample.copy_from_slice(&raw[52..]);
        let nanos = le64(48) as u32;
        let ctime = Timestamp { secs: le64(40) as i64, nanos };
        let origin = (raw[4] & ORIGIN != 0).then(|| Origin { ino: le64(32), ctime, sample });
        Ok(Self { shift: raw[1], limit: le64(8), origin_size: le64(16), sidecar, origin })
    }

    /// Reads the record of an object. EIO: there is none, or a damaged one.
    pub(crate) fn read(object: &dyn Object, name: &CStr) -> Result<Self> {
        let mut value = [0; 2 * RECORD_LEN];
        match object.get_xattr(name, &mut value) {
            Ok(n) => Self::decode(value.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.errno(), Errno::NODATA | Errno::RANGE) => {
                Err(Error::new(Errno::IO, "a partial file without its vellum.p attribute").damage())
            }
            Err(e) => Err(e),
        }
    }

    /// Size of a block in bytes.
    pub(crate) const fn block(&self) -> u64 {
        1 << self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As version 0.1 has written it before it knew of origins.
    #[test]
    fn a_record_of_the_first_version_is_read() {
        let mut raw = [0; RECORD_LEN_1];
        raw[..2].copy_from_slice(&[1, 12]);
        (raw[8], raw[16], raw[24], raw[4]) = (77, 99, 5, SIDECAR);
        let sum = checksum(&raw);
        raw[2..4].copy_from_slice(&sum.to_le_bytes());
        let expected = Record { shift: 12, limit: 77, origin_size: 99, sidecar: Some(5), origin: None };
        assert_eq!(Record::decode(&raw).unwrap(), expected);
        raw[4] |= ORIGIN;
        assert!(Record::decode(&raw).is_err());
    }

    proptest! {
        #[test]
        fn a_record_survives_its_encoding(
            shift in 12..=20_u8, limit in 0..i64::MAX as u64, origin_size: u64, sidecar: Option<u64>,
            origin: Option<(u64, i64, u32, [u8; SAMPLE_LEN])>,
        ) {
            let origin = origin.map(|(ino, secs, nanos, sample)| Origin { ino, ctime: Timestamp { secs, nanos }, sample });
            let record = Record { shift, limit, origin_size, sidecar, origin };
            prop_assert_eq!(Record::decode(&record.encode()).unwrap(), record);
        }

        #[test]
        fn damage_is_detected_without_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..96), at in 0..RECORD_LEN, bit in 0..8_u8,
        ) {
            let _ = Record::decode(&bytes);
            let mut raw = Record { shift: 12, limit: 77, origin_size: 99, sidecar: None, origin: None }.encode();
            raw[at] ^= 1 << bit;
            prop_assert!(Record::decode(&raw).is_err());
        }
    }
}
