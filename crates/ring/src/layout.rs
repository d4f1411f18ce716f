//! Where everything lies in the shared memory. All offsets follow from two numbers.

use crate::state::LINE;
use core::fmt;
use core::mem::{offset_of, size_of};

/// What the first eight bytes of a region are.
pub const MAGIC: u64 = u64::from_le_bytes(*b"vellring");
/// The version of this layout and of the protocol over it. Any change of either is a new number.
pub const VERSION: u32 = 1;
pub const SLOTS_MAX: u32 = 256;
/// The most bytes of data of a slot.
pub const DATA_MAX: u32 = 16 << 20;

/// The data areas begin at a multiple of this, and the region's size is one.
const PAGE: usize = 4096;
/// Words of 64 slots each.
pub(crate) const HINT_WORDS: usize = 4;
/// Words of a request or response head.
pub(crate) const HEAD_WORDS: usize = 8;
/// Words that say what the layout is, at the start of the region.
pub(crate) const HEADER_WORDS: usize = 4;
/// The second of them.
const VERSION_RINGS: u64 = VERSION as u64 | 1 << 32;

// Offsets and the product of the largest numbers need 33 bits.
const _: () = assert!(usize::BITS >= 64);

/// The start of a region. These structures only say where fields lie; nothing refers to one.
#[repr(C, align(64))]
struct Header {
    magic: u64,
    /// The version, and the number of rings in the upper half, which is 1.
    version_rings: u64,
    /// Slots of a ring, and bytes of data of a slot in the upper half.
    slots_data: u64,
    bytes: u64,
    _rest: [u64; 4],
    /// 0: closed.
    epoch: u32,
}

/// What a ring has besides its slots.
#[repr(C, align(128))]
struct RingLines {
    /// Whether the service sleeps; a futex.
    bell: u32,
    /// The core on which the service last ran.
    core: u32,
    _rest: [u32; 14],
    hints: [u64; HINT_WORDS],
}

/// A slot without its data.
#[repr(C, align(256))]
struct SlotLines {
    /// A futex.
    state: u32,
    /// How long clients spin here; theirs alone.
    spin: u32,
    _rest: [u32; 14],
    request: [u64; HEAD_WORDS],
    response: [u64; HEAD_WORDS],
}

const _: () = {
    assert!(size_of::<Header>() == 2 * LINE);
    assert!(offset_of!(Header, magic) == 0);
    assert!(offset_of!(Header, version_rings) == 8);
    assert!(offset_of!(Header, slots_data) == 16);
    assert!(offset_of!(Header, bytes) == 24);
    assert!(offset_of!(Header, epoch) == LINE);
    assert!(size_of::<RingLines>() == 2 * LINE);
    assert!(offset_of!(RingLines, bell) == 0);
    assert!(offset_of!(RingLines, core) == 4);
    assert!(offset_of!(RingLines, hints) == LINE);
    assert!(HINT_WORDS * 64 == SLOTS_MAX as usize);
    assert!(size_of::<SlotLines>() == 4 * LINE);
    assert!(offset_of!(SlotLines, state) == 0);
    assert!(offset_of!(SlotLines, spin) == 4);
    assert!(offset_of!(SlotLines, request) == LINE);
    assert!(offset_of!(SlotLines, response) == 2 * LINE);
    assert!(HEAD_WORDS * 8 == LINE);
};

/// Two numbers, and where things lie by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: u32,
    data: u32,
}

/// Which number of a layout is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// Slots: a power of two up to [`SLOTS_MAX`].
    Slots,
    /// Bytes of data of a slot: a multiple of 64 from 64 to [`DATA_MAX`].
    Data,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots => write!(f, "the slots are not a power of two up to {SLOTS_MAX}"),
            Self::Data => write!(f, "the bytes of a slot are not a multiple of 64 up to {DATA_MAX}"),
        }
    }
}

impl core::error::Error for LayoutError {}

impl Layout {
    /// `slots`, the calls that can be under way; `data`, the bytes that a call can carry either way.
    pub const fn new(slots: u32, data: u32) -> Result<Self, LayoutError> {
        if !slots.is_power_of_two() || slots > SLOTS_MAX {
            return Err(LayoutError::Slots);
        }
        if data == 0 || data > DATA_MAX || !data.is_multiple_of(LINE as u32) {
            return Err(LayoutError::Data);
        }
        Ok(Self { slots, data })
    }

    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of data of each slot.
    #[must_use]
    pub const fn data_bytes(&self) -> usize {
        self.data as usize
    }

    /// The size of the region.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        (self.data_start() + self.slots as usize * self.data as usize).next_multiple_of(PAGE)
    }

    const fn data_start(&self) -> usize {
        self.state(self.slots).next_multiple_of(PAGE)
    }

    pub(crate) const fn epoch() -> usize {
        offset_of!(Header, epoch)
    }

    pub(crate) const fn bell() -> usize {
        size_of::<Header>() + offset_of!(RingLines, bell)
    }

    pub(crate) const fn core() -> usize {
        Self::bell() + offset_of!(RingLines, core)
    }

    pub(crate) const fn hints() -> usize {
        Self::bell() + offset_of!(RingLines, hints)
    }

    /// At a multiple of 128, as pairs of lines that are fetched together.
    pub(crate) const fn state(&self, slot: u32) -> usize {
        Self::bell() + size_of::<RingLines>() + slot as usize * size_of::<SlotLines>()
    }

    pub(crate) const fn spin(&self, slot: u32) -> usize {
        self.state(slot) + offset_of!(SlotLines, spin)
    }

    pub(crate) const fn request(&self, slot: u32) -> usize {
        self.state(slot) + offset_of!(SlotLines, request)
    }

    pub(crate) const fn response(&self, slot: u32) -> usize {
        self.state(slot) + offset_of!(SlotLines, response)
    }

    pub(crate) const fn data(&self, slot: u32) -> usize {
        self.data_start() + slot as usize * self.data as usize
    }

    /// The words at the start of the region.
    pub(crate) const fn to_words(self) -> [u64; HEADER_WORDS] {
        [MAGIC, VERSION_RINGS, self.slots as u64 | (self.data as u64) << 32, self.bytes() as u64]
    }

    /// The layout that these words say; None when they are not of this version or make no sense.
    pub(crate) const fn from_words(words: [u64; HEADER_WORDS]) -> Option<Self> {
        let [magic, version_rings, slots_data, bytes] = words;
        if magic != MAGIC || version_rings != VERSION_RINGS {
            return None;
        }
        match Self::new(slots_data as u32, (slots_data >> 32) as u32) {
            Ok(layout) if layout.bytes() as u64 == bytes => Some(layout),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn numbers_out_of_range_are_refused() {
        for slots in [0, 3, 512, u32::MAX] {
            assert_eq!(Layout::new(slots, 64), Err(LayoutError::Slots));
        }
        for data in [0, 63, 65, DATA_MAX + 64, u32::MAX] {
            assert_eq!(Layout::new(1, data), Err(LayoutError::Data));
        }
        assert_eq!(Layout::new(SLOTS_MAX, DATA_MAX).map(|l| l.bytes() >> 30), Ok(4));
    }

    #[test]
    fn regions_are_disjoint_and_inside_the_mapping() {
        for (slots, data) in [(1, 64), (4, 192), (if cfg!(miri) { 8 } else { 256 }, 4096)] {
            let layout = Layout::new(slots, data).unwrap();
            let mut parts: Vec<(usize, usize)> = Vec::from([(0, 32), (Layout::epoch(), 4)]);
            parts.extend([(Layout::bell(), 4), (Layout::core(), 4), (Layout::hints(), 32)]);
            for slot in 0..slots {
                parts.extend([
                    (layout.state(slot), 4),
                    (layout.spin(slot), 4),
                    (layout.request(slot), 64),
                    (layout.response(slot), 64),
                    (layout.data(slot), data as usize),
                ]);
                assert!(layout.state(slot).is_multiple_of(128));
                assert!(layout.data(slot).is_multiple_of(64));
            }
            parts.sort_unstable();
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            let (start, bytes) = *parts.last().unwrap();
            assert!(start + bytes <= layout.bytes() && layout.bytes().is_multiple_of(PAGE));
        }
    }

    #[test]
    fn a_header_decodes_to_the_exact_layout_or_fails() {
        let layout = Layout::new(16, 4096).unwrap();
        let words = layout.to_words();
        assert_eq!(Layout::from_words(words), Some(layout));
        for word in 0..HEADER_WORDS {
            for bit in 0..64 {
                let mut other = words;
                other[word] ^= 1 << bit;
                assert_eq!(Layout::from_words(other), None, "word {word}, bit {bit}");
            }
        }
    }
}
