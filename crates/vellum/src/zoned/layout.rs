//! How zones are laid out on a file or a disk that has none.

use super::args::{EmulateArg, FormatArgs};
use std::fs::File;
use vellum_pool::bytes::Bytes;
use vellum_service::Failure;
use vellum_zoned::device::emulator::{Emulated, LARGE_ZONE, Profile, SMALL_ZONE};
use vellum_zoned::device::{BLOCK_SIZES, Conventional, Geometry, Result, ZONES_MAX, zone_file_length};

/// Zones that a store is useful with, at the least.
const ZONES_LEAST: u64 = 32;
/// As many as this are laid out, if zones have a size from
const ZONES_WANTED: u64 = 256;
/// this
const ZONE_LEAST: u64 = 1 << 20;
/// to this.
const ZONE_MOST: u64 = 256 << 20;
/// Smallest zone that may be asked for.
const ZONE_SMALLEST: u64 = 64 << 10;

/// What was asked for.
#[derive(Debug)]
pub(super) struct Layout {
    /// Of a file that is new or empty.
    pub(super) size: Option<u64>,
    zone_size: Option<u64>,
    block_size: Option<u32>,
    emulate: Option<Profile>,
}

impl Layout {
    pub(super) fn asked(arguments: &FormatArgs) -> std::result::Result<Self, Failure> {
        let bytes = |option: &str, text: &Option<String>| {
            let parse = |text: &String| text.parse::<Bytes>().map(|bytes| bytes.0);
            let refused = |why| Failure::input(format!("option --{option} {why}"));
            text.as_ref().map(parse).transpose().map_err(refused)
        };
        let layout = Self {
            size: bytes("size", &arguments.size)?,
            zone_size: bytes("zone-size", &arguments.zone_size)?,
            block_size: arguments.block_size,
            emulate: arguments.emulate.map(|device| match device {
                EmulateArg::SmallZone => SMALL_ZONE,
                EmulateArg::LargeZone => LARGE_ZONE,
            }),
        };
        if let Some(size) = layout.block_size.filter(|size| !BLOCK_SIZES.contains(size)) {
            return Err(Failure::input(format!("option --block-size {size}: give 512 or 4096")));
        }
        let block = u64::from(layout.block());
        if let Some(size) =
            layout.zone_size.filter(|size| *size < ZONE_SMALLEST || !size.is_multiple_of(block))
        {
            let size = Bytes(size);
            return Err(Failure::input(format!("option --zone-size {size}: give a multiple of 64K or more")));
        }
        Ok(layout)
    }

    /// Whether nothing was asked for.
    pub(super) fn is_default(&self) -> bool {
        self.size.is_none() && self.zone_size.is_none() && self.block_size.is_none() && self.emulate.is_none()
    }

    /// Whether it is to be used like another device.
    pub(super) fn is_emulated(&self) -> bool {
        self.emulate.is_some()
    }

    fn block(&self) -> u32 {
        self.block_size.unwrap_or(4096)
    }

    /// Sizes and limits on so many bytes; why not, and what to give instead.
    pub(super) fn geometry(&self, length: u64) -> std::result::Result<Geometry, String> {
        let block = self.block();
        let mut geometry = match &self.emulate {
            Some(profile) => Geometry { block_size: block, ..profile.geometry.clone() },
            None => Geometry {
                block_size: block,
                zones: 0,
                zone_blocks: 0,
                open_max: 0,
                active_max: 0,
                write_blocks_max: 1,
            },
        };
        let usual = match &self.emulate {
            Some(profile) => profile.geometry.byte_at(1, 0),
            None => {
                let wanted = (length / ZONES_WANTED).max(1);
                (1 << wanted.ilog2()).clamp(ZONE_LEAST, ZONE_MOST)
            }
        };
        let zone = self.zone_size.unwrap_or(usual);
        geometry.zone_blocks = zone / u64::from(block);
        geometry.zones = (length / zone).min(u64::from(ZONES_MAX)) as u32;
        // What lies in front of the zones takes the place of some.
        while geometry.zones > 0 && zone_file_length(&geometry) > length {
            geometry.zones -= 1;
        }
        if u64::from(geometry.zones) < ZONES_LEAST {
            let all = Geometry { zones: ZONES_LEAST as u32, ..geometry };
            let needed = zone_file_length(&all).next_multiple_of(1 << 20);
            return Err(format!(
                "{} are too small for {ZONES_LEAST} zones of {}: {} are needed",
                Bytes(length),
                Bytes(zone),
                Bytes(needed)
            ));
        }
        Ok(geometry)
    }

    /// Lays zones out. What the file held is lost.
    pub(super) fn write_zones(&self, file: File, geometry: &Geometry) -> Result<()> {
        match &self.emulate {
            Some(profile) => {
                let profile = profile.clone().with_block_size(geometry.block_size);
                let profile = profile.scaled(geometry.zones, geometry.zone_blocks);
                Emulated::create(file, profile, 1).map(drop)
            }
            None => {
                let Geometry { block_size, zones, zone_blocks, .. } = *geometry;
                Conventional::create(file, block_size, zones, zone_blocks).map(drop)
            }
        }
    }
}
