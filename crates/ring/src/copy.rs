//! Copies between private bytes and shared words.
//!
//! The other side may write at the same time, if it is hostile. Each word is an atomic access of its own, so the outcome
//! is some mixture of bytes and never undefined. The protocol lets one side write at a time, so that a part of a word
//! can be changed by a load and a store.

use crate::sync::{AtomicU64, Ordering};
use core::mem;

const WORD: usize = 8;

/// Copies from `offset` of `words` to `out`, as much as there is; the bytes copied.
pub(crate) fn copy_out(words: &[AtomicU64], offset: usize, out: &mut [u8]) -> usize {
    let Some((mut words, skip, n)) = part(words, offset, out.len()) else { return 0 };
    let Some(mut out) = out.get_mut(..n) else { return 0 };
    if skip != 0
        && let Some((first, rest)) = words.split_first()
        && let Some((head, tail)) = mem::take(&mut out).split_at_mut_checked((WORD - skip).min(n))
    {
        let bytes = first.load(Ordering::Relaxed).to_ne_bytes();
        head.iter_mut().zip(bytes.iter().skip(skip)).for_each(|(to, from)| *to = *from);
        (words, out) = (rest, tail);
    }
    let (whole, tail) = out.as_chunks_mut::<WORD>();
    let mut words = words.iter();
    // The chunks lead, so that no word is taken for nothing.
    for (to, from) in whole.iter_mut().zip(&mut words) {
        *to = from.load(Ordering::Relaxed).to_ne_bytes();
    }
    if !tail.is_empty()
        && let Some(last) = words.next()
    {
        let bytes = last.load(Ordering::Relaxed).to_ne_bytes();
        tail.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
    }
    n
}

/// Copies `data` to `offset` of `words`, as much as there is room; the bytes copied.
pub(crate) fn copy_in(words: &[AtomicU64], offset: usize, data: &[u8]) -> usize {
    let Some((mut words, skip, n)) = part(words, offset, data.len()) else { return 0 };
    let Some(mut data) = data.get(..n) else { return 0 };
    if skip != 0
        && let Some((first, rest)) = words.split_first()
        && let Some((head, tail)) = data.split_at_checked((WORD - skip).min(n))
    {
        merge(first, skip, head);
        (words, data) = (rest, tail);
    }
    let (whole, tail) = data.as_chunks::<WORD>();
    let mut words = words.iter();
    for (from, to) in whole.iter().zip(&mut words) {
        to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
    if !tail.is_empty()
        && let Some(last) = words.next()
    {
        merge(last, 0, tail);
    }
    n
}

/// The words from the one that `offset` lies in, the bytes of it before `offset`, and how many of `len` bytes there are.
fn part(words: &[AtomicU64], offset: usize, len: usize) -> Option<(&[AtomicU64], usize, usize)> {
    let n = (words.len() * WORD).checked_sub(offset)?.min(len);
    Some((words.get(offset / WORD..)?, offset % WORD, n))
}

/// Changes a few bytes of a word.
fn merge(word: &AtomicU64, skip: usize, data: &[u8]) {
    let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    bytes.iter_mut().skip(skip).zip(data).for_each(|(to, from)| *to = *from);
    word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn words(bytes: usize) -> Vec<AtomicU64> {
        (0..bytes / WORD).map(|n| AtomicU64::new(0x0101_0101_0101_0101 * (n as u64 % 100 + 100))).collect()
    }

    fn all(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    #[test]
    fn copies_behave_as_slices_at_every_offset_and_length() {
        const SIZE: usize = if cfg!(miri) { 16 } else { 64 };
        for offset in 0..SIZE + 10 {
            for len in 0..SIZE + 10 {
                let words = words(SIZE);
                let mut model = all(&words);
                let n = len.min(SIZE.saturating_sub(offset));
                let data: Vec<u8> = (0..len as u8).collect();
                assert_eq!(copy_in(&words, offset, &data), n);
                if n > 0 {
                    model[offset..offset + n].copy_from_slice(&data[..n]);
                }
                assert_eq!(all(&words), model, "{offset} {len}");
                let mut out = vec![255; len];
                assert_eq!(copy_out(&words, offset, &mut out), n);
                assert_eq!(out[..n], data[..n]);
                assert!(out[n..].iter().all(|byte| *byte == 255), "beyond the end");
            }
        }
        assert_eq!(copy_in(&words(SIZE), usize::MAX, &[1]), 0);
        assert_eq!(copy_out(&words(SIZE), usize::MAX, &mut [1]), 0);
    }
}
