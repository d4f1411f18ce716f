//! Everything that reads what is on a device, on any bytes; for fuzzing.

use super::format::{RecordId, Root, changes_of};
use super::state::State;

/// Reads bytes as a root, or as records one after the other, and applies their changes to zones of 64 blocks. True: some of it was accepted.
#[must_use]
pub fn parse_hostile(bytes: &[u8]) -> bool {
    let mut accepted = matches!(Root::decode(bytes), Ok(Some(_)));
    let mut state = State::new(vec![64; 16], 4096);
    let mut left = bytes;
    while let Some((_, changes)) = RecordId::decode(left) {
        let len = RecordId::len_of(left).unwrap_or(left.len());
        accepted |= apply(&mut state, changes);
        left = left.get(len..).unwrap_or(&[]);
    }
    // Behind a checksum that a fuzzer does not find.
    accepted |= apply(&mut state, bytes);
    accepted
}

fn apply(state: &mut State, changes: &[u8]) -> bool {
    let Ok(changes) = changes_of(changes) else { return false };
    let mut accepted = false;
    for change in &changes {
        accepted |= state.apply(change).is_ok();
        let mut encoded = Vec::new();
        change.encode(&mut encoded);
        let again = super::change::Change::decode(&mut encoded.as_slice());
        assert_eq!(again.as_ref(), Ok(change), "what is written is read again");
        assert_eq!(encoded.len(), change.encoded_len());
    }
    // What the state says of itself makes the same state.
    let mut copy = State::new(vec![64; 16], 4096);
    let same = state.changes().all(|change| copy.apply(&change).is_ok());
    assert!(same && copy.is_as(state), "a checkpoint makes something else");
    let _ = state.tree.problems();
    let mut opened = copy;
    opened.drop_nameless();
    assert!(opened.tree.has_no_unlinked(), "a node without links stays");
    accepted
}
