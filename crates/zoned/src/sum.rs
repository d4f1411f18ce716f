//! The checksum of everything: CRC-32C.

use crc_fast::{CrcAlgorithm, Digest};

/// Of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Of two parts, one after the other.
pub(crate) fn crc32c_of_both(first: &[u8], second: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(first);
    digest.update(second);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::emulator::Random;

    #[test]
    fn crc32c_matches_another_implementation() {
        let mut random = Random::new(1);
        let bytes: Vec<u8> = (0..9000).map(|_| random.draw() as u8).collect();
        for len in (0..300).chain([511, 512, 4095, 4096, 4097, 8999]) {
            let (first, second) = bytes[..len].split_at(len / 3);
            let sum = ::crc32c::crc32c(&bytes[..len]);
            assert_eq!((crc32c(&bytes[..len]), crc32c_of_both(first, second)), (sum, sum), "{len} bytes");
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
