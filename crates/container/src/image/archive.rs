//! A tar archive, entry by entry. Nothing of it is believed: lengths bound what is read and never what is allocated, and what is not
//! understood is refused.

use super::pax;
use super::sparse::{Region, Sparse};
use std::io::{self, Read};
use tar::{EntryType, Header};

/// Headers and data come in blocks of this size.
pub(super) const BLOCK: u64 = 512;
/// The longest extended header. Attributes of a file are at most 64 KiB each on Linux.
const EXTENDED_MAX: u64 = 1 << 20;
/// How often one entry may be described before it comes.
const HEADERS_MAX: u32 = 64;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    CharDevice,
    BlockDevice,
    Fifo,
}

/// An entry. Names are as they stand there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    /// Where a link leads.
    pub(super) target: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds.
    pub(super) mtime: (i64, u32),
    /// Its bytes.
    pub(super) size: u64,
    /// Those that follow as its data, where it has holes between them; None: all of them.
    pub(super) regions: Option<Vec<Region>>,
    /// The numbers of a device.
    pub(super) device: (u32, u32),
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What headers before an entry say about it.
#[derive(Default)]
struct ExtendedHeader {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: Option<Sparse>,
}

/// An archive. As a reader it gives the data of the entry that came last.
pub(super) struct Archive<R> {
    source: R,
    /// Bytes of the entry's data that are still to come, and what fills up their last block.
    left: u64,
    filling: u64,
}

pub(super) fn bad(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl<R: Read> Archive<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, left: 0, filling: 0 }
    }

    /// What the archive is read from.
    pub(super) fn into_source(self) -> R {
        self.source
    }

    /// The next entry; None at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut extended = ExtendedHeader::default();
        for _ in 0..HEADERS_MAX {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let size = header.entry_size().map_err(|_| bad("an entry without a size"))?;
            match header.entry_type() {
                EntryType::GNULongName => extended.name = Some(self.text(size)?),
                EntryType::GNULongLink => extended.target = Some(self.text(size)?),
                EntryType::XHeader => {
                    let text = self.extended(size)?;
                    extended.take(&text)?;
                }
                // It is about the archive as a whole, and says nothing that matters here.
                EntryType::XGlobalHeader => drop(self.extended(size)?),
                kind => return self.entry(&header, kind, size, extended).map(Some),
            }
        }
        Err(bad("an entry with too many headers"))
    }

    /// The next header whose checksum is right; None at the end, marked or not.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let rest = self.left.checked_add(self.filling).ok_or_else(|| bad("a size beyond all bounds"))?;
        (self.left, self.filling) = (0, 0);
        skip(&mut self.source, rest)?;
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        if fill(&mut self.source, block)? == 0 {
            return Ok(None);
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        // The field itself counts as blanks.
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        if header.cksum().ok() != Some(sum) {
            return Err(bad("not a tar archive, or a damaged one"));
        }
        Ok(Some(header))
    }

    fn extended(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > EXTENDED_MAX {
            return Err(bad(format!("a header of {size} bytes; at most {EXTENDED_MAX} are read")));
        }
        self.follows(size)?;
        let mut text = Vec::new();
        self.read_to_end(&mut text)?;
        Ok(text)
    }

    /// A long name, without the zero at its end.
    fn text(&mut self, size: u64) -> io::Result<Vec<u8>> {
        let mut text = self.extended(size)?;
        while text.last() == Some(&0) {
            text.pop();
        }
        Ok(text)
    }

    /// So many bytes of data follow.
    fn follows(&mut self, size: u64) -> io::Result<()> {
        self.left = size;
        self.filling =
            size.checked_next_multiple_of(BLOCK).ok_or_else(|| bad("a size beyond all bounds"))? - size;
        Ok(())
    }

    fn entry(
        &mut self,
        header: &Header,
        kind: EntryType,
        size: u64,
        mut extended: ExtendedHeader,
    ) -> io::Result<Entry> {
        let named = extended.sparse.as_mut().and_then(Sparse::name).or(extended.name);
        let mut name = named.unwrap_or_else(|| header.path_bytes().into_owned());
        let kind = match kind {
            // Before there was a type for them, directories had a slash at the end.
            EntryType::Regular if header.as_old().linkflag == [0] && name.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Link => Kind::HardLink,
            EntryType::Char => Kind::CharDevice,
            EntryType::Block => Kind::BlockDevice,
            EntryType::Fifo => Kind::Fifo,
            EntryType::GNUSparse => {
                return Err(bad("a sparse file in the old format; make the archive with tar --format=posix"));
            }
            other => {
                return Err(bad(format!("an entry of the type {:#x}, which is not known", other.as_byte())));
            }
        };
        if kind == Kind::Directory {
            while name.len() > 1 && name.ends_with(b"/") {
                name.pop();
            }
        }
        // Others than files have no data, whatever they say.
        let size = if kind == Kind::File { extended.size.unwrap_or(size) } else { 0 };
        self.follows(size)?;
        let (size, regions) = match extended.sparse {
            None => (size, None),
            Some(_) if kind != Kind::File => return Err(bad("holes in what is no file")),
            Some(sparse) => {
                let (size, regions) = sparse.regions(self, |archive| archive.left)?;
                (size, Some(regions))
            }
        };
        let id = |extended: Option<u64>, plain: io::Result<u64>| {
            let id = extended.map_or(plain, Ok).map_err(|_| bad("an owner that is no number"))?;
            u32::try_from(id)
                .ok()
                .filter(|id| *id != u32::MAX)
                .ok_or_else(|| bad(format!("owner {id}: not a user id")))
        };
        let display = |e: io::Error| bad(format!("{}: {e}", String::from_utf8_lossy(&name)));
        let device = match kind {
            Kind::CharDevice | Kind::BlockDevice => (
                header.device_major().map_err(display)?.unwrap_or(0),
                header.device_minor().map_err(display)?.unwrap_or(0),
            ),
            _ => (0, 0),
        };
        let seconds = || i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0);
        Ok(Entry {
            target: extended
                .target
                .unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned()),
            kind,
            mode: header.mode().map_err(|_| bad("a mode that is no number"))? & 0o7777,
            uid: id(extended.uid, header.uid()).map_err(display)?,
            gid: id(extended.gid, header.gid()).map_err(display)?,
            mtime: extended.mtime.unwrap_or_else(|| (seconds(), 0)),
            size,
            regions,
            device,
            xattrs: extended.xattrs,
            name,
        })
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(part) = buffer.get_mut(..most).filter(|part| !part.is_empty()) else { return Ok(0) };
        let len = self.source.read(part)?;
        if len == 0 {
            return Err(truncation_error());
        }
        self.left -= len as u64;
        Ok(len)
    }
}

impl ExtendedHeader {
    fn take(&mut self, text: &[u8]) -> io::Result<()> {
        let number = |value: &[u8]| std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
        let no_number = || bad("an extended header with a number that is none");
        for (key, value) in pax::pairs(text).ok_or_else(|| bad("a damaged extended header"))? {
            match key {
                // What the header itself says holds.
                b"path" | b"linkpath" | b"size" | b"uid" | b"gid" | b"mtime" if value.is_empty() => {}
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => self.size = Some(number(value).ok_or_else(no_number)?),
                b"uid" => self.uid = Some(number(value).ok_or_else(no_number)?),
                b"gid" => self.gid = Some(number(value).ok_or_else(no_number)?),
                b"mtime" => self.mtime = Some(pax::time(value).ok_or_else(no_number)?),
                _ => {
                    if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                        self.sparse.get_or_insert_default().take(key, value)?;
                    } else if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        self.xattrs.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

fn truncation_error() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the archive is cut off")
}

fn skip(source: &mut impl Read, len: u64) -> io::Result<()> {
    if io::copy(&mut source.take(len), &mut io::sink())? < len { Err(truncation_error()) } else { Ok(()) }
}

/// Fills a block; its length, or 0 when nothing is left.
fn fill(source: &mut impl Read, block: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while let Some(rest) = block.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) if len == 0 => return Ok(0),
            Ok(0) => return Err(truncation_error()),
            Ok(more) => len += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: EntryType, name: &str, size: u64) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(size);
        header.set_mode(0o644);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(9);
        header.set_cksum();
        header
    }

    fn block(data: &[u8]) -> Vec<u8> {
        let mut block = data.to_vec();
        block.resize(data.len().next_multiple_of(512), 0);
        block
    }

    fn entries(text: &[u8]) -> io::Result<Vec<Entry>> {
        let mut archive = Archive::new(text);
        let mut all = Vec::new();
        while let Some(entry) = archive.next()? {
            all.push(entry);
        }
        Ok(all)
    }

    #[test]
    fn extended_headers_apply_to_the_next_entry() {
        let pax = b"30 mtime=1700000000.123456789\n20 path=long/name/x\n13 uid=70000\n29 SCHILY.xattr.user.a=1\n2\x003\n";
        let mut text = Vec::new();
        text.extend(header(EntryType::XHeader, "pax", pax.len() as u64).as_bytes());
        text.extend(block(pax));
        text.extend(header(EntryType::Regular, "short", 3).as_bytes());
        text.extend(block(b"abc"));
        text.extend(header(EntryType::Directory, "dir/", 0).as_bytes());
        text.extend([0; 1024]);
        let mut archive = Archive::new(&text[..]);
        let first = archive.next().unwrap().unwrap();
        assert_eq!(
            (first.name.as_slice(), first.uid, first.gid, first.size),
            (&b"long/name/x"[..], 70000, 8, 3)
        );
        assert_eq!(first.mtime, (1_700_000_000, 123_456_789));
        assert_eq!(first.xattrs, [(b"user.a".to_vec(), b"1\n2\x003".to_vec())]);
        let mut data = Vec::new();
        archive.read_to_end(&mut data).unwrap();
        assert_eq!(data, b"abc");
        let second = archive.next().unwrap().unwrap();
        assert_eq!(
            (second.name.as_slice(), second.kind, second.mtime),
            (&b"dir"[..], Kind::Directory, (9, 0))
        );
        assert_eq!(archive.next().unwrap(), None);
    }

    #[test]
    fn empty_values_keep_those_of_the_header() {
        let pax = b"8 path=\n7 uid=\n9 mtime=\n24 SCHILY.xattr.user.e=\n";
        let mut text = Vec::new();
        text.extend(header(EntryType::XHeader, "pax", pax.len() as u64).as_bytes());
        text.extend(block(pax));
        text.extend(header(EntryType::Regular, "name", 0).as_bytes());
        let read = entries(&text).unwrap();
        let [one] = &read[..] else { panic!("{read:?}") };
        assert_eq!((one.name.as_slice(), one.uid, one.mtime), (&b"name"[..], 7, (9, 0)));
        assert_eq!(one.xattrs, [(b"user.e".to_vec(), Vec::new())]);
    }

    #[test]
    fn a_slash_makes_a_directory_of_the_oldest_type_alone() {
        for (byte, kind) in [(0, Kind::Directory), (b'0', Kind::File)] {
            let mut header = header(EntryType::Regular, "x/", 0);
            header.as_mut_bytes()[156] = byte;
            header.set_cksum();
            let read = entries(header.as_bytes()).unwrap();
            assert_eq!(read[0].kind, kind, "{byte}");
        }
    }

    #[test]
    fn regions_are_the_data_of_a_file_with_holes() {
        let sparse = |kind: EntryType, size: u64| {
            let pax = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n21 GNU.sparse.name=n\n28 GNU.sparse.realsize=5000\n";
            let mut text = Vec::new();
            text.extend(header(EntryType::XHeader, "pax", pax.len() as u64).as_bytes());
            text.extend(block(pax));
            text.extend(header(kind, "GNUSparseFile.7/n", size).as_bytes());
            text.extend(block(b"2\n10\n3\n4000\n2\n"));
            text.extend(block(b"abcde"));
            text.extend(header(EntryType::Regular, "next", 0).as_bytes());
            text
        };
        let text = sparse(EntryType::Regular, 517);
        let mut archive = Archive::new(&text[..]);
        let one = archive.next().unwrap().unwrap();
        assert_eq!((one.name.as_slice(), one.size), (&b"n"[..], 5000));
        let regions = [Region { offset: 10, len: 3 }, Region { offset: 4000, len: 2 }];
        assert_eq!(one.regions.as_deref(), Some(&regions[..]));
        let mut data = Vec::new();
        archive.read_to_end(&mut data).unwrap();
        assert_eq!(data, b"abcde");
        assert_eq!(archive.next().unwrap().unwrap().name, b"next");
        assert!(entries(&sparse(EntryType::Regular, 518)).is_err());
        assert!(entries(&sparse(EntryType::Regular, 100)).is_err());
        assert!(entries(&sparse(EntryType::Symlink, 517)).is_err());
    }

    #[test]
    fn declared_sizes_are_not_trusted() {
        // Data that does not come, more than there can be, headers too long to be read, and damage.
        let huge = header(EntryType::Regular, "x", u64::MAX);
        let large = header(EntryType::Regular, "x", 1 << 40);
        let long = header(EntryType::GNULongName, "x", 1 << 33);
        let mut sum = header(EntryType::Regular, "x", 0);
        sum.as_mut_bytes()[0] = b'y';
        let size = b"24 size=18446744073709551615\n";
        let pax = [
            header(EntryType::XHeader, "p", size.len() as u64).as_bytes(),
            &block(size)[..],
            header(EntryType::Regular, "x", 0).as_bytes(),
        ]
        .concat();
        for text in [
            huge.as_bytes(),
            &large.as_bytes()[..],
            long.as_bytes(),
            sum.as_bytes(),
            &large.as_bytes()[..100],
            &pax,
        ] {
            assert!(entries(text).is_err());
        }
        let loops: Vec<u8> = std::iter::repeat_n(
            [header(EntryType::GNULongName, "x", 1).as_bytes(), &block(b"n")[..]].concat(),
            100,
        )
        .flatten()
        .collect();
        assert!(entries(&loops).is_err());
        // Who has no data has none, whatever is said.
        let link = header(EntryType::Link, "x", 1 << 40);
        assert_eq!(entries(link.as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn unknown_entry_types_are_refused() {
        for kind in [EntryType::GNUSparse, EntryType::new(b'V'), EntryType::new(b'M')] {
            assert!(entries(header(kind, "x", 0).as_bytes()).is_err());
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(mut text in proptest::collection::vec(any::<u8>(), 0..2048), kind in any::<u8>(), at in 0..512_usize, byte in any::<u8>()) {
            let _ = entries(&text);
            let mut first = header(EntryType::new(kind), "x", 100);
            first.as_mut_bytes()[at] = byte;
            first.set_cksum();
            text.splice(0..0, first.as_bytes().iter().copied());
            let _ = entries(&text);
        }
    }
}
