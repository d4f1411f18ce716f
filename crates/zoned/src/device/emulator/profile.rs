//! What real devices are like, as published measurements show them.

use crate::device::geometry::Geometry;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A device to be emulated: sizes, limits, and how long it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// Sizes and limits.
    pub geometry: Geometry,
    /// Blocks of a zone that can be written.
    pub capacity: u64,
    /// Pointers are found further than what was written, where that is allowed ([`run_ahead`](crate::device::ZonedDevice::run_ahead)).
    pub runs_ahead: bool,
    /// How long it takes.
    pub timing: Timing,
}

/// What a device consists of, for the model of [`Model`](super::Model).
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Channels, which carry pages between the dies and the controller.
    pub channels: u32,
    /// Dies of each channel.
    pub dies_per_channel: u32,
    /// A zone lies on all dies, page by page, instead of on one.
    pub is_striped: bool,
    /// Bytes that a die writes and reads as one.
    pub page: u64,
    /// Bytes per second to the write buffer.
    pub host_rate: u64,
    /// Bytes per second of a channel, towards dies.
    pub channel_write_rate: u64,
    /// Bytes per second of a channel, from dies.
    pub channel_read_rate: u64,
    /// Bytes per second that a die writes.
    pub die_write_rate: u64,
    /// Bytes per second that a die reads.
    pub die_read_rate: u64,
    /// What a page costs a die more when the one before was of another zone, in nanoseconds.
    pub die_switch_ns: u64,
    /// Bytes of the write buffer, which all zones share.
    pub buffer: u64,
    /// From a write's arrival to its answer, without waiting and transfer, in nanoseconds.
    pub write_ns: u64,
    /// From a read's arrival to its answer, without waiting and transfer, in nanoseconds.
    pub read_ns: u64,
    /// Finishing a full zone, in nanoseconds.
    pub finish_least_ns: u64,
    /// Finishing an empty zone takes this much longer; others in proportion, in nanoseconds.
    pub finish_rest_ns: u64,
    /// Resetting an empty zone, in nanoseconds.
    pub reset_least_ns: u64,
    /// Resetting a full zone takes this much longer; others in proportion, in nanoseconds.
    pub reset_rest_ns: u64,
    /// Times of dies are drawn between 100 - this and 100 + this percent.
    pub jitter_percent: u64,
}

/// A small-zone device, of the class of Samsung's PM1731a: 40,704 zones of 96 MB, each on one die of 16 channels with 8 dies.
///
/// A zone writes about 40 and reads about 200 MB/s; a channel carries about 600 MB/s. Two that read on the same channel have 19 % less each, on
/// the same die less than half.
pub const SMALL_ZONE: Profile = Profile {
    name: "small-zone",
    geometry: Geometry {
        block_size: 4096,
        zones: 40_704,
        zone_blocks: 96_000_000 / 4096,
        open_max: 256,
        active_max: 256,
        write_blocks_max: MIB / 4096,
    },
    capacity: 96_000_000 / 4096,
    runs_ahead: false,
    timing: Timing {
        channels: 16,
        dies_per_channel: 8,
        is_striped: false,
        page: 16 * KIB,
        host_rate: 6_000_000_000,
        channel_write_rate: 600_000_000,
        channel_read_rate: 325_000_000,
        die_write_rate: 40_000_000,
        die_read_rate: 200_000_000,
        die_switch_ns: 20_000,
        buffer: 8 * MIB,
        write_ns: 10_000,
        read_ns: 10_000,
        finish_least_ns: 1_000_000,
        finish_rest_ns: 10_000_000,
        reset_least_ns: 1_000_000,
        reset_rest_ns: 3_000_000,
        jitter_percent: 10,
    },
};

/// A large-zone device, Western Digital's ZN540: 904 zones of 2048 MiB, of which 1077 MiB can be written, each on all dies; 14 active zones.
///
/// One zone writes 1146 MiB/s, and two together no more. A write of 4 KiB takes 11.4 us; finishing a nearly empty zone 908 ms, a
/// nearly full one 2.6 ms; resetting a full one 16 ms.
pub const LARGE_ZONE: Profile = Profile {
    name: "large-zone",
    geometry: Geometry {
        block_size: 4096,
        zones: 904,
        zone_blocks: 2048 * MIB / 4096,
        open_max: 14,
        active_max: 14,
        write_blocks_max: MIB / 4096,
    },
    capacity: 1077 * MIB / 4096,
    runs_ahead: false,
    timing: Timing {
        channels: 8,
        dies_per_channel: 4,
        is_striped: true,
        page: 64 * KIB,
        host_rate: 3_200_000_000,
        channel_write_rate: 600_000_000,
        channel_read_rate: 600_000_000,
        die_write_rate: 1146 * MIB / 32,
        die_read_rate: 150_000_000,
        die_switch_ns: 0,
        buffer: 8 * MIB,
        write_ns: 10_000,
        read_ns: 10_000,
        finish_least_ns: 2_600_000,
        finish_rest_ns: 905_400_000,
        reset_least_ns: 5_000_000,
        reset_rest_ns: 11_000_000,
        jitter_percent: 10,
    },
};

impl Profile {
    /// The profile that is called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [SMALL_ZONE, LARGE_ZONE].into_iter().find(|profile| profile.name == name)
    }

    /// A device that is smaller than the real one, for tests: so many zones, of so many blocks, with capacity in proportion.
    #[must_use]
    pub fn scaled(mut self, zones: u32, zone_blocks: u64) -> Self {
        let capacity =
            u128::from(self.capacity) * u128::from(zone_blocks) / u128::from(self.geometry.zone_blocks);
        self.capacity = (capacity as u64).clamp(1, zone_blocks.max(1));
        self.geometry.zones = zones;
        self.geometry.zone_blocks = zone_blocks;
        self
    }

    /// With pointers that are found further than what was written after a loss of power, where that is allowed.
    #[must_use]
    pub fn running_ahead(mut self) -> Self {
        self.runs_ahead = true;
        self
    }

    /// With blocks of another size.
    #[must_use]
    pub fn with_block_size(mut self, block_size: u32) -> Self {
        self.geometry.block_size = block_size;
        self
    }

    /// With other limits of open and active zones; 0: none.
    #[must_use]
    pub fn with_limits(mut self, open_max: u32, active_max: u32) -> Self {
        self.geometry.open_max = open_max;
        self.geometry.active_max = active_max;
        self
    }
}
