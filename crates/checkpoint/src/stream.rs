//! A checkpoint as one stream: an object on its way to somebody who restores from it.
//!
//! ```text
//! ┌──────────┬──────────────────────┬──────────────────────┬─ ─ ─┬───────────────────────────┐
//! │ vlmstrm1 │ length, sum │ bytes  │ length, sum │ bytes  │ …   │ 0, sum │ bytes before it  │
//! └──────────┴──────────────────────┴──────────────────────┴─ ─ ─┴───────────────────────────┘
//! ```
//!
//! Numbers are little-endian, lengths and sums (CRC-32C, with the part's place in front) have 32 bits. Whoever reads it has all of it before anything is made of it, in a file without a name,
//! and reads no byte behind its end: what follows on standard input is the container's.

use super::object::{ByteSink, FileSource, ObjectInfo, ObjectReader};
use super::record::Record;
use crc_fast::{CrcAlgorithm, Digest};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// What it begins with.
const MAGIC: &[u8; 8] = b"vlmstrm1";
/// The most bytes of a part.
const PART: usize = 1 << 20;
/// What it is called in errors.
const SHOWN: &str = "stream";

/// The checksum of a part that begins after so many bytes of the object.
fn sum(at: u64, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&at.to_le_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

/// An object's bytes on their way.
struct ToStream<W> {
    to: W,
    at: u64,
}

impl<W: Write + Send> ToStream<W> {
    fn begin(to: W) -> Result<Self, Failure> {
        let mut begun = Self { to, at: 0 };
        begun.to.write_all(MAGIC).map_err(|e| begun.explain(&e))?;
        Ok(begun)
    }

    fn part(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.to.write_all(&sum(self.at, bytes).to_le_bytes())?;
        self.to.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Ends it: without this it is none.
    fn end(&mut self) -> io::Result<()> {
        let at = self.at;
        self.part(&[])?;
        self.to.write_all(&at.to_le_bytes())?;
        self.to.flush()
    }
}

impl<W: Write + Send> ByteSink for ToStream<W> {
    fn write(&mut self, bytes: &[u8], _: bool) -> io::Result<()> {
        bytes.chunks(PART).try_for_each(|part| self.part(part))
    }

    fn explain(&self, error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::system(format!("{SHOWN}: whoever reads it has ended"));
        }
        Failure::system(SHOWN).because(error)
    }

    fn sync(&mut self, _: &Record) -> Result<(), Failure> {
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<PathBuf, Failure> {
        self.end().map_err(|e| self.explain(&e))?;
        Ok(SHOWN.into())
    }
}

/// Why no more is read.
#[derive(Debug, PartialEq, Eq)]
enum StreamError {
    /// It never was one.
    NoStream,
    /// It has no end.
    Cut,
    /// Something else is there than was written.
    Damaged,
    Read(io::ErrorKind, String),
    Write(io::ErrorKind, String),
}

fn fill(from: &mut impl Read, into: &mut [u8]) -> Result<(), StreamError> {
    from.read_exact(into).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => StreamError::Cut,
        kind => StreamError::Read(kind, e.to_string()),
    })
}

fn number(from: &mut impl Read) -> Result<u32, StreamError> {
    let mut bytes = [0; 4];
    fill(from, &mut bytes).map(|()| u32::from_le_bytes(bytes))
}

/// Moves a stream's object to where it is to be. Nothing behind the stream's end is read.
fn receive(from: &mut impl Read, to: &mut impl Write) -> Result<u64, StreamError> {
    let mut magic = [0; MAGIC.len()];
    match fill(from, &mut magic) {
        Ok(()) if magic == *MAGIC => {}
        Ok(()) | Err(StreamError::Cut) => return Err(StreamError::NoStream),
        Err(bad) => return Err(bad),
    }
    let (mut at, mut buffer) = (0, vec![0; PART]);
    loop {
        let (len, expected) = (number(from)? as usize, number(from)?);
        let part = buffer.get_mut(..len).ok_or(StreamError::Damaged)?;
        fill(from, part)?;
        if sum(at, part) != expected {
            return Err(StreamError::Damaged);
        }
        if part.is_empty() {
            let mut size = [0; 8];
            fill(from, &mut size)?;
            return if u64::from_le_bytes(size) == at { Ok(at) } else { Err(StreamError::Damaged) };
        }
        to.write_all(part).map_err(|e| StreamError::Write(e.kind(), e.to_string()))?;
        at += len as u64;
    }
}

/// Standard input or output, past every buffer: what is not the stream's belongs to others.
struct Standard(File);

impl Standard {
    /// Waits until it is possible, for somebody may have made it one that does not wait.
    fn retry<T>(
        &mut self,
        flags: PollFlags,
        mut what: impl FnMut(&mut File) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match what(&mut self.0) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.0, flags)], None)?;
                }
                done => return done,
            }
        }
    }
}

impl Read for Standard {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::IN, |file| file.read(into))
    }
}

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, |file| file.write(bytes))
    }

    /// Whoever ends the container afterwards relies on it, if it is a file.
    fn flush(&mut self) -> io::Result<()> {
        match self.0.sync_all() {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
            done => done,
        }
    }
}

/// Begins one to standard output.
pub(super) fn begin_upper() -> Result<Box<dyn ByteSink>, Failure> {
    let to = io::stdout();
    if rustix::termios::isatty(&to) {
        return Err(Failure::input(
            "option --stream: standard output is a terminal; pass it on, e.g. to vellum restore --stream",
        ));
    }
    let to = to.as_fd().try_clone_to_owned().map_err(|e| Failure::system(SHOWN).because(e))?;
    Ok(Box::new(ToStream::begin(Standard(to.into()))?))
}

/// Takes one from standard input, to be restored. `scratch`: where it is meanwhile, in a file without a name.
pub(super) fn received(scratch: &Path) -> Result<(ObjectReader, Record), Failure> {
    let failed = |e: io::Error| Failure::at(scratch, e);
    let input = |why: &str| Failure::input(format!("standard input: {why}"));
    let from = io::stdin();
    if rustix::termios::isatty(&from) {
        return Err(input("a terminal; give what vellum checkpoint --stream writes"));
    }
    let mut from = Standard(from.as_fd().try_clone_to_owned().map_err(|e| input(&e.to_string()))?.into());
    let mut file = tempfile::tempfile_in(scratch).map_err(failed)?;
    receive(&mut from, &mut file).map_err(|bad| match bad {
        StreamError::NoStream => input("no stream of vellum checkpoint --stream that this version reads"),
        StreamError::Cut => input("the stream is cut off; nothing was restored"),
        StreamError::Damaged => input("the stream is not what was written; nothing was restored"),
        StreamError::Read(_, why) => input(&why),
        StreamError::Write(kind, _) => failed(kind.into()),
    })?;
    let object_info = ObjectInfo::at(Box::new(FileSource::new(file).map_err(failed)?), SHOWN)?;
    let (record, map) = (object_info.record()?, object_info.map()?);
    let parents = super::chain::needed(map.as_ref(), SHOWN, &|_| Ok(None))?;
    Ok((ObjectReader::new(object_info, parents, SHOWN)?, record))
}

/// Reads what may be a stream, and the object in it. True: they are.
pub(super) fn parse_hostile(bytes: &[u8]) -> bool {
    let mut object = Vec::new();
    receive(&mut &*bytes, &mut object).is_ok() && super::object::parse_hostile(&object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut out = ToStream::begin(Vec::new()).unwrap();
        parts.iter().for_each(|part| out.write(part, false).unwrap());
        out.end().unwrap();
        out.to
    }

    fn received(bytes: &[u8]) -> Result<(Vec<u8>, usize), StreamError> {
        let (mut rest, mut object) = (bytes, Vec::new());
        let size = receive(&mut rest, &mut object)?;
        assert_eq!(size, object.len() as u64);
        Ok((object, rest.len()))
    }

    proptest! {
        #[test]
        fn the_receiver_reads_the_stream_and_nothing_after_it(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..2000), 0..8), behind in 0_usize..50,
        ) {
            let mut bytes = stream(&parts);
            bytes.resize(bytes.len() + behind, 7);
            prop_assert_eq!(received(&bytes), Ok((parts.concat(), behind)));
        }

        #[test]
        fn a_truncated_or_altered_stream_is_refused(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 1..4), at: prop::sample::Index, bit in 0_u8..8,
        ) {
            let bytes = stream(&parts);
            let at = at.index(bytes.len());
            let cut = received(&bytes[..at]);
            prop_assert_eq!(cut, Err(if at < MAGIC.len() { StreamError::NoStream } else { StreamError::Cut }));
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            prop_assert!(received(&changed).is_err());
        }

        #[test]
        fn nothing_that_is_read_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            parse_hostile(&[&MAGIC[..], &bytes].concat());
        }
    }

    #[test]
    fn reordered_parts_are_refused_and_large_ones_are_split() {
        let parts = [vec![1; 100], vec![2; 100]];
        let right = stream(&parts);
        let mut other = right[..8].to_vec();
        other.extend_from_slice(&right[8 + 108..8 + 216]);
        other.extend_from_slice(&right[8..8 + 108]);
        other.extend_from_slice(&right[8 + 216..]);
        assert_eq!(received(&other), Err(StreamError::Damaged));
        let large = vec![vec![7; 3 * PART + 5]];
        assert_eq!(received(&stream(&large)), Ok((large.concat(), 0)));
        // A length that is more than a part has, and a part that is longer than all there is.
        for len in [PART as u32 + 1, u32::MAX] {
            let mut huge = MAGIC.to_vec();
            huge.extend_from_slice(&len.to_le_bytes());
            huge.extend_from_slice(&[0; 100]);
            assert_eq!(received(&huge), Err(StreamError::Damaged));
        }
        assert_eq!(received(b"anything else"), Err(StreamError::NoStream));
    }
}
