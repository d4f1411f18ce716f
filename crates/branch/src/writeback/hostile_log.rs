//! A log as whoever has left it may have made it.

use super::Writeback;
use super::limits::{RING_MIN, WritebackLimits};
use super::log::Log;
use super::record::{Change, HEAD_WORDS, seal};
use crate::MemoryBranch;
use std::time::Duration;
use vellum_vfs::{Branch, Name};

/// Bytes of a record's description in the input, without its data.
const DESCRIPTION: usize = 27;

/// Reads a log of which these bytes are the ring, or (first byte even) say what records are in it, whose sums are right; and makes what is in
/// it again, on a disk in memory. True: some of it was believed. Panics when something does not hold.
pub fn parse_hostile_log(data: &[u8]) -> bool {
    let Some((how, rest)) = data.split_first() else { return false };
    let disk = MemoryBranch::new();
    let (Ok(upper), Ok(work), Ok(log)) = (disk.subtree("upper"), disk.subtree("work"), Log::create(RING_MIN))
    else {
        return false;
    };
    let (Ok(file), Ok(outside)) = (
        Name::new(c"file").map_err(Into::into).and_then(|name| upper.root().create(name, 0o600)),
        disk.root().stat(),
    ) else {
        return false;
    };
    let own = file.stat().map_or(0, |attr| attr.ino);
    let ring = if how % 2 == 0 { described(rest, own) } else { rest.to_vec() };
    let head = ring.len() as u64 & !7;
    if log.load_predecessor(&ring, head).is_err() {
        return false;
    }
    let mut believed = 0;
    let reading = log.replay_log(|_, change, when| {
        believed += 1;
        assert!(when.nanos < 1_000_000_000, "{when:?}");
        match change {
            Change::Write(at, data) => {
                assert!(!data.is_empty() && i64::try_from(at + data.len() as u64).is_ok())
            }
            Change::Truncate(size) => assert!(i64::try_from(size).is_ok()),
            Change::Mode(mode) => assert!(mode <= 0o7777),
            Change::Owner(..) | Change::Times(..) | Change::Acl(_) => {}
        }
    });
    assert!(reading.records == believed && reading.unread <= head);
    let Ok(memory) = log.memory().try_clone_to_owned() else { return false };
    drop(log);
    let limits = WritebackLimits { bytes: RING_MIN, age: Duration::from_secs(3600) };
    if let Ok((behind, replayed)) = Writeback::resume(upper, work, limits, memory) {
        assert!(replayed.changes + replayed.gone + replayed.failed >= believed.min(1));
        assert!(replayed.unread > 0 || behind.bytes().0 == 0);
    }
    assert_eq!(disk.root().stat().map(|now| (now.mode, now.uid)).ok(), Some((outside.mode, outside.uid)));
    believed > 0
}

/// Records of a description: kind, file (0: one that is there), detail, time, and data behind their length.
fn described(mut rest: &[u8], own: u64) -> Vec<u8> {
    let mut ring = Vec::new();
    while let Some((description, behind)) = rest.split_at_checked(DESCRIPTION) {
        let number = |at: usize| {
            let bytes = description.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let [kind, ino, len] = [0, 1, 26].map(|at| description.get(at).copied().unwrap_or(0));
        let (data, after) = behind.split_at(usize::from(len).min(behind.len()));
        let ino = if ino == 0 { own } else { ino.into() };
        let position = ring.len() as u64;
        let mut words = [0; HEAD_WORDS];
        let said =
            [position, u64::from(kind) | (data.len() as u64) << 8, ino, number(2), number(10), number(18)];
        words[..said.len()].copy_from_slice(&said);
        seal(&mut words, data);
        ring.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        ring.extend(data);
        ring.resize(ring.len().next_multiple_of(8), 0);
        rest = after;
    }
    ring
}
