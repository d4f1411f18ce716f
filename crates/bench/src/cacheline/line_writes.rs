//! Who wrote which cache line, and from where.

use super::LineCount;
use super::addresses::AddressMap;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The number of bits of an address that tell bytes of one line (64) apart.
const LINE_BITS: u32 = 6;

/// What has been counted so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) instructions: u64,
    pub(super) locked: u64,
    lines: HashMap<u64, Line>,
    clients: BTreeSet<u32>,
}

/// Who writes: a thread of the service, and the client that it serves, or has served last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) thread: i32,
    pub(super) client: Option<u32>,
}

#[derive(Debug)]
struct Line {
    thread: i32,
    /// Several threads write it.
    shared: bool,
    client: Option<u32>,
    /// It is written for several clients.
    for_several: bool,
    /// Writes by the address of the instruction: few for each line.
    writes: Vec<(u64, u64)>,
}

/// The lines of the bytes from `first` to `last`.
pub(super) fn lines((first, last): (u64, u64)) -> std::ops::RangeInclusive<u64> {
    first >> LINE_BITS..=last >> LINE_BITS
}

impl Tally {
    /// A line is written to by the instruction at `address`.
    pub(super) fn write(&mut self, by: Writer, line: u64, address: u64) {
        self.clients.extend(by.client);
        let line = self.lines.entry(line).or_insert(Line {
            thread: by.thread,
            shared: false,
            client: by.client,
            for_several: false,
            writes: Vec::new(),
        });
        line.shared |= line.thread != by.thread;
        line.for_several |= by.client.is_some() && line.client.is_some() && line.client != by.client;
        line.client = line.client.or(by.client);
        match line.writes.iter_mut().find(|(by, _)| *by == address) {
            Some((_, count)) => *count += 1,
            None => line.writes.push((address, 1)),
        }
    }

    /// What it comes to.
    pub(super) fn sum(&self, places: &AddressMap) -> LineCount {
        let mut count = LineCount {
            instructions: self.instructions,
            locked: self.locked,
            clients: self.clients.len() as u64,
            ..LineCount::default()
        };
        let mut by_address = BTreeMap::<u64, u64>::new();
        for line in self.lines.values().filter(|line| line.shared) {
            let writes: u64 = line.writes.iter().map(|(_, count)| count).sum();
            count.shared_lines += 1;
            count.shared_writes += writes;
            if line.for_several {
                count.client_writes += writes;
            }
            if line.for_several || self.clients.is_empty() {
                for (address, count) in &line.writes {
                    *by_address.entry(*address).or_default() += count;
                }
            }
        }
        count.sites = by_address.iter().map(|(address, count)| (places.name(*address), *count)).collect();
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_can_be_to_two_lines() {
        assert_eq!(lines((0x1000, 0x103f)).collect::<Vec<_>>(), [0x40]);
        assert_eq!(lines((0x103f, 0x1046)).collect::<Vec<_>>(), [0x40, 0x41]);
    }

    #[test]
    fn all_writes_to_a_shared_line_count() {
        let mut tally = Tally::default();
        let by = |thread| Writer { thread, client: None };
        for (thread, line, address) in [(1, 7, 100), (1, 7, 100), (1, 8, 100), (2, 9, 100), (1, 8, 200)] {
            tally.write(by(thread), line, address);
        }
        let places = AddressMap::default();
        assert_eq!(tally.sum(&places), LineCount::default());
        tally.write(by(2), 7, 200);
        let sum = tally.sum(&places);
        assert_eq!((sum.shared_writes, sum.shared_lines), (3, 1));
        assert_eq!(sum.sites.values().collect::<Vec<_>>(), [&2, &1]);
    }
    #[test]
    fn lines_of_one_client_are_not_shared_between_clients() {
        let mut tally = Tally::default();
        let by = |thread, client| Writer { thread, client };
        // A file's own line, a thread's own, one of all, and one that housekeeping writes as well.
        for (line, writers) in [
            (1, [by(1, Some(10)), by(2, Some(10))]),
            (2, [by(1, Some(10)), by(1, Some(11))]),
            (3, [by(1, Some(10)), by(2, Some(11))]),
            (4, [by(1, Some(10)), by(3, None)]),
        ] {
            writers.into_iter().for_each(|writer| tally.write(writer, line, 100 + line));
        }
        let sum = tally.sum(&AddressMap::default());
        assert_eq!((sum.shared_lines, sum.shared_writes, sum.client_writes), (3, 6, 2));
        assert_eq!(sum.sites.len(), 1);
    }
}
