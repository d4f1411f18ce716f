//! Addresses in a process as places in the files that are mapped there.

use crate::failure::{Result, While};
use crate::service::Service;
use std::collections::HashMap;
use std::fs;

/// What is mapped where.
#[derive(Debug, Default)]
pub(super) struct AddressMap(Vec<FileMapping>);

#[derive(Debug)]
struct FileMapping {
    start: u64,
    end: u64,
    /// Where the file's first byte is: what a linker calls address 0.
    base: u64,
    name: String,
}

impl AddressMap {
    /// What is mapped in a process now.
    pub(super) fn of_process(service: Service) -> Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", service.pid));
        Ok(Self::parse(&maps.doing(|| "reading what the service has mapped")?))
    }

    /// Lines such as `7f00-7f10 r-xp 00001000 fe:00 1234   /usr/bin/it`.
    fn parse(maps: &str) -> Self {
        let (mut places, mut bases) = (Vec::new(), HashMap::new());
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            let range = words.next().and_then(|range| range.split_once('-'));
            let Some((start, end)) = range.and_then(|(start, end)| Some((number(start)?, number(end)?)))
            else {
                continue;
            };
            let Some(path) = words.nth(4) else { continue };
            // A file's mappings are listed by address, and the first of them has the file's first byte.
            let base = *bases.entry(path).or_insert(start);
            let name = path.rsplit('/').next().unwrap_or(path).to_owned();
            places.push(FileMapping { start, end, base, name });
        }
        Self(places)
    }

    /// Where the kernel has put its own functions.
    pub(super) fn vdso(&self) -> std::ops::Range<u64> {
        self.0.iter().find(|mapped| mapped.name == "[vdso]").map_or(0..0, |mapped| mapped.start..mapped.end)
    }

    /// `file+0xADDRESS`, with the address that the file's own symbols use.
    pub(super) fn name(&self, address: u64) -> String {
        match self.0.iter().find(|mapped| (mapped.start..mapped.end).contains(&address)) {
            Some(mapped) => format!("{}+{:#x}", mapped.name, address - mapped.base),
            None => format!("?+{address:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_named_by_file_as_its_linker_does() {
        let places = AddressMap::parse(
            "55000000-55001000 r--p 00000000 fe:00 12   /usr/bin/it\n\
             55002000-55008000 r-xp 00001000 fe:00 12   /usr/bin/it\n\
             7f000000-7f001000 rw-p 00000000 00:00 0\n\
             7f100000-7f102000 r-xp 00000000 00:00 0    [vdso]\n",
        );
        assert_eq!(places.name(0x5500_2010), "it+0x2010");
        assert_eq!(places.name(0x7f10_0ff0), "[vdso]+0xff0");
        assert_eq!(places.vdso(), 0x7f10_0000..0x7f10_2000);
        assert_eq!(places.name(0x7f00_0000), "?+0x7f000000");
    }
}
