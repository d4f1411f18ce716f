//! Files with holes, as GNU tar's extended headers describe them (`tar --format=posix -S`): the data of an entry are its regions, one
//! after the other. Where those lie is said in the headers (versions 0.0 and 0.1) or before the data (version 1.0).

use super::archive::{BLOCK, bad};
use std::io::{self, Read};

/// The longest list of regions, as text.
const MAP_MAX: u64 = 1 << 20;
/// The longest number in it.
const DIGITS_MAX: usize = 20;

/// A part of a file that is no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// What headers say about an entry's holes.
#[derive(Default)]
pub(super) struct Sparse {
    name: Option<Vec<u8>>,
    /// The size of the file.
    size: Option<u64>,
    version: (Option<u64>, u64),
    /// Offsets and lengths, in turn.
    numbers: Vec<u64>,
}

impl Sparse {
    /// Takes what stands behind `GNU.sparse.` in a header.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let number = || number(value).ok_or_else(|| bad("a sparse file with a number that is none"));
        match key {
            b"major" => self.version.0 = Some(number()?),
            b"minor" => self.version.1 = number()?,
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(number()?),
            b"offset" if self.numbers.len().is_multiple_of(2) => self.numbers.push(number()?),
            b"numbytes" if !self.numbers.len().is_multiple_of(2) => self.numbers.push(number()?),
            b"map" => {
                let list = value.split(|byte| *byte == b',').filter(|_| !value.is_empty()).map(self::number);
                self.numbers = list.collect::<Option<_>>().ok_or_else(|| bad("a damaged list of regions"))?;
            }
            b"numblocks" => {}
            _ => return Err(bad("a sparse file of a kind that is not known")),
        }
        Ok(())
    }

    /// The name of the file, where that of the entry is made up for programs that know nothing of holes.
    pub(super) fn name(&mut self) -> Option<Vec<u8>> {
        self.name.take()
    }

    /// The file's size and its regions. `data`: the entry's, of which what lists them is read; `left`: so much of it is left then.
    pub(super) fn regions<R: Read>(
        self,
        data: &mut R,
        left: impl FnOnce(&R) -> u64,
    ) -> io::Result<(u64, Vec<Region>)> {
        let size = self.size.ok_or_else(|| bad("a sparse file without a size"))?;
        let numbers = match self.version {
            (None | Some(0), _) => self.numbers,
            (Some(1), 0) => list(data)?,
            (Some(major), minor) => {
                return Err(bad(format!("a sparse file of version {major}.{minor}, which is not known")));
            }
        };
        let (pairs, rest) = numbers.as_chunks::<2>();
        let regions: Vec<Region> =
            pairs.iter().map(|[offset, len]| Region { offset: *offset, len: *len }).collect();
        if !rest.is_empty() || !are_in_order(&regions, size, left(data)) {
            return Err(bad("a sparse file whose regions are not in order, or not its data"));
        }
        Ok((size, regions))
    }
}

/// Whether they follow each other within a file of `size` bytes, and take up all of `data` bytes.
fn are_in_order(regions: &[Region], size: u64, data: u64) -> bool {
    let (mut end, mut sum) = (0, 0_u64);
    for region in regions {
        let Some(next) = region.offset.checked_add(region.len) else { return false };
        if region.offset < end || next > size {
            return false;
        }
        // Both are at most `size`.
        (end, sum) = (next, sum + region.len);
    }
    sum == data
}

/// The list before the data: how many regions there are, and their offsets and lengths, a number in each line, filled up to a block.
fn list(data: &mut impl Read) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    // How many there are to be, once that is known.
    let mut wanted = None;
    let mut line = Vec::new();
    let mut block = [0; BLOCK as usize];
    let mut read = 0;
    while wanted.is_none_or(|wanted| (numbers.len() as u64) < wanted) {
        read += BLOCK;
        if read > MAP_MAX {
            return Err(bad(format!("a sparse file whose list of regions has more than {MAP_MAX} bytes")));
        }
        data.read_exact(&mut block).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => bad("a sparse file whose list of regions is cut off"),
            _ => e,
        })?;
        for byte in block {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            let number = number(&line).ok_or_else(|| bad("a damaged list of regions"))?;
            line.clear();
            match wanted {
                None => wanted = Some(number.checked_mul(2).ok_or_else(|| bad("a damaged list of regions"))?),
                Some(_) => numbers.push(number),
            }
            if wanted == Some(numbers.len() as u64) {
                break;
            }
        }
        if line.len() > DIGITS_MAX {
            return Err(bad("a damaged list of regions"));
        }
    }
    Ok(numbers)
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taken(pairs: &[(&str, &str)]) -> io::Result<Sparse> {
        let mut sparse = Sparse::default();
        pairs.iter().try_for_each(|(key, value)| sparse.take(key.as_bytes(), value.as_bytes()))?;
        Ok(sparse)
    }

    fn regions(pairs: &[(&str, &str)], data: &[u8]) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let (size, regions) = taken(pairs)?.regions(&mut &data[..], |rest| rest.len() as u64)?;
        Ok((size, regions.iter().map(|region| (region.offset, region.len)).collect()))
    }

    fn listed(text: &str, data: &[u8]) -> Vec<u8> {
        let mut all = text.as_bytes().to_vec();
        all.resize(text.len().next_multiple_of(512), 0);
        [&all, data].concat()
    }

    const ONE: [(&str, &str); 3] = [("major", "1"), ("minor", "0"), ("realsize", "100")];

    #[test]
    fn all_sparse_formats_parse_alike() {
        let wanted = (100, vec![(10, 2), (50, 3), (100, 0)]);
        let zero = [
            ("size", "100"),
            ("numblocks", "3"),
            ("offset", "10"),
            ("numbytes", "2"),
            ("offset", "50"),
            ("numbytes", "3"),
            ("offset", "100"),
            ("numbytes", "0"),
        ];
        assert_eq!(regions(&zero, b"abcde").unwrap(), wanted);
        assert_eq!(regions(&[("size", "100"), ("map", "10,2,50,3,100,0")], b"abcde").unwrap(), wanted);
        assert_eq!(regions(&ONE, &listed("3\n10\n2\n50\n3\n100\n0\n", b"abcde")).unwrap(), wanted);
        assert_eq!(regions(&ONE, &listed("0\n", b"")).unwrap(), (100, vec![]));
    }

    #[test]
    fn a_long_list_goes_over_blocks() {
        let mut text = "200\n".to_owned();
        (0..200).for_each(|at| text += &format!("{}\n1\n", 10 * at));
        let one = [("major", "1"), ("realsize", "2000")];
        let (_, regions) = regions(&one, &listed(&text, &[0; 200])).unwrap();
        assert_eq!((regions.len(), regions[199]), (200, (1990, 1)));
    }

    #[test]
    fn invalid_sparse_maps_are_refused() {
        for map in
            ["50,3,10,2", "10,2,11,3", "98,5", "10", "10,x", "10,4", "10,6", "18446744073709551615,5", ","]
        {
            assert!(regions(&[("size", "100"), ("map", map)], b"abcde").is_err(), "{map}");
        }
        for list in
            ["x\n", "1\n-1\n5\n", "9223372036854775808\n", "2\n10\n5\n", "00000000000000000000000\n", ""]
        {
            assert!(regions(&ONE, &listed(list, b"abcde")).is_err(), "{list}");
        }
        let long = "100000000\n".to_owned() + &"1\n0\n".repeat(1 << 19);
        assert!(regions(&ONE, &listed(&long, b"")).unwrap_err().to_string().contains("more than"));
        for pairs in [
            &[("map", "")][..],
            &[("size", "9"), ("major", "2")],
            &[("size", "9"), ("major", "1"), ("minor", "1")],
            &[("numbytes", "1")],
            &[("offset", "1"), ("offset", "1")],
            &[("what", "1")],
        ] {
            assert!(regions(pairs, b"").is_err(), "{pairs:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[0-9\n,]{0,600}", size: u64) {
            let size = size.to_string();
            let _ = regions(&[("size", &size), ("map", &text)], b"abc");
            let _ = regions(&[("major", "1"), ("realsize", &size)], &listed(&text, b"abc"));
        }
    }
}
