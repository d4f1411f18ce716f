//! Where everything lies in the shared memory. All offsets follow from three numbers.

use crate::state::LINE;
use core::fmt;
use core::mem::{offset_of, size_of};

/// What the first eight bytes of a region are.
pub const MAGIC: u64 = u64::from_le_bytes(*b"vellring");
/// The version of this layout and of the protocol over it. Any change of either is a new number.
pub const VERSION: u32 = 1;
/// The most rings of a region.
pub const RINGS_MAX: u32 = 1024;
/// The most slots of a ring.
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

// Offsets and the product of the largest numbers need 43 bits.
const _: () = assert!(usize::BITS >= 64);

/// The start of a region. These structures only say where fields lie; nothing refers to one.
#[repr(C, align(64))]
struct Header {
    magic: u64,
    /// The version, and the number of rings in the upper half.
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

/// Three numbers, and where things lie by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    rings: u32,
    slots: u32,
    data: u32,
}

/// Which number of a layout is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// Rings: 1 to [`RINGS_MAX`].
    Rings,
    /// Slots of a ring: a power of two up to [`SLOTS_MAX`].
    Slots,
    /// Bytes of data of a slot: a multiple of 64 from 64 to [`DATA_MAX`].
    Data,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rings => write!(f, "the number of rings is not between 1 and {RINGS_MAX}"),
            Self::Slots => write!(f, "the slots of a ring are not a power of two up to {SLOTS_MAX}"),
            Self::Data => write!(f, "the bytes of a slot are not a multiple of 64 up to {DATA_MAX}"),
        }
    }
}

impl core::error::Error for LayoutError {}

impl Layout {
    /// `rings`, one for each group of cores; `slots`, the calls that one ring can have under way; `data`, the bytes
    /// that a call can carry either way.
    pub const fn new(rings: u32, slots: u32, data: u32) -> Result<Self, LayoutError> {
        if rings == 0 || rings > RINGS_MAX {
            return Err(LayoutError::Rings);
        }
        if !slots.is_power_of_two() || slots > SLOTS_MAX {
            return Err(LayoutError::Slots);
        }
        if data == 0 || data > DATA_MAX || !data.is_multiple_of(LINE as u32) {
            return Err(LayoutError::Data);
        }
        Ok(Self { rings, slots, data })
    }

    /// Rings of the region.
    #[must_use]
    pub const fn rings(&self) -> u32 {
        self.rings
    }

    /// Slots of each ring.
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
        let slots = self.rings as usize * self.slots as usize;
        (self.data_start() + slots * self.data as usize).next_multiple_of(PAGE)
    }

    const fn data_start(&self) -> usize {
        (size_of::<Header>() + self.rings as usize * self.ring_bytes()).next_multiple_of(PAGE)
    }

    const fn ring_bytes(&self) -> usize {
        // The slots begin at a multiple of 128, as do pairs of lines that are fetched together.
        size_of::<RingLines>() + self.slots as usize * size_of::<SlotLines>()
    }

    pub(crate) const fn epoch() -> usize {
        offset_of!(Header, epoch)
    }

    pub(crate) const fn bell(&self, ring: u32) -> usize {
        size_of::<Header>() + ring as usize * self.ring_bytes() + offset_of!(RingLines, bell)
    }

    pub(crate) const fn core(&self, ring: u32) -> usize {
        self.bell(ring) + offset_of!(RingLines, core)
    }

    pub(crate) const fn hints(&self, ring: u32) -> usize {
        self.bell(ring) + offset_of!(RingLines, hints)
    }

    pub(crate) const fn state(&self, ring: u32, slot: u32) -> usize {
        self.bell(ring) + size_of::<RingLines>() + slot as usize * size_of::<SlotLines>()
    }

    pub(crate) const fn spin(&self, ring: u32, slot: u32) -> usize {
        self.state(ring, slot) + offset_of!(SlotLines, spin)
    }

    pub(crate) const fn request(&self, ring: u32, slot: u32) -> usize {
        self.state(ring, slot) + offset_of!(SlotLines, request)
    }

    pub(crate) const fn response(&self, ring: u32, slot: u32) -> usize {
        self.state(ring, slot) + offset_of!(SlotLines, response)
    }

    pub(crate) const fn data(&self, ring: u32, slot: u32) -> usize {
        let before = ring as usize * self.slots as usize + slot as usize;
        self.data_start() + before * self.data as usize
    }

    /// The words at the start of the region.
    pub(crate) const fn to_words(self) -> [u64; HEADER_WORDS] {
        let version_rings = VERSION as u64 | (self.rings as u64) << 32;
        [MAGIC, version_rings, self.slots as u64 | (self.data as u64) << 32, self.bytes() as u64]
    }

    /// The layout that these words say; None when they are not of this version or make no sense.
    pub(crate) const fn from_words(words: [u64; HEADER_WORDS]) -> Option<Self> {
        let [magic, version_rings, slots_data, bytes] = words;
        if magic != MAGIC || version_rings as u32 != VERSION {
            return None;
        }
        match Self::new((version_rings >> 32) as u32, slots_data as u32, (slots_data >> 32) as u32) {
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
        assert_eq!(Layout::new(0, 1, 64), Err(LayoutError::Rings));
        assert_eq!(Layout::new(RINGS_MAX + 1, 1, 64), Err(LayoutError::Rings));
        for slots in [0, 3, 512, u32::MAX] {
            assert_eq!(Layout::new(1, slots, 64), Err(LayoutError::Slots));
        }
        for data in [0, 63, 65, DATA_MAX + 64, u32::MAX] {
            assert_eq!(Layout::new(1, 1, data), Err(LayoutError::Data));
        }
        assert_eq!(Layout::new(RINGS_MAX, SLOTS_MAX, DATA_MAX).map(|l| l.bytes() >> 40), Ok(4));
    }

    #[test]
    fn nothing_overlaps_and_all_is_inside() {
        for (rings, slots, data) in [(1, 1, 64), (3, 4, 192), (2, if cfg!(miri) { 8 } else { 256 }, 4096)] {
            let layout = Layout::new(rings, slots, data).unwrap();
            let mut parts: Vec<(usize, usize)> = Vec::from([(0, 32), (Layout::epoch(), 4)]);
            for ring in 0..rings {
                parts.extend([(layout.bell(ring), 4), (layout.core(ring), 4), (layout.hints(ring), 32)]);
                for slot in 0..slots {
                    parts.extend([
                        (layout.state(ring, slot), 4),
                        (layout.spin(ring, slot), 4),
                        (layout.request(ring, slot), 64),
                        (layout.response(ring, slot), 64),
                        (layout.data(ring, slot), data as usize),
                    ]);
                    assert!(layout.state(ring, slot).is_multiple_of(128));
                    assert!(layout.data(ring, slot).is_multiple_of(64));
                }
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
    fn the_header_says_the_layout_or_nothing() {
        let layout = Layout::new(2, 16, 4096).unwrap();
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
