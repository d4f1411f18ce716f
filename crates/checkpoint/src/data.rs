//! A file's data, copied so that what is a hole stays one: in an upper layer a hole may show the file below.

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::{Errno, pread, pwrite};
use std::io;
use std::os::fd::AsFd;

/// Bytes that are copied by one call: one that cannot be interrupted should end soon.
const PART: u64 = 8 << 20;
/// Bytes of a copy by hand.
const BUFFER: usize = 1 << 20;

/// Why a copy is none.
pub(super) const INEXACT: &str = "holes of the file are not kept exactly by the filesystem of the copy; give a directory on ext4, XFS, Btrfs or tmpfs";

/// What copying has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyOutcome {
    /// Bytes that were read and written.
    pub(crate) bytes: u64,
    /// Whether the copy has the source's blocks instead.
    pub(crate) shared: bool,
}

/// Copies what `from` holds to `to`, an empty file, by sharing blocks where the filesystem can. `exactly`: holes have a meaning, so a
/// filesystem that does not show the same holes in the copy is an error.
pub(crate) fn copy(from: impl AsFd, to: impl AsFd, exactly: bool) -> io::Result<CopyOutcome> {
    let (from, to) = (from.as_fd(), to.as_fd());
    match ioctl_ficlone(to, from) {
        Ok(()) => return Ok(CopyOutcome { bytes: 0, shared: true }),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    let size = seek(from, SeekFrom::End(0))?;
    let extents = extents(from, size)?;
    let mut bytes = 0;
    for &(begin, end) in &extents {
        bytes += range(from, to, begin, end)?;
    }
    ftruncate(to, size)?;
    if exactly && self::extents(to, size)? != extents {
        return Err(io::Error::other(INEXACT));
    }
    Ok(CopyOutcome { bytes, shared: false })
}

/// Where a file has data: from, to, in order, none next to the other.
pub(super) fn extents(file: impl AsFd, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let file = file.as_fd();
    let (mut found, mut at): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    while at < size {
        let begin = match seek(file, SeekFrom::Data(at)) {
            // Nothing but a hole.
            Err(Errno::NXIO) => break,
            begin => begin?,
        };
        let end = seek(file, SeekFrom::Hole(begin))?.min(size);
        if end <= begin {
            break;
        }
        match found.last_mut() {
            Some(last) if last.1 == begin => last.1 = end,
            _ => found.push((begin, end)),
        }
        at = end;
    }
    Ok(found)
}

/// Copies a range; how many bytes: fewer where the source has become shorter.
fn range(from: impl AsFd, to: impl AsFd, begin: u64, end: u64) -> io::Result<u64> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let mut at = begin;
    while at < end {
        let len = usize::try_from((end - at).min(PART)).unwrap_or(BUFFER);
        let (mut input, mut output) = (at, at);
        match copy_file_range(from, Some(&mut input), to, Some(&mut output), len) {
            Ok(0) => break,
            Ok(n) => at += n as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                return Ok(at - begin + by_hand(from, to, at, end)?);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(at - begin)
}

fn by_hand(from: impl AsFd, to: impl AsFd, begin: u64, end: u64) -> io::Result<u64> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let mut buffer = vec![0; BUFFER];
    let mut at = begin;
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
        let read = pread(from, buffer.get_mut(..len).unwrap_or_default(), at)?;
        let mut rest = buffer.get(..read).unwrap_or_default();
        if rest.is_empty() {
            break;
        }
        while !rest.is_empty() {
            let written = pwrite(to, rest, at)?;
            at += written as u64;
            rest = rest.get(written..).unwrap_or_default();
        }
    }
    Ok(at - begin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::File;
    use std::io::{Read, Seek};
    use std::os::unix::fs::FileExt;

    fn sparse(writes: &[(u64, u8)], size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        for &(block, byte) in writes {
            file.write_all_at(&[byte; 4096], block * 4096).unwrap();
        }
        file.set_len(size).unwrap();
        file
    }

    fn contents(mut file: &File) -> Vec<u8> {
        let mut all = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut all).unwrap();
        all
    }

    proptest! {
        #[test]
        fn data_and_holes_are_the_same(
            writes in prop::collection::vec((0_u64..64, 1_u8..=255), 0..24), size in 0_u64..70 * 4096,
        ) {
            let (from, to) = (sparse(&writes, size), tempfile::tempfile().unwrap());
            copy(&from, &to, true).unwrap();
            prop_assert_eq!(contents(&to), contents(&from));
            prop_assert_eq!(extents(&to, size).unwrap(), extents(&from, size).unwrap());
            let (by_hand, size) = (tempfile::tempfile().unwrap(), from.metadata().unwrap().len());
            for (begin, end) in extents(&from, size).unwrap() {
                prop_assert_eq!(super::by_hand(&from, &by_hand, begin, end).unwrap(), end - begin);
            }
            by_hand.set_len(size).unwrap();
            prop_assert_eq!(contents(&by_hand), contents(&from));
        }
    }
}
