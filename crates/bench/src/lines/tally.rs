//! Who wrote which cache line, and from where.

use super::LineCount;
use super::places::Places;
use std::collections::{BTreeMap, HashMap};

/// The number of bits of an address that tell bytes of one line (64) apart.
const LINE_BITS: u32 = 6;

/// What has been counted so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) instructions: u64,
    pub(super) locked: u64,
    lines: HashMap<u64, Line>,
}

#[derive(Debug)]
struct Line {
    first: i32,
    shared: bool,
    /// Writes by the address of the instruction: few for each line.
    writes: Vec<(u64, u64)>,
}

/// The lines of the bytes from `first` to `last`.
pub(super) fn lines((first, last): (u64, u64)) -> std::ops::RangeInclusive<u64> {
    first >> LINE_BITS..=last >> LINE_BITS
}

impl Tally {
    /// A thread writes to a line by the instruction at `address`.
    pub(super) fn write(&mut self, thread: i32, line: u64, address: u64) {
        let line =
            self.lines.entry(line).or_insert(Line { first: thread, shared: false, writes: Vec::new() });
        line.shared |= line.first != thread;
        match line.writes.iter_mut().find(|(by, _)| *by == address) {
            Some((_, count)) => *count += 1,
            None => line.writes.push((address, 1)),
        }
    }

    /// What it comes to.
    pub(super) fn sum(&self, places: &Places) -> LineCount {
        let (mut shared_lines, mut by_address) = (0, BTreeMap::<u64, u64>::new());
        for line in self.lines.values().filter(|line| line.shared) {
            shared_lines += 1;
            for (address, count) in &line.writes {
                *by_address.entry(*address).or_default() += count;
            }
        }
        LineCount {
            instructions: self.instructions,
            locked: self.locked,
            shared_writes: by_address.values().sum(),
            shared_lines,
            sites: by_address.iter().map(|(address, count)| (places.name(*address), *count)).collect(),
        }
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
    fn a_line_is_shared_once_two_threads_wrote_it_and_then_all_its_writes_count() {
        let mut tally = Tally::default();
        for (thread, line, address) in [(1, 7, 100), (1, 7, 100), (1, 8, 100), (2, 9, 100), (1, 8, 200)] {
            tally.write(thread, line, address);
        }
        let places = Places::default();
        assert_eq!(tally.sum(&places), LineCount::default());
        tally.write(2, 7, 200);
        let sum = tally.sum(&places);
        assert_eq!((sum.shared_writes, sum.shared_lines), (3, 1));
        assert_eq!(sum.sites.values().collect::<Vec<_>>(), [&2, &1]);
    }
}
