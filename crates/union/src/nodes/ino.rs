//! Inode numbers as the union shows them: stable over copy-up and remount, unique in the tree.

/// Bits that a layer's own inode number may use when layers lie on several filesystems.
const OWN_BITS: u32 = 56;

/// The number that the union shows for inode `ino` of the `fs`-th distinct filesystem among its layers.
///
/// With all layers on one filesystem (the usual case) numbers are shown as they are. Further filesystems get the
/// high bits, as with the kernel's `xino`; a number that already uses those bits is hashed into the rest, where
/// a collision is possible but unlikely (birthday bound of 2^56). So are all numbers of the filesystems for which the bits do not
/// suffice.
pub(crate) fn visible_ino(fs: u16, ino: u64) -> u64 {
    if fs == 0 {
        return ino;
    }
    let high = u8::try_from(fs).unwrap_or(u8::MAX);
    let own = if ino >> OWN_BITS == 0 && high < u8::MAX {
        ino
    } else {
        // The finalizer of MurmurHash3 mixes all bits into the ones that are kept.
        let mut h = if high < u8::MAX { ino } else { ino ^ u64::from(fs) << 48 };
        h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        (h ^ (h >> 33)) >> (64 - OWN_BITS)
    };
    u64::from(high) << OWN_BITS | own
}

#[cfg(test)]
mod tests {
    use super::visible_ino;

    #[test]
    fn inode_numbers_of_layers_do_not_collide() {
        assert_eq!(visible_ino(0, 42), 42);
        assert_eq!(visible_ino(0, u64::MAX), u64::MAX);
        assert_ne!(visible_ino(1, 42), visible_ino(2, 42));
        assert_eq!(visible_ino(3, u64::MAX) >> 56, 3);
        assert_eq!(visible_ino(254, 42), 254 << 56 | 42);
        assert_ne!(visible_ino(300, 42), visible_ino(301, 42));
        assert_eq!(visible_ino(301, 42) >> 56, 255);
    }
}
