//! The experiment of checkpoint isolation: how others' reads and writes fare on a zoned device while images of checkpoints are written.
//!
//! Devices are emulated, and time is virtual: the same numbers come out on every machine. What the model leaves out is said in
//! `docs/design/zoned.md`.

mod load;
mod report;

pub use report::{Report, Row, heading, table};

use crate::failure::{Failure, Result};
use load::{Images, LoadResult, OtherLoad, Zones, run};
use serde::Serialize;
use vellum_zoned::device::emulator::{LARGE_ZONE, Nanos, Profile, Random, SMALL_ZONE};
use vellum_zoned::pace::{Budget, Direction};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Sizes of others' calls in the experiment of the source, in bytes.
pub const SIZES: [u64; 4] = [4 * KIB, 16 * KIB, 64 * KIB, 192 * KIB];
/// Others' bytes per second in the experiment of the source.
pub const RATES: [u64; 3] = [5_000_000, 50_000_000, 200_000_000];
/// Checkpoints at once in the experiment of the source, beside none.
pub const CHECKPOINTS: [usize; 3] = [1, 2, 3];
/// Bytes of an image.
const IMAGE: u64 = 1 << 30;
/// What the kernel writes of an image at once, and has under way of it, when nobody paces it.
const UNPACED: (u64, usize) = (MIB, 16);
/// What is written of an image at once when it is paced, and may be under way.
const PACED: (u64, usize) = (4 * KIB, 64);
/// Channels of a device with zones of one die that images get, of 16.
const CHANNELS_OF_IMAGES: u32 = 4;

/// What is done for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nothing.
    Neither,
    /// Images have channels of their own, where zones have channels.
    Placed,
    /// Images are paced.
    Paced,
    Both,
}

impl Mode {
    pub const ALL: [Self; 4] = [Self::Neither, Self::Placed, Self::Paced, Self::Both];

    fn is_placed(self) -> bool {
        matches!(self, Self::Placed | Self::Both)
    }

    fn is_paced(self) -> bool {
        matches!(self, Self::Paced | Self::Both)
    }

    /// As tables call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Neither => "neither",
            Self::Placed => "placed",
            Self::Paced => "paced",
            Self::Both => "both",
        }
    }
}

/// What to try.
#[derive(Clone, Debug)]
pub struct Plan {
    pub devices: Vec<Profile>,
    /// A factor for the bytes of an image.
    pub scale: f64,
}

impl Plan {
    /// Devices by name; all when there are none.
    pub fn named(names: &[String], scale: f64) -> Result<Self> {
        let find = |name: &String| {
            Profile::named(name).ok_or_else(|| {
                let all = format!("{}, {}", SMALL_ZONE.name, LARGE_ZONE.name);
                Failure::bad_input(format!("option --devices {name}: there are {all}"))
            })
        };
        let mut devices = names.iter().map(find).collect::<Result<Vec<_>>>()?;
        if devices.is_empty() {
            devices = vec![SMALL_ZONE, LARGE_ZONE];
        }
        Ok(Self { devices, scale })
    }
}

/// Tries everything; hands each row to `each` as soon as it is there. Ends early when the user asks.
pub fn isolation(plan: &Plan, mut each: impl FnMut(&Row)) -> Report {
    let mut rows = Vec::new();
    let bytes = ((IMAGE as f64 * plan.scale) as u64).max(MIB);
    'all: for device in &plan.devices {
        for direction in [Direction::Write, Direction::Read] {
            for size in SIZES {
                for rate in RATES {
                    let others = OtherLoad { direction, bytes: size, rate };
                    for checkpoints in CHECKPOINTS {
                        if crate::interrupt::is_requested() {
                            break 'all;
                        }
                        for mode in Mode::ALL {
                            let row = one(device, others, checkpoints, bytes, mode);
                            each(&row);
                            rows.push(row);
                        }
                    }
                }
            }
        }
    }
    Report { image_bytes: bytes, rows }
}

fn one(device: &Profile, others: OtherLoad, checkpoints: usize, bytes: u64, mode: Mode) -> Row {
    let zones = zones(device, mode);
    let images = |count: usize, mode: Mode| {
        let (piece, depth) = if mode.is_paced() { PACED } else { UNPACED };
        let budget = mode.is_paced().then(|| Budget::of_rate(rate_of(device, &zones.images)));
        Images { count, bytes, piece, depth, budget }
    };
    let with = run(device, Some(others), &images(checkpoints, mode), &zones, None);
    // As long, so that the same calls are compared.
    let time = with.images_took.unwrap_or(Nanos::MAX).clamp(1_000_000_000, 30_000_000_000);
    let without = run(device, Some(others), &images(0, mode), &zones, Some(time));
    let alone = run(device, None, &images(checkpoints, mode), &zones, None);
    Row::of(device.name, others, checkpoints, mode, [&without, &with, &alone])
}

/// Bytes per second that these zones can be written with together, as calibration would find.
fn rate_of(device: &Profile, zones: &[u32]) -> u64 {
    let timing = &device.timing;
    let dies = u64::from(timing.channels * timing.dies_per_channel);
    let used = if timing.is_striped { dies } else { dies.min(zones.len() as u64) };
    let channels = if timing.is_striped {
        timing.channels.into()
    } else {
        used.div_ceil(u64::from(timing.dies_per_channel))
    };
    (used * timing.die_write_rate).min(channels * timing.channel_write_rate).min(timing.host_rate)
}

/// Zones of others and of images. Not placed, they lie anywhere, and share channels and dies.
fn zones(device: &Profile, mode: Mode) -> Zones {
    let timing = &device.timing;
    if timing.is_striped {
        // Every zone lies on all dies: there is no place to choose.
        return Zones { others: (0..4).collect(), images: (100..104).collect() };
    }
    let dies = timing.channels * timing.dies_per_channel;
    let is_images = |zone: &u32| zone % timing.channels < CHANNELS_OF_IMAGES;
    let (images, others): (Vec<u32>, Vec<u32>) = (0..dies).partition(is_images);
    if mode.is_placed() {
        return Zones { others, images };
    }
    let mut random = Random::new(3);
    let mut anywhere = |count: usize, from: u32| {
        (0..count).map(|_| from + random.below(dies.into()) as u32).collect::<Vec<_>>()
    };
    Zones { others: anywhere(others.len(), 0), images: anywhere(images.len(), dies) }
}

/// The value that `part` of all are not above; 0 of none.
fn quantile(values: &mut [Nanos], part: f64) -> Nanos {
    values.sort_unstable();
    let at = ((values.len() as f64 * part).ceil() as usize).saturating_sub(1);
    values.get(at).copied().unwrap_or(0)
}

/// What `seen` is by mean and 99th percentile, in nanoseconds.
fn latencies(seen: &LoadResult) -> (f64, f64) {
    let mut values = seen.latencies.clone();
    let mean = values.iter().sum::<u64>() as f64 / values.len().max(1) as f64;
    (mean, quantile(&mut values, 0.99) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others at one point of the experiment, on a device with zones of one die.
    fn run_beside_three(direction: Direction, size: u64, rate: u64, mode: Mode) -> Row {
        one(&SMALL_ZONE, OtherLoad { direction, bytes: size, rate }, 3, 128 * MIB, mode)
    }

    #[test]
    fn placed_and_paced_images_disturb_nobody_and_end_in_time() {
        for direction in [Direction::Write, Direction::Read] {
            for (size, rate) in [(4 * KIB, 5_000_000), (4 * KIB, 200_000_000), (192 * KIB, 200_000_000)] {
                let row = run_beside_three(direction, size, rate, Mode::Both);
                let said = row.line();
                assert!(row.mean_ratio < 1.1 && row.p99_ratio < 1.1 && row.bandwidth_ratio > 0.9, "{said}");
                assert!(row.images_ratio.is_some_and(|ratio| ratio < 1.25), "{said}");
            }
        }
    }

    #[test]
    fn images_that_are_only_placed_or_only_paced_disturb() {
        let placed = run_beside_three(Direction::Write, 4 * KIB, 50_000_000, Mode::Placed);
        assert!(placed.p99_ratio > 10.0, "the write buffer is everybody's: {}", placed.line());
        let paced = run_beside_three(Direction::Read, 4 * KIB, 50_000_000, Mode::Paced);
        let said = paced.line();
        assert!(paced.p99_ratio > 1.1 || paced.images_ratio.is_none_or(|ratio| ratio > 1.25), "{said}");
    }
}
