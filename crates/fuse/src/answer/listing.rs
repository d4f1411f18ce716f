//! Directory entries on their way into a reply.

use crate::answer::convert;
use crate::wire::{Dirent, Direntplus, EntryOut};
use vellum_vfs::{DirEntry, DirSink, Entry, FileKind, NodeId};
use zerocopy::{FromBytes, IntoBytes};

/// Entries begin at multiples of this (bytes).
const ALIGN: usize = 8;

/// Collects entries in a reply's body, in the short (READDIR) or the long form (READDIRPLUS).
pub(crate) struct Listing<'a> {
    body: &'a mut [u8],
    used: usize,
    plus: bool,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(body: &'a mut [u8], plus: bool) -> Self {
        Self { body, used: 0, plus }
    }

    /// Bytes that have been filled.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    const fn size(&self, name_len: usize) -> usize {
        let head = if self.plus { size_of::<Direntplus>() } else { size_of::<Dirent>() };
        (head + name_len).next_multiple_of(ALIGN)
    }

    fn append(&mut self, head: &[u8], name: &[u8]) {
        let size = self.size(name.len());
        let Some(room) = self.body.get_mut(self.used..).and_then(|free| free.get_mut(..size)) else { return };
        let (head_room, rest) = room.split_at_mut(head.len());
        let (name_room, padding) = rest.split_at_mut(name.len());
        head_room.copy_from_slice(head);
        name_room.copy_from_slice(name);
        padding.fill(0);
        self.used += size;
    }
}

impl DirSink for Listing<'_> {
    fn fits(&self, len: usize) -> bool {
        self.size(len) <= self.body.len() - self.used
    }

    fn push(&mut self, dirent: DirEntry<'_>, entry: Option<&Entry>) {
        let kind = entry.map(|entry| entry.attr.kind()).or(dirent.kind).map_or(0, FileKind::dirent_type);
        let short = Dirent {
            ino: dirent.ino,
            off: dirent.cookie,
            namelen: dirent.name.len() as u32,
            kind: kind.into(),
        };
        if self.plus {
            let entry = entry.map_or_else(EntryOut::default, convert::entry);
            self.append(Direntplus { entry, dirent: short }.as_bytes(), dirent.name);
        } else {
            self.append(short.as_bytes(), dirent.name);
        }
    }
}

/// The nodes whose lookup counts were raised for a READDIRPLUS reply.
pub(crate) fn listed_nodes(mut body: &[u8]) -> impl Iterator<Item = NodeId> {
    std::iter::from_fn(move || {
        loop {
            let (plus, rest) = Direntplus::read_from_prefix(body).ok()?;
            let name_len = plus.dirent.namelen as usize;
            let padded =
                (size_of::<Direntplus>() + name_len).next_multiple_of(ALIGN) - size_of::<Direntplus>();
            body = rest.get(padded..).unwrap_or_default();
            if plus.entry.nodeid != 0 {
                return Some(NodeId(plus.entry.nodeid));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use vellum_vfs::Attr;

    #[test]
    fn listing_entries_fill_the_buffer_and_can_be_undone() {
        let mut body = [0xff; 512];
        let mut listing = Listing::new(&mut body, true);
        let entry = |node| Entry {
            node: NodeId(node),
            generation: 0,
            attr: Attr::default(),
            entry_ttl: Duration::ZERO,
            attr_ttl: Duration::ZERO,
        };
        let dirent = |name| DirEntry { ino: 9, cookie: 1, kind: None, name };
        listing.push(dirent(b".".as_slice()), None);
        listing.push(dirent(b"12345678".as_slice()), Some(&entry(7)));
        assert!(listing.fits(8) && !listing.fits(80));
        listing.push(dirent(b"b".as_slice()), Some(&entry(8)));
        assert!(!listing.fits(1));
        let used = listing.used();
        assert_eq!(used, 480);
        assert_eq!(listed_nodes(&body[..used]).collect::<Vec<_>>(), [NodeId(7), NodeId(8)]);
    }
}
