//! Sums of blocks, kept and compared in debug builds: they find stray writes and holes in the wrong place. Not against malice.

/// An odd number with its bits well spread (the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The sum of a block.
pub(crate) fn sum(data: &[u8]) -> u64 {
    let mut words = data.chunks_exact(8);
    let mut sum = data.len() as u64;
    for word in words.by_ref() {
        let word = word.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        sum = (sum ^ word).wrapping_mul(SPREAD).rotate_left(29);
    }
    words
        .remainder()
        .iter()
        .fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(SPREAD).rotate_left(29))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        let mut data = [0_u8; 21];
        let empty = sum(&data);
        for at in 0..data.len() * 8 {
            data[at / 8] ^= 1 << (at % 8);
            assert_ne!(sum(&data), empty, "bit {at}");
            data[at / 8] ^= 1 << (at % 8);
        }
        assert_ne!(sum(&data[..20]), empty);
    }
}
